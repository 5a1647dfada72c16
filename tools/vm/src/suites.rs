// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The test suites, and the run of several of them.

use crate::cache::Cache;
use crate::error::{OnFile, Result};
use crate::guest::{Guest, Outcome};
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::parallel::{self, lock};
use crate::results::ktap::{self, Case, Counts};
use crate::step::{self, Log, Progress};
use exact::matrix::viewers;
use std::cmp::Reverse;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

mod aarch64;
pub mod broken;
pub mod compile_fail;
pub mod conform;
pub mod contract;
pub mod disk;
pub mod exact;
pub mod frames;
mod golden;
mod guests;
mod host;
mod install;
mod kbuild;
pub mod litmus;
pub mod old;
pub mod panics;
pub mod readers;
pub mod selftests;
pub mod stress;
pub mod template;

/// A test suite: one layer of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Formatting, lints, the tests of the tools, rules of the tree.
    Host,
    /// The barriers of the ring, under the kernel's memory model.
    Litmus,
    /// The modules build without a warning. A build against a wrong kernel is refused with the reason.
    Kbuild,
    /// The KUnit suites of the modules, in the lean kernel.
    Kunit,
    /// Recorder, drivers and kernel together.
    E2e,
    /// Each sink of `pattern` in each mode, with rings of each size, under readers of each kind.
    Matrix,
    /// The recorder compared with stock perf.
    Beside,
    /// Recordings to a disk that is slow or fails, or whose machine loses its power.
    Disk,
    /// Recorder, `tracering` and `conform` on an older Debian kernel.
    Old,
    /// The kernel's own tests of tracefs and perf.
    Selftests,
    /// Debian's stress-ng counts events of perf while our units trace it.
    Stress,
    /// Decoders find in `soft_pt`'s trace the instructions that programs have executed.
    Exact,
    /// Rows of the matrix find the deliberate defects of a driver.
    Break,
    /// `conform` on our units, and on a C driver with and without defects.
    Conform,
    /// The tools for 64-bit Arm, under an emulator.
    Aarch64,
    /// The recorder compared with stock perf on machines that exist only as descriptions.
    Golden,
    /// Trace viewers show in exported files what programs have executed.
    Viewers,
}

impl Suite {
    /// All suites: those that find most in a short time, then the long ones. Two run in parallel, so the short ones at the end fill the time.
    pub const ALL: [Self; 17] = [
        Self::Host,
        Self::Litmus,
        Self::Kbuild,
        Self::Kunit,
        Self::E2e,
        Self::Exact,
        Self::Conform,
        Self::Matrix,
        Self::Golden,
        Self::Beside,
        Self::Break,
        Self::Selftests,
        Self::Disk,
        Self::Old,
        Self::Aarch64,
        Self::Stress,
        Self::Viewers,
    ];

    /// The suites of `make test`: all but those that build for another processor, or need programs that the build root lacks.
    #[must_use]
    pub fn usual() -> Vec<Self> {
        let usual = |suite: &Self| !matches!(suite, Self::Aarch64 | Self::Stress | Self::Viewers);
        Self::ALL.into_iter().filter(usual).collect()
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Litmus => "litmus",
            Self::Kbuild => "kbuild",
            Self::Kunit => "kunit",
            Self::E2e => "e2e",
            Self::Matrix => "matrix",
            Self::Beside => "beside",
            Self::Disk => "disk",
            Self::Old => "old",
            Self::Selftests => "selftests",
            Self::Stress => "stress",
            Self::Exact => "exact",
            Self::Break => "break",
            Self::Conform => "conform",
            Self::Aarch64 => "aarch64",
            Self::Golden => "golden",
            Self::Viewers => "viewers",
        })
    }
}

impl std::str::FromStr for Suite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|s| s.to_string() == text)
            .ok_or_else(|| {
                let names = Self::ALL.map(|suite| suite.to_string()).join(", ");
                format!("there is no suite \"{text}\": give one of {names}")
            })
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The suites, in order.
    pub suites: Vec<Suite>,
    /// The kernels for the suites that can run on several.
    pub kernels: Vec<Kind>,
    /// The cases to run. Empty: all.
    pub cases: Vec<String>,
}

/// Runs the plan. Writes `build/test/all.ktap`, and prints the failures and the sums.
///
/// # Errors
///
/// Only when the results cannot be written. Any other error is a failing case.
pub fn run(cache: &Cache, plan: &Plan) -> Result<Counts> {
    let dir = cache.build().join("test");
    fs::create_dir_all(&dir).on("make", &dir)?;
    let kernels = Kernels {
        cache,
        made: Mutex::new(Vec::new()),
    };
    // If there are several suites, the names of cases are those of `e2e`.
    let has_cases = |suite: &&Suite| plan.cases.is_empty() || !suite.has_own_cases();
    let suites: Vec<Suite> = match plan.suites[..] {
        [_] => plan.suites.clone(),
        _ => plan.suites.iter().filter(has_cases).copied().collect(),
    };
    let begun = Instant::now();
    let ended = parallel::each(SIDE_BY_SIDE, &suites, |_, suite| {
        let start = Instant::now();
        // An error that keeps a suite from running is a failing case of that suite.
        let case = suite.run(cache, &dir, &kernels, plan).unwrap_or_else(|e| {
            let case = Case::fail("start", &e.to_string());
            Case::suite(&suite.to_string(), vec![case])
        });
        crate::out!(
            "{suite}: {} in {:.1} s",
            case.counts().summary(),
            start.elapsed().as_secs_f64()
        );
        (case, (suite.to_string(), start.elapsed()))
    });
    let (all, times): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
    let path = dir.join("all.ktap");
    fs::write(&path, ktap::write(&all)).on("write", &path)?;
    let total = Case::suite("all", all);
    print_failures(&total);
    crate::out!("What took the {} s:", begun.elapsed().as_secs());
    for line in longest(times).into_iter().chain(longest(step::ended())) {
        crate::out!("{line}");
    }
    crate::out!("All results: {}", path.display());
    Ok(total.counts())
}

/// How many suites run in parallel. Most of them wait for one guest, which seldom uses more than one processor.
const SIDE_BY_SIDE: usize = 2;

impl Suite {
    /// Whether its cases have other names than those of `e2e`.
    fn has_own_cases(self) -> bool {
        matches!(
            self,
            Self::Matrix
                | Self::Beside
                | Self::Disk
                | Self::Old
                | Self::Selftests
                | Self::Stress
                | Self::Exact
                | Self::Break
                | Self::Conform
                | Self::Golden
        )
    }

    fn run(self, cache: &Cache, dir: &Path, kernels: &Kernels<'_>, plan: &Plan) -> Result<Case> {
        // If there are several suites, some of them run only a part of their cases.
        let few = plan.suites.len() > 1;
        match self {
            Self::Host => host::run(cache, dir, if few { &[] } else { &plan.cases }, few),
            Self::Litmus => litmus(cache, kernels, plan),
            Self::Kbuild => kbuild::run(cache, dir, kernels, plan),
            Self::Kunit => kunit(cache, dir, kernels, plan),
            Self::E2e => guests::cases(cache, dir, kernels, plan),
            Self::Matrix => guests::matrix(cache, dir, kernels, plan),
            Self::Beside => guests::beside(cache, dir, kernels, plan),
            Self::Disk => disk::run(cache, dir, &kernels.get(Kind::Lean)?),
            Self::Old => old::run(cache, dir),
            Self::Selftests => selftests::run(cache, dir, &kernels.get(chosen(plan, Kind::Stock))?),
            Self::Stress => stress::run(cache, dir, &kernels.get(chosen(plan, Kind::Stock))?),
            Self::Exact => {
                let kernel = kernels.get(chosen(plan, Kind::Lean))?;
                let stock = kernels.get(Kind::Stock)?;
                exact::run(cache, dir, &kernel, &stock, &exact_programs(plan))
            }
            Self::Break => broken::run(cache, dir, &kernels.get(Kind::Lean)?),
            Self::Conform => {
                let kernel = kernels.get(chosen(plan, Kind::Stock))?;
                conform::run(cache, dir, &kernel, &plan.cases, few)
            }
            Self::Viewers => viewers::run(cache, dir, &kernels.get(Kind::Stock)?),
            Self::Aarch64 => aarch64::run(cache, dir),
            Self::Golden => golden::run(cache, dir, &plan.cases, few),
        }
    }
}

/// The kernel of a suite that runs on one kernel only: the requested one, or `usual`. Under emulation, each kernel takes minutes.
fn chosen(plan: &Plan, usual: Kind) -> Kind {
    match plan.kernels[..] {
        [kind] => kind,
        _ => usual,
    }
}

/// The kernel for KUnit: the lean one, or the debug one if only that is requested. Debian's kernels have no KUnit.
fn kunit_kernel(plan: &Plan) -> Kind {
    match plan.kernels[..] {
        [Kind::Debug] => Kind::Debug,
        _ => Kind::Lean,
    }
}

/// The programs of the suite `exact`. If it is the only suite, it runs the requested ones or all. Otherwise it runs a few different ones.
fn exact_programs(plan: &Plan) -> Vec<String> {
    match plan.suites[..] {
        [_] => plan.cases.clone(),
        _ => exact::FEW.map(str::to_owned).to_vec(),
    }
}

/// The longest of these suites or steps as lines, the longest first. They may have run in parallel.
fn longest(mut times: Vec<(String, Duration)>) -> Vec<String> {
    const LINES: usize = 16;
    times.sort_by_key(|(_, time)| Reverse(*time));
    let line = |(what, time): &(String, Duration)| format!("{:>6} s  {what}", time.as_secs());
    times.iter().take(LINES).map(line).collect()
}

fn print_failures(total: &Case) {
    total.for_each_failure(&mut |path, case| {
        let path = path.strip_prefix("all/").unwrap_or(path);
        let reason = if case.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", case.reason)
        };
        crate::out!("\nFAILED {path}{reason}");
        let skip = case.log.len().saturating_sub(60);
        if skip > 0 {
            crate::out!("    ({skip} lines more before)");
        }
        for line in &case.log[skip..] {
            crate::out!("    {line}");
        }
    });
}

/// The kernels that this run has prepared, each once.
struct Kernels<'a> {
    cache: &'a Cache,
    made: Mutex<Vec<Kernel>>,
}

impl Kernels<'_> {
    fn get(&self, kind: Kind) -> Result<Kernel> {
        let made = |kernels: &[Kernel]| kernels.iter().find(|k| k.kind == kind).cloned();
        if let Some(kernel) = made(&lock(&self.made)) {
            return Ok(kernel);
        }
        // Another suite may do the same. The cache makes each kernel once.
        let kernel = Kernel::prepare(self.cache, kind)?;
        lock(&self.made).push(kernel.clone());
        Ok(kernel)
    }
}

/// Runs one command as a case. If it fails, its output is the case's log.
fn check(dir: &Path, name: &str, command: &mut Command) -> Result<Case> {
    let progress = Progress::begin(name);
    let log = Log::create(&dir.join(format!("{}.log", name.replace(' ', "-"))))?;
    let good = log.status(command)?.success();
    progress.end(if good { "ok" } else { "failed" });
    if good {
        return Ok(Case::pass(name));
    }
    let lines = log.text().lines().map(str::to_owned).collect();
    Ok(Case::fail(name, &format!("see {}", log.path().display())).with_log(lines))
}

/// Runs the litmus tests. The memory model is part of the kernel's source, which is the same for all kernels.
fn litmus(cache: &Cache, kernels: &Kernels<'_>, plan: &Plan) -> Result<Case> {
    let kernel = kernels.get(plan.kernels.first().copied().unwrap_or(Kind::Stock))?;
    let model = kernel.build_dir().join("source/tools/memory-model");
    litmus::run(cache, &model)
}

fn kunit(cache: &Cache, dir: &Path, kernels: &Kernels<'_>, plan: &Plan) -> Result<Case> {
    let kernel = kernels.get(kunit_kernel(plan))?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let progress = Progress::begin(&format!("KUnit in the {} kernel", kernel.kind));
    let modules = [built.files, built.tests].concat();
    let guest = Guest::new(&kernel, &modules)?
        .timeout(patience(&kernel, KUNIT_TIME))
        .script("run", include_str!("../guest/kunit.sh"));
    let outcome = guest.run(cache, &dir.join("kunit"), "run", |_| {})?;
    let suite = outcome.suite("kunit");
    progress.end(&ended(&suite, &outcome));
    Ok(suite)
}

/// Time allowed for all KUnit suites of the modules.
const KUNIT_TIME: Duration = Duration::from_secs(120);

/// The time limit on this kernel. `time` is the limit on an ordinary kernel. The debug kernel checks each memory access, so it is slower.
pub(crate) fn patience(kernel: &Kernel, time: Duration) -> Duration {
    match kernel.kind {
        Kind::Stock | Kind::Lean | Kind::Rt => time,
        Kind::Debug => time * 5,
    }
}

fn ended(suite: &Case, outcome: &Outcome) -> String {
    format!(
        "{}, guest of {} MiB",
        suite.counts().summary(),
        outcome.peak_kib / 1024
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_come_first() {
        let times = [("short", 9), ("long", 10)];
        let times = times.map(|(what, time)| (what.to_owned(), Duration::from_secs(time)));
        assert_eq!(
            longest(times.to_vec()),
            ["    10 s  long", "     9 s  short"]
        );
    }

    #[test]
    fn suites_have_names() {
        for suite in Suite::ALL {
            assert_eq!(suite.to_string().parse(), Ok(suite));
        }
        assert!("other".parse::<Suite>().is_err());
    }
}
