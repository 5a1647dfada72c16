// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The cost of tracing a program instruction by instruction, with `soft_pt` and with other tools. Also whether the kernel's memory use
//! grows meanwhile.
//!
//! `auxe2e bench steps` measures this in a guest whose clock counts instructions. The speed of the interpreter alone is measured on this
//! machine, in real time: `rust/stepping/processor_bench.rs`.

use crate::bench::number;
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::python;
use crate::guest::Guest;
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::results::figures::Figure;
use crate::step::Log;
use crate::tools;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use stepped::Stepped;

mod rivals;
mod stepped;

/// The commands that measure.
const COMMAND: &str = "auxe2e bench steps && auxe2e bench memory --times 4";

/// Measures the costs, and writes a report about the instructions that were single-stepped.
///
/// # Errors
///
/// When a build, a download or the guest fails, or the guest's output is incomplete.
pub fn run(cache: &Cache) -> Result<Figures> {
    let rate = interpreter(cache)?;
    let kernel = Kernel::prepare(cache, Kind::Lean)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let dir = cache.build().join("bench/steps");
    let mut guest = Guest::new(&kernel, &built.files)?
        .counting()
        .append("kunit.enable=0")
        .installed(Path::new("/usr/bin/gdb"))?
        .installed(Path::new("/usr/bin/chrt"))?
        .timeout(Duration::from_secs(1800));
    for program in ["perl", "gzip", "sqlite3", "python3"] {
        guest = guest.installed(&Path::new("/usr/bin").join(program))?;
    }
    for file in python::cpython()? {
        guest = guest.installed(&file)?;
    }
    for (name, path) in &tools::build(cache)? {
        guest = guest.program(name, path)?;
    }
    let outcome = rivals::give(cache, guest)?.run(cache, &dir, COMMAND, |_| {})?;
    if let Some(fault) = outcome.faults().first() {
        return Err(Error::Other(format!("{}: {}", fault.name, fault.reason)));
    }
    let file = |name: &str| fs::read_to_string(dir.join(format!("out/{name}.steps"))).ok();
    let figures = Figures::parse(&outcome.said, file, rate).filter(|_| outcome.status == Some(0));
    let figures = figures.ok_or_else(|| {
        Error::Other(format!(
            "auxe2e bench did not say what it measured; see {}",
            dir.join("said.log").display()
        ))
    })?;
    let report = cache.build().join("bench/steps.report");
    let lines: Vec<_> = figures.stepped.iter().flat_map(Stepped::lines).collect();
    fs::write(&report, lines.join("\n") + "\n").on("write", &report)?;
    Ok(figures)
}

/// How many instructions the interpreter executes in a second, on this machine.
fn interpreter(cache: &Cache) -> Result<u64> {
    let log = Log::create(&cache.build().join("bench/interpreter.log"))?;
    let said = log.output(
        "timing the interpreter",
        Command::new("cargo")
            .current_dir(cache.checkout().join("tools"))
            .args(["bench", "--locked", "-p", "interpreter", "--bench", "rate"]),
    )?;
    per_second(&said).ok_or_else(|| {
        Error::Other(format!(
            "the bench of the interpreter did not say what it measured, but: {said}"
        ))
    })
}

/// Parses the number of instructions and the nanoseconds. Returns instructions per second.
fn per_second(said: &str) -> Option<u64> {
    let line = said.lines().find_map(|l| l.strip_prefix("interpreted "))?;
    let (executed, time) = line.split_once(' ')?;
    let executed: u128 = executed.parse().ok()?;
    let rate = (executed * 1_000_000_000).checked_div(time.trim().parse().ok()?)?;
    u64::try_from(rate).ok()
}

/// A way to trace a program: the program's instructions, and the machine's instructions for tracing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    steps: u64,
    cost: u64,
}

impl Way {
    fn parse(said: &str, name: &str, without: u64) -> Option<Self> {
        let line = said
            .lines()
            .find_map(|l| l.strip_prefix("steps ")?.strip_prefix(name))?;
        let (steps, time) = line.trim().split_once(' ')?;
        let time: u64 = time.parse().ok()?;
        Some(Self {
            steps: steps.parse().ok().filter(|&steps| steps > 0)?,
            cost: time.saturating_sub(without),
        })
    }

    /// The machine's instructions for each instruction of the program.
    fn each(self) -> u64 {
        self.cost / self.steps
    }
}

/// A state while a program is traced: instructions traced so far, bytes of trace, KiB in slabs, and KiB of available memory.
type Memory = (u64, u64, u64, u64);

/// Other tools: valgrind without a tool, valgrind with a tool that writes a trace, and QEMU's user-mode emulator.
const RIVALS: [&str; 3] = ["valgrind.none", LACKEY, "qemu-user"];
const LACKEY: &str = "valgrind.lackey";

/// The results.
#[derive(Debug, PartialEq, Eq)]
pub struct Figures {
    soft_pt: Way,
    bytes: u64,
    /// The cost of instructions that the event's filters leave out.
    outside: Way,
    /// Instructions of a system call: without the driver, with it, while another task is traced, and after that.
    calls: [u64; 4],
    /// The maximum delay of a task with a higher priority, in instructions: beside a program, and beside a traced program.
    delays: [u64; 2],
    /// Instructions of a short run: with an event that has had few runs, and with one that has had thousands.
    runs: [u64; 2],
    /// Real programs, by name.
    programs: Vec<(String, Way)>,
    stepped: Vec<Stepped>,
    ptrace: Way,
    gdb: Way,
    /// The [`RIVALS`], by name, for the same program as `soft_pt`.
    rivals: Vec<(String, Way)>,
    /// Instructions per second of the interpreter alone.
    rate: u64,
    /// The states in the first and in the last second.
    memory: [Memory; 2],
}

impl Figures {
    /// Parses the commands' output. `file` returns the file with a program's steps. `rate` is that of the interpreter.
    fn parse(said: &str, file: impl Fn(&str) -> Option<String>, rate: u64) -> Option<Self> {
        let alone = number(said, "steps alone 0")?;
        let programs = programs(said)?;
        let mut memory = said.lines().filter_map(|line| {
            let mut words = line.strip_prefix("memory ")?.split(' ');
            let mut number = || words.next()?.parse().ok();
            Some((number()?, number()?, number()?, number()?))
        });
        Some(Self {
            soft_pt: Way::parse(said, "soft_pt ", alone)?,
            bytes: number(said, "steps bytes")?,
            outside: Way::parse(said, "outside ", alone)?,
            calls: [
                number(said, "steps call absent")?,
                number(said, "steps call idle")?,
                number(said, "steps call others")?,
                number(said, "steps call after")?,
            ],
            delays: [
                number(said, "steps delay alone")?,
                number(said, "steps delay traced")?,
            ],
            runs: [
                number(said, "steps runs first")?,
                number(said, "steps runs last")?,
            ],
            stepped: stepped(said, &programs, file)?,
            programs,
            rivals: rivals(said, alone)?,
            rate,
            ptrace: Way::parse(said, "ptrace ", alone)?,
            // The guest has already subtracted the time that gdb needs without recording.
            gdb: Way::parse(said, "gdb ", 0)?,
            memory: [memory.next()?, memory.next_back()?],
        })
    }

    /// The figures, with their targets.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let [absent, idle, others, after] = self.calls;
        let [(from, first, slab, free), (to, last, slab_after, free_after)] = self.memory;
        let [beside, delayed] = self.delays;
        let [run, later] = self.runs;
        let instructions = [
            ("run.early", run),
            ("run.late", later),
            ("delay.program", beside),
            ("delay.program-traced", delayed),
            ("call.driver-absent", absent),
            ("call.driver-idle", idle),
            ("call.another-traced", others),
            ("call.after-that", after),
            ("soft_pt", self.soft_pt.each()),
            ("steptrace", self.ptrace.each()),
            ("gdb", self.gdb.each()),
            ("memory.traced", to.saturating_sub(from)),
        ];
        let kib = [
            ("memory.slabs.before", slab),
            ("memory.slabs.after", slab_after),
            ("memory.available.before", free),
            ("memory.available.after", free_after),
        ];
        let figure = |unit| move |(name, n)| count(name, n, unit);
        let mut figures: Vec<Figure> = instructions
            .into_iter()
            .map(figure("instructions"))
            .collect();
        figures.extend(kib.into_iter().map(figure("KiB")));
        figures.push(figure("instructions")(("filtered-out", self.outside.each())).at_most(60));
        // Rounded down.
        let times = self.ptrace.each() * 100 / self.soft_pt.each().max(1);
        figures.push(
            Figure::hundredths("steps.steptrace.times", times, "ratio").at_least_hundredths(15_000),
        );
        // Rounded up.
        let slower = (later * 100).div_ceil(run.max(1));
        figures.push(
            Figure::hundredths("steps.run.late.times", slower, "ratio").at_most_hundredths(105),
        );
        let program = |(name, way): &(String, Way)| {
            Figure::count(format!("steps.program.{name}"), way.each(), "instructions").at_most(250)
        };
        figures.extend(self.programs.iter().map(program));
        figures.push(Figure::count("steps.program.mean", self.mean(), "instructions").at_most(100));
        figures.extend(self.stepped.iter().map(|stepped| {
            let name = format!("steps.interpreted.{}", stepped.name);
            Figure::hundredths(name, stepped.share(), "percent")
        }));
        for (name, way) in &self.rivals {
            figures.push(count(name, way.each(), "instructions"));
            if name == LACKEY {
                // Rounded down.
                let times = way.each() * 100 / self.soft_pt.each().max(1);
                let times = Figure::hundredths(format!("steps.{name}.times"), times, "ratio");
                figures.push(times.at_least_hundredths(100));
            }
        }
        let millions = self.rate / 1_000_000;
        figures.push(count(
            "interpreter.per-second",
            millions,
            "million instructions a second",
        ));
        figures.push(Figure::count(
            "steps.memory.trace",
            last.saturating_sub(first),
            "bytes",
        ));
        let bits = self.bytes * 800 / self.soft_pt.steps;
        figures.push(
            Figure::hundredths("steps.soft_pt.trace", bits, "bits an instruction")
                .at_most_hundredths(65),
        );
        figures
    }

    fn programs_line(&self) -> String {
        let one = |(name, way): &(String, Way)| {
            format!("{name} {} ({} instructions)", way.each(), way.steps)
        };
        let each: Vec<_> = self.programs.iter().map(one).collect();
        format!(
            "an instruction of programs that people have: {}; on average {}",
            each.join(", "),
            self.mean()
        )
    }

    /// The geometric mean of the programs' costs per instruction.
    fn mean(&self) -> u64 {
        let count = u32::try_from(self.programs.len()).unwrap_or(1);
        let product: u128 = self
            .programs
            .iter()
            .map(|(_, way)| u128::from(way.each()))
            .product();
        let root = (1_u64..).take_while(|n| u128::from(*n).pow(count) <= product);
        root.last().unwrap_or(0)
    }

    /// The lines to print.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let bits = self.bytes * 800 / self.soft_pt.steps;
        let times = |way: Way| {
            let tenths = way.each() * 10 / self.soft_pt.each().max(1);
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        let [(from, first, slab, free), (to, last, slab_after, free_after)] = self.memory;
        let bytes = last.saturating_sub(first);
        let [beside, delayed] = self.delays;
        let [absent, idle, others, after] = self.calls;
        let rivals = self.rivals.iter();
        let rivals: Vec<_> = rivals
            .map(|(name, way)| format!("{name} {}, {} times", way.each(), times(*way)))
            .collect();
        let mut lines = vec![
            format!(
                "a system call of an untraced program: {absent} instructions without soft_pt, {idle} with it, {others} while another program is traced, {after} after that"
            ),
            format!(
                "an instruction that filters leave out: {} instructions",
                self.outside.each()
            ),
            format!(
                "an instruction traced by soft_pt: {} instructions, {}.{:02} bits of trace ({} instructions in {} bytes)",
                self.soft_pt.each(),
                bits / 100,
                bits % 100,
                self.soft_pt.steps,
                self.bytes
            ),
            self.programs_line(),
            format!(
                "a task that goes before others is {beside} instructions late at most beside a program, {delayed} beside one that is traced"
            ),
            format!(
                "by steptrace (ptrace): {} instructions, {} times that; by gdb's `record full`: {}, {} times",
                self.ptrace.each(),
                times(self.ptrace),
                self.gdb.each(),
                times(self.gdb)
            ),
            format!(
                "the kernel's memory while {} instructions are traced, in {bytes} bytes: slabs from {slab} to {slab_after} KiB, available from {free} to {free_after} KiB",
                to.saturating_sub(from)
            ),
            format!(
                "a short run: {} instructions with an event that has had few, {} with one that has had thousands",
                self.runs[0], self.runs[1]
            ),
            format!("an instruction by others: {}", rivals.join("; ")),
            format!(
                "the interpreter by itself, on this processor: {} million instructions a second",
                self.rate / 1_000_000
            ),
        ];
        lines.extend(self.stepped.iter().flat_map(Stepped::lines));
        lines
    }
}

/// A figure of the group `steps`.
fn count(name: &str, value: u64, unit: &'static str) -> Figure {
    Figure::count(format!("steps.{name}"), value, unit)
}

/// The single steps of each program.
fn stepped(
    said: &str,
    programs: &[(String, Way)],
    file: impl Fn(&str) -> Option<String>,
) -> Option<Vec<Stepped>> {
    let stepped = programs.iter().map(|(name, _)| {
        let line = said
            .lines()
            .find_map(|l| l.strip_prefix("steps interpreted ")?.strip_prefix(name))?;
        let (counted, interpreted) = line.trim().split_once(' ')?;
        let (counted, interpreted) = (counted.parse().ok()?, interpreted.parse().ok()?);
        Stepped::parse(name, counted, interpreted, &file(name)?)
    });
    stepped.collect()
}

/// The costs that the [`RIVALS`] add to that of the program.
fn rivals(said: &str, alone: u64) -> Option<Vec<(String, Way)>> {
    let rival = |name: &&str| {
        Some((
            (*name).to_owned(),
            Way::parse(said, &format!("{name} "), alone)?,
        ))
    };
    RIVALS.iter().map(rival).collect()
}

/// The real programs that were traced. Their cost is the part that tracing adds.
fn programs(said: &str) -> Option<Vec<(String, Way)>> {
    let lines = said
        .lines()
        .filter_map(|line| line.strip_prefix("steps program "));
    let programs = lines.map(|line| {
        let (name, _) = line.split_once(' ')?;
        let way = Way::parse(said, &format!("program {name} "), 0)?;
        Some((name.to_owned(), way))
    });
    let programs: Option<Vec<_>> = programs.collect();
    programs.filter(|programs| !programs.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "steps call absent 100\nsteps call idle 101\nsteps call others 300\nsteps call after 102\nsteps alone 0 1000\nsteps outside 100 101000\nsteps runs first 2000\nsteps runs last 2010\nsteps delay alone 300\nsteps delay traced 4000\nsteps soft_pt 100 201000\nsteps bytes 6\nsteps program perl 100 6400\nsteps interpreted perl 100 99\nsteps program gzip 10 2500\nsteps interpreted gzip 10 8\nsteps ptrace 100 1201000\nsteps gdb 10 500000\nsteps valgrind.none 100 51000\nsteps valgrind.lackey 100 240000\nsteps qemu-user 100 2000\n\
                    memory 1000 60 20 500\nmemory 2000 120 21 499\nmemory 9000 540 22 498\n";

    fn parse(said: &str) -> Option<Figures> {
        let file = |name: &str| match name {
            "perl" => Some("0 1 1 0f05\n".to_owned()),
            "gzip" => Some("1 3 2 f3a4\n".to_owned()),
            _ => None,
        };
        Figures::parse(said, file, 123_456_789)
    }

    #[test]
    fn what_the_guest_says_is_understood() {
        let lines = parse(SAID).unwrap().lines();
        assert!(lines[0].contains("100 instructions without soft_pt, 101 with it, 300 while another program is traced, 102 after"), "{lines:?}");
        assert!(lines[1].contains("1000 instructions"), "{lines:?}");
        assert!(
            lines[2].contains("2000 instructions, 0.48 bits"),
            "{lines:?}"
        );
        assert!(
            lines[3].ends_with(
                "perl 64 (100 instructions), gzip 250 (10 instructions); on average 126"
            ),
            "{lines:?}"
        );
        assert!(
            lines[4].contains("300 instructions late at most beside a program, 4000"),
            "{lines:?}"
        );
        assert!(
            lines[5].contains("12000 instructions, 6.0 times"),
            "{lines:?}"
        );
        assert!(lines[5].contains("50000, 25.0 times"), "{lines:?}");
        assert!(
            lines[6].contains("8000 instructions are traced, in 480 bytes: slabs from 20 to 22 KiB, available from 500 to 498"),
            "{lines:?}"
        );
        assert!(
            lines[7].ends_with("2000 instructions with an event that has had few, 2010 with one that has had thousands"),
            "{lines:?}"
        );
        assert_eq!(
            lines[8],
            "an instruction by others: valgrind.none 500, 0.2 times; valgrind.lackey 2390, 1.1 times; qemu-user 10, 0.0 times"
        );
        assert!(
            lines[9].ends_with("123 million instructions a second"),
            "{lines:?}"
        );
        assert!(lines[10].starts_with("perl: 99.00 % of 100"), "{lines:?}");
        assert!(lines[11].ends_with("syscall (first)"), "{lines:?}");
        assert!(lines[12].starts_with("gzip: 80.00 % of 10"), "{lines:?}");
    }

    #[test]
    fn what_is_missing_is_noticed() {
        for missing in [
            "steps interpreted perl",
            "steps valgrind.none",
            "steps valgrind.lackey",
            "steps qemu-user",
        ] {
            assert_eq!(
                parse(&SAID.replace(missing, "steps nothing")),
                None,
                "{missing}"
            );
        }
        // Another number than that of the steps in the file.
        assert_eq!(parse(&SAID.replace("gzip 10 8", "gzip 10 9")), None);
    }

    #[test]
    fn figures_have_their_targets() {
        let figures = parse(SAID).unwrap().figures();
        let verdict = |said: &str| {
            figures
                .iter()
                .filter_map(Figure::verdict)
                .any(|v| v.contains(said))
        };
        assert!(verdict("met: steps.run.late.times 1.01 ratio"));
        // 2390 and 2000.
        assert!(verdict("met: steps.valgrind.lackey.times 1.19 ratio"));
        assert!(figures.contains(&Figure::hundredths(
            "steps.interpreted.perl",
            9900,
            "percent"
        )));
        assert!(figures.contains(&Figure::count(
            "steps.interpreter.per-second",
            123,
            "million instructions a second"
        )));
    }

    #[test]
    fn a_rate_is_instructions_in_time() {
        assert_eq!(per_second("x\ninterpreted 300 2000000000\n"), Some(150));
        assert_eq!(per_second("interpreted 300 0\n"), None);
        assert_eq!(per_second("interpreted\n"), None);
    }
}
