// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that libipt decodes from the trace unit's packets the instructions that a guest's kernel executed.
//!
//! The unit is a QEMU plugin, `tools/traceunit`, which also logs each executed instruction. It traces only kernel code, and only from the
//! first program on: by then the kernel has patched itself, and the code at an address does not change any more.

use super::{end, follow, Decoder};
use crate::cache::Cache;
use crate::error::{OnFile, Result};
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::plugin;
use crate::results::ktap::Case;
use crate::step::{Log, Progress};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The case's name.
pub(super) const NAME: &str = "kernel code";

/// How many instructions are compared at most. Debian's kernels execute many more, as they check the signatures of modules.
const COMPARED: u64 = 60_000_000;

/// The guest's command.
const WORK: &str = "head -c 100000 /dev/urandom | md5sum; ls /proc/self/fd; (sleep 1 & wait)";

pub(super) fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let progress = Progress::begin(&format!("exact: {NAME} on {}", kernel.kind));
    let unit = plugin::build(cache, "traceunit")?;
    let dir = dir.join("exact-kernel");
    fs::create_dir_all(&dir).on("make", &dir)?;
    let walker = walker(cache, &dir)?;
    let prefix = dir.join("trace");
    let options = format!(
        "{},out={},from=user,log={COMPARED}",
        unit.display(),
        prefix.display()
    );
    let guest = Guest::new(kernel, &[])?
        .observed(1, &options)
        .append("kunit.enable=0")
        // The kernel patches the code of its clock when it knows the TSC's frequency, after the first program.
        .append("clocksource=hpet")
        .timeout(Duration::from_secs(600));
    let outcome = guest.run(cache, &dir.join("guest"), WORK, |_| {})?;
    if let Some(fault) = outcome.faults().first() {
        return Ok(Case::fail(
            NAME,
            &format!("{}: {}", fault.name, fault.reason),
        ));
    }

    let trace = prefix.with_extension("cpu0.pt");
    let executed = prefix.with_extension("cpu0.log");
    let executed = BufReader::new(File::open(&executed).on("open", &executed)?);
    let [image, list] = ["image", "list"].map(|what| prefix.with_extension(what));
    let list = fs::read_to_string(&list).on("read", &list)?;
    let part = |line: &str| format!("{}:{}", image.display(), line.replace(' ', ":"));
    let shown = walk(&walker, &trace, list.lines().map(part))?;
    let case = match compare(shown, executed.lines()) {
        Ok(0) => Case::fail(NAME, "nothing was executed"),
        Ok(count) => Case::pass(NAME).with_log(vec![format!("{count} instructions, each of them")]),
        Err(why) => Case::fail(NAME, &why),
    };
    progress.end(case.log.first().unwrap_or(&case.reason));
    // These files have some hundred MiB.
    for what in ["cpu0.pt", "cpu0.log"] {
        let _ = fs::remove_file(prefix.with_extension(what));
    }
    Ok(case)
}

/// Builds `ptwalk`, which decodes a trace with libipt.
pub(super) fn walker(cache: &Cache, dir: &Path) -> Result<PathBuf> {
    let walker = dir.join("ptwalk");
    let log = Log::create(&dir.join("ptwalk.log"))?;
    let mut gcc = Command::new("gcc");
    gcc.arg("-O2").arg("-o").arg(&walker);
    gcc.arg(cache.checkout().join("tools/steptrace/ptwalk.c"));
    log.run("building ptwalk", gcc.arg("-lipt"))?;
    Ok(walker)
}

/// Decodes a trace with libipt. Each of `parts` has a file, a range in it, and the address of that code.
pub(super) fn walk(
    walker: &Path,
    trace: &Path,
    parts: impl Iterator<Item = String>,
) -> Result<Decoder> {
    let mut walk = Command::new(walker);
    Decoder::start(walk.arg(trace).args(parts))
}

/// Compares the instructions that libipt shows with those that were executed. Returns their number, or the first difference.
pub(super) fn compare(
    shown: impl Iterator<Item = io::Result<String>>,
    mut executed: impl Iterator<Item = io::Result<String>>,
) -> std::result::Result<u64, String> {
    let instructions =
        shown.filter(|line| !line.as_ref().is_ok_and(|line| line.starts_with("event ")));
    let max = usize::try_from(COMPARED).unwrap_or(usize::MAX);
    let count = follow(instructions.take(max), &mut executed)?;
    end(&mut executed, count)?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instruction_is_compared() {
        let executed = "10\n12\n14\n";
        let table = [
            ("event enabled\n10\n12\nevent mode\n14\n", Ok(3)),
            (
                "10\n14\n",
                Err("after 1 instructions 12 was executed, and 14 is shown"),
            ),
            (
                "10\n12\n",
                Err("after 2 instructions 14 was executed, and the end is shown"),
            ),
            (
                "10\n12\n14\n16\n",
                Err("after 3 instructions the end was executed, and 16 is shown"),
            ),
            (
                "10\nerror no memory at 0x1\n",
                Err("after 1 instructions 12 was executed, and error no memory at 0x1 is shown"),
            ),
        ];
        for (shown, want) in table {
            let found = compare(shown.as_bytes().lines(), executed.as_bytes().lines());
            assert_eq!(found, want.map_err(str::to_owned), "{shown}");
        }
    }
}
