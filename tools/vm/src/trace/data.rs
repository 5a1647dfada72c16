// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The file that perf reads: the trace of each CPU, the changes of the kernel's code, and the records that were made in the guest.
//!
//! - This module writes a file in which the guest is the machine itself. [`host`] shows the guest as a virtual machine of a host.
//! - [`clock`] has the guest's clock.

mod clock;
mod host;
mod marks;

use super::code::Poke;
use crate::error::{Error, OnFile, Result};
use clock::Clock;
use marks::OfGuest;
use perfdata::{
    Attr, Auxtrace, AuxtraceInfo, Event, EventDesc, Feature, Features, Flags, ItraceStart,
    KernelMmap, RecordType, SampleId, SampleType, TextPoke, Writer,
};
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// The number of perf's decoder: `PERF_AUXTRACE_INTEL_PT`.
const DECODER: u32 = 1;

/// The type of the PMU `intel_pt`. It is larger than the types that the guest's kernel assigns to its own PMUs.
const PMU: u32 = 64;

/// The bits of Intel PT's `config`.
const PT: u64 = 1;
const CYC: u64 = 1 << 1;
const MTC: u64 = 1 << 9;
const TSC: u64 = 1 << 10;
const NORETCOMP: u64 = 1 << 11;
const BRANCH: u64 = 1 << 13;
const MTC_PERIOD: u64 = 0xf << 14;

/// The ID of our event on CPU 0; those on the next CPUs follow. They are larger than any ID that a kernel assigns.
const IDS: u64 = 1 << 48;

/// A time near that of the trace. perf takes the highest bits of times from it, as a `TSC` packet lacks them. With 0, perf would assume
/// that there are no times.
const REFERENCE: u64 = 1;

/// The kind of context switch records in AUXTRACE_INFO: those of threads. With those of CPUs, perf's decoder would wait for a record at the
/// first switch in the trace. But the trace begins before the records, which begin with the recorder.
const SWITCHES_OF_THREADS: u64 = 2;

/// The feature sections of the guest's own file that describe the machine.
const OF_MACHINE: [Feature; 8] = [
    Feature::HOSTNAME,
    Feature::OSRELEASE,
    Feature::VERSION,
    Feature::ARCH,
    Feature::NRCPUS,
    Feature::CPUDESC,
    Feature::CPUID,
    Feature::TOTAL_MEM,
];

/// The data of a recording.
pub(super) struct Recording<'a> {
    /// The trace of each CPU.
    pub(super) traces: &'a [PathBuf],
    /// The changes of the kernel's code.
    pub(super) pokes: &'a [Poke],
    /// The file that was recorded in the guest, if there is one.
    pub(super) sideband: Option<&'a Path>,
    /// The first address and the end of the kernel's text.
    pub(super) text: (u64, u64),
    /// The guest's command.
    pub(super) command: &'a str,
    /// Whether the trace has `CYC` packets.
    pub(super) cyc: bool,
}

fn unusable(path: &Path) -> impl Fn(perfdata::Error) -> Error + '_ {
    move |error| Error::Other(format!("cannot use {}: {error}", path.display()))
}

/// Writes the records that perf's decoder needs first. `switches` is whether there are records of context switches.
fn begin(writer: &mut Writer<File>, clock: &Clock, switches: bool) -> perfdata::Result<()> {
    let switches = match switches {
        true => SWITCHES_OF_THREADS,
        false => 0,
    };
    // The words that perf's `intel_pt_info_fill()` writes.
    let words = [
        PMU.into(),
        clock.of_perf.shift,
        clock.of_perf.mult,
        clock.of_perf.zero,
        1,
        TSC,
        NORETCOMP,
        switches,
        0,
        1,
        MTC,
        MTC_PERIOD,
        0,
        0,
        CYC,
        0,
        0,
        0,
    ];
    let info = AuxtraceInfo {
        kind: DECODER,
        private: &words,
    };
    writer.record(&info, None)
}

/// The event of the trace. It is added to the events of the recording `others`.
fn event(others: Option<&perfdata::File<'_>>) -> Attr {
    let other = others.and_then(|file| file.events().first());
    Attr {
        // perf accepts a file only if all its events have the same read format.
        read_format: other.map(|(attr, _)| attr.read_format).unwrap_or_default(),
        kind: PMU,
        config: PT | TSC | NORETCOMP | BRANCH,
        sample_period: 1,
        sample_type: SampleType::IP
            | SampleType::TID
            | SampleType::TIME
            | SampleType::CPU
            | SampleType::IDENTIFIER,
        flags: Flags::SAMPLE_ID_ALL | Flags::EXCLUDE_USER | Flags::EXCLUDE_HV,
        ..Attr::default()
    }
}

impl Recording<'_> {
    /// The MMAP record for the kernel's text.
    fn kernel(&self) -> KernelMmap<'static> {
        let (start, end) = self.text;
        KernelMmap {
            addr: start,
            len: end - start,
            pgoff: start,
            filename: b"[kernel.kallsyms]_text",
        }
    }

    /// Writes the recording, with the guest as the machine itself.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let bytes = match self.sideband {
            Some(sideband) => fs::read(sideband).on("read", sideband)?,
            None => Vec::new(),
        };
        let sideband = match self.sideband {
            Some(path) => Some(perfdata::File::parse(&bytes).map_err(unusable(path))?),
            None => None,
        };
        let clock = sideband.as_ref().map_or(Ok(None), clock::of);
        let clock = clock.map_err(unusable(self.sideband.unwrap_or(path)))?;
        let clock = Clock::new(clock.unwrap_or(clock::TICKS), self.traces)?;
        self.put(path, sideband.as_ref(), &clock)
    }

    fn put(&self, path: &Path, sideband: Option<&perfdata::File<'_>>, clock: &Clock) -> Result<()> {
        let failed = unusable(path);
        let cpus = || (0u32..).zip(self.traces);
        let mut attr = event(sideband);
        attr.flags |= Flags::TEXT_POKE;
        if self.cyc {
            attr.config |= CYC;
        }
        let ids = cpus().map(|(cpu, _)| IDS + u64::from(cpu)).collect();
        let mut events = vec![(attr.clone(), ids)];
        events.extend(
            sideband
                .iter()
                .flat_map(|file| file.events().iter().cloned()),
        );
        let file = File::create(path).on("create", path)?;
        let mut writer = Writer::new(file, &events).map_err(&failed)?;

        begin(&mut writer, clock, sideband.is_some()).map_err(&failed)?;
        writer.record(&clock.of_perf, None).map_err(&failed)?;
        let none = SampleId::default();
        writer
            .record(&self.kernel(), Some((&none, &attr)))
            .map_err(&failed)?;
        for poke in self.pokes {
            let record = TextPoke {
                addr: poke.address,
                old: &poke.old,
                new: &poke.new,
            };
            let id = SampleId {
                pid: Some(u32::MAX),
                tid: Some(u32::MAX),
                time: Some(clock.nanoseconds(poke.when)),
                id: Some(IDS),
                cpu: Some(0),
                ..SampleId::default()
            };
            writer
                .record(&record, Some((&id, &attr)))
                .map_err(&failed)?;
        }
        if let Some(sideband) = sideband {
            let of_kernel = |kind: RecordType| !kind.is_user();
            let last = copy(sideband, &mut writer, clock.lead, of_kernel).map_err(&failed)?;
            for (cpu, _) in cpus() {
                // After the last record, the running task is unknown.
                let who = ItraceStart {
                    pid: u32::MAX,
                    tid: u32::MAX,
                };
                let id = SampleId {
                    pid: Some(who.pid),
                    tid: Some(who.tid),
                    time: Some(last),
                    id: Some(IDS + u64::from(cpu)),
                    cpu: Some(cpu),
                    ..SampleId::default()
                };
                writer.record(&who, Some((&id, &attr))).map_err(&failed)?;
            }
        }
        for (cpu, trace) in cpus() {
            copy_trace(cpu, trace, &mut writer, false)?;
        }
        let mut descriptions = vec![EventDesc {
            attr,
            ids: events
                .first()
                .map(|(_, ids)| ids.clone())
                .unwrap_or_default(),
            name: "intel_pt//k".to_owned(),
        }];
        if let Some(section) = sideband.and_then(|file| file.feature(Feature::EVENT_DESC)) {
            descriptions.extend(section.events().map_err(&failed)?);
        }
        let mut features = Features::new();
        let count = u32::try_from(self.traces.len()).unwrap_or(1);
        features
            .string(Feature::ARCH, "x86_64")
            .nrcpus(count, count);
        if let Some(sideband) = sideband {
            describe(sideband, &mut features);
        }
        features
            .cmdline(&["make", "trace", &format!("CMD={}", self.command)])
            .events(&descriptions)
            .pmu_mappings(&[(1, "software"), (PMU, "intel_pt")]);
        writer.finish(&features).map_err(&failed)?;
        Ok(())
    }
}

/// Copies the trace of a CPU. If `guest` is set, marks it as the trace of a virtual machine.
fn copy_trace(cpu: u32, path: &Path, writer: &mut Writer<File>, guest: bool) -> Result<()> {
    let failed = unusable(path);
    let file = File::open(path).on("open", path)?;
    let len = file.metadata().on("read", path)?.len();
    let mut file = BufReader::new(file);
    let mut buffer = vec![0; 1 << 20];
    let mut of_guest = OfGuest::default();
    // The trace is filled up with zeros, which are `PAD` packets.
    let size = len.next_multiple_of(8);
    // One record for the whole trace: perf reports errors for some packets that are split between two records.
    let aux = Auxtrace {
        size,
        offset: 0,
        reference: REFERENCE,
        idx: cpu,
        tid: u32::MAX,
        cpu,
    };
    writer.auxtrace(&aux).map_err(&failed)?;
    let mut left = len;
    while left != 0 {
        let max = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let part = buffer.get_mut(..max).unwrap_or_default();
        file.read_exact(part).on("read", path)?;
        if guest {
            of_guest.mark(part);
        }
        writer.payload(part).map_err(&failed)?;
        left -= u64::try_from(part.len()).unwrap_or(left);
    }
    let pad = usize::try_from(size - len).unwrap_or(0);
    writer
        .payload([0; 8].get(..pad).unwrap_or_default())
        .map_err(&failed)
}

/// Copies the feature sections of a recording that describe the machine.
fn describe(file: &perfdata::File<'_>, features: &mut Features) {
    for section in file.features() {
        if OF_MACHINE.contains(&section.feature) {
            features.raw(section.feature, section.bytes.to_vec());
        }
    }
}

/// Copies the records for which `wanted` returns true, and adds `lead` nanoseconds to their times. Returns the latest time. Records about
/// the kernel's text are not copied, as the plugin has recorded its changes completely.
fn copy(
    file: &perfdata::File<'_>,
    writer: &mut Writer<File>,
    lead: u64,
    wanted: impl Fn(RecordType) -> bool,
) -> perfdata::Result<u64> {
    let kind = file.events().first().map(|(attr, _)| attr.sample_type);
    let mut last = 0;
    for record in file.records() {
        let record = record?;
        let (event, id) = file.decode(&record)?;
        let of_text = matches!(
            event,
            Event::Mmap(_) | Event::TextPoke(..) | Event::Ksymbol(..)
        );
        if of_text || !wanted(record.kind) {
            continue;
        }
        let mut bytes = record.kind.0.to_le_bytes().to_vec();
        bytes.extend(record.misc.to_le_bytes());
        let len = record.body.len() + 8;
        bytes.extend(u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(record.body);
        // The sample ID is at the end of the record.
        if let (Some(mut id), Some(kind)) = (id, kind) {
            id.time = id.time.map(|time| time.saturating_add(lead));
            last = last.max(id.time.unwrap_or(0));
            bytes.truncate(bytes.len().saturating_sub(SampleId::len(kind)));
            id.encode(kind, &mut bytes);
        }
        writer.raw(&bytes)?;
    }
    Ok(last)
}
