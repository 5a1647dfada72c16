// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The description of a recording, and the features that each of its files gets from it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use perfdata::{ClockData, EventDesc, Feature, Features, IdIndexEntry, TimeConv};

use crate::decoder::Info;
use crate::host;
use crate::pmu::Pmus;
use crate::session::{Mode, Plan};
use crate::sys;
use crate::target::Target;
use crate::tracepoints::Described;
use auxview::join::SplitFiles;
use auxview::trace::{CYCLES, REFERENCE};
use auxview::unpack::NOTE;

/// Limits of the files: their lengths, and how many are kept.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// The recording ends when all its files together have this number of bytes.
    pub all: Option<u64>,
    /// Whether there are several files, numbered.
    pub parts: bool,
    /// A new file is begun when one has this number of bytes.
    pub part: Option<u64>,
    /// Number of files that are kept.
    pub keep: Option<usize>,
    /// How often a file is synchronised with its disk; zero: never.
    pub sync: Duration,
    /// Whether standard error gets the length of the file that is on the disk.
    pub verbose: bool,
    /// Level of compression of the trace; [`None`]: none.
    pub level: Option<i32>,
}

/// The description of a recording, for each of its files.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    /// The plan of the session.
    pub plan: Plan,
    /// The events with their ids.
    pub events: Vec<EventDesc>,
    /// The ids of all events, with their rings.
    pub index: Vec<IdIndexEntry>,
    /// The recorder's command line.
    pub cmdline: Vec<OsString>,
    /// Number of CPUs that are online.
    pub online: usize,
    /// The processes, threads or CPUs that are recorded.
    pub target: Target,
    /// The process of the command.
    pub workload: Option<u32>,
    /// How to convert the processor's clock to that of the records, if the kernel provides the conversion.
    pub clock: Option<TimeConv>,
    /// The AUXTRACE_INFO record, if perf has a decoder for the trace.
    pub info: Option<Info>,
    /// If each thread writes a file: the recording, and the thread of this file.
    pub split_files: Option<SplitFiles>,
    /// The events of tracefs in the recording.
    pub tracepoints: Option<Described>,
}

/// The features of the file with the number `part`. `ended` says how the file ended, `more` are
/// further notes.
pub(super) fn features(
    what: &Description,
    limits: Limits,
    part: u32,
    ended: &str,
    more: &[(&'static str, String)],
) -> Features {
    let plan = &what.plan;
    let mut features = Features::new();
    host::describe(&mut features, what.online);
    let mode = match plan.mode {
        Mode::Normal => "linear",
        Mode::Overwrite => "overwrite",
    };
    let mut notes = vec![
        ("aux_size", plan.aux.to_string()),
        ("data_size", plan.data.to_string()),
        ("mode", mode.to_owned()),
        ("ended", ended.to_owned()),
    ];
    if !plan.has_own_clock() && sys::cycles().is_some() {
        notes.push((REFERENCE, CYCLES.to_owned()));
    }
    if limits.parts {
        notes.push(("part", part.to_string()));
    }
    if let Some(split) = &what.split_files {
        notes.extend(split.notes());
    }
    if limits.level.is_some() {
        notes.push((NOTE, "zstd".to_owned()));
    }
    notes.extend(more.iter().cloned());
    let cmdline = what.cmdline.iter().map(|arg| arg.as_bytes());
    features
        .cmdline(&cmdline.collect::<Vec<_>>())
        .events(&what.events)
        .pmu_mappings(&Pmus::default().mappings())
        .notes(&notes);
    if let Some(tracepoints) = &what.tracepoints {
        features.raw(Feature::TRACING_DATA, tracepoints.data.clone());
    }
    if what.plan.has_own_clock() {
        features.clock(
            sys::clock_resolution(),
            ClockData {
                clockid: u32::try_from(sys::CLOCK).unwrap_or(0),
                wall: sys::wall(),
                clock: sys::now(),
            },
        );
    }
    features
}
