// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Stock perf finds the driver in sysfs, and counts with it.

use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::module;
use crate::recording::said;

/// What `events/` and `format/` have, as `perf list` says it.
pub fn listed() -> Result<String> {
    module::alias(0)?;
    let text = said(Command::new("perf").args(["list", "--unit", "pattern", "pmu"]))?;
    for name in ["direct", "sg", "flat", "slow", "fast"] {
        let event = format!("pattern/{name}/");
        let found = text.split_whitespace().any(|word| word == event);
        ensure!(found, "perf list does not have {event}: {text}");
    }
    Ok("all events of the driver".to_owned())
}

/// Ticks of 16 packets of 1 KiB; the unit is silent after as many.
const LIMIT: u64 = 16 * 1024 * 50;

/// The count is bytes generated: of a unit that falls silent, exactly those it may generate, for each event that is opened.
pub fn counted() -> Result<String> {
    module::alias(0)?;
    // Terms for perf's parser: an event of the driver's by its name, and all terms by theirs.
    let named = format!("pattern/fast,limit={LIMIT}/");
    let terms = format!("pattern/rate=16384,burst=16,packet=16,sink=2,limit={LIMIT}/");
    let mut seen = Vec::new();
    for (event, target, workload, events) in [
        (&named, &["-C", "1"][..], "sleep", 1),
        (&terms, &["-a"], "sleep", 2),
        // The workload is one thread.
        (&terms, &[], "spin", 1),
    ] {
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x", ";", "--log-fd", "1", "-e", event])
            .args(target)
            .args(["--", "auxe2e", "workload", workload, "--ms", "2000"]);
        let text = said(&mut perf)?;
        let line = text.lines().find(|line| line.contains(event.as_str()));
        let count: u64 = line
            .and_then(|line| line.split(';').next()?.parse().ok())
            .with_context(|| format!("perf stat does not tell a count: {text:?}"))?;
        ensure!(
            count == events * LIMIT,
            "perf stat {target:?} counted {count} bytes, and {events} times {LIMIT} were generated"
        );
        seen.push(count.to_string());
    }
    Ok(format!("{} bytes", seen.join(", ")))
}
