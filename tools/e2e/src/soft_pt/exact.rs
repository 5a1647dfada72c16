// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `soft_pt`: is what decoders make of its trace what a program executed, instruction by instruction?
//!
//! In a guest each program runs by itself, stepped by `steptrace`, and traced: by `auxrec`, and by stock perf. Decoding takes long in a
//! guest that is emulated, so it is done outside, from the files, by perf and by libipt. The programs see the same addresses in all
//! runs: nothing is random, the environment is the same, and so is the CPU, of which each has one for itself.
//!
//! Programs that are recorded in two ways can have the same packets, too, which libipt reads.
//!
//! - This file: the programs, and what is asked of each.
//! - [`record`], [`judge`]: the two parts; [`again`]: both for another [`Way`].
//! - [`decoders`]: what perf and libipt show of a recording.
//! - [`packets`]: what libipt needs of one of the kernel's code.

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

/// The case that there is where there is no program.
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
    /// Its driver.
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

/// Which runs of a program there are.
enum Runs {
    /// Those that are traced, and one that is stepped.
    All,
    /// All but the one that is stepped.
    Traced,
    /// The one that is stepped. In this folder is what the program was asked where it was traced.
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

/// A program, and what is known of it.
struct Program {
    name: &'static str,
    /// Whether stock perf records it, too.
    perf: bool,
    /// Whether it is one thread from its beginning to its end: ptwalk knows no threads.
    one: bool,
    /// Whether its packets are the same each time: it waits for nothing on the other CPU and shares no file with it, and files have all
    /// of its code. So it is recorded without a switch to another task that it has not asked for.
    packets: bool,
    expect: Expect,
}

/// What the comparison must come to.
enum Expect {
    /// Each instruction of each thread, in its order, and no error.
    Same,
    /// The recorder is held still, and its ring overflows: an error for each loss, and between two losses each instruction.
    Losses,
    /// It executes what no file has. perf has that from the recorder; libipt stops there, and goes on at a PSB that comes later.
    Generated,
    /// The same by libipt; perf reads it as 32-bit code, as it goes by the kind of the file.
    X32,
    /// There is no log to compare with; the decoder must show as many instructions as were counted, without an error.
    Counted(&'static str),
    /// The same, and the instruction at this symbol as often as the program says.
    Visits(&'static str),
    /// The same, never the handler at this symbol, the payloads of PTWRITE that the program says, and a cycle for each instruction.
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

/// The same, and by stock perf too.
const fn by_perf(name: &'static str, one: bool) -> Program {
    Program {
        name,
        perf: true,
        one,
        packets: false,
        expect: Same,
    }
}

/// The same, and its packets are the same each time.
const fn packets(program: Program) -> Program {
    Program {
        packets: true,
        ..program
    }
}

/// Long ones first: two run at a time.
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

/// What came of a program.
enum Outcome {
    Good(String),
    Skipped(&'static str),
}

/// How often a recorder is held still, and asked for much work meanwhile.
const HELD: usize = 4;

/// The file in which `generated` leaves its code.
const CODE: &str = "/tmp/generated.code";

impl Program {
    fn is_one_of(&self, filters: &[String]) -> bool {
        filters.is_empty() || filters.iter().any(|filter| self.name.contains(filter))
    }

    /// Whether there is something to compare with.
    fn is_stepped(&self) -> bool {
        !matches!(self.expect, Counted(_) | Visits(_) | Writes(_))
    }

    /// The event that records it in this way.
    fn event(&self, way: Option<Way>) -> &'static str {
        match (&self.expect, way) {
            (Writes(_), None) => "intel_pt/ptw,fup_on_ptw,cyc/u",
            (Writes(_), Some(_)) => "intel_pt/ptw,fup_on_ptw,cyc,cyc_thresh=5/u",
            _ => "intel_pt//u",
        }
    }
}

/// Runs a part.
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
    // All that is said of it is that it is the same.
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
    // Each as soon as it is known.
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
