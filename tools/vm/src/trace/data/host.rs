// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The recording that a host would have made of QEMU. `perf inject --guest-data` merges the guest's recording into it.
//!
//! In this recording, each virtual CPU has its own host CPU and its own thread. The thread IDs are the process ID plus 1, 2 and so on. In
//! reality, QEMU may run all virtual CPUs in one thread.
//!
//! Host and guest have the same clock. Neither file has a TIME_CONV record, so perf does not convert times.

use super::clock::{self, Clock};
use super::{begin, copy, copy_trace, describe, event, unusable, Recording, IDS};
use crate::error::{Error, OnFile, Result};
use perfdata::{
    Comm, EventDesc, Feature, Features, FinishedInit, Flags, IdIndex, IdIndexEntry, RecordType,
    SampleId, Writer,
};
use std::fs::{self, File};
use std::path::Path;

/// The types of guest records that perf can merge. Others make perf crash, also TIME_CONV and FINISHED_ROUND, which perf itself records:
/// `guest_session__start()` in `builtin-inject.c` sets no functions for them.
const MERGED: [RecordType; 8] = [
    RecordType::MMAP2,
    RecordType::COMM,
    RecordType::FORK,
    RecordType::EXIT,
    RecordType::LOST,
    RecordType::SWITCH,
    RecordType::SWITCH_CPU_WIDE,
    RecordType::ID_INDEX,
];

impl Recording<'_> {
    /// Writes the records that were made in the guest, in a form that `perf inject --guest-data` accepts.
    pub(in crate::trace) fn write_guest(&self, path: &Path) -> Result<()> {
        let Some(sideband) = self.sideband else {
            return Err(no_sideband());
        };
        let failed = unusable(sideband);
        let bytes = fs::read(sideband).on("read", sideband)?;
        let sideband = perfdata::File::parse(&bytes).map_err(&failed)?;
        let file = File::create(path).on("create", path)?;
        let mut writer = Writer::new(file, sideband.events()).map_err(&failed)?;
        let merged = |kind| MERGED.contains(&kind);
        if let Some((attr, _)) = sideband.events().first() {
            let none = SampleId::default();
            writer
                .record(&self.kernel(), Some((&none, attr)))
                .map_err(&failed)?;
        }
        let clock = self.clock(&sideband)?;
        copy(&sideband, &mut writer, clock.lead, merged).map_err(&failed)?;
        let mut features = Features::new();
        describe(&sideband, &mut features);
        if let Some(section) = sideband.feature(Feature::EVENT_DESC) {
            features.events(&section.events().map_err(&failed)?);
        }
        writer.finish(&features).map_err(&failed)?;
        Ok(())
    }

    fn clock(&self, sideband: &perfdata::File<'_>) -> Result<Clock> {
        let path = self.sideband.unwrap_or(Path::new("sideband"));
        let clock = clock::of(sideband).map_err(unusable(path))?;
        let clock = clock.ok_or_else(|| {
            Error::Other(
                "the guest's records have no clock that goes by TSC: its kernel does not trust TSC"
                    .to_owned(),
            )
        })?;
        Clock::new(clock, self.traces)
    }

    /// Writes the recording that a host would have made. `process` is QEMU's process ID.
    pub(in crate::trace) fn write_host(&self, path: &Path, process: u32) -> Result<()> {
        let Some(sideband) = self.sideband else {
            return Err(no_sideband());
        };
        let bytes = fs::read(sideband).on("read", sideband)?;
        let sideband = perfdata::File::parse(&bytes).map_err(unusable(sideband))?;
        let clock = self.clock(&sideband)?;
        let failed = unusable(path);
        let mut attr = event(Some(&sideband));
        attr.flags |= Flags::CONTEXT_SWITCH;
        let cpus = || (0u32..).zip(self.traces);
        let ids: Vec<_> = cpus().map(|(cpu, _)| IDS + u64::from(cpu)).collect();
        let file = File::create(path).on("create", path)?;
        let mut writer = Writer::new(file, &[(attr.clone(), ids.clone())]).map_err(&failed)?;
        begin(&mut writer, &clock, true).map_err(&failed)?;
        let index: Vec<_> = cpus()
            .map(|(cpu, _)| IdIndexEntry {
                id: IDS + u64::from(cpu),
                idx: cpu.into(),
                cpu: cpu.into(),
                tid: -1,
            })
            .collect();
        writer.record(&IdIndex(&index), None).map_err(&failed)?;
        let id = |cpu: u32, tid: u32, time: u64| SampleId {
            pid: Some(process),
            tid: Some(tid),
            time: Some(time),
            id: Some(IDS + u64::from(cpu)),
            cpu: Some(cpu),
            ..SampleId::default()
        };
        let main = (0, process, "qemu-system-x86".to_owned());
        // perf identifies the threads of virtual CPUs by these names.
        let threads = cpus().map(|(cpu, _)| (cpu, process + 1 + cpu, format!("CPU {cpu}/KVM")));
        for (cpu, tid, comm) in std::iter::once(main).chain(threads.clone()) {
            let comm = Comm {
                pid: process,
                tid,
                exec: false,
                comm: comm.as_bytes(),
            };
            writer
                .record(&comm, Some((&id(cpu, tid, 0), &attr)))
                .map_err(&failed)?;
        }
        for (cpu, tid, _) in threads {
            // The thread of the virtual CPU runs from the beginning on.
            let mut body = Vec::new();
            body.extend(process.to_le_bytes());
            body.extend(tid.to_le_bytes());
            id(cpu, tid, 1).encode(attr.sample_type, &mut body);
            let mut bytes = RecordType::SWITCH_CPU_WIDE.0.to_le_bytes().to_vec();
            bytes.extend([0; 2]);
            let len = body.len() + 8;
            bytes.extend(u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes());
            bytes.extend(body);
            writer.raw(&bytes).map_err(&failed)?;
        }
        writer.record(&FinishedInit, None).map_err(&failed)?;
        for (cpu, trace) in cpus() {
            copy_trace(cpu, trace, &mut writer, true)?;
        }
        let count = u32::try_from(ids.len()).unwrap_or(1);
        let description = EventDesc {
            attr,
            ids,
            name: "intel_pt//".to_owned(),
        };
        let mut features = Features::new();
        features
            .string(Feature::ARCH, "x86_64")
            .nrcpus(count, count)
            .events(&[description])
            .pmu_mappings(&[(1, "software"), (super::PMU, "intel_pt")]);
        writer.finish(&features).map_err(&failed)?;
        Ok(())
    }
}

fn no_sideband() -> Error {
    Error::Other(
        "nothing was recorded in the guest, so it cannot be shown as a virtual machine: see what the guest said".to_owned(),
    )
}
