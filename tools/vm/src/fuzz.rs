// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the fuzz targets of `tools/fuzz` under libFuzzer.
//!
//! The compiler's flags for the instrumentation are those of `cargo fuzz`, without the sanitizers, which need a nightly compiler. The
//! parsers do not need them: they have no unsafe code, and the allocator of the targets counts their memory.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::step::{Log, Progress};
use std::fs;
use std::path::Path;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

// The coverage counters keep all code in the program, also the trace unit's calls of QEMU's plugin functions. These functions are not
// linked and never called, so the linker ignores unresolved symbols.
const FLAGS: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
 -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
 -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
 -Clink-arg=-Wl,--unresolved-symbols=ignore-all";

const PROFILE: [&str; 3] = [
    "profile.release.debug-assertions=true",
    "profile.release.overflow-checks=true",
    "profile.release.debug=\"line-tables-only\"",
];

/// Runs each target whose name contains one of `cases`, or all targets if there are no `cases`. Each runs for `seconds`. Returns a line for
/// each target, and one for all.
///
/// # Errors
///
/// When no target has such a name, a target does not build, an input makes it fail, or its output has no number of inputs.
pub fn run(cache: &Cache, seconds: u64, cases: &[String]) -> Result<Vec<String>> {
    let tools = cache.checkout().join("tools");
    let dir = cache.build().join("fuzz");
    fs::create_dir_all(&dir).on("make", &dir)?;
    let log = Log::create(&cache.build().join("fuzz.log"))?;
    let mut targets = targets(&tools.join("fuzz/fuzz_targets"))?;
    targets.retain(|target| cases.is_empty() || cases.iter().any(|case| target.contains(case)));
    if targets.is_empty() {
        return Err(Error::Other(format!(
            "no target has {} in its name: see tools/fuzz/fuzz_targets",
            cases.join(" or ")
        )));
    }

    let progress = Progress::begin("building the fuzz targets");
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(&tools)
        .args(["build", "--locked", "--release", "-p", "fuzz"])
        .args([
            "--features",
            "libfuzzer",
            "--target",
            TARGET,
            "--target-dir",
        ])
        .arg(&dir)
        .env("RUSTFLAGS", FLAGS);
    for setting in PROFILE {
        cargo.args(["--config", setting]);
    }
    for target in &targets {
        cargo.args(["--bin", target]);
    }
    log.run("building the fuzz targets", &mut cargo)?;
    progress.end("done");

    let mut lines = Vec::new();
    let mut all = 0;
    for target in &targets {
        let progress = Progress::begin(&format!("fuzzing {target} for {seconds} s"));
        let found = dir.join("corpus").join(target);
        fs::create_dir_all(&found).on("make", &found)?;
        let mut seeds = Command::new("cargo");
        seeds
            .current_dir(&tools)
            .args([
                "run", "--quiet", "--locked", "-p", "fuzz", "--bin", "seeds", "--", target,
            ])
            .arg(&found);
        log.run("making seeds", &mut seeds)?;
        let bad = dir.join(format!("{target}-"));
        let mut fuzzer = Command::new(dir.join(TARGET).join("release").join(target));
        fuzzer
            .arg(&found)
            .arg(tools.join("fuzz/corpus").join(target))
            .arg(format!("-max_total_time={seconds}"))
            .args(["-max_len=8192", "-timeout=10", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}", bad.display()));
        let own = dir.join(format!("{target}.log"));
        log.run(
            "fuzzing",
            // libFuzzer's output goes to a separate file, as its last lines are parsed.
            Command::new("sh")
                .args(["-c", "log=$1; shift; \"$@\" >\"$log\" 2>&1", "sh"])
                .arg(&own)
                .arg(fuzzer.get_program())
                .args(fuzzer.get_args()),
        )
        .map_err(|_| {
            Error::Other(format!(
                "an input makes the target {target} fail: it is in {}…, see {}",
                bad.display(),
                own.display()
            ))
        })?;
        let said = fs::read(&own).on("read", &own)?;
        let inputs = runs(&String::from_utf8_lossy(&said)).ok_or_else(|| {
            Error::Other(format!(
                "libFuzzer's output has no number of inputs: see {}",
                own.display()
            ))
        })?;
        let line = format!("{target}: {inputs} inputs");
        progress.end(&line);
        lines.push(line);
        all += inputs;
    }
    lines.push(format!("{all} inputs to {} targets", targets.len()));
    Ok(lines)
}

/// The names of the targets: those of their files, without `.rs`.
fn targets(dir: &Path) -> Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .on("read", dir)?
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            Some(name.strip_suffix(".rs")?.to_owned())
        })
        .collect();
    names.sort();
    Ok(names)
}

/// How many inputs libFuzzer has run, according to its output.
fn runs(said: &str) -> Option<u64> {
    said.lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .and_then(|number| number.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        let said = "Done 5 runs in 1 second(s)\nstat::number_of_executed_units: 5\n";
        assert_eq!(runs(said), Some(5));
        assert_eq!(runs("Done 5 runs in 1 second(s)\n"), None);
    }
}
