// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Many short runs with one event, as a fuzzer has them. The event is enabled before a function, and disabled after it.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use perfdata::Attr;

use super::traced;
use crate::events::probe::{bytes, Probe};
use crate::module;

/// Inputs. Each one takes another path through the function.
const INPUTS: u8 = 8;

/// Runs before the comparison, after which all code is decoded and all pages are mapped.
const FIRST: u32 = 200;

const RUNS: u32 = 5000;

/// How much kernel memory all runs together may add, in KiB. A leak of a few words in each run exceeds it.
const MORE: u64 = 512;

/// Pages of the AUX area.
const PAGES: usize = 64;

/// An event of this thread.
struct Runs {
    probe: Probe,
    counted: u64,
}

/// The result of a run.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    instructions: u64,
    trace: Vec<u8>,
}

impl Runs {
    fn new() -> Result<Self> {
        let attr = Attr {
            // Without time stamps, which differ in each run.
            config: 0,
            ..traced()?
        };
        Ok(Self {
            probe: Probe::open(&attr, 0, -1, PAGES, false)?,
            counted: 0,
        })
    }

    /// How often half of the area has been filled. The trace is cut at the end of the area and at its watermark.
    fn halves(&self) -> u64 {
        self.probe.head() / (bytes(PAGES) / 2)
    }

    fn run(&mut self, input: u8) -> Result<Run> {
        self.probe.trace.clear();
        self.probe.records.clear();
        self.probe.event.enable()?;
        black_box(function(black_box(input)));
        self.probe.event.disable()?;
        self.probe.read_trace(u64::MAX)?;
        self.probe.read_records()?;
        ensure!(self.probe.lost_records == 0, "records were lost");
        ensure!(self.probe.truncations() == 0, "trace was lost");
        let before = self.counted;
        self.counted = self.probe.generated()?;
        Ok(Run {
            instructions: self.counted - before,
            trace: self.probe.trace.clone(),
        })
    }
}

/// A branch for each bit of the input.
#[inline(never)]
fn function(input: u8) -> u32 {
    let mut sum = 0_u32;
    for bit in 0..8 {
        if black_box(input) >> bit & 1 != 0 {
            sum = sum.rotate_left(3) ^ bit;
        } else {
            sum = sum.wrapping_add(black_box(bit));
        }
    }
    sum
}

/// How often this thread was scheduled out.
fn switches() -> Result<u64> {
    let path = "/proc/thread-self/status";
    let status = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let lines = status
        .lines()
        .filter_map(|line| line.split_once("ctxt_switches:"));
    lines
        .map(|(_, number)| number.trim().parse::<u64>().context("not a number"))
        .sum()
}

/// Kernel memory that cannot be reclaimed, in KiB.
fn unreclaimable() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("SUnreclaim:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number
        .with_context(|| format!("{path} has no SUnreclaim"))?
        .parse()
        .context("not a number")
}

/// All runs of an input must have the same number of instructions and the same trace. A trace is not compared if the thread was scheduled
/// out meanwhile, or if half of the area was filled. The kernel's memory must not grow.
pub fn same() -> Result<String> {
    let mut runs = Runs::new()?;
    let inputs = (0..INPUTS).cycle();
    for (_, input) in (0..FIRST).zip(inputs.clone()) {
        runs.run(input)?;
    }
    let mut known: Vec<Option<Run>> = (0..INPUTS).map(|_| None).collect();
    let memory = unreclaimable()?;
    let mut compared = 0_u32;
    for (number, input) in (0..RUNS).zip(inputs) {
        let before = (switches()?, runs.halves());
        let run = runs.run(input)?;
        let whole = (switches()?, runs.halves()) == before;
        let known = known.get_mut(usize::from(input)).context("no such input")?;
        match known {
            Some(known) => {
                ensure!(
                    run.instructions == known.instructions,
                    "run {number}, of input {input}, has {} instructions, and {} before",
                    run.instructions,
                    known.instructions
                );
                if whole {
                    ensure!(
                        run.trace == known.trace,
                        "run {number}, of input {input}, has the trace {:02x?}, and another {:02x?}",
                        run.trace,
                        known.trace
                    );
                    compared += 1;
                }
            }
            None if whole => *known = Some(run),
            None => {}
        }
    }
    let grown = unreclaimable()?.saturating_sub(memory);
    // The debug kernel keeps freed memory in quarantine (KASAN), and reports leaks itself (kmemleak).
    ensure!(
        grown < MORE || module::is_debug_kernel(),
        "the kernel has {grown} KiB more"
    );
    ensure!(
        compared > RUNS / 2,
        "only {compared} runs could be compared"
    );
    let known: Vec<_> = known.into_iter().flatten().collect();
    for (at, one) in known.iter().enumerate() {
        let same = known.iter().skip(at + 1).any(|other| other == one);
        ensure!(!same, "two inputs have the same trace");
    }
    Ok(format!(
        "{RUNS} runs, {compared} of them compared to the byte; {grown} KiB more"
    ))
}

/// The average time of a run: among the first ones, and after many others.
pub fn times() -> Result<[u128; 2]> {
    const EACH: u32 = 500;
    let mut runs = Runs::new()?;
    let mut many = |times: u32| -> Result<u128> {
        let start = Instant::now();
        for (_, input) in (0..times).zip((0..INPUTS).cycle()) {
            runs.run(input)?;
        }
        Ok(start.elapsed().as_nanos() / u128::from(times))
    };
    many(FIRST)?;
    let first = many(EACH)?;
    many(RUNS)?;
    Ok([first, many(EACH)?])
}
