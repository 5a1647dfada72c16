// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs `conform` on all our units and on a C driver, and its random programs on all of them at once. Then runs `conform` on the C driver
//! with defects, each of which it must find.
//!
//! The defects are in `tools/bench/pmu/c_pattern.c`. A parameter of `c_broken.ko` enables one at a time.

mod defects;
mod rules;

use crate::bench::twins;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::guest::{Devices, Guest};
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::results::ktap::{self, Case};
use crate::step::Progress;
use crate::suites::patience;
use crate::tools;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use defects::{found, Defect, DEFECTS, FOUND_BY_PROGRAMS, LASTING};

/// The units, as arguments for `conform`, and the names of their subtests.
const UNITS: [(&str, &str); 8] = [
    ("pattern/rate=4096/", "pattern, direct"),
    ("c_pattern/rate=4096/", "the driver in C"),
    ("minimal/interval=100/", "minimal"),
    ("pattern/rate=4096,sink=1/", "pattern, sg"),
    ("pattern/rate=4096,sink=2/", "pattern, flat"),
    ("ramp/burst=64/", "ramp, of pmu_kunit"),
    ("soft_pt", "soft_pt"),
    ("trace_unit", "trace_unit"),
];

/// Units that support only events of CPUs, for random programs.
const DEVICES: [&str; 2] = ["edu", "shared_sink/burst=8/"];

/// Units whose events take long to start and to stop, or slow down the traced program.
const SLOW: [&str; 2] = ["soft_pt", "trace_unit"];

/// How long `conform` waits for our units, in seconds. Even in a guest that gets a small part of a CPU, only a defect takes longer.
const PATIENT: &str = "--patience 300";

/// How many of the [`UNITS`] are tested if there are other suites.
const FEW: usize = 2;

/// Units that are tested with failing allocations on a kernel that can make them fail, and the names of their subtests. [`STARVE`] has the
/// cases that are run.
const STARVED: [(&str, &str); 3] = [
    ("pattern/rate=4096/", "pattern without memory"),
    ("soft_pt", "soft_pt without memory"),
    ("trace_unit", "trace_unit without memory"),
];
const STARVE: &str = "open: map: groups: output: tasks: end: --no-memory 40";

/// How many steps of random programs are executed on [`UNITS`] and on [`DEVICES`], and the seed of the first program.
const STEPS: u32 = 10_000;
const STEPS_OF_DEVICES: u32 = 400;
const SEED: u32 = 1;

/// When the random programs end.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// After so many seconds.
    After(u64),
    /// After so many operations, on units whose events start and stop at once.
    Operations(u64),
}

impl End {
    /// The time limit of the guest.
    #[must_use]
    pub fn timeout(self) -> Duration {
        // For the boot, and for making a failed program shorter.
        const MORE: u64 = 600;
        Duration::from_secs(match self {
            Self::After(seconds) => seconds.saturating_add(MORE),
            // Ten milliseconds for each.
            Self::Operations(number) => (number / 100).saturating_add(MORE),
        })
    }
}

/// The command that executes random programs on all our drivers at once, until one does not do what the model predicts.
#[must_use]
pub fn adversary(end: End, seed: Option<u64>) -> String {
    let mut command =
        format!("auxload; conform fuzz --modules /modules --foreign-areas {PATIENT} --burst 500");
    match end {
        End::After(seconds) => command.push_str(&format!(" --seconds {seconds}")),
        End::Operations(number) => command.push_str(&format!(" --operations {number}")),
    }
    if let Some(seed) = seed {
        command.push_str(&format!(" --seed {seed}"));
    }
    let ours = UNITS.iter().map(|(unit, _)| *unit);
    let ours = ours.filter(|unit| !unit.starts_with("c_"));
    let units: Vec<_> = match end {
        End::After(_) => ours.chain(DEVICES).collect(),
        End::Operations(_) => ours.filter(|unit| !SLOW.contains(unit)).collect(),
    };
    for unit in units {
        command.push_str(&format!(" --pmu {unit}"));
    }
    command
}

/// The sections of the suite: conform on the units; with failing allocations, on the debug kernel; random programs; the defects.
const SECTIONS: [&str; 4] = ["units", "no-memory", "programs", "defects"];

/// The sections of the suite that run `conform` on each unit.
const OF_UNITS: [&str; 2] = ["units", "no-memory"];

/// What is to be run.
struct Wanted<'a> {
    /// Empty: all sections, or those `OF_UNITS` if units are named.
    sections: Vec<&'a str>,
    /// PMUs of [`UNITS`]. Empty: all.
    pmus: Vec<&'a str>,
}

impl<'a> Wanted<'a> {
    /// # Errors
    ///
    /// When a name is neither that of a section nor that of a PMU.
    fn parse(names: &'a [String]) -> Result<Self> {
        let (sections, pmus): (Vec<_>, Vec<_>) = names
            .iter()
            .map(String::as_str)
            .partition(|name| SECTIONS.contains(name));
        let mut known: Vec<&str> = UNITS.iter().map(|(unit, _)| pmu(unit)).collect();
        known.sort_unstable();
        known.dedup();
        match pmus.iter().find(|name| !known.contains(name)) {
            Some(other) => Err(Error::Other(format!(
                "there is neither a section {other} of conform nor such a PMU: there are {}, {}",
                SECTIONS.join(", "),
                known.join(", ")
            ))),
            None => Ok(Self { sections, pmus }),
        }
    }

    fn section(&self, name: &str) -> bool {
        match self.sections.is_empty() {
            true => self.pmus.is_empty() || OF_UNITS.contains(&name),
            false => self.sections.contains(&name),
        }
    }

    /// The units of the section `no-memory`.
    ///
    /// # Errors
    ///
    /// When that section is wanted, but none of the wanted units is in it.
    fn starved(&self) -> Result<Vec<(&'static str, &'static str)>> {
        if !self.section("no-memory") {
            return Ok(Vec::new());
        }
        let units = self.of(&STARVED);
        match units.is_empty() && self.sections.contains(&"no-memory") {
            true => Err(Error::Other(format!(
                "the section no-memory does not run on {}: it runs on {}",
                self.pmus.join(", "),
                STARVED.map(|(unit, _)| pmu(unit)).join(", ")
            ))),
            false => Ok(units),
        }
    }

    /// Those of `units` whose PMU is wanted.
    fn of<'u>(&self, units: &[(&'u str, &'u str)]) -> Vec<(&'u str, &'u str)> {
        let is_wanted = |unit: &str| self.pmus.is_empty() || self.pmus.contains(&pmu(unit));
        let units = units.iter().copied();
        units.filter(|(unit, _)| is_wanted(unit)).collect()
    }
}

/// The PMU of an event.
fn pmu(event: &str) -> &str {
    event.split('/').next().unwrap_or(event)
}

/// Checks the rules, and runs the sections and units in `wanted`, or all that the kernel supports. If `few` is set, runs on `FEW` units
/// only, and skips the section `no-memory`, the random programs on the driver with defects, and the defects in `LASTING`.
///
/// # Errors
///
/// When there is no kernel, something does not compile, or `wanted` has a name that is unknown, or a section that the kernel does not
/// support.
pub fn run(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    wanted: &[String],
    few: bool,
) -> Result<Case> {
    let wanted = Wanted::parse(wanted)?;
    if kernel.kind != Kind::Debug && wanted.sections.contains(&"no-memory") {
        return Err(Error::Other(
            "the section no-memory needs fault injection: add KERNEL=debug".to_owned(),
        ));
    }
    let starved = wanted.starved()?;
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let mut drivers = twins::build(cache, kernel)?;
    let broken = drivers
        .first()
        .map(|driver| driver.with_file_name("c_broken.ko"));
    drivers.extend(broken);
    let bench = Bench {
        cache,
        kernel,
        ours: built.files,
        drivers,
        programs,
    };
    let mut suites = vec![rules::check(kernel, bench.conform()?)?];
    let count = if few { FEW } else { UNITS.len() };
    let units = UNITS.get(..count).unwrap_or(&UNITS);
    if wanted.section("units") {
        suites.extend(bench.units(&dir.join("conform"), &wanted.of(units), "")?);
    }
    if !starved.is_empty() && kernel.kind == Kind::Debug && !few {
        suites.extend(bench.units(&dir.join("conform-no-memory"), &starved, STARVE)?);
    }
    if wanted.section("programs") {
        suites.push(bench.programs(&dir.join("conform-programs"), units)?);
        if !few {
            suites.push(bench.found_by_programs(&dir.join("conform-found"))?);
        }
    }
    if wanted.section("defects") {
        suites.push(Case::suite(
            "defects",
            bench.defects(&dir.join("conform-defects"), &DEFECTS)?,
        ));
        for defect in LASTING.into_iter().filter(|_| !few) {
            let name = format!("defect {}", defect.name);
            let dir = dir.join(format!("conform-{}", defect.name));
            suites.push(Case::suite(&name, bench.defects(&dir, &[defect])?));
        }
    }
    Ok(Case::suite("conform", suites))
}

struct Bench<'a> {
    cache: &'a Cache,
    kernel: &'a Kernel,
    ours: Vec<PathBuf>,
    drivers: Vec<PathBuf>,
    programs: Vec<(String, PathBuf)>,
}

impl Bench<'_> {
    fn guest(&self) -> Result<Guest<'_>> {
        let mut guest = Guest::new(self.kernel, &self.ours)?
            .append("kunit.enable=0")
            .devices(Devices::TraceUnit)
            .timeout(patience(self.kernel, Duration::from_secs(3600)));
        for (name, path) in &self.programs {
            guest = guest.program(name, path)?;
        }
        for path in &self.drivers {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            guest = guest.program(&name, path)?;
        }
        Ok(guest)
    }

    /// Runs `conform` with these options on units. Returns a suite for each.
    fn units(&self, dir: &Path, units: &[(&str, &str)], options: &str) -> Result<Vec<Case>> {
        let mut suites = Vec::new();
        let program = format!("conform {options}");
        let progress = Progress::begin(&format!("{} on our units", program.trim_end()));
        let program = format!("{program} {PATIENT}");
        let mut command = "auxload && insmod /bin/c_pattern.ko".to_owned();
        for (number, (unit, _)) in units.iter().enumerate() {
            let line = format!("; {program} --pmu {unit} >/out/{number} 2>&1");
            command.push_str(&line);
        }
        let outcome = self.guest()?.run(self.cache, dir, &command, |_| {})?;
        for (number, (_, name)) in units.iter().enumerate() {
            let said =
                fs::read_to_string(outcome.files.join(number.to_string())).unwrap_or_default();
            let cases = match ktap::parse(&said).pop() {
                Some(unit) if !unit.children.is_empty() => unit.children,
                _ => vec![Case::fail("start", &format!("conform says: {said}"))],
            };
            suites.push(Case::suite(name, cases));
        }
        suites.extend(outcome.faults());
        progress.end(&Case::suite("", suites.clone()).counts().summary());
        Ok(suites)
    }

    /// The path of `conform`. The program is static, so it runs here, too.
    fn conform(&self) -> Result<&Path> {
        let found = self.programs.iter().find(|(name, _)| name == "conform");
        let found = found.ok_or_else(|| Error::Other("conform is not built".to_owned()))?;
        Ok(&found.1)
    }

    /// Runs random programs on all units at once.
    fn programs(&self, dir: &Path, units: &[(&str, &str)]) -> Result<Case> {
        let progress = Progress::begin("random programs on our units");
        let mut command = "auxload && insmod /bin/c_pattern.ko".to_owned();
        let units: Vec<&str> = units.iter().map(|(unit, _)| *unit).collect();
        let runs = [(units.as_slice(), STEPS), (&DEVICES, STEPS_OF_DEVICES)];
        for (units, steps) in runs {
            command.push_str(&format!(" && conform fuzz --modules /modules {PATIENT}"));
            for unit in units {
                command.push_str(&format!(" --pmu {unit}"));
            }
            command.push_str(&format!(" --seed {SEED} --steps {steps} 2>&1"));
        }
        let outcome = self.guest()?.run(self.cache, dir, &command, |_| {})?;
        let passed = outcome.said.matches(": as foreseen").count();
        let mut cases = Vec::new();
        for (run, (units, steps)) in runs.iter().enumerate() {
            cases.push(Case::judged(
                &format!("{steps} steps on {} units, as foreseen", units.len()),
                match run < passed {
                    true => Ok(String::new()),
                    false => Err(outcome.said.clone()),
                },
            ));
        }
        cases.extend(outcome.faults());
        let suite = Case::suite("programs", cases);
        progress.end(&suite.counts().summary());
        Ok(suite)
    }

    /// Runs random programs on the driver with each defect. They must find it.
    fn found_by_programs(&self, dir: &Path) -> Result<Case> {
        let progress = Progress::begin("random programs on a driver with defects");
        let fuzz = "conform fuzz --pmu c_pattern/rate=4096/ --seed 1 --steps 1500 --attempts 0";
        let mut command = format!("insmod /bin/c_broken.ko; {fuzz} >/out/none 2>&1");
        for defect in FOUND_BY_PROGRAMS {
            command.push_str(&format!(
                "; rmmod c_broken; insmod /bin/c_broken.ko defect={defect}; {fuzz} --patience 6 >/out/{defect} 2>&1"
            ));
        }
        let outcome = self.guest()?.run(self.cache, dir, &command, |_| {})?;
        let said = |file: &str| fs::read_to_string(outcome.files.join(file)).unwrap_or_default();
        let judge = |name: &str, right: &str| {
            let said = said(name);
            match said.contains(right) {
                true => Case::judged(name, Ok(String::new())),
                false => Case::fail(name, &said),
            }
        };
        let mut cases = vec![judge("none", ": as foreseen")];
        cases.extend(FOUND_BY_PROGRAMS.map(|name| judge(name, "does not do what is foreseen")));
        let suite = Case::suite("found by programs", cases);
        progress.end(&suite.counts().summary());
        Ok(suite)
    }

    /// Checks that the case of each defect finds it, and that the same case passes on the driver without a defect.
    fn defects(&self, dir: &Path, defects: &[Defect]) -> Result<Vec<Case>> {
        let progress = Progress::begin("conform on a driver with defects");
        let mut command = "true".to_owned();
        for (number, defect) in defects.iter().enumerate() {
            let conform = format!(
                "conform --pmu c_pattern/rate=4096/ '{}' >/out/{number}",
                defect.case.replace('\'', "'\\''")
            );
            let line = format!(
                "; insmod /bin/c_broken.ko; {conform}.good 2>&1; rmmod c_broken\
                 ; insmod /bin/c_broken.ko defect={}; {conform} --patience 6 2>&1; rmmod c_broken",
                defect.name
            );
            command.push_str(&line);
        }
        let outcome = self.guest()?.run(self.cache, dir, &command, |_| {})?;
        let said = |file: String| fs::read_to_string(outcome.files.join(file)).unwrap_or_default();
        let mut cases = Vec::new();
        for (number, defect) in defects.iter().enumerate() {
            let good = said(format!("{number}.good"));
            let verdict = found(defect, &good, &said(number.to_string()));
            cases.push(Case::judged(defect.name, verdict));
        }
        progress.end(&Case::suite("", cases.clone()).counts().summary());
        Ok(cases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn sections_and_units_are_chosen() {
        let table: [(&[&str], &[&str], &[&str]); 5] = [
            (&[], &SECTIONS, &["pattern", "soft_pt", "trace_unit"]),
            (&["programs"], &["programs"], &[]),
            (&["soft_pt"], &OF_UNITS, &["soft_pt"]),
            (&["minimal"], &OF_UNITS, &[]),
            (
                &["no-memory", "minimal", "pattern"],
                &["no-memory"],
                &["pattern"],
            ),
        ];
        for (wanted, sections, starved) in table {
            let wanted = names(wanted);
            let parsed = Wanted::parse(&wanted).unwrap();
            let run = SECTIONS.into_iter().filter(|name| parsed.section(name));
            assert_eq!(run.collect::<Vec<_>>(), sections, "{wanted:?}");
            let units = parsed.starved().unwrap();
            let units = units.iter().map(|(unit, _)| pmu(unit));
            assert_eq!(units.collect::<Vec<_>>(), starved, "{wanted:?}");
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        let unknown = names(&["unit"]);
        let error = Wanted::parse(&unknown).err().unwrap().to_string();
        let says = ["section unit", "no-memory", "c_pattern"];
        assert!(says.iter().all(|part| error.contains(part)), "{error}");

        let none = names(&["no-memory", "minimal"]);
        let error = Wanted::parse(&none).unwrap().starved().err().unwrap();
        let says = ["not run on minimal", "pattern, soft_pt, trace_unit"];
        let error = error.to_string();
        assert!(says.iter().all(|part| error.contains(part)), "{error}");
    }
}
