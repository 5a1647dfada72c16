// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The kernel's selftests of mapped tracefs buffers and of perf, unmodified, from the kernel's source package. One of them maps the AUX
//! area of any PMU that has one. It runs with each of our units, one after the other.

use crate::cache::Cache;
use crate::error::{OnFile, Result};
use crate::guest::{Devices, Guest};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::{self, Case, Status};
use crate::step::{Log, Progress};
use crate::suites::patience;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The tests, as paths of their sources without `.c`.
const TESTS: [&str; 5] = [
    "ring-buffer/map_test",
    "perf_events/mmap",
    "perf_events/remove_on_exec",
    "perf_events/sigtrap_threads",
    "perf_events/watermark_signal",
];

/// The test that maps the AUX area of a PMU.
const OF_AUX: &str = "perf_events/mmap";

/// The units for that test, each with its modules in the order of loading. The test's event excludes the kernel, which `pattern` does not
/// support.
const UNITS: [(&str, &[&str]); 3] = [
    ("pmu_minimal", &["rust_perf", "pmu_minimal"]),
    ("soft_pt", &["rust_perf", "rust_stepping", "soft_pt"]),
    ("trace_unit", &["rust_perf", "trace_unit"]),
];

/// A test that cannot pass here, and why.
const CANNOT: [Cannot; 1] = [Cannot {
    test: "perf_events/remove_on_exec",
    // The fixture opens an event of the hardware.
    says: "Expected self->fd (-1) != -1 (-1)",
    why: "an emulated processor has no hardware counters",
}];

struct Cannot {
    test: &'static str,
    /// The end of the line that the test writes for each failing case.
    says: &'static str,
    why: &'static str,
}

impl Cannot {
    /// Whether this is the reason of each failing case.
    fn is_why(&self, said: &str, cases: &[Case]) -> bool {
        let failed: usize = cases.iter().map(|case| case.counts().failed).sum();
        let known = said.lines().filter(|line| line.ends_with(self.says));
        failed > 0 && known.count() == failed
    }
}

/// How the tests' harness reports that it has ended a test, which it does after 30 s. The debug kernel can take longer.
const ENDED: &str = "Test terminated by timeout";

/// Runs all tests on a kernel.
///
/// # Errors
///
/// When a test or a module cannot be built, or a file cannot be read.
pub fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let tests = build(cache)?;
    let progress = Progress::begin("the kernel's own tests");
    let mut guest = Guest::new(kernel, &built.files)?
        .append("kunit.enable=0")
        .timeout(patience(kernel, Duration::from_secs(600)))
        .devices(Devices::TraceUnit);
    for test in &tests {
        let name = test.file_name().unwrap_or_default().to_string_lossy();
        guest = guest.program(&name, test)?;
    }
    let outcome = guest.run(cache, &dir.join("selftests"), &command(), |_| {})?;
    let mut cases = Vec::new();
    for (number, (name, _)) in runs().iter().enumerate() {
        let path = outcome.files.join(number.to_string());
        let said = fs::read_to_string(&path).on("read", &path)?;
        cases.push(judged(name, &said));
    }
    if let Some(fault) = outcome.faults().first() {
        cases.push(Case::fail(fault.name.as_str(), &fault.reason));
    }
    let suite = Case::suite("selftests", cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// Builds the programs of the tests.
fn build(cache: &Cache) -> Result<Vec<PathBuf>> {
    let sources = Kernel::selftests(cache)?;
    let place = cache.build().join("selftests");
    fs::create_dir_all(&place).on("make", &place)?;
    let log = Log::create(&cache.build().join("selftests.log"))?;
    let build = |test: &&str| {
        let program = place.join(program(test));
        // The options of the kernel's Makefiles, and static linking.
        let mut gcc = Command::new("gcc");
        gcc.args(["-Wall", "-static", "-D_GNU_SOURCE=", "-Wl,-no-as-needed"])
            .arg("-I")
            .arg(&sources)
            .arg(sources.join(format!("{test}.c")))
            .arg("-o")
            .arg(&program)
            .arg("-lpthread");
        log.run("building the kernel's own tests", &mut gcc)?;
        Ok(program)
    };
    TESTS.iter().map(build).collect()
}

/// The name of a test's program.
fn program(test: &str) -> &str {
    test.rsplit('/').next().unwrap_or(test)
}

/// The runs: the name and the command of each.
fn runs() -> Vec<(String, String)> {
    let mut runs = Vec::new();
    for test in TESTS {
        let program = program(test);
        if test != OF_AUX {
            runs.push((test.to_owned(), format!("{program} >$OUT 2>&1")));
            continue;
        }
        for (unit, modules) in UNITS {
            let load = modules.iter().map(|m| format!("insmod /modules/{m}.ko"));
            let unload = modules.iter().rev().map(|m| format!("rmmod {m}"));
            let steps = load.chain([program.to_owned()]).chain(unload);
            let steps: Vec<_> = steps.collect();
            runs.push((
                format!("{test}, {unit}"),
                format!("({} && echo '# unloaded') >$OUT 2>&1", steps.join(" && ")),
            ));
        }
    }
    runs
}

fn command() -> String {
    let commands = runs().into_iter().enumerate();
    let mut lines: Vec<_> = commands
        .map(|(number, (_, command))| format!("OUT=/out/{number}\n{command}"))
        .collect();
    lines.push("exit 0".to_owned());
    lines.join("\n")
}

/// The suite of the cases that a test reports. With a unit, no case may be skipped, and it must be possible to unload the modules. Without
/// one, a case that its harness has ended is skipped.
fn judged(name: &str, said: &str) -> Case {
    let mut cases = ktap::parse(said);
    let known = CANNOT.iter().find(|cannot| cannot.test == name);
    if let Some(cannot) = known.filter(|cannot| cannot.is_why(said, &cases)) {
        return Case::skip(name, cannot.why);
    }
    if name.starts_with(OF_AUX) {
        let unloaded = match said.lines().any(|line| line == "# unloaded") {
            true => Ok("no event is left".to_owned()),
            false => Err("the test has failed, or a module is still used".to_owned()),
        };
        let skipped = cases.iter().map(|case| case.counts().skipped).sum();
        let mapped = match skipped {
            0_usize => Ok("the AUX area was mapped".to_owned()),
            _ => Err(format!("{skipped} cases were skipped")),
        };
        cases.push(Case::judged("its AUX area", mapped));
        cases.push(Case::judged("it is unloaded", unloaded));
    } else {
        let is_slow = |case: &&mut Case| {
            case.status == Status::Fail && case.log.iter().any(|line| line.contains(ENDED))
        };
        for case in cases.iter_mut().filter(is_slow) {
            *case = Case::skip(&case.name, "its harness has ended it after 30 s");
        }
    }
    Case::suite(name, cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_case_is_left_out_with_a_unit() {
        let all = "TAP version 13\n1..2\n# Starting 2 tests\nok 1 perf_mmap.rb.remap\nok 2 perf_mmap.aux.remap\n# PASSED\n";
        let unloaded = format!("{all}# unloaded\n");
        let ended =
            |all: &str| all.replace("ok 2", "# remap: Test terminated by timeout\nnot ok 2");
        let slow_aux = ended(&unloaded);
        let slow = ended(all);
        let wrong = slow.replace("timeout", "assertion");
        let skipped = unloaded.replace("aux.remap", "aux.remap # SKIP No AUX event found.");
        let counters = "TAP version 13\n1..2\n# Starting 2 tests\n\
            # remove_on_exec.c:90:fork_only:Expected self->fd (-1) != -1 (-1)\n\
            # fork_only: Test terminated by assertion\n#          FAIL  remove_on_exec.fork_only\n\
            not ok 1 remove_on_exec.fork_only\n\
            # remove_on_exec.c:90:fork_exec:Expected self->fd (-1) != -1 (-1)\n\
            not ok 2 remove_on_exec.fork_exec\n# FAILED: 0 / 2 tests passed.\n";
        let other = counters.replace("90:fork_exec:Expected self->fd (-1) != -1 (-1)", "114:x");
        let table = [
            ("perf_events/mmap, pattern", &*unloaded, true),
            ("perf_events/mmap, pattern", all, false),
            ("perf_events/mmap, pattern", &skipped, false),
            ("perf_events/mmap, pattern", &slow_aux, false),
            ("ring-buffer/map_test", all, true),
            ("ring-buffer/map_test", &slow, true),
            ("ring-buffer/map_test", &wrong, false),
            ("perf_events/remove_on_exec", counters, true),
            ("perf_events/remove_on_exec", &*other, false),
            ("perf_events/remove_on_exec", "nothing\n", false),
            ("perf_events/sigtrap_threads", counters, false),
            ("ring-buffer/map_test", &all[..all.len() / 2], false),
            ("ring-buffer/map_test", "map_test: not found\n", false),
        ];
        for (name, said, good) in table {
            assert_eq!(
                judged(name, said).counts().failed == 0,
                good,
                "{name}: {said}"
            );
        }
    }

    #[test]
    fn each_unit_maps_its_area() {
        let names: Vec<_> = runs().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), TESTS.len() - 1 + UNITS.len());
        assert!(names.contains(&"perf_events/mmap, soft_pt".to_owned()));
    }
}
