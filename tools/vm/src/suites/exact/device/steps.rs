// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that the trace unit, `soft_pt` and `steptrace` agree on the instructions that programs execute.
//!
//! In one guest, `auxe2e` has each program stepped, and recorded with each of the two drivers. Outside, it compares the instructions that
//! decoders show of both traces with the log of the steps.

use super::super::{judged, programs};
use crate::cache::Cache;
use crate::error::Result;
use crate::guest::{Devices, Guest};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use crate::step::Progress;
use crate::tools;
use std::path::Path;
use std::time::Duration;

/// The case's name.
pub(super) const NAME: &str = "steps of programs";

/// The programs. They are few, as stepping by ptrace is slow. Each has one thread: when one thread waits for another depends on the clock.
const PROGRAMS: [&str; 3] = ["signals", "strings", "twice"];

pub(super) fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let tools = tools::build(cache)?;
    let Some((_, judge)) = tools.iter().find(|(name, _)| name == "auxe2e") else {
        return Ok(Case::skip(NAME, "tools/e2e is not in this checkout"));
    };
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let progress = Progress::begin(&format!("exact: {NAME} on {}", kernel.kind));
    let mut guest = Guest::new(kernel, &built.files)?
        .append("vdso=0 vdso32=0")
        .timeout(Duration::from_secs(900))
        .intel()
        .devices(Devices::TraceUnit)
        .installed(Path::new("/usr/bin/perf"))?
        .installed(Path::new("/usr/bin/env"))?
        .installed(Path::new("/usr/bin/chrt"))?;
    for (name, path) in &tools {
        guest = guest.program(name, path)?;
    }
    for program in programs(cache)? {
        if PROGRAMS.iter().any(|name| program.ends_with(name)) {
            guest = guest.installed(&program)?;
        }
    }
    let place = cache.build().join("programs");
    let words = format!("{} {}", place.display(), PROGRAMS.join(" "));
    let command = format!(
        "auxe2e exact record {words}; ended=$?; auxe2e exact record --again unit {words} && exit $ended"
    );
    let dir = dir.join("exact-device-programs");
    let outcome = guest.run(cache, &dir, &command, |_| {})?;
    let judged = |options| judged(cache, judge, &dir, &outcome.files, options, &PROGRAMS);
    let suite = vec![
        outcome.suite("runs"),
        Case::suite("soft_pt", judged(&[])?),
        Case::suite("trace_unit", judged(&["--again", "unit"])?),
    ];
    let suite = Case::suite(NAME, suite);
    progress.end(&suite.counts().summary());
    Ok(suite)
}
