// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares our drivers with their counterparts in C, and both with perf's dummy event, whose PMU does nothing.

use std::process::Command;
use std::sync::Barrier;
use std::thread;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::Event;
use perfdata::Attr;

use crate::attack::{software, traced, Victim, DUMMY};
use crate::bench::{commit, period, toggle};
use crate::events::probe::bytes;
use crate::module;
use crate::workload::pin;

/// PMU, module, and the `config` of an event whose unit never ticks.
const DRIVERS: [(&str, &str, u64); 4] = [
    ("minimal", "pmu_minimal", MINIMAL_IDLE),
    ("c_minimal", "c_minimal", MINIMAL_IDLE),
    ("pattern", "pattern", PATTERN_IDLE),
    ("c_pattern", "c_pattern", PATTERN_IDLE),
];

/// `interval`: more than an hour.
const MINIMAL_IDLE: u64 = 0xffff_ffff;
/// `rate=1,burst=0xffff,packet=0xff`: the first tick comes after twelve days.
const PATTERN_IDLE: u64 = 0xff << 40 | 0xffff << 24 | 1;

/// Pages of each AUX area.
const PAGES: usize = 16;
/// Calls before the measured ones, which fill caches and resolve static calls.
const WARM_UP: u32 = 10;
/// How often a commit with data is measured, each time with a new event.
const COMMITS: usize = 9;
const COMMIT_LEN: u64 = 32 * 1024;

/// Loads all drivers.
fn load() -> Result<()> {
    module::load("rust_perf")?;
    DRIVERS
        .iter()
        .try_for_each(|(_, module, _)| module::load(module))
}

fn idle(pmu: &str, config: u64) -> Result<Attr> {
    Ok(Attr {
        config,
        ..traced(pmu)?
    })
}

/// Prints a line for each driver and call: the time in ns, which is the number of instructions if the clock counts them.
///
/// # Errors
/// If a driver cannot be loaded, or an event not be opened.
pub fn run(times: u32) -> Result<()> {
    load()?;
    {
        let dummy = Event::open(&software(DUMMY, 1), -1, 0)?;
        calls("dummy", &dummy, times)?;
    }
    for (pmu, _, config) in DRIVERS {
        let victim = Victim::open(&idle(pmu, config)?, -1, 0, PAGES)?;
        calls(pmu, &victim.event, times)?;
    }
    for (pmu, ..) in DRIVERS.iter().filter(|(pmu, ..)| pmu.ends_with("pattern")) {
        // Other work of the kernel during a call only adds to its time, so the minimum counts.
        let mut least = u64::MAX;
        for _ in 0..COMMITS {
            least = least.min(commit(pmu, "", PAGES, COMMIT_LEN, COMMIT_LEN)?);
        }
        println!("driver {pmu} commit {least}");
    }
    Ok(())
}

fn calls(name: &str, event: &Event, times: u32) -> Result<()> {
    event.enable()?;
    period(event, WARM_UP)?;
    println!("driver {name} restart {}", period(event, times)?);
    toggle(event, WARM_UP)?;
    println!("driver {name} toggle {}", toggle(event, times)?);
    Ok(())
}

/// The work of each CPU in a window.
#[derive(Clone, Copy)]
enum Work {
    /// `stop()` and `start()`, with nothing to commit.
    Restart,
    /// The event is disabled and enabled.
    Toggle,
    /// Trace is written, committed and read.
    Trace,
}

const WORK: [(Work, &str); 3] = [
    (Work::Restart, "restart"),
    (Work::Toggle, "toggle"),
    (Work::Trace, "trace"),
];

/// Runs transactions of each driver on all CPUs at once, with an event for each CPU, between two marks for the plugin of `tools/bench`.
/// Prints the name of each window.
///
/// # Errors
/// If a driver cannot be loaded, an event not be opened, or a mark not be made.
pub fn windows(times: u32) -> Result<()> {
    load()?;
    for (work, name) in WORK {
        if !matches!(work, Work::Trace) {
            window(work, times, |cpu| {
                Ok(Subject::Dummy(Event::open(&software(DUMMY, 1), -1, cpu)?))
            })?;
            println!("window dummy {name}");
        }
        for (pmu, _, config) in DRIVERS {
            window(work, times, |cpu| {
                let mut attr = match work {
                    Work::Trace => traced(pmu)?,
                    Work::Restart | Work::Toggle => idle(pmu, config)?,
                };
                attr.aux_watermark = u32::try_from(bytes(1))?;
                Ok(Subject::Driver(Victim::open(&attr, -1, cpu, PAGES)?))
            })?;
            println!("window {pmu} {name}");
        }
    }
    Ok(())
}

/// The event of a CPU.
enum Subject {
    Dummy(Event),
    Driver(Victim),
}

impl Subject {
    fn event(&self) -> &Event {
        match self {
            Self::Dummy(event) => event,
            Self::Driver(victim) => &victim.event,
        }
    }
}

fn window(work: Work, times: u32, open: impl Fn(i32) -> Result<Subject> + Sync) -> Result<()> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    // The threads stay in step even if a call fails: they meet before and after each of the two marks.
    let [opened, begun, done, marked] = [(); 4].map(|()| Barrier::new(cpus + 1));
    let on_cpu = |cpu: usize| -> Result<()> {
        let subject = pin(cpu).and_then(|()| {
            let subject = open(i32::try_from(cpu)?)?;
            subject.event().enable()?;
            rounds(work, WARM_UP, &subject)?;
            Ok(subject)
        });
        opened.wait();
        begun.wait();
        let worked = match &subject {
            Ok(subject) => rounds(work, times, subject),
            Err(_) => Ok(()),
        };
        done.wait();
        marked.wait();
        subject.and(worked)
    };
    let on_cpu = &on_cpu;
    thread::scope(|scope| {
        let spawn = |cpu| scope.spawn(move || on_cpu(cpu));
        let threads: Vec<_> = (0..cpus).map(spawn).collect();
        opened.wait();
        let first = mark(&["begin"]);
        begun.wait();
        done.wait();
        let second = mark(&["end"]);
        marked.wait();
        for thread in threads {
            match thread.join() {
                Ok(outcome) => outcome?,
                Err(_) => bail!("a thread has panicked"),
            }
        }
        first.and(second)
    })
}

fn rounds(work: Work, times: u32, subject: &Subject) -> Result<()> {
    let event = subject.event();
    match (work, subject) {
        (Work::Restart, _) => {
            for _ in 0..times {
                event.set_period(1)?;
            }
        }
        (Work::Toggle, _) => {
            for _ in 0..times {
                event.disable()?;
                event.enable()?;
            }
        }
        (Work::Trace, Subject::Driver(victim)) => {
            // A round takes 2 ms.
            for _ in 0..times.div_ceil(100) {
                victim.traces()?;
            }
        }
        (Work::Trace, Subject::Dummy(_)) => bail!("a dummy event traces nothing"),
    }
    Ok(())
}

/// Makes a mark for the plugin.
///
/// # Errors
/// If the program `mark` fails.
pub fn mark(arguments: &[&str]) -> Result<()> {
    let status = Command::new("mark").args(arguments).status();
    let status = status.context("cannot run mark")?;
    ensure!(status.success(), "mark {arguments:?} has failed: {status}");
    Ok(())
}
