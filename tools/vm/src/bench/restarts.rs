// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How many instructions a driver executes from its interrupt until the unit runs again.
//!
//! A guest runs `auxe2e bench restarts` under the plugin of `tools/bench/plugin`. It traces with `trace_unit`, whose interrupt comes
//! from a device, and with `pattern`, whose interrupt is a timer. The plugin counts the instructions of each call of the handler. A call
//! that begins a transaction is a restart. Other calls find nothing to do, and do not count.

use crate::bench::windows;
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::{Devices, Guest};
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::plugin;
use crate::results::figures::Figure;
use crate::tools;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// How often each unit is restarted.
const TIMES: u64 = 500;

/// The units, in the order of the windows. The last one writes [`MORE`] bytes of trace more for each restart than the one before.
const UNITS: [&str; 3] = ["pattern", "trace_unit", "trace_unit.64KiB"];

/// 48 KiB.
const MORE: u64 = 48 << 10;

/// Measures the restarts of each unit.
///
/// # Errors
///
/// When a build or the guest fails, or the output of the guest or of the plugin is not as expected.
pub fn run(cache: &Cache) -> Result<Figures> {
    let kernel = Kernel::prepare(cache, Kind::Stock)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let plugin = plugin::build(cache, "bench-plugin")?;
    let dir = cache.build().join("bench/restart");
    let report = cache.build().join("bench/restart.report");
    let options = format!(
        "{},out={},what=interrupts",
        plugin.display(),
        report.display()
    );
    let mut guest = Guest::new(&kernel, &built.files)?
        .observed(1, &options)
        .devices(Devices::TraceUnit)
        .append("kunit.enable=0")
        .program("mark", &windows::mark(cache)?)?
        .timeout(Duration::from_secs(900));
    for (name, path) in &tools::build(cache)? {
        guest = guest.program(name, path)?;
    }
    let command = format!("auxe2e bench restarts --times {TIMES}");
    let outcome = guest.run(cache, &dir, &command, |_| {})?;
    if let Some(fault) = outcome.faults().first() {
        return Err(Error::Other(format!("{}: {}", fault.name, fault.reason)));
    }
    if outcome.status != Some(0) {
        return Err(Error::Other(format!(
            "auxe2e bench restarts has failed in the guest; see {}",
            dir.join("said.log").display()
        )));
    }
    let text = fs::read_to_string(&report).on("read", &report)?;
    Figures::parse(&outcome.said, &text).map_err(|why| {
        Error::Other(format!(
            "{why}: the report is {}, what the guest said {}",
            report.display(),
            dir.join("said.log").display()
        ))
    })
}

/// How many restarts took each number of instructions.
type Restarts = BTreeMap<u64, u64>;

/// The restarts of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unit {
    name: &'static str,
    least: u64,
    median: u64,
    count: u64,
}

impl Unit {
    /// [`None`] if there are fewer than [`TIMES`] restarts: the guest has made that many.
    fn new(name: &'static str, restarts: &Restarts) -> Option<Self> {
        let count = restarts.values().sum();
        let mut seen = 0;
        let median = restarts.iter().find_map(|(instructions, times)| {
            seen += times;
            (seen * 2 > count).then_some(*instructions)
        });
        (count >= TIMES).then_some(Self {
            name,
            least: *restarts.keys().next()?,
            median: median?,
            count,
        })
    }
}

/// The results.
#[derive(Debug, PartialEq, Eq)]
pub struct Figures(Vec<Unit>);

impl Figures {
    /// Parses the guest's output and the plugin's report.
    fn parse(said: &str, report: &str) -> Result<Self, String> {
        let names: Vec<&str> = said
            .lines()
            .filter_map(|line| line.strip_prefix("window "))
            .map(str::trim)
            .collect();
        if names != UNITS {
            return Err(format!("the guest had the windows {names:?}"));
        }
        let windows = windows_of(report)?;
        if windows.len() != UNITS.len() {
            return Err(format!("the plugin saw {} windows", windows.len()));
        }
        let unit = |(name, restarts)| {
            Unit::new(name, restarts)
                .ok_or_else(|| format!("the plugin saw few restarts of {name}"))
        };
        let units: Result<_, String> = UNITS.into_iter().zip(&windows).map(unit).collect();
        Ok(Self(units?))
    }

    /// The figures of each unit, and the cost of each byte.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let figures = |unit: &Unit| {
            [("least", unit.least), ("median", unit.median)].map(|(what, count)| {
                Figure::count(
                    format!("restart.{}.{what}", unit.name),
                    count,
                    "instructions",
                )
            })
        };
        let mut all: Vec<_> = self.0.iter().flat_map(figures).collect();
        if let [_, less, more] = self.0.as_slice() {
            let instructions = more.median.saturating_sub(less.median);
            let each = instructions.saturating_mul(100) / MORE;
            let name = "restart.trace_unit.each-byte";
            all.push(Figure::hundredths(name, each, "instructions").at_most(0));
        }
        all
    }

    /// The results as lines for the user.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |unit: &Unit| {
            format!(
                "{}: from interrupt to restart at least {} instructions, median {}, of {} restarts",
                unit.name, unit.least, unit.median, unit.count
            )
        };
        self.0.iter().map(line).collect()
    }
}

/// The restarts in each window of a report.
fn windows_of(report: &str) -> Result<Vec<Restarts>, String> {
    let mut windows = Vec::new();
    let mut open: Option<Restarts> = None;
    for line in report.lines() {
        let unclear = || format!("the plugin said {line:?}");
        let number = |word: &str| word.parse::<u64>().map_err(|_| unclear());
        let words: Vec<&str> = line.split(' ').collect();
        match (words.as_slice(), &mut open) {
            (["window", _], None) => open = Some(Restarts::new()),
            (["end", _], Some(_)) => windows.extend(open.take()),
            (["call", instructions, begins, times], Some(restarts)) => {
                let (instructions, times) = (number(instructions)?, number(times)?);
                if number(begins)? > 0 {
                    *restarts.entry(instructions).or_default() += times;
                }
            }
            // Calls that are interrupted are not in the lines `call`.
            (["interrupted", times], Some(_)) => {
                number(times)?;
            }
            _ => return Err(unclear()),
        }
    }
    match open {
        None => Ok(windows),
        Some(_) => Err("the last window has no end".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "window pattern\nwindow trace_unit\nwindow trace_unit.64KiB\n";

    /// `pattern` has 500 restarts: half take more than 3000 instructions. `trace_unit` has 501.
    const REPORT: &str = "window 1\ncall 400 0 9000\ncall 2500 1 1\ncall 3000 1 249\ncall 3300 1 100\ncall 3300 2 100\n\
        call 9000 1 50\ninterrupted 3\nend 1\nwindow 2\ncall 90 0 1\ncall 3752 1 501\ninterrupted 0\nend 2\nwindow 3\ncall 8668 1 500\nend 3\n";

    #[test]
    fn calls_that_begin_nothing_are_no_restarts() {
        let figures = Figures::parse(SAID, REPORT).unwrap();
        let unit = |name, least, median, count| Unit {
            name,
            least,
            median,
            count,
        };
        assert_eq!(
            figures.0,
            [
                unit("pattern", 2500, 3300, 500),
                unit("trace_unit", 3752, 3752, 501),
                unit("trace_unit.64KiB", 8668, 8668, 500),
            ]
        );
        assert_eq!(
            figures.lines()[0],
            "pattern: from interrupt to restart at least 2500 instructions, median 3300, of 500 restarts"
        );
        assert_eq!(
            figures.figures(),
            [
                Figure::count("restart.pattern.least", 2500, "instructions"),
                Figure::count("restart.pattern.median", 3300, "instructions"),
                Figure::count("restart.trace_unit.least", 3752, "instructions"),
                Figure::count("restart.trace_unit.median", 3752, "instructions"),
                Figure::count("restart.trace_unit.64KiB.least", 8668, "instructions"),
                Figure::count("restart.trace_unit.64KiB.median", 8668, "instructions"),
                // 4916 instructions for 49152 bytes.
                Figure::hundredths("restart.trace_unit.each-byte", 10, "instructions").at_most(0),
            ]
        );
    }

    #[test]
    fn what_lacks_something_is_refused() {
        for (what, with) in [
            ("end 2\n", ""),
            ("end 1\nwindow 2\n", ""),
            ("window 1\n", ""),
            ("call 90", "fall 90"),
            ("call 90 0", "call x 0"),
            ("call 90 0", "call 90 x"),
            ("call 90 0 1", "call 90 0"),
            ("interrupted 3", "interrupted x"),
            // One restart is missing.
            ("call 9000 1 50", "call 9000 1 49"),
            ("call 3752 1", "call 3752 0"),
        ] {
            assert!(REPORT.contains(what), "{what}");
            assert!(
                Figures::parse(SAID, &REPORT.replace(what, with)).is_err(),
                "{what}"
            );
        }
        let more = format!("{REPORT}window 4\nend 4\n");
        for (said, report) in [
            ("window pattern\n", REPORT),
            (
                "window trace_unit\nwindow pattern\nwindow trace_unit.64KiB\n",
                REPORT,
            ),
            (SAID, &more),
        ] {
            assert!(Figures::parse(said, report).is_err(), "{said}");
        }
    }
}
