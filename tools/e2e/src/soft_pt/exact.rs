// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `soft_pt`: do decoders show exactly the instructions that a program executed?
//!
//! In a guest, each program runs alone, stepped by `steptrace`; and it is traced, by `auxrec` and by stock perf. Decoding takes long in an
//! emulated guest. So the recordings are decoded outside, by perf and by libipt. A program has the same addresses in all runs: nothing is
//! random, the environment is the same, and each program has one CPU for itself.
//!
//! For programs that are recorded in two ways, libipt can also compare the packets.
//!
//! - This file: the programs, and the expectations of each.
//! - [`record`], [`judge`]: the two parts; [`again`]: both for another [`Way`].
//! - [`decoders`]: what perf and libipt show of a recording.
//! - [`packets`]: the files that libipt needs to decode the kernel's code.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::Result;
use clap::Subcommand;

use crate::ktap;

mod again;
mod decoders;
mod judge;
pub mod packets;
mod record;

/// What is to be done.
#[derive(Subcommand, Debug)]
pub enum Part {
    /// Run and record the programs, in a guest.
    Record {
        /// In this way, after the same without this.
        #[arg(long)]
        again: Option<Way>,
        /// Do not step the programs: another kernel does, and makes the logs.
        #[arg(long, conflicts_with = "again")]
        traced: bool,
        /// Step the programs, and trace none. In this folder is what they were asked where they were traced.
        #[arg(long, conflicts_with_all = ["again", "traced"], value_name = "FOLDER")]
        stepped: Option<PathBuf>,
        /// Where the programs are.
        programs: PathBuf,
        /// Only programs whose names contain one of these.
        filters: Vec<String>,
    },
    /// Decode what was recorded, and compare.
    Judge {
        /// What was recorded in this way.
        #[arg(long)]
        again: Option<Way>,
        /// Compare the packets with those of the recording without `--again`, not the instructions with the log.
        #[arg(long, requires = "again")]
        packets: bool,
        /// Where the files are.
        files: PathBuf,
        /// The source of `ptwalk`.
        ptwalk: PathBuf,
        /// Only programs whose names contain one of these.
        filters: Vec<String>,
    },
}

/// The name of the case that is reported if no program is chosen.
const NONE: &str = "none";

/// Another way to record than `soft_pt` with what it does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// The trace unit, which QEMU has.
    Unit,
    /// `soft_pt`, and a trap for each instruction.
    Steps,
}

impl Way {
    /// The driver's module and its parameters.
    fn driver(way: Option<Self>) -> (&'static str, &'static [&'static str]) {
        match way {
            None => ("soft_pt", &["intel_pt=1"]),
            Some(Self::Unit) => ("trace_unit", &["intel_pt=1"]),
            Some(Self::Steps) => ("soft_pt", &["intel_pt=1", "interpret=0"]),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unit => "unit",
            Self::Steps => "steps",
        })
    }
}

/// The runs of a program.
enum Runs {
    /// The traced runs and the stepped one.
    All,
    /// The traced runs only.
    Traced,
    /// The stepped run only. The folder has the input that the program got in its traced run.
    Stepped(PathBuf),
}

impl Runs {
    fn traces(&self) -> bool {
        !matches!(self, Self::Stepped(_))
    }

    fn steps(&self) -> bool {
        !matches!(self, Self::Traced)
    }
}

/// A program and its properties.
struct Program {
    name: &'static str,
    /// Whether stock perf records it, too.
    perf: bool,
    /// Whether it has a single thread from its beginning to its end: ptwalk does not support threads.
    one: bool,
    /// Whether its packets are the same in each run. Such a program does not wait for the other CPU and shares no file with it, and files
    /// have all of its code. It is recorded without involuntary task switches.
    packets: bool,
    expect: Expect,
}

/// The expected result of the comparison.
enum Expect {
    /// Each instruction of each thread must be there, in order and without an error.
    Same,
    /// The recorder is stopped for a while, and its ring overflows. Each loss must be an error. Between losses, each instruction must be
    /// there.
    Losses,
    /// The program executes code that is in no file. perf gets that code from the recorder. libipt stops there, and continues at a later
    /// PSB.
    Generated,
    /// Like `Same` by libipt. perf decodes it as 32-bit code, because of the file's type.
    X32,
    /// There is no log. The decoder must show as many instructions as were counted, without an error.
    Counted(&'static str),
    /// Like `Counted`; and the instruction at this symbol must be shown as often as the program reports.
    Visits(&'static str),
    /// Like `Counted`; and the handler at this symbol must never run. The payloads of PTWRITE must be those that the program prints, and
    /// each instruction must take a cycle.
    Writes(&'static str),
}

use Expect::{Counted, Generated, Losses, Same, Visits, Writes, X32};

const fn program(name: &'static str, one: bool, expect: Expect) -> Program {
    Program {
        name,
        perf: false,
        one,
        packets: false,
        expect,
    }
}

/// Makes a program that stock perf records, too.
const fn by_perf(name: &'static str, one: bool) -> Program {
    Program {
        name,
        perf: true,
        one,
        packets: false,
        expect: Same,
    }
}

/// Makes a program whose packets are the same in each run.
const fn packets(program: Program) -> Program {
    Program {
        packets: true,
        ..program
    }
}

/// The longest ones come first, because two run at a time.
const PROGRAMS: &[Program] = &[
    program(
        "goroutines",
        false,
        Counted("a thread of its runtime goes by the clock"),
    ),
    program(
        "stress",
        false,
        Counted("how often its threads wait goes by the clock"),
    ),
    packets(by_perf("exceptions", true)),
    packets(by_perf("fibers", true)),
    program(
        "compiled.py",
        false,
        Counted("by ptrace it would take hours"),
    ),
    program("losses", true, Losses),
    program("syscalls", true, Same),
    program("calls-32", true, Same),
    packets(program("threads", false, Same)),
    packets(by_perf("calls-static", true)),
    packets(program("children", false, Same)),
    program("closures", true, Same),
    program("calls", true, Same),
    packets(by_perf("indirect", true)),
    packets(program("strings", true, Same)),
    program("generated", true, Same),
    packets(program("signals", true, Same)),
    packets(program("faults", true, Same)),
    packets(program("flags", true, Same)),
    packets(by_perf("jumps", true)),
    packets(program("again", true, Same)),
    packets(program("twice", true, Same)),
    program(
        "stepper",
        true,
        Counted("it steps itself, which a debugger changes"),
    ),
    program("probed", true, Same),
    program("dispatched", true, Visits("refused")),
    packets(program("unreadable", true, Same)),
    program("sequences", false, Visits("aborted")),
    program("vsyscalls", true, Visits("returned")),
    program("debugged", false, Visits("stepped")),
    program("writes", true, Writes("skip")),
    program("rewritten", true, Generated),
    program("compiled.lua", false, Generated),
    program("x32", true, X32),
];

/// The result of a program's case.
enum Outcome {
    Good(String),
    Skipped(&'static str),
}

/// How often a recorder is stopped while its program does much work.
const HELD: usize = 4;

/// The file to which `generated` writes its code.
const CODE: &str = "/tmp/generated.code";

impl Program {
    fn is_one_of(&self, filters: &[String]) -> bool {
        filters.is_empty() || filters.iter().any(|filter| self.name.contains(filter))
    }

    /// Whether there is a log of the stepped program to compare with.
    fn is_stepped(&self) -> bool {
        !matches!(self.expect, Counted(_) | Visits(_) | Writes(_))
    }

    /// The event that records the program in this way.
    fn event(&self, way: Option<Way>) -> &'static str {
        match (&self.expect, way) {
            (Writes(_), None) => "intel_pt/ptw,fup_on_ptw,cyc/u",
            (Writes(_), Some(_)) => "intel_pt/ptw,fup_on_ptw,cyc,cyc_thresh=5/u",
            _ => "intel_pt//u",
        }
    }
}

/// Runs one part of the test.
pub fn run(part: &Part) -> Result<ExitCode> {
    let (Part::Record { filters, again, .. } | Part::Judge { filters, again, .. }) = part;
    let packets = matches!(part, Part::Judge { packets: true, .. });
    let stepped = matches!(
        part,
        Part::Record {
            stepped: Some(_),
            ..
        }
    );
    // The other ways are compared only for programs that must be the same, and for PTWRITE.
    let fits = |program: &Program| {
        (again.is_none()
            || matches!(program.expect, Same)
            || again == &Some(Way::Steps) && matches!(program.expect, Writes(_)))
            && (program.packets || !packets)
            && (program.is_stepped() || !stepped)
    };
    let chosen = || PROGRAMS.iter().filter(|p| p.is_one_of(filters) && fits(p));
    if chosen().count() == 0 {
        ktap::Report::begin(1).skip(NONE, "no program of these is compared so");
        return Ok(ExitCode::SUCCESS);
    }
    let report = Mutex::new(ktap::Report::begin(chosen().count()));
    // Reports each result as soon as it is known.
    let tell = |program: &Program, outcome: Result<Outcome>| {
        let Ok(mut report) = report.lock() else {
            return;
        };
        match outcome {
            Ok(Outcome::Good(note)) => report.pass(program.name, &note),
            Ok(Outcome::Skipped(why)) => report.skip(program.name, why),
            Err(error) => report.fail(program.name, &format!("{error:#}")),
        }
    };
    match part {
        Part::Record {
            programs,
            traced,
            stepped,
            ..
        } => {
            let runs = match stepped {
                Some(folder) => Runs::Stepped(folder.clone()),
                None if *traced => Runs::Traced,
                None => Runs::All,
            };
            let driver = runs.traces().then(|| Way::driver(*again));
            record::all(driver, chosen(), &|program| {
                let outcome = match again {
                    None => record::runs(programs, program, &runs),
                    Some(way) => again::runs(programs, program, *way),
                };
                tell(program, outcome);
            })?;
        }
        Part::Judge { files, ptwalk, .. } => {
            let walker = judge::prepare(files, ptwalk)?;
            chosen().for_each(|program| {
                let outcome = match again {
                    None => judge::compared(files, &walker, program),
                    Some(way) if packets => again::packets(files, &walker, program, *way),
                    Some(way) => again::compared(files, &walker, program, *way),
                };
                tell(program, outcome);
            });
        }
    }
    let good = report.into_inner().is_ok_and(|report| report.good());
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
