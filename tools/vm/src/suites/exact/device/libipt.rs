// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that libipt decodes the same instructions from a recording as perf.

use super::super::kernel::{compare, walk, walker};
use super::shown;
use crate::cache::Cache;
use crate::error::{OnFile, Result};
use crate::results::ktap::Case;
use crate::step::Log;
use crate::tools;
use std::fs;
use std::path::Path;
use std::process::Command;

const NAME: &str = "by libipt";

/// Compares the instructions that libipt and perf decode for each CPU.
pub(super) fn agrees(cache: &Cache, dir: &Path, recording: &Path, cpus: usize) -> Result<Case> {
    let tools = tools::build(cache)?;
    let Some((_, auxe2e)) = tools.iter().find(|(name, _)| name == "auxe2e") else {
        return Ok(Case::skip(NAME, "tools/e2e is not in this checkout"));
    };
    let walker = walker(cache, dir)?;
    let mut counts = Vec::new();
    for cpu in 0..cpus {
        let prefix = dir.join(format!("libipt-{cpu}"));
        let mut packets = Command::new(auxe2e);
        packets.arg("packets").arg(recording);
        packets.arg(cpu.to_string()).arg(&prefix);
        let log = Log::create(&prefix.with_extension("log"))?;
        log.run("reading the packets of a recording", &mut packets)?;
        let [trace, parts] = ["pt", "parts"].map(|what| prefix.with_extension(what));
        let parts = fs::read_to_string(&parts).on("read", &parts)?;
        let by_libipt = walk(&walker, &trace, parts.lines().map(str::to_owned))?;
        match compare(
            by_libipt,
            shown(recording, cpu)?.map(|line| Ok(line?.trim().to_owned())),
        ) {
            Ok(0) => return Ok(Case::fail(NAME, &format!("CPU {cpu}: no instructions"))),
            Ok(count) => counts.push(count.to_string()),
            Err(why) => {
                let why = format!("CPU {cpu}, perf being what was executed: {why}");
                return Ok(Case::fail(NAME, &why));
            }
        }
    }
    let note = format!("{} instructions, each of them", counts.join(" and "));
    Ok(Case::pass(NAME).with_log(vec![note]))
}
