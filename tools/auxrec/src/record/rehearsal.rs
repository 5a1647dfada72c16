// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens what a recording would open, and records nothing.

use std::fs::File;

use super::{pid, Options};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::session::{Session, FILES_OF_A_THREAD};
use crate::sys::Kernel;
use crate::target::{online_cpus, Target};

/// Number of descriptors of [`Watch`](crate::watch::Watch), without those of commands and processes.
const WATCH: usize = 6;
/// Number of descriptors of the file.
const OUTPUT: usize = 2;

/// Opens the events of a recording of a command or of CPUs, maps their rings, and closes all again. The events stay disabled, and the
/// command does not run.
///
/// # Errors
/// The errors with which [`record`](super::record()) would fail to begin.
pub fn rehearse(options: &Options) -> Result<()> {
    let online = online_cpus()?;
    let limits = Limits::read(online.len());
    let mut plan = options.plan(&Kernel, &limits, &online)?;
    let _watch = hold(WATCH)?;
    let workload = options.workload()?;
    if options.target == Target::Command {
        plan.threads = Some(workload.as_ref().and_then(pid).into_iter().collect());
    }
    let session = Session::open(plan, &limits)?;
    hold(OUTPUT + FILES_OF_A_THREAD * options.drains(session.rings().len())).map(drop)
}

/// Opens this number of descriptors, in place of those that a recording opens and a rehearsal does not.
fn hold(count: usize) -> Result<Vec<File>> {
    let files = (0..count).map(|_| File::open("/dev/null"));
    let files: std::io::Result<_> = files.collect();
    files.map_err(|e| {
        Error::failed(format!(
            "cannot open the files of a recording: {e}. {}",
            Limits::how_to_open(u64::try_from(count).unwrap_or(u64::MAX))
        ))
    })
}
