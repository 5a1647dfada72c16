// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Each value of each term of Intel PT, with each value of each other term, on both units. Either the recorder refuses the event with a
//! reason that names a term, or perf shows from its trace the instructions that were executed.
//!
//! [`Unit::refuses()`] determines which events must be refused. `auxrec` records a program without libraries with each event.

use super::executed::{Ends, Executed, Kind};
use super::instructions::in_order;
use super::packets::packets;
use super::recordings::SHORT;
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::{Devices, Guest, Outcome};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::parallel::{self, both};
use crate::results::ktap::Case;
use crate::step::Progress;
use crate::suites::exact::programs;
use crate::tools;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The case's name.
pub(in crate::suites::exact) const NAME: &str = "pairs of terms";

/// The terms that Intel PT has, and their largest values.
const TERMS: [(&str, u64); 14] = [
    ("pt", 1),
    ("branch", 1),
    ("tsc", 1),
    ("noretcomp", 1),
    ("psb_period", 15),
    ("mtc", 1),
    ("mtc_period", 15),
    ("cyc", 1),
    ("cyc_thresh", 15),
    ("ptw", 1),
    ("fup_on_ptw", 1),
    ("pwr_evt", 1),
    ("event", 1),
    ("notnt", 1),
];

/// A term and its value.
type Set = (&'static str, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    SoftPt,
    TraceUnit,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::SoftPt => "soft_pt",
            Self::TraceUnit => "trace_unit",
        }
    }

    /// The terms that the unit has.
    fn terms(self) -> &'static [&'static str] {
        match self {
            Self::SoftPt => &[
                "pt",
                "branch",
                "tsc",
                "noretcomp",
                "psb_period",
                "mtc",
                "mtc_period",
                "cyc",
                "cyc_thresh",
                "ptw",
                "fup_on_ptw",
                "pwr_evt",
                "notnt",
            ],
            Self::TraceUnit => &[
                "pt",
                "branch",
                "tsc",
                "noretcomp",
                "psb_period",
                "mtc",
                "mtc_period",
                "cyc",
                "event",
            ],
        }
    }

    /// The terms that the recorder sets by default.
    fn defaults(self) -> &'static [Set] {
        match self {
            Self::SoftPt => &[("pt", 1), ("branch", 1), ("tsc", 1)],
            Self::TraceUnit => &[
                ("pt", 1),
                ("branch", 1),
                ("tsc", 1),
                ("mtc", 1),
                ("mtc_period", 3),
                ("psb_period", 3),
            ],
        }
    }

    /// Whether an event of the unit with these terms must be refused.
    fn refuses(self, asked: &[Set]) -> bool {
        if asked.iter().any(|(term, _)| !self.terms().contains(term)) {
            return true;
        }
        let of = |term| value(self, asked, term);
        // Neither unit has PSB periods above 64 KiB.
        if of("psb_period") > 5 {
            return true;
        }
        match self {
            // Software sees no power states, and has no second clock. Without `pt`, the bit of `branch` has no meaning.
            Self::SoftPt => {
                of("pwr_evt") + of("mtc") + of("mtc_period") > 0
                    || of("cyc_thresh") > 12
                    || of("branch") > of("pt")
            }
            // The unit traces only branches. The clocks of `cyc` and `mtc` count from a time stamp.
            Self::TraceUnit => of("branch") != of("pt") || of("cyc").max(of("mtc")) > of("tsc"),
        }
    }
}

/// The value of a term: the last one in `asked`, or the default.
fn value(unit: Unit, asked: &[Set], term: &str) -> u64 {
    let all = unit.defaults().iter().chain(asked);
    let mut found = all.filter(|(name, _)| *name == term);
    found.next_back().map_or(0, |(_, value)| *value)
}

/// All events: with no term, with one, and with two.
fn all() -> Vec<Vec<Set>> {
    let mut all = vec![Vec::new()];
    let values = |(term, max): &(&'static str, u64)| {
        let term = *term;
        (0..=*max)
            .map(move |value| (term, value))
            .collect::<Vec<_>>()
    };
    for (number, term) in TERMS.iter().enumerate() {
        for one in values(term) {
            all.push(vec![one]);
            for other in TERMS.iter().skip(number + 1).flat_map(values) {
                all.push(vec![one, other]);
            }
        }
    }
    all
}

fn text(asked: &[Set]) -> String {
    let terms = asked.iter().map(|(term, value)| format!("{term}={value}"));
    terms.collect::<Vec<_>>().join(",")
}

pub(in crate::suites::exact) fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let tools = tools::build(cache)?;
    let Some((_, steptrace)) = tools.iter().find(|(name, _)| name == "steptrace") else {
        return Ok(Case::skip(NAME, "tools/steptrace is not in this checkout"));
    };
    let progress = Progress::begin(&format!("exact: {NAME} on {}", kernel.kind));
    let dir = dir.join("exact-pairs");
    fs::create_dir_all(&dir).on("make", &dir)?;
    let modules = modules::build(cache, kernel, Mode::Plain)?;
    programs(cache)?;
    let program = cache.build().join("programs").join(SHORT);
    let recorder = Recorder {
        cache,
        dir: &dir,
        kernel,
        modules: &modules.files,
        tools: &tools,
        program: &program,
        executed: Executed::stepped(&dir, steptrace, &program, Ends::Itself)?,
    };
    let (soft_pt, trace_unit) = both(
        || recorder.on(Unit::SoftPt),
        || recorder.on(Unit::TraceUnit),
    )?;
    let suite = Case::suite(NAME, vec![soft_pt, trace_unit]);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// The data for both guests, and the instructions that the program executes.
struct Recorder<'a> {
    cache: &'a Cache,
    dir: &'a Path,
    kernel: &'a Kernel,
    modules: &'a [PathBuf],
    tools: &'a [(String, PathBuf)],
    program: &'a Path,
    executed: Executed,
}

impl Recorder<'_> {
    /// Records the program with each event in one guest.
    fn records(&self, unit: Unit, all: &[Vec<Set>]) -> Result<Outcome> {
        let (loads, devices) = match unit {
            Unit::SoftPt => (
                "insmod /modules/rust_stepping.ko && insmod /modules/soft_pt.ko intel_pt=1",
                Devices::Plain,
            ),
            Unit::TraceUnit => (
                "insmod /modules/trace_unit.ko intel_pt=1",
                Devices::TraceUnit,
            ),
        };
        let mut guest = Guest::new(self.kernel, self.modules)?
            .append("vdso=0 vdso32=0 kunit.enable=0")
            .timeout(Duration::from_secs(1500))
            .more_memory(512)
            .intel()
            .devices(devices)
            .installed(self.program)?;
        for (name, path) in self.tools {
            guest = guest.program(name, path)?;
        }
        let mut command = format!(
            "insmod /modules/rust_perf.ko && {loads} || exit 1
echo 0 >/proc/sys/kernel/randomize_va_space
t() {{
	said=
	taskset 2 auxrec record -q -e \"intel_pt/$2/u\" -m16,64 -o /out/$1.data -- {} >/dev/null 2>/tmp/said
	status=$?
	read -r said </tmp/said
	echo \"$1 $status $said\" >>/out/said
}}
",
            self.program.display()
        );
        for (number, asked) in all.iter().enumerate() {
            let _ = writeln!(command, "t {number} {}", text(asked));
        }
        guest.run(self.cache, &self.dir.join(unit.name()), &command, |_| {})
    }

    fn on(&self, unit: Unit) -> Result<Case> {
        let (name, all) = (unit.name(), all());
        let outcome = self.records(unit, &all)?;
        if let Some(fault) = outcome.faults().first() {
            let why = format!("{}: {}", fault.name, fault.reason);
            return Ok(Case::fail(name, &why));
        }
        let said = outcome.files.join("said");
        let said = fs::read_to_string(&said).on("read", &said)?;
        let said: BTreeMap<usize, (&str, &str)> = said.lines().filter_map(ended).collect();
        let found = parallel::each(2, &all, |number, asked| {
            let file = outcome.files.join(format!("{number}.data"));
            let said = said.get(&number).copied();
            judged(unit, asked, said, &file, &self.executed)
        });
        let found: Vec<_> = found.into_iter().collect::<Result<_>>()?;
        Ok(case(name, &all, &found))
    }
}

fn case(name: &str, all: &[Vec<Set>], found: &[std::result::Result<bool, String>]) -> Case {
    let wrong: Vec<_> = all
        .iter()
        .zip(found)
        .filter_map(|(asked, came)| Some(format!("{}: {}", text(asked), came.as_ref().err()?)))
        .collect();
    let recorded = found.iter().filter(|came| **came == Ok(true)).count();
    match wrong.first() {
        Some(first) => {
            let why = format!("{} of {} are wrong: {first}", wrong.len(), all.len());
            Case::fail(name, &why).with_log(wrong)
        }
        None => Case::pass(name).with_log(vec![format!(
            "{recorded} events decoded, {} refused",
            all.len() - recorded
        )]),
    }
}

/// Parses a line with the number of an event, the exit status, and the recorder's message.
fn ended(line: &str) -> Option<(usize, (&str, &str))> {
    let (number, rest) = line.split_once(' ')?;
    let (status, said) = rest.split_once(' ')?;
    Some((number.parse().ok()?, (status, said.trim())))
}

/// Checks that an event was recorded or refused, as it must be. Returns whether it was recorded.
fn judged(
    unit: Unit,
    asked: &[Set],
    said: Option<(&str, &str)>,
    file: &Path,
    executed: &Executed,
) -> Result<std::result::Result<bool, String>> {
    let Some((status, said)) = said else {
        return Ok(Err("it has not ended".to_owned()));
    };
    Ok(match (status, unit.refuses(asked)) {
        ("0", true) => Err("it is not refused".to_owned()),
        ("0", false) => decoded(unit, asked, file, executed)?.map(|()| true),
        (_, false) => Err(format!("it is refused: {said}")),
        (_, true) if says_why(said, asked) => Ok(false),
        (_, true) => Err(format!("the reason is not clear: {said}")),
    })
}

/// Whether the reason of a refusal names one of the event's terms.
fn says_why(said: &str, asked: &[Set]) -> bool {
    asked.iter().any(|(term, _)| said.contains(term))
}

/// Checks that perf shows the instructions that were executed.
fn decoded(
    unit: Unit,
    asked: &[Set],
    file: &Path,
    executed: &Executed,
) -> Result<std::result::Result<(), String>> {
    let of = |term| value(unit, asked, term);
    let perf = |options: &[&str]| -> Result<String> {
        let output = Command::new("perf")
            .args(["script", "-i"])
            .arg(file)
            .args(options)
            .output()
            .map_err(|source| Error::Spawn {
                program: "perf".to_owned(),
                source,
            })?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    if of("branch") < of("pt") {
        let right = |tips| tips == 0;
        return Ok(counted(&perf(&["-D"])?, right));
    }
    if of("notnt") > 0 {
        let count = |kinds: &[Kind]| {
            kinds
                .iter()
                .map(|kind| executed.count(*kind))
                .sum::<usize>()
        };
        let least = count(&[Kind::IndirectJump, Kind::IndirectCall]);
        let max = least + count(&[Kind::Return]);
        let right = |tips| match of("noretcomp") {
            0 => (least..=max).contains(&tips),
            _ => tips == max,
        };
        let counted = counted(&perf(&["-D"])?, right);
        let shown = perf(&["--itrace=qi1ie", "-F", "ip"])?;
        return Ok(counted.and_then(|()| in_order(&addresses(&shown)?, executed.first())));
    }
    let shown = perf(&["--itrace=i1ie", "-F", "ip"])?;
    let shown: Vec<_> = shown.split_whitespace().collect();
    Ok(executed.are(&shown))
}

/// The addresses that perf shows, without repetitions: a `PSB` has the current address, which the packet before may have, too.
fn addresses(shown: &str) -> std::result::Result<Vec<u64>, String> {
    let address = |word| {
        let address = u64::from_str_radix(word, 16);
        address.map_err(|_| format!("perf shows `{word}`"))
    };
    let addresses = shown.split_whitespace().map(address);
    let mut addresses: Vec<_> = addresses.collect::<std::result::Result<_, _>>()?;
    addresses.dedup();
    Ok(addresses)
}

/// Checks that there are no `TNT` packets, and that `right` accepts the number of `TIP` packets.
fn counted(dump: &str, right: impl Fn(usize) -> bool) -> std::result::Result<(), String> {
    let all = packets(dump);
    let count = |name: &str| all.iter().filter(|packet| packet.name == name).count();
    match (count("PSB"), count("TNT"), count("TIP")) {
        (1.., 0, tips) if right(tips) => Ok(()),
        found => Err(format!("{found:?} PSB, TNT and TIP packets are dumped")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_meets_each_other() {
        let all = all();
        let values: u64 = TERMS.iter().map(|(_, max)| max + 1).sum();
        let same: u64 = TERMS.iter().map(|(_, max)| (max + 1).pow(2)).sum();
        let pairs = (values.pow(2) - same) / 2;
        assert_eq!(u64::try_from(all.len()).unwrap(), 1 + values + pairs);
        for asked in [
            &[("pt", 0), ("notnt", 1)][..],
            &[("psb_period", 15), ("cyc_thresh", 12)],
        ] {
            assert!(all.iter().any(|one| one == asked), "{asked:?}");
        }
    }

    #[test]
    fn what_is_to_be_refused() {
        use Unit::{SoftPt, TraceUnit};
        let table: &[(Unit, &[Set], bool)] = &[
            (SoftPt, &[], false),
            (SoftPt, &[("branch", 0)], false),
            (SoftPt, &[("pt", 0)], true),
            (SoftPt, &[("pt", 0), ("branch", 0)], false),
            (SoftPt, &[("mtc", 1)], true),
            (SoftPt, &[("cyc_thresh", 13)], true),
            (TraceUnit, &[], false),
            (TraceUnit, &[("branch", 0)], true),
            (TraceUnit, &[("tsc", 0)], true),
            (TraceUnit, &[("tsc", 0), ("mtc", 0)], false),
            (TraceUnit, &[("ptw", 0)], true),
            (TraceUnit, &[("psb_period", 6)], true),
        ];
        for (unit, asked, want) in table {
            assert_eq!(unit.refuses(asked), *want, "{unit:?} {asked:?}");
        }
    }

    #[test]
    fn a_reason_names_a_term() {
        assert!(says_why(
            "the unit has no term `ptw`",
            &[("tsc", 0), ("ptw", 1)]
        ));
        assert!(!says_why("Invalid argument", &[("tsc", 0), ("ptw", 1)]));
    }
}
