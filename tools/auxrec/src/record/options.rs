// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The options of a recording, and its result.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use auxview::loss::Loss;

use crate::control::Channel;
use crate::delay::{Delay, Switch as Switching};
use crate::error::{Error, Result};
use crate::live::Live;
use crate::parallel::Queued;
use crate::session::OnTruncate;
use crate::size::RingSizes;
use crate::snapshot::Blind;
use crate::sys::Workload;
use crate::target::Target;
use crate::tracepoints;

/// How snapshots are taken of AUX areas in overwrite mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Number of the newest bytes of each area; [`None`]: all.
    pub size: Option<usize>,
    /// Whether the recorder also takes one when the recording ends.
    pub at_exit: bool,
}

/// What to record.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Lists of events, each in the form `pmu/term=value,…/modifiers` or `name[:modifiers]`, and of groups of such in braces.
    pub events: Vec<String>,
    /// Whether to record only sideband records, and no trace. There are no events then.
    pub sideband: bool,
    /// Length of the trace in samples of other events.
    pub aux_sample: Option<u32>,
    /// Events of tracefs to record beside the trace.
    pub tracepoints: Option<tracepoints::Wanted>,
    /// The address filter, in perf's syntax: `filter main @ /bin/program`.
    pub filter: Option<String>,
    /// The control group to record: its name, or its directory.
    pub cgroup: Option<String>,
    /// Sizes of the rings.
    pub sizes: RingSizes,
    /// Whether the rings shrink to fit the limit of locked memory.
    pub shrink: bool,
    /// How much trace wakes the recorder, in bytes; [`None`]: see `Documentation/recorder-options.md`.
    pub watermark: Option<usize>,
    /// The processes, threads or CPUs to record.
    pub target: Target,
    /// Whether the rings follow the threads rather than the CPUs.
    pub per_thread: bool,
    /// Whether new trace overwrites old. SIGUSR2 and a command request snapshots.
    pub snapshot: Option<Snapshot>,
    /// The function that also requests a snapshot when it is reached: `FUNCTION`, `FUNCTION@FILE` or `ADDRESS@FILE`.
    pub trigger: Option<String>,
    /// Whether new sideband records overwrite old ones too, and are written with each snapshot.
    pub overwrite: bool,
    /// When the trace is enabled.
    pub delay: Delay,
    /// The channel on which commands arrive.
    pub control: Option<Channel>,
    /// When the recorder begins another file. The files are called `FILE.0001` and so on then.
    pub switch_output: Option<Switching>,
    /// How many of these files are kept.
    pub keep_files: Option<usize>,
    /// The file to write.
    pub output: PathBuf,
    /// The command to run. The recording ends when the command does.
    pub command: Vec<OsString>,
    /// The arguments of the recorder, for the file.
    pub cmdline: Vec<OsString>,
    /// What the recorder does when an area was full.
    pub on_truncate: OnTruncate,
    /// Number of threads that drain the rings; [`None`]: one for each ring, at most one for each CPU.
    pub threads: Option<usize>,
    /// Whether each of these threads writes a file of its own. The files are joined at the end.
    pub split_files: bool,
    /// The recorder's priority of `SCHED_FIFO`. The command keeps the priority that its caller has.
    pub realtime: Option<i32>,
    /// The recording ends when its files together have this number of bytes.
    pub max_size: Option<u64>,
    /// How often the file is synchronised with its disk; zero: never.
    pub sync: Duration,
    /// Level of compression of the trace, one of [`LEVELS`](auxview::pack::LEVELS); [`None`]: none.
    pub compress: Option<i32>,
    /// How the progress is shown.
    pub live: Live,
    /// Whether the recorder reports more on standard error.
    pub verbose: bool,
}

/// The result of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// For each pair of rings its name, what was lost, and how often its area wrapped.
    pub rings: Vec<(String, Loss, u64)>,
    /// How often the recorder woke up.
    pub wakeups: u64,
    /// The memory of the queue to the file, if several threads have drained the rings into one.
    pub queue: Option<Queued>,
    /// Length of all files together.
    pub file: u64,
    /// Number of files.
    pub files: u32,
    /// The last file.
    pub path: PathBuf,
    /// Number of snapshots, and how long the trace was off because of them.
    pub snapshots: Option<(u64, Blind)>,
    /// How often the trigger was reached, if there is one.
    pub hits: Option<u64>,
    /// Exit status of the command.
    pub status: Option<i32>,
}

impl Outcome {
    /// The sum of all rings.
    #[must_use]
    pub fn total(&self) -> Loss {
        self.rings
            .iter()
            .fold(Loss::default(), |sum, (_, loss, _)| sum.plus(*loss))
    }
}

impl Options {
    /// Prepares the command, which waits for its start.
    pub(super) fn workload(&self) -> Result<Option<Workload>> {
        let Some(program) = self.command.first() else {
            return Ok(None);
        };
        let workload = Workload::prepare(&self.command).map_err(|e| {
            let name = Path::new(program).display();
            Error::failed(format!("cannot start a process for `{name}`: {e}"))
        })?;
        Ok(Some(workload))
    }
}
