// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `conform` on all our units and on a driver in C; its random programs on all of them at once; and `conform` on that driver with
//! defects, which it must name.
//!
//! The defects are in `tools/bench/pmu/c_pattern.c`, one at a time, by a parameter of `c_broken.ko`.

use crate::cache::Cache;
use crate::error::Result;
use crate::guest::{Devices, Guest};
use crate::kernel::Kernel;
use crate::ktap::{self, Case, Status};
use crate::modules::{self, Mode};
use crate::step::Progress;
use crate::{tools, twins};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The units, as `conform` takes them, and what a subtest is called.
const UNITS: [(&str, &str); 7] = [
    ("pattern/rate=4096/", "pattern, direct"),
    ("c_pattern/rate=4096/", "the driver in C"),
    ("minimal/interval=100/", "minimal"),
    ("pattern/rate=4096,sink=1/", "pattern, sg"),
    ("pattern/rate=4096,sink=2/", "pattern, flat"),
    ("soft_pt", "soft_pt"),
    ("trace_unit", "trace_unit"),
];

/// How many of them run beside other layers.
const FEW: usize = 2;

/// Steps of random programs, and the first program.
const STEPS: u32 = 10_000;
const SEED: u32 = 1;

/// A defect, and a case that must find it.
struct Defect {
    /// As `C_DEFECT()` has it.
    name: &'static str,
    /// The case that must fail.
    case: &'static str,
    /// What its reason must have in it.
    says: &'static str,
}

const fn defect(name: &'static str, case: &'static str, says: &'static str) -> Defect {
    Defect { name, case, says }
}

/// Those after which the kernel is as before.
const DEFECTS: [Defect; 24] = [
    defect(
        "never_truncated",
        "full: it is off then, CPU",
        "waiting for TRUNCATED",
    ),
    defect(
        "truncated_with_room",
        "full: no TRUNCATED where there is room, CPU",
        "TRUNCATED with",
    ),
    defect(
        "size_more",
        "records: add up, over many laps, CPU",
        "no packet begins with",
    ),
    defect(
        "size_less",
        "full: no TRUNCATED where there is room, CPU",
        "no record has a flag",
    ),
    defect(
        "ignores_space",
        "full: a page was read",
        "no more than one less",
    ),
    defect(
        "begins_at_zero",
        "records: add up, over many laps, CPU",
        "packet",
    ),
    defect(
        "overwrite_truncated",
        "overwrite: 4 times the smallest area, CPU",
        "never full",
    ),
    defect(
        "overwrite_head_stays",
        "overwrite: the head goes on, or is an offset",
        "it never moves",
    ),
    defect(
        "overwrite_head_back",
        "overwrite: the head goes on, or is an offset",
        "it goes back",
    ),
    defect(
        "overwrite_stops",
        "overwrite: 4 times the smallest area, CPU",
        "never full",
    ),
    defect(
        "area_holds_nothing",
        "end: an area holds the driver's module",
        "nothing holds the code",
    ),
    defect(
        "ignores_watermark",
        "watermark: a quarter of the area, records are no longer",
        "ignores it",
    ),
    defect(
        "pause_ignored",
        "pause: a sibling pauses it, CPU",
        "it is paused, and",
    ),
    defect(
        "resume_lost",
        "pause: a sibling resumes it, CPU",
        "tracing: not in",
    ),
    defect(
        "itrace_start_again",
        "records: ITRACE_START once for a thread that is traced, CPU",
        "times, for 5 times",
    ),
    defect(
        "counts_nothing",
        "records: add up, over many laps, CPU",
        "and the event counted 0",
    ),
    defect(
        "unknown_flag",
        "records: one format, CPU",
        "flags that perf does not know",
    ),
    defect(
        "changes_format",
        "records: one format, CPU",
        "another format than those before",
    ),
    defect(
        "refuses_large",
        "map: an area 64 times as large as the smallest",
        "mapping an area of 128 pages",
    ),
    defect(
        "writes_unread",
        "records: what is not read does not change, CPU",
        "has changed",
    ),
    defect(
        "skips_unpadded",
        "records: add up, over many laps, CPU",
        "no packet begins with",
    ),
    defect(
        "restart_lost",
        "control: the period is set while it runs, CPU",
        "tracing: not in",
    ),
    defect(
        "drops_packets",
        "full: no TRUNCATED where there is room, CPU",
        "no record has a flag",
    ),
    defect(
        "full_for_good",
        "full: goes on where it ended, CPU",
        "not in",
    ),
];

/// Those that leave something open in the kernel: each has a guest of its own.
const LASTING: [Defect; 4] = [
    defect(
        "stop_begins_again",
        "records: all is there when the event is off, CPU",
        "the kernel says",
    ),
    defect(
        "start_nests",
        "control: its group is throttled, CPU",
        "the kernel says",
    ),
    defect(
        "stop_leaves_open",
        "records: all is there when the event is off, CPU",
        "aux_head has moved by 0",
    ),
    defect(
        "area_leaks",
        "end: nothing of the module is held when all is closed",
        "before",
    ),
];

/// Those that random programs find within a few hundred steps.
const FOUND_BY_PROGRAMS: [&str; 16] = [
    "never_truncated",
    "truncated_with_room",
    "size_more",
    "size_less",
    "ignores_space",
    "begins_at_zero",
    "overwrite_truncated",
    "overwrite_head_stays",
    "overwrite_stops",
    "counts_nothing",
    "unknown_flag",
    "changes_format",
    "refuses_large",
    "writes_unread",
    "skips_unpadded",
    "full_for_good",
];

/// Runs `conform` on the units, on `few` or all, and on each defect.
///
/// # Errors
///
/// When there is no kernel, or something does not compile.
pub fn run(cache: &Cache, dir: &Path, kernel: &Kernel, few: bool) -> Result<Case> {
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
    let mut suites = Vec::new();
    let count = if few { FEW } else { UNITS.len() };
    let units = UNITS.get(..count).unwrap_or(&UNITS);
    suites.extend(bench.units(&dir.join("conform"), units)?);
    suites.push(bench.programs(&dir.join("conform-programs"), units)?);
    suites.push(Case::suite(
        "defects",
        bench.defects(&dir.join("conform-defects"), &DEFECTS)?,
    ));
    if !few {
        suites.push(bench.found_by_programs(&dir.join("conform-found"))?);
        for defect in LASTING {
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
            .timeout(Duration::from_secs(1800));
        for (name, path) in &self.programs {
            guest = guest.program(name, path)?;
        }
        for path in &self.drivers {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            guest = guest.program(&name, path)?;
        }
        Ok(guest)
    }

    fn units(&self, dir: &Path, units: &[(&str, &str)]) -> Result<Vec<Case>> {
        let mut suites = Vec::new();
        let progress = Progress::begin("conform on our units");
        let mut command = "auxload && insmod /bin/c_pattern.ko".to_owned();
        for (number, (unit, _)) in units.iter().enumerate() {
            let line = format!("; conform --pmu {unit} >/out/{number} 2>&1");
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

    /// Random programs on all units at once.
    fn programs(&self, dir: &Path, units: &[(&str, &str)]) -> Result<Case> {
        let progress = Progress::begin("random programs on our units");
        let mut command = "auxload && insmod /bin/c_pattern.ko && conform fuzz".to_owned();
        for (unit, _) in units {
            command.push_str(&format!(" --pmu {unit}"));
        }
        command.push_str(&format!(" --seed {SEED} --steps {STEPS} 2>&1"));
        let outcome = self.guest()?.run(self.cache, dir, &command, |_| {})?;
        let mut cases = vec![Case::judged(
            &format!("{STEPS} steps, as foreseen"),
            match outcome.said.contains(": as foreseen") {
                true => Ok(String::new()),
                false => Err(outcome.said.clone()),
            },
        )];
        cases.extend(outcome.faults());
        let suite = Case::suite("programs", cases);
        progress.end(&suite.counts().summary());
        Ok(suite)
    }

    /// Random programs on the driver with defects, each of which one of them must find.
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

    /// For each defect, whether its case finds it; and the same cases find none in the driver without a defect.
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

/// Whether the case passes without the defect, and fails with it for the right reason.
fn found(defect: &Defect, good: &str, bad: &str) -> std::result::Result<String, String> {
    let case = |said: &str| {
        let mut units = ktap::parse(said);
        let unit = units.pop().ok_or_else(|| format!("conform says: {said}"))?;
        let case = unit
            .children
            .into_iter()
            .find(|case| case.name == defect.case);
        case.ok_or_else(|| format!("the case \"{}\" did not run: {said}", defect.case))
    };
    if case(good)?.status != Status::Pass {
        return Err(format!("without a defect it fails too: {good}"));
    }
    let broken = case(bad)?;
    match broken.status {
        Status::Fail if bad.contains(defect.says) => Ok(defect.case.to_owned()),
        Status::Fail => Err(format!(
            "it fails, and does not say \"{}\": {bad}",
            defect.says
        )),
        _ => Err(format!(
            "it does not fail, although the driver is broken: {bad}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_must_be_found_for_its_reason() {
        let defect = defect("size", "a case", "too long");
        let said = |result: &str, reason: &str| {
            format!(
                "KTAP version 1\n1..1\n    KTAP version 1\n    # Subtest: unit\n    1..1\n    # {reason}\n    {result} 1 a case\n{result} 1 unit\n"
            )
        };
        let good = said("ok", "seen");
        found(&defect, &good, &said("not ok", "it is too long")).unwrap();
        for (good, bad, why) in [
            (&good, &good, "does not fail"),
            (&good, &said("not ok", "it is gone"), "does not say"),
            (
                &said("not ok", "too long"),
                &said("not ok", "too long"),
                "without a defect",
            ),
            (&good, &"error: no driver".to_owned(), "did not run"),
        ] {
            let error = found(&defect, good, bad).unwrap_err();
            assert!(error.contains(why), "{error} for {why}");
        }
    }
}
