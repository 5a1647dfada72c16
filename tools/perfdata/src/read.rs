// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reading a file.

use std::collections::HashMap;

use crate::attr::{Attr, Flags, SampleType};
use crate::bytes::{to_u64, Cursor};
use crate::feature::{notes_follow, Feature, IndexEntry, Section};
use crate::record::{Event, Record, RecordType, Records, SampleId};
use crate::spare;
use crate::{Error, Result, HEADER_LEN, MAGIC};

/// The events of a file, and the ids of their file descriptors.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    pub list: Vec<(Attr, Vec<u64>)>,
    by_id: HashMap<u64, usize>,
}

impl Events {
    fn new(list: Vec<(Attr, Vec<u64>)>) -> Self {
        let all = list.iter().enumerate();
        let by_id = all
            .flat_map(|(n, (_, ids))| ids.iter().map(move |&id| (id, n)))
            .collect();
        Self { list, by_id }
    }

    /// The number of the event with this id, as an index into `list`.
    pub fn with(&self, id: u64) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// The number of the event that wrote this record. 0, the first event, if the record does not identify its event.
    pub fn of(&self, record: &Record<'_>) -> usize {
        let identified = |(attr, _): &(Attr, Vec<u64>)| {
            attr.sample_type.contains(SampleType::IDENTIFIER)
                && attr.flags.contains(Flags::SAMPLE_ID_ALL)
        };
        if record.kind.is_user() || !self.list.iter().all(identified) {
            return 0;
        }
        // The identifier is the first word of every sample, and the last of every other record.
        let id = if record.kind == RecordType::SAMPLE {
            record.body.first_chunk::<8>()
        } else {
            record.body.last_chunk::<8>()
        };
        id.and_then(|id| self.with(u64::from_le_bytes(*id)))
            .unwrap_or(0)
    }

    /// Decodes a record: its fields, and its sample id (thread, time, event and CPU).
    pub fn decode<'a>(&self, record: &Record<'a>) -> Result<(Event<'a>, Option<SampleId>)> {
        let (attr, _) = &self.list[self.of(record)];
        Ok((record.event(attr)?, record.sample_id(attr)?.0))
    }
}

/// A perf.data file whose header, attributes and table of features were checked; its records are checked as they are read.
#[derive(Debug, Clone)]
pub struct File<'a> {
    bytes: &'a [u8],
    events: Events,
    data: &'a [u8],
    data_at: u64,
    finished: bool,
    spare: Vec<Section<'a>>,
    sections: Vec<Section<'a>>,
}

/// The bytes of a section. `at` is the file offset of the field that describes the section, for errors.
fn section<'a>(
    bytes: &'a [u8],
    at: u64,
    offset: u64,
    size: u64,
    field: &'static str,
) -> Result<&'a [u8]> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let len = usize::try_from(size).unwrap_or(usize::MAX);
    bytes
        .get(start..)
        .and_then(|rest| rest.get(..len))
        .ok_or(Error::Invalid {
            field,
            offset: at,
            value: offset,
            why: "the section is not within the file",
        })
}

/// The numbers of the features whose bits are set in the header.
pub(crate) fn numbers(bits: &[u8]) -> impl Iterator<Item = u8> + '_ {
    (0..=u8::MAX).filter(|number| {
        let byte = bits.get(usize::from(number / 8)).copied().unwrap_or(0);
        byte & 1 << (number % 8) != 0
    })
}

impl<'a> File<'a> {
    /// Parses everything but the records of the file `bytes`: header, attributes, ids and features.
    ///
    /// # Errors
    /// If `bytes` are no perf.data file, or a field is invalid. The error names the field and its file offset.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        Self::read(bytes, true)
    }

    /// Parses only the part before the data section, as if the file had no records and no features.
    pub(crate) fn front(bytes: &'a [u8]) -> Result<Self> {
        Self::read(bytes, false)
    }

    fn read(bytes: &'a [u8], whole: bool) -> Result<Self> {
        let mut c = Cursor::new(bytes, 0);
        let magic = c.take(8, "magic")?;
        if magic != MAGIC {
            let mut word = [0; 8];
            word.copy_from_slice(magic);
            let swapped = MAGIC.iter().rev().eq(magic);
            return Err(Error::Invalid {
                field: "magic",
                offset: 0,
                value: u64::from_le_bytes(word),
                why: if swapped {
                    "written by a machine of the other byte order"
                } else {
                    "not a perf.data file (PERFILE2)"
                },
            });
        }
        let size = c.u64("header.size")?;
        if size != HEADER_LEN {
            return Err(Error::Invalid {
                field: "header.size",
                offset: 8,
                value: size,
                why: if size == 16 {
                    "a stream for a pipe, not a file"
                } else {
                    "not the length of a file's header"
                },
            });
        }
        let attr_size = c.u64("header.attr_size")?;
        let attrs_at = c.u64("header.attrs.offset")?;
        let attrs_size = c.u64("header.attrs.size")?;
        let data_at = c.u64("header.data.offset")?;
        let data_size = c.u64("header.data.size")?;
        c.take(16, "header.event_types")?;
        let bits = c.take(32, "header.features")?;
        let (data_size, bits) = match whole {
            true => (data_size, bits),
            false => (0, &[0; 32][..]),
        };
        let finished = bits.iter().any(|&b| b != 0);

        let events = Events::new(Self::attrs(bytes, attr_size, attrs_at, attrs_size)?);
        let data = if finished || data_size != 0 {
            section(bytes, 40, data_at, data_size, "header.data")?
        } else {
            // The recorder was stopped before it wrote the size: the data section extends to the end of the file.
            let rest = to_u64(bytes.len()).saturating_sub(data_at);
            section(bytes, 40, data_at, rest, "header.data")?
        };

        let spare_at = attrs_at.saturating_add(attrs_size);
        let spare = data_at.checked_sub(spare_at).map_or(Vec::new(), |size| {
            section(bytes, 40, spare_at, size, "spare")
                .map_or(Vec::new(), |bytes| spare::parse(bytes, spare_at))
        });

        let mut sections: Vec<Section<'_>> = Vec::new();
        let table_at = data_at.saturating_add(to_u64(data.len()));
        let table = section(
            bytes,
            40,
            table_at,
            to_u64(bytes.len()).saturating_sub(table_at),
            "feature table",
        )?;
        let mut table = Cursor::new(table, table_at);
        let read = |number, table: &mut Cursor<'_>| {
            let at = table.offset();
            let offset = table.u64("feature section.offset")?;
            let size = table.u64("feature section.size")?;
            Ok(Section {
                feature: Feature(number),
                offset,
                bytes: section(bytes, at, offset, size, "feature section")?,
            })
        };
        for number in numbers(bits) {
            sections.push(read(number, &mut table)?);
        }
        // If the header has the bit of the notes, their entry is in the table and has no magic number.
        let has_bit = numbers(bits).any(|number| number == Feature::NOTES.0);
        let places = sections.iter().map(|s| (s.offset, to_u64(s.bytes.len())));
        if finished && !has_bit && notes_follow(&mut table, places) {
            sections.push(read(Feature::NOTES.0, &mut table)?);
        }
        Ok(Self {
            bytes,
            events,
            data,
            data_at,
            finished,
            spare,
            sections,
        })
    }

    fn attrs(bytes: &[u8], attr_size: u64, at: u64, size: u64) -> Result<Vec<(Attr, Vec<u64>)>> {
        let table = section(bytes, 24, at, size, "header.attrs")?;
        let entry = usize::try_from(attr_size).unwrap_or(usize::MAX);
        if !(80..=4096).contains(&entry) || table.len() % entry != 0 || table.is_empty() {
            return Err(Error::Invalid {
                field: "header.attr_size",
                offset: 16,
                value: attr_size,
                why: "the section of attributes is not made of such",
            });
        }
        let mut out = Vec::new();
        // Overlapping sections could give a short file any number of ids: limit the sum.
        let mut space = bytes.len() / 8;
        let mut c = Cursor::new(table, at);
        while c.left() != 0 {
            let attr_at = c.offset();
            let attr = Attr::decode(c.take(entry - 16, "attr")?, attr_at)?;
            let ids_at = c.offset();
            let offset = c.u64("attr ids.offset")?;
            let size = c.u64("attr ids.size")?;
            let ids = section(bytes, ids_at, offset, size, "attr ids")?;
            space = space.checked_sub(ids.len() / 8).ok_or(Error::Invalid {
                field: "attr ids.size",
                offset: ids_at + 8,
                value: size,
                why: "all events together have more ids than the file has space for",
            })?;
            let mut ids = Cursor::new(ids, offset);
            let mut list = Vec::new();
            while ids.left() != 0 {
                list.push(ids.u64("attr id")?);
            }
            out.push((attr, list));
        }
        Ok(out)
    }

    /// The events and the ids of their file descriptors.
    #[must_use]
    pub fn events(&self) -> &[(Attr, Vec<u64>)] {
        &self.events.list
    }

    /// The number, in [`events`](Self::events), of the event that has this id.
    #[must_use]
    pub fn event_with(&self, id: u64) -> Option<usize> {
        self.events.with(id)
    }

    /// Whether the recorder has finished the file. An unfinished file has no features, and its last record may be incomplete.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// File offset and length of the data section.
    #[must_use]
    pub fn data_section(&self) -> (u64, u64) {
        (self.data_at, to_u64(self.data.len()))
    }

    /// The records in file order.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records::new(self.data, self.data_at)
    }

    /// The record at this place in the file, whatever its type.
    ///
    /// # Errors
    /// If there is no valid record.
    pub fn record_at(&self, entry: IndexEntry) -> Result<Record<'a>> {
        let left = to_u64(self.bytes.len()).saturating_sub(entry.offset);
        let rest = section(
            self.bytes,
            entry.offset,
            entry.offset,
            left,
            "AUXTRACE index.file_offset",
        )?;
        Records::new(rest, entry.offset)
            .next()
            .unwrap_or(Err(Error::Short {
                field: "record",
                offset: entry.offset,
                need: 8,
                have: 0,
            }))
    }

    /// The feature sections.
    #[must_use]
    pub fn features(&self) -> &[Section<'a>] {
        &self.sections
    }

    /// The spare features: the recorder writes them at the beginning of the file, for [`recover`](crate::recover).
    #[must_use]
    pub fn spare(&self) -> &[Section<'a>] {
        &self.spare
    }

    /// The section of one feature, if the file has it.
    #[must_use]
    pub fn feature(&self, feature: Feature) -> Option<Section<'a>> {
        self.sections.iter().find(|s| s.feature == feature).copied()
    }

    /// The number, in [`events`](Self::events), of the event that wrote this record. 0, the first event, if the record does not identify
    /// its event.
    #[must_use]
    pub fn event_of(&self, record: &Record<'_>) -> usize {
        self.events.of(record)
    }

    /// Decodes a record: its fields, and its sample id (thread, time, event and CPU).
    ///
    /// # Errors
    /// If the record is too short for its type.
    pub fn decode(&self, record: &Record<'a>) -> Result<(Event<'a>, Option<SampleId>)> {
        self.events.decode(record)
    }

    pub(crate) fn into_events(self) -> Events {
        self.events
    }
}
