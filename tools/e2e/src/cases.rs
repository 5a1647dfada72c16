// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table of all cases.

pub mod doctor;
mod endings;
mod guest;
pub mod many;
mod traces;
mod unload;
mod unprivileged;

use anyhow::{ensure, Context, Result};

use doctor::doctor;
use endings::{attach, exact, full_disk, interrupted, killed, max_size};
use traces::{Trace, TRACE};
use unload::{busy, reload};
use unprivileged::unprivileged;

use crate::device;
use crate::device::sink;
use crate::events::contract;
use crate::events::locks;
use crate::events::minimal;
use crate::events::overwrite;
use crate::events::restart;
use crate::events::sampling;
use crate::hostile;
use crate::hostile::drivers;
use crate::hostile::failing;
use crate::hostile::limits;
use crate::hotplug;
use crate::recorder;
use crate::recorder::compress;
use crate::recorder::live;
use crate::recorder::share;
use crate::recorder::split_files;
use crate::recorder::target;
use crate::recorder::tasks;
use crate::recorder::truncate;
use crate::recording::{event, released, Reader, Recorder, Seen, TraceFile, PAGE};
use crate::ring;
use crate::soft_pt;

/// A case: a name, and the code to run.
pub struct Case {
    /// Says what the case tests.
    pub name: &'static str,
    what: What,
}

enum What {
    /// Records, checks the file, and compares it with the expectations.
    Trace(Trace),
    /// The recorder must refuse: its arguments, its exit status, and words that its message must contain.
    Refused(&'static [&'static str], i32, &'static [&'static str]),
    /// Any other test.
    Steps(fn(&str) -> Result<String>),
    /// An attack. Afterwards no references may be left, and a recording must be as exact as before.
    Hostile(fn() -> Result<String>),
    /// A test with `soft_pt`, the driver that single-steps programs.
    Stepped(fn() -> Result<String>),
}

/// All cases, in the order in which they are run.
pub fn all() -> impl Iterator<Item = Case> {
    let attacks = sampling::ALL
        .into_iter()
        .chain(contract::ALL)
        .chain(hostile::ALL)
        .chain(drivers::ALL)
        .chain(failing::all())
        .chain(limits::ALL)
        .chain(restart::ALL)
        .chain(hotplug::ATTACKS)
        .chain(device::ALL)
        .chain(sink::ALL)
        .map(|attack| Case {
            name: attack.name,
            what: What::Hostile(attack.run),
        });
    let more = recorder::ALL
        .into_iter()
        .chain(target::ALL)
        .chain(truncate::ALL)
        .chain(hotplug::ALL)
        .chain(tasks::ALL)
        .chain(compress::ALL)
        .chain(live::ALL)
        .chain(overwrite::ALL)
        .chain(split_files::ALL)
        .chain(share::ALL)
        .chain(ring::ALL)
        .chain(guest::ALL)
        .map(|(name, steps)| Case {
            name,
            what: What::Steps(steps),
        });
    let stepped = soft_pt::ALL.into_iter().map(|(name, run)| Case {
        name,
        what: What::Stepped(run),
    });
    // These come last: if one of them fails, its guest ends.
    let last = locks::ALL.into_iter().map(|attack| Case {
        name: attack.name,
        what: What::Hostile(attack.run),
    });
    USUAL
        .into_iter()
        .chain(more)
        .chain(attacks)
        .chain(stepped)
        .chain(last)
}

/// Usual recordings, their errors and their refusals.
const USUAL: [Case; 39] = [
    trace(
        "ring of 2 pages",
        Trace {
            // A unit that writes straight into a ring of two pages can fill only one of them before the reader comes. So the trace is
            // bounced.
            terms: "rate=64,sink=1",
            ring: 2,
            wraps: 3,
            ..TRACE
        },
    ),
    trace("ring of 16 pages", TRACE),
    trace(
        "ring of 1024 pages",
        Trace {
            terms: "rate=16384,packet=32",
            ring: 1024,
            ..TRACE
        },
    ),
    trace(
        "packets that do not divide the ring",
        Trace {
            terms: "rate=512,packet=3,burst=5",
            ..TRACE
        },
    ),
    trace(
        "sessions that are padded",
        Trace {
            // Each transaction begins at a page boundary, and packets of 192 bytes do not end at one.
            terms: "rate=512,packet=3,align=12",
            ..TRACE
        },
    ),
    trace(
        "slow reader, ring of 2 pages",
        // The unit gets one of the two pages at a time.
        Trace {
            ring: 2,
            reader: Reader::Slow,
            full: true,
            wraps: 2,
            ..TRACE
        },
    ),
    trace(
        "slow reader, ring of 16 pages",
        Trace {
            terms: "rate=4096,packet=3",
            reader: Reader::Slow,
            full: true,
            ..TRACE
        },
    ),
    trace(
        "overwrite, ring of 2 pages",
        Trace {
            ring: 2,
            overwrite: true,
            ..TRACE
        },
    ),
    trace(
        "overwrite, ring of 16 pages",
        Trace {
            terms: "rate=4096,packet=3",
            overwrite: true,
            ..TRACE
        },
    ),
    trace(
        "overwrite, not filled once",
        Trace {
            ring: 1024,
            overwrite: true,
            wraps: 0,
            ..TRACE
        },
    ),
    trace(
        "two CPUs",
        Trace {
            target: &["-C", "0,1"],
            cpus: 2,
            streams: 2,
            ..TRACE
        },
    ),
    trace(
        "all CPUs, slow reader",
        Trace {
            terms: "rate=4096",
            target: &["-a"],
            reader: Reader::Slow,
            full: true,
            cpus: 2,
            streams: 2,
            ..TRACE
        },
    ),
    trace(
        "two CPUs, overwrite",
        Trace {
            terms: "rate=4096",
            target: &["-a"],
            overwrite: true,
            cpus: 2,
            streams: 2,
            ..TRACE
        },
    ),
    trace(
        "task",
        Trace {
            target: &[],
            workload: "spin",
            ..TRACE
        },
    ),
    trace(
        "task that migrates, a ring a CPU",
        Trace {
            target: &[],
            workload: "migrate",
            cpus: 2,
            streams: 2,
            ..TRACE
        },
    ),
    trace(
        "task that migrates, one ring",
        Trace {
            target: &["--per-thread"],
            workload: "migrate",
            cpus: 2,
            ..TRACE
        },
    ),
    trace(
        "task that migrates, one ring, slow reader",
        Trace {
            terms: "rate=4096",
            target: &["--per-thread"],
            workload: "migrate",
            reader: Reader::Slow,
            full: true,
            cpus: 2,
            ..TRACE
        },
    ),
    trace(
        "children inherit",
        Trace {
            target: &[],
            workload: "fork",
            streams: 5,
            ..TRACE
        },
    ),
    Case {
        name: "attach to a process",
        what: What::Steps(attach),
    },
    Case {
        name: "interrupted recorder",
        what: What::Steps(interrupted),
    },
    Case {
        name: "killed recorder",
        what: What::Steps(killed),
    },
    Case {
        name: "largest file",
        what: What::Steps(max_size),
    },
    Case {
        name: "full disk",
        what: What::Steps(full_disk),
    },
    Case {
        name: "exact number of bytes",
        what: What::Steps(exact),
    },
    Case {
        name: "minimal, every number",
        what: What::Steps(minimal::every_number),
    },
    Case {
        name: "modules unloaded and loaded again",
        what: What::Steps(reload),
    },
    Case {
        name: "unload while an event is open",
        what: What::Steps(busy),
    },
    refused(
        "unknown PMU",
        &["-e", "patern//", "--", "true"],
        2,
        &["there is no PMU `patern`", "did you mean `pattern`?"],
    ),
    refused(
        "unknown term",
        &["-e", "pattern/rat=1/", "--", "true"],
        2,
        &["has no term `rat` (did you mean `rate`?)", "burst"],
    ),
    refused(
        "value too large for its term",
        &["-e", "pattern/sink=9/", "--", "true"],
        2,
        &["term `sink` of PMU `pattern` takes a number from 0 to 3"],
    ),
    refused(
        "what the driver cannot do",
        &["-e", "pattern/sink=3/", "--", "true"],
        1,
        &["cannot open `pattern/sink=3/`", "the PMU refuses"],
    ),
    refused(
        "what makes no sense to the driver",
        &["-e", "pattern/rate=16777215,burst=1/", "--", "true"],
        1,
        &[
            "cannot open `pattern/rate=16777215,burst=1/`",
            "the PMU refuses",
        ],
    ),
    refused(
        "ring of no power of two",
        &["-e", "pattern//", "-m", "16,3", "--", "true"],
        2,
        &[
            "AUX area must be a power of two of pages",
            "2 pages (8 KiB) and 4 pages (16 KiB)",
        ],
    ),
    refused(
        "ring that is too small",
        &["-e", "pattern/packet=255/", "-m", "16,2", "--", "true"],
        1,
        &["cannot map the AUX area of 8 KiB", "an area of this size"],
    ),
    refused(
        "command that is not there",
        &["-e", "pattern//", "--", "/no/such"],
        1,
        &["cannot run `/no/such`", "No such file or directory"],
    ),
    refused(
        "process that is not there",
        &["-e", "pattern//", "-p", "999999"],
        2,
        &["there is no process 999999"],
    ),
    refused(
        "CPU that is not there",
        &["-e", "pattern//", "-C", "77", "--", "true"],
        2,
        &["CPU 77 is not online", "online are: 0"],
    ),
    Case {
        name: "limits of an unprivileged user",
        what: What::Steps(unprivileged),
    },
    Case {
        name: "doctor predicts what recording does",
        what: What::Steps(doctor),
    },
];

const fn trace(name: &'static str, trace: Trace) -> Case {
    Case {
        name,
        what: What::Trace(trace),
    }
}

const fn refused(
    name: &'static str,
    arguments: &'static [&'static str],
    status: i32,
    says: &'static [&'static str],
) -> Case {
    Case {
        name,
        what: What::Refused(arguments, status, says),
    }
}

impl Case {
    /// Runs the case. Returns a note about the result.
    pub fn run(&self) -> Result<String> {
        match &self.what {
            What::Trace(trace) => trace.run(self.name),
            What::Refused(arguments, status, says) => refuse(self.name, arguments, *status, says),
            What::Steps(steps) => steps(self.name),
            What::Hostile(attack) => {
                let seen = attack()?;
                released()?;
                TRACE.run(self.name).context("a recording after it")?;
                Ok(seen)
            }
            What::Stepped(run) => soft_pt::run(*run),
        }
    }
}

fn refuse(name: &str, arguments: &[&str], status: i32, says: &[&str]) -> Result<String> {
    let file = TraceFile::new(name);
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;

    ensure!(
        ended.status == status,
        "exit status {}: {}",
        ended.status,
        ended.errors
    );
    for word in says {
        ensure!(
            ended.errors.contains(word),
            "it does not say {word:?}: {}",
            ended.errors
        );
    }
    released()?;
    ensure!(!file.path().exists(), "it left a file");

    Ok(ended.errors.trim().replace('\n', " "))
}
