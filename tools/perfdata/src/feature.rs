// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The feature sections, which follow the data section.

use crate::attr::Attr;
use crate::bpf::{self, BpfFunction};
use crate::bytes::{padding, to_u64, until_nul, Cursor};
use crate::{Error, Result};

/// The number of a feature section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Feature(pub u8);

impl Feature {
    /// Formats of tracepoints, in the format of `trace-cmd` version 0.6.
    pub const TRACING_DATA: Self = Self(1);
    /// Host's name.
    pub const HOSTNAME: Self = Self(3);
    /// Kernel's release.
    pub const OSRELEASE: Self = Self(4);
    /// Recorder's version.
    pub const VERSION: Self = Self(5);
    /// Machine architecture.
    pub const ARCH: Self = Self(6);
    /// Number of CPUs, present and online.
    pub const NRCPUS: Self = Self(7);
    /// Description of the CPU, for people.
    pub const CPUDESC: Self = Self(8);
    /// Identifier of the CPU, for programs.
    pub const CPUID: Self = Self(9);
    /// Size of the memory in KiB.
    pub const TOTAL_MEM: Self = Self(10);
    /// Recorder's arguments.
    pub const CMDLINE: Self = Self(11);
    /// The events with their names.
    pub const EVENT_DESC: Self = Self(12);
    /// Names of the PMUs' numbers.
    pub const PMU_MAPPINGS: Self = Self(16);
    /// Index of the AUXTRACE records.
    pub const AUXTRACE: Self = Self(18);
    /// First and last time of the records.
    pub const SAMPLE_TIME: Self = Self(21);
    /// Resolution of the clock.
    pub const CLOCKID: Self = Self(23);
    /// BPF programs.
    pub const BPF_PROG_INFO: Self = Self(25);
    /// A time of the clock, and the time of day at that moment.
    pub const CLOCK_DATA: Self = Self(29);
    /// Notes of the recorder: lines of `key=value`. They have no bit in the header, because `perf inject` calls a function for each bit and
    /// crashes if it has none. Their entry follows the table and begins with a magic number. The reader also accepts files that have the
    /// bit.
    pub const NOTES: Self = Self(255);
}

/// Magic number at the beginning of the entry of the notes. Offset and length of the section follow.
pub(crate) const NOTES_MAGIC: [u8; 8] = *b"AUXNOTES";

/// The length of the entry of the notes.
pub(crate) const NOTES_ENTRY: usize = 24;

/// Whether the entry of the notes follows the table of features, at whose end `table` is. If so, skips its magic number. `sections` are
/// the offsets and lengths of the others: what follows the table may also be one of them, with any content.
pub(crate) fn notes_follow(
    table: &mut Cursor<'_>,
    mut sections: impl Iterator<Item = (u64, u64)>,
) -> bool {
    let end = table.offset();
    let is_section =
        sections.any(|(at, len)| end.checked_sub(at).is_some_and(|before| before < len));
    !is_section && table.mark(&NOTES_MAGIC)
}

/// An index without entries.
const EMPTY_INDEX: [u8; 8] = [0; 8];

/// An event with its ids and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDesc {
    /// Attributes of the event.
    pub attr: Attr,
    /// Its ids, one for each file descriptor.
    pub ids: Vec<u64>,
    /// Its name, as the user gave it.
    pub name: String,
}

/// An entry of the index: the place of an AUXTRACE record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// File offset of the record.
    pub offset: u64,
    /// Length of the record without its payload.
    pub size: u64,
}

/// A time of a clock, and the time of day at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockData {
    /// Number of the clock.
    pub clockid: u32,
    /// Time of day, ns.
    pub wall: u64,
    /// Time of the clock, ns.
    pub clock: u64,
}

/// Appends a string in the format of feature sections: the padded length, then the string and at least one NUL, padded to a multiple of 64
/// bytes.
pub(crate) fn put_string(out: &mut Vec<u8>, text: impl AsRef<[u8]>) {
    let text = text.as_ref();
    let len = (text.len() + 1).next_multiple_of(64);
    out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    let end = out.len() + len;
    out.extend(until_nul(text));
    out.resize(end, 0);
}

pub(crate) fn get_string(c: &mut Cursor<'_>, field: &'static str) -> Result<String> {
    Ok(String::from_utf8_lossy(get_bytes(c, field)?).into_owned())
}

fn get_bytes<'a>(c: &mut Cursor<'a>, field: &'static str) -> Result<&'a [u8]> {
    let len = usize::try_from(c.u32(field)?).unwrap_or(usize::MAX);
    Ok(until_nul(c.take(len, field)?))
}

/// Checks the count `n` that was read at file offset `offset`: the remaining bytes must have space for `n` elements of at least `each`
/// bytes.
fn count(c: &Cursor<'_>, offset: u64, n: u64, each: usize, field: &'static str) -> Result<usize> {
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    if n > c.left() / each {
        return Err(Error::Invalid {
            field,
            offset,
            value: to_u64(n),
            why: "more than the section has space for",
        });
    }
    Ok(n)
}

/// The feature sections to be written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    sections: std::collections::BTreeMap<u8, Vec<u8>>,
}

impl Features {
    /// A set without sections.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a section with these bytes, padded to a multiple of 8.
    pub fn raw(&mut self, feature: Feature, mut bytes: Vec<u8>) -> &mut Self {
        bytes.resize(bytes.len() + padding(bytes.len()), 0);
        self.sections.insert(feature.0, bytes);
        self
    }

    /// Adds a section that is one string.
    pub fn string(&mut self, feature: Feature, text: &str) -> &mut Self {
        let mut out = Vec::new();
        put_string(&mut out, text);
        self.raw(feature, out)
    }

    /// Adds [`Feature::NRCPUS`].
    pub fn nrcpus(&mut self, present: u32, online: u32) -> &mut Self {
        let mut out = present.to_le_bytes().to_vec();
        out.extend(online.to_le_bytes());
        self.raw(Feature::NRCPUS, out)
    }

    /// Adds [`Feature::CMDLINE`]. Arguments need not be UTF-8.
    pub fn cmdline<S: AsRef<[u8]>>(&mut self, args: &[S]) -> &mut Self {
        let mut out = u32::try_from(args.len())
            .unwrap_or(0)
            .to_le_bytes()
            .to_vec();
        for arg in args {
            put_string(&mut out, arg.as_ref());
        }
        self.raw(Feature::CMDLINE, out)
    }

    /// Adds [`Feature::EVENT_DESC`].
    pub fn events(&mut self, events: &[EventDesc]) -> &mut Self {
        let len = events
            .iter()
            .map(|e| e.attr.encode().len())
            .max()
            .unwrap_or(64);
        let mut out = u32::try_from(events.len())
            .unwrap_or(0)
            .to_le_bytes()
            .to_vec();
        out.extend(u32::try_from(len).unwrap_or(0).to_le_bytes());
        for event in events {
            out.extend(event.attr.encode_at_least(len));
            out.extend(u32::try_from(event.ids.len()).unwrap_or(0).to_le_bytes());
            put_string(&mut out, &event.name);
            for id in &event.ids {
                out.extend(id.to_le_bytes());
            }
        }
        self.raw(Feature::EVENT_DESC, out)
    }

    /// Adds [`Feature::PMU_MAPPINGS`].
    pub fn pmu_mappings<S: AsRef<str>>(&mut self, pmus: &[(u32, S)]) -> &mut Self {
        let mut out = u32::try_from(pmus.len())
            .unwrap_or(0)
            .to_le_bytes()
            .to_vec();
        for (kind, name) in pmus {
            out.extend(kind.to_le_bytes());
            put_string(&mut out, name.as_ref());
        }
        self.raw(Feature::PMU_MAPPINGS, out)
    }

    /// Adds [`Feature::SAMPLE_TIME`].
    pub fn sample_time(&mut self, first: u64, last: u64) -> &mut Self {
        let mut out = first.to_le_bytes().to_vec();
        out.extend(last.to_le_bytes());
        self.raw(Feature::SAMPLE_TIME, out)
    }

    /// Adds [`Feature::CLOCKID`] and [`Feature::CLOCK_DATA`].
    pub fn clock(&mut self, resolution: u64, data: ClockData) -> &mut Self {
        self.raw(Feature::CLOCKID, resolution.to_le_bytes().to_vec());
        let mut out = 1_u32.to_le_bytes().to_vec();
        out.extend(data.clockid.to_le_bytes());
        out.extend(data.wall.to_le_bytes());
        out.extend(data.clock.to_le_bytes());
        self.raw(Feature::CLOCK_DATA, out)
    }

    /// Adds [`Feature::NOTES`].
    pub fn notes<K: AsRef<str>, V: AsRef<str>>(&mut self, notes: &[(K, V)]) -> &mut Self {
        let mut text = String::new();
        for (key, value) in notes {
            text.push_str(key.as_ref());
            text.push('=');
            text.push_str(&value.as_ref().replace('\n', " "));
            text.push('\n');
        }
        self.string(Feature::NOTES, &text)
    }

    /// One section, if it was added.
    #[must_use]
    pub fn get(&self, feature: Feature) -> Option<Section<'_>> {
        self.sections.get(&feature.0).map(|bytes| Section {
            feature,
            offset: 0,
            bytes,
        })
    }

    /// Encodes the table and the sections for file offset `at`, and the feature bits for the header. The caller writes the index of the
    /// AUXTRACE records, `index` bytes long, after them.
    pub(crate) fn encode(&self, at: u64, index: Option<u64>) -> (Vec<u8>, [u8; 32]) {
        let (notes, mut others): (Vec<_>, Vec<_>) = self
            .iter()
            .filter(|&(number, _)| Feature(number) != Feature::AUXTRACE)
            .partition(|(number, _)| Feature(*number) == Feature::NOTES);
        // A file counts as finished if its header has a feature bit. If there are only notes, an empty index adds one.
        let empty = others.is_empty() && !notes.is_empty() && index.is_none();
        let trace: Option<&[u8]> = if empty {
            Some(&EMPTY_INDEX)
        } else {
            index.map(|_| [].as_slice())
        };
        if let Some(trace) = trace {
            let place = others.partition_point(|&(number, _)| number < Feature::AUXTRACE.0);
            others.insert(place, (Feature::AUXTRACE.0, trace));
        }
        let mut bits = [0_u8; 32];
        let mut at = at + to_u64(others.len() * 16 + notes.len() * NOTES_ENTRY);
        let all = others.iter().chain(&notes);
        let behind = at + to_u64(all.map(|(_, bytes)| bytes.len()).sum());
        let mut table = Vec::new();
        let mut sections: Vec<u8> = Vec::new();
        for (number, bytes) in others.into_iter().chain(notes) {
            if Feature(number) == Feature::NOTES {
                table.extend(NOTES_MAGIC);
            } else {
                bits[usize::from(number / 8)] |= 1 << (number % 8);
            }
            let len = to_u64(bytes.len());
            let (place, len) = match index {
                Some(index) if Feature(number) == Feature::AUXTRACE => (behind, index),
                _ => (at, len),
            };
            table.extend(place.to_le_bytes());
            table.extend(len.to_le_bytes());
            sections.extend(bytes);
            at += to_u64(bytes.len());
        }
        table.extend(sections);
        (table, bits)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.sections
            .iter()
            .map(|(&number, bytes)| (number, bytes.as_slice()))
    }
}

/// A feature section that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section<'a> {
    /// The feature.
    pub feature: Feature,
    /// File offset of the section.
    pub offset: u64,
    /// Content of the section.
    pub bytes: &'a [u8],
}

impl Section<'_> {
    fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self.bytes, self.offset)
    }

    /// The section as one string.
    ///
    /// # Errors
    /// If the section ends inside the string.
    pub fn string(&self) -> Result<String> {
        get_string(&mut self.cursor(), "feature string")
    }

    /// The section as [`Feature::CMDLINE`].
    ///
    /// # Errors
    /// If it ends too early or its count is too large.
    pub fn cmdline(&self) -> Result<Vec<Vec<u8>>> {
        let mut c = self.cursor();
        let at = c.offset();
        let n = u64::from(c.u32("CMDLINE.nr")?);
        let n = count(&c, at, n, 4, "CMDLINE.nr")?;
        (0..n)
            .map(|_| Ok(get_bytes(&mut c, "CMDLINE argument")?.to_vec()))
            .collect()
    }

    /// The section as [`Feature::PMU_MAPPINGS`].
    ///
    /// # Errors
    /// If it ends too early or its count is too large.
    pub fn pmu_mappings(&self) -> Result<Vec<(u32, String)>> {
        let mut c = self.cursor();
        let at = c.offset();
        let n = u64::from(c.u32("PMU_MAPPINGS.nr")?);
        let n = count(&c, at, n, 8, "PMU_MAPPINGS.nr")?;
        (0..n)
            .map(|_| {
                Ok((
                    c.u32("PMU_MAPPINGS.type")?,
                    get_string(&mut c, "PMU_MAPPINGS.name")?,
                ))
            })
            .collect()
    }

    /// The section as [`Feature::EVENT_DESC`].
    ///
    /// # Errors
    /// If it ends too early, a count is too large or an attribute is bad.
    pub fn events(&self) -> Result<Vec<EventDesc>> {
        let mut c = self.cursor();
        let at = c.offset();
        let n = u64::from(c.u32("EVENT_DESC.nr")?);
        let size = usize::try_from(c.u32("EVENT_DESC.attr_size")?).unwrap_or(usize::MAX);
        let n = count(&c, at, n, size.saturating_add(8), "EVENT_DESC.nr")?;
        (0..n)
            .map(|_| {
                let at = c.offset();
                let attr = Attr::decode(c.take(size, "EVENT_DESC.attr")?, at)?;
                let at = c.offset();
                let nr = u64::from(c.u32("EVENT_DESC.nr_ids")?);
                let name = get_string(&mut c, "EVENT_DESC.name")?;
                let nr = count(&c, at, nr, 8, "EVENT_DESC.nr_ids")?;
                let ids = (0..nr)
                    .map(|_| c.u64("EVENT_DESC.id"))
                    .collect::<Result<_>>()?;
                Ok(EventDesc { attr, ids, name })
            })
            .collect()
    }

    /// The section as [`Feature::AUXTRACE`].
    ///
    /// # Errors
    /// If it ends too early or its count is too large.
    pub fn index(&self) -> Result<Vec<IndexEntry>> {
        let mut c = self.cursor();
        let at = c.offset();
        let n = c.u64("AUXTRACE index.nr")?;
        let n = count(&c, at, n, 16, "AUXTRACE index.nr")?;
        (0..n)
            .map(|_| {
                Ok(IndexEntry {
                    offset: c.u64("AUXTRACE index.file_offset")?,
                    size: c.u64("AUXTRACE index.sz")?,
                })
            })
            .collect()
    }

    /// The section as [`Feature::SAMPLE_TIME`].
    ///
    /// # Errors
    /// If it ends too early.
    pub fn sample_time(&self) -> Result<(u64, u64)> {
        let mut c = self.cursor();
        Ok((c.u64("SAMPLE_TIME.first")?, c.u64("SAMPLE_TIME.last")?))
    }

    /// The section as [`Feature::CLOCK_DATA`].
    ///
    /// # Errors
    /// If it ends too early.
    pub fn clock_data(&self) -> Result<ClockData> {
        let mut c = self.cursor();
        c.u32("CLOCK_DATA.version")?;
        Ok(ClockData {
            clockid: c.u32("CLOCK_DATA.clockid")?,
            wall: c.u64("CLOCK_DATA.wall")?,
            clock: c.u64("CLOCK_DATA.clock")?,
        })
    }

    /// The functions in the section as [`Feature::BPF_PROG_INFO`]. A program whose code the recorder was not permitted to read has no
    /// functions here.
    ///
    /// # Errors
    /// If it ends too early.
    pub fn bpf_functions(&self) -> Result<Vec<BpfFunction<'_>>> {
        bpf::functions(&mut self.cursor())
    }

    /// The section as [`Feature::NOTES`].
    ///
    /// # Errors
    /// If it ends too early.
    pub fn notes(&self) -> Result<Vec<(String, String)>> {
        let text = get_string(&mut self.cursor(), "notes")?;
        Ok(text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect())
    }
}
