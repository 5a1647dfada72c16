// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The costs of our drivers, compared with the same drivers in C: `tools/bench/pmu`.
//!
//! - [`Costs`]: the instructions of calls, by the clock of a guest that counts them.
//! - [`crate::bench::windows`]: the functions that execute these instructions, and the cache lines that two CPUs write, by a QEMU plugin.

use crate::bench::number;
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::kernel::Kernel;
use crate::modules;
use crate::results::figures::Figure;
use crate::step::{Log, Progress};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Each of our drivers, and the same driver in C: PMU and module of each.
pub const TWINS: [[(&str, &str); 2]; 2] = [
    [("minimal", "pmu_minimal"), ("c_minimal", "c_minimal")],
    [("pattern", "pattern"), ("c_pattern", "c_pattern")],
];

/// The kernel with targets. Others check arithmetic and preconditions in Rust code, but not in C code.
const AS_SHIPPED: &str = "stock";

/// The folder of the drivers in C.
const SOURCES: &str = "tools/bench/pmu";

/// Builds the drivers in C against a kernel.
///
/// # Errors
///
/// When they do not compile, or the compiler warns.
pub fn build(cache: &Cache, kernel: &Kernel) -> Result<Vec<PathBuf>> {
    let dir = cache
        .build()
        .join("bench/pmu")
        .join(kernel.kind.to_string());
    fs::create_dir_all(&dir).on("make", &dir)?;
    let log = Log::create(&dir.with_extension("log"))?;
    let progress = Progress::begin("building the drivers in C");
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(kernel.build_dir())
        .arg(format!("M={}", cache.checkout().join(SOURCES).display()))
        .arg(format!("MO={}", dir.display()))
        .args(kernel.make_args())
        .args(["W=1", "modules"]);
    log.run("building the drivers in C", &mut make)?;
    if let Some(warning) = modules::warnings(&log.text()).first() {
        return Err(Error::Other(format!(
            "{warning}; the log is {}",
            log.path().display()
        )));
    }
    progress.end("done");
    Ok(TWINS
        .iter()
        .map(|[_, (_, module)]| dir.join(module).with_extension("ko"))
        .collect())
}

/// The instructions of each call on an event of a PMU: those of the whole system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calls {
    /// A stop and a start, with nothing to commit.
    restart: u64,
    /// An enable and a disable of an event.
    toggle: u64,
}

impl Calls {
    fn parse(said: &str, pmu: &str) -> Option<Self> {
        Some(Self {
            restart: number(said, &format!("driver {pmu} restart"))?,
            toggle: number(said, &format!("driver {pmu} toggle"))?,
        })
    }

    /// The instructions in addition to those of the same calls on another event.
    fn above(self, other: Self) -> Self {
        Self {
            restart: self.restart.saturating_sub(other.restart),
            toggle: self.toggle.saturating_sub(other.toggle),
        }
    }
}

/// The results on a kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct Costs {
    /// The calls on each of [`TWINS`], in addition to those on the dummy event.
    calls: [[Calls; 2]; 2],
    /// A stop and a start with 32 KiB to commit, of `pattern` and its twin. The guest has already subtracted those of the dummy event.
    commit: [u64; 2],
}

impl Costs {
    /// The command that measures the costs.
    pub const COMMAND: &str = "auxe2e bench driver --times 1000";

    /// Parses the command's output. [`None`] if a figure is missing.
    #[must_use]
    pub fn parse(said: &str) -> Option<Self> {
        let dummy = Calls::parse(said, "dummy")?;
        let calls = |(pmu, _): (&str, &str)| Some(Calls::parse(said, pmu)?.above(dummy));
        let twins = |[ours, c]: [(&str, &str); 2]| Some([calls(ours)?, calls(c)?]);
        let [minimal, pattern] = TWINS;
        Some(Self {
            calls: [twins(minimal)?, twins(pattern)?],
            commit: [
                number(said, "driver pattern commit")?,
                number(said, "driver c_pattern commit")?,
            ],
        })
    }

    /// The figures, with their targets.
    #[must_use]
    pub fn figures(&self, kernel: &str) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut add = |[ours, c]: [&str; 2], call: &str, [part, whole]: [u64; 2]| {
            for (pmu, value) in [(ours, part), (c, whole)] {
                let name = format!("driver.{kernel}.{pmu}.{call}");
                figures.push(Figure::count(name, value, "instructions"));
            }
            let name = format!("driver.{kernel}.{ours}.{call}.ratio");
            let ratio = Figure::ratio(name, part, whole);
            figures.push(if kernel == AS_SHIPPED {
                ratio.at_most(1)
            } else {
                ratio
            });
        };
        for (twins, calls) in TWINS.iter().zip(self.calls) {
            let names = twins.map(|(pmu, _)| pmu);
            add(names, "restart", calls.map(|c| c.restart));
            add(names, "toggle", calls.map(|c| c.toggle));
        }
        add(TWINS[1].map(|(pmu, _)| pmu), "commit-32KiB", self.commit);
        figures
    }

    /// The results as lines for the user.
    #[must_use]
    pub fn lines(&self, kernel: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let mut add = |[ours, c]: [&str; 2], call: &str, [part, whole]: [u64; 2]| {
            let hundredths = part.saturating_mul(100).div_ceil(whole.max(1));
            lines.push(format!(
                "{kernel} kernel, {ours}: {call}: {part} instructions, {c}: {whole}, {}.{:02} times",
                hundredths / 100,
                hundredths % 100
            ));
        };
        for (twins, calls) in TWINS.iter().zip(self.calls) {
            let names = twins.map(|(pmu, _)| pmu);
            add(
                names,
                "stop and start, empty commit",
                calls.map(|c| c.restart),
            );
            add(names, "enable and disable", calls.map(|c| c.toggle));
        }
        let pattern = TWINS[1].map(|(pmu, _)| pmu);
        add(pattern, "stop and start, commit of 32 KiB", self.commit);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "driver dummy restart 1000\ndriver dummy toggle 3000\n\
        driver minimal restart 2800\ndriver minimal toggle 4500\ndriver c_minimal restart 1900\ndriver c_minimal toggle 4500\n\
        driver pattern restart 4000\ndriver pattern toggle 6000\ndriver c_pattern restart 2000\ndriver c_pattern toggle 5000\n\
        driver pattern commit 3300\ndriver c_pattern commit 1100\n";

    #[test]
    fn costs_are_above_the_dummy_event() {
        let costs = Costs::parse(SAID).unwrap();
        let lines = costs.lines("stock");
        assert_eq!(
            lines[0],
            "stock kernel, minimal: stop and start, empty commit: 1800 instructions, c_minimal: 900, 2.00 times"
        );
        assert_eq!(lines.len(), 5);
        assert!(lines[4].contains("3300 instructions, c_pattern: 1100, 3.00 times"));

        let figures = costs.figures("stock");
        let verdicts: Vec<String> = figures.iter().filter_map(Figure::verdict).collect();
        assert_eq!(
            verdicts,
            [
                "missed: driver.stock.minimal.restart.ratio 2.00 ratio (target: <= 1.00)",
                "met: driver.stock.minimal.toggle.ratio 1.00 ratio (target: <= 1.00)",
                "missed: driver.stock.pattern.restart.ratio 3.00 ratio (target: <= 1.00)",
                "missed: driver.stock.pattern.toggle.ratio 1.50 ratio (target: <= 1.00)",
                "missed: driver.stock.pattern.commit-32KiB.ratio 3.00 ratio (target: <= 1.00)",
            ]
        );
    }

    #[test]
    fn a_kernel_with_checks_has_no_target() {
        let figures = Costs::parse(SAID).unwrap().figures("lean");
        assert!(figures.iter().all(|figure| figure.verdict().is_none()));
    }

    #[test]
    fn a_missing_figure_is_noticed() {
        for line in SAID.lines() {
            assert_eq!(Costs::parse(&SAID.replace(line, "")), None, "{line}");
        }
    }
}
