// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs to trace. They keep CPUs busy in a known way until there is enough trace.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use rustix::thread::{sched_setaffinity, CpuSet};

use crate::recording::Growing;

/// What to run, and how long.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How to behave.
    #[arg(value_enum)]
    kind: Kind,
    /// Go on until the recording FILE has BYTES bytes of trace.
    #[arg(long, num_args = 2, value_names = ["FILE", "BYTES"])]
    trace: Option<Vec<String>>,
    /// Go on until there is FILE.
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    until: Option<PathBuf>,
    /// Go on for so long, or, with --trace or --until, give up after it.
    #[arg(long, default_value_t = 600_000, value_name = "MS")]
    ms: u64,
}

/// How a workload behaves.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sleeps: for events that are bound to a CPU.
    Sleep,
    /// Computes.
    Spin,
    /// Computes, and changes to the other CPU every few milliseconds.
    Migrate,
    /// Starts one child after the other that computes.
    Fork,
    /// Calls one function from another, [`CALLS`] times.
    Calls,
    /// Sleeps [`SLEEPS`] times, and says how late it woke up at most, in ns.
    Late,
}

/// How often a `Late` workload sleeps, and how long each time.
const SLEEPS: u32 = 1000;
const SLEEP: Duration = Duration::from_micros(100);

/// The condition that ends a workload early.
enum Awaited {
    /// None: only the time limit ends it.
    Nothing,
    Trace(Growing),
    File(PathBuf),
}

/// How long a workload runs.
struct Until {
    awaited: Awaited,
    end: Instant,
}

impl Until {
    fn new(args: &Args) -> Result<Self> {
        let awaited = match (args.trace.as_deref(), &args.until) {
            (Some([file, bytes]), _) => {
                let bytes = bytes.parse().context("BYTES is no number")?;
                Awaited::Trace(Growing::new(Path::new(file), bytes))
            }
            (_, Some(file)) => Awaited::File(file.clone()),
            _ => Awaited::Nothing,
        };

        Ok(Self {
            awaited,
            end: Instant::now() + Duration::from_millis(args.ms),
        })
    }

    /// Whether the awaited condition holds. `None` if the workload awaits nothing.
    fn is_there(&self) -> Option<bool> {
        match &self.awaited {
            Awaited::Nothing => None,
            Awaited::Trace(growing) => Some(growing.is_there()),
            Awaited::File(file) => Some(file.exists()),
        }
    }

    fn reached(&self) -> bool {
        Instant::now() >= self.end || self.is_there() == Some(true)
    }

    fn satisfied(&self) -> bool {
        self.is_there() != Some(false)
    }
}

/// Runs a workload. Fails if the awaited condition does not hold in time.
pub fn run(args: &Args) -> Result<ExitCode> {
    let until = Until::new(args)?;

    match args.kind {
        Kind::Sleep => {
            while !until.reached() {
                thread::sleep(Duration::from_millis(5));
            }
        }
        Kind::Spin => {
            while !until.reached() {
                spin(Duration::from_millis(2));
            }
        }
        Kind::Migrate => {
            for cpu in [0, 1].into_iter().cycle() {
                if until.reached() {
                    break;
                }
                pin(cpu)?;
                spin(Duration::from_millis(7));
            }
        }
        Kind::Calls => {
            black_box(caller(CALLS));
        }
        Kind::Late => {
            let late = |_| {
                let start = Instant::now();
                thread::sleep(SLEEP);
                start.elapsed().saturating_sub(SLEEP).as_nanos()
            };
            println!("{}", (0..SLEEPS).map(late).max().unwrap_or(0));
        }
        Kind::Fork => {
            let program = std::env::current_exe().context("cannot find this program")?;
            while !until.reached() {
                let status = Command::new(&program)
                    .args(["workload", "spin", "--ms", "20"])
                    .status()
                    .context("cannot start a child")?;
                if !status.success() {
                    bail!("a child ended with {status}");
                }
            }
        }
    }

    if until.satisfied() {
        Ok(ExitCode::SUCCESS)
    } else {
        bail!("what it waits for did not come in {} ms", args.ms)
    }
}

/// How often [`called`] is called.
pub const CALLS: u64 = 1000;

/// Calls [`called`] `times` times: each time a call and a return.
#[inline(never)]
fn caller(times: u64) -> u64 {
    (0..times).fold(0, |sum, n| black_box(called(n)).wrapping_add(sum))
}

/// Executes the same instructions each time.
#[inline(never)]
fn called(n: u64) -> u64 {
    black_box(n).wrapping_mul(3)
}

/// Pins this thread to a CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot move to CPU {cpu}"))
}

/// Computes for this time.
#[inline(never)]
pub fn spin(time: Duration) {
    let end = Instant::now() + time;
    let mut n = 0u64;
    while Instant::now() < end {
        for _ in 0..1000 {
            n = black_box(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}
