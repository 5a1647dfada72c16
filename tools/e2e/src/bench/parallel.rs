// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How much faster two CPUs are drained than one: into one file, and with a file for each thread.
//!
//! Areas are always full: the unit stores nothing (`dry=1`) and is faster than anybody who writes files. What is in the files, twice while
//! it is recorded, by the clock on the wall, is the rate. What the machine can do at most say threads that do nothing but write memory
//! to files. All is done in turn, again and again, and set beside what one alone did in the same turn: so other work on the machine does
//! not come upon one of them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use crate::module::counter;
use crate::recorder::{size, with};
use crate::recording::released;
use crate::recording::Recorder;
use crate::workload::pin;

/// So often each is measured; the median counts.
pub const TIMES: usize = 9;
const MIB: u64 = 1 << 20;
/// Of what comes this much passes before, and so much is measured.
const BEFORE: u64 = 16 * MIB;
const SPAN: u64 = 256 * MIB;
/// Written at once, as the recorder does with an area of 4 MiB; of these of 16 MiB it writes four times as much.
const PIECE: usize = 1 << 20;
const OUTPUT: &str = "/tmp/parallel.data";
/// Ticks of 4 MiB, at 16 GiB a second: each costs an emulated processor much, and a device's DMA none anything.
const TERMS: &str = "dry=1,packet=64,burst=1024,rate=16777215";
/// Pages of an area.
const AREA: u64 = 4096;
/// As long as that: a writer's memory is no more in a cache than a recorder's.
const LENGTH: usize = 16 * PIECE;

type Measure = fn() -> Result<u64>;

/// What is measured: its name, the number of what it is set beside, and how.
const RUNS: [(&str, usize, Measure); 7] = [
    ("write-one", 0, || write(1, 1)),
    ("write-two", 0, || write(2, 2)),
    ("write-shared", 0, || write(2, 1)),
    ("drain-one", 3, || drain(&["-C", "0"])),
    ("drain-own", 3, || drain(&["-C", "0", "--apart"])),
    ("drain-two", 3, || drain(&["-C", "0,1"])),
    ("drain-apart", 4, || drain(&["-C", "0,1", "--apart"])),
];

/// Prints a line for each: KiB a second, and percent of the rate of one in the same turn; of both the median, the least and the
/// most.
///
/// # Errors
/// If a recorder fails, or a file cannot be written.
pub fn run() -> Result<()> {
    let mut rates = [[0; TIMES]; RUNS.len()];
    for time in 0..TIMES {
        for (rates, (name, _, run)) in rates.iter_mut().zip(RUNS) {
            rates[time] = run().context(name)?;
        }
    }
    for (all, (name, beside, _)) in rates.iter().zip(RUNS) {
        let mut parts = *all;
        for (part, one) in parts.iter_mut().zip(rates[beside]) {
            *part = *part * 100 / one.max(1);
        }
        println!("parallel {name} {} {}", spread(*all), spread(parts));
    }
    Ok(())
}

/// Median, least and most.
pub fn spread(mut of: [u64; TIMES]) -> String {
    of.sort_unstable();
    let [least, .., most] = of;
    format!("{} {least} {most}", of[TIMES / 2])
}

/// KiB a second.
fn rate(bytes: u64, time: Duration) -> Result<u64> {
    let micros = u64::try_from(time.as_micros())?.max(1);
    Ok(bytes / 1024 * 1_000_000 / micros)
}

/// The files that a recorder or a writer may leave.
fn paths() -> [PathBuf; 3] {
    ["", ".t0", ".t1"].map(|end| PathBuf::from(format!("{OUTPUT}{end}")))
}

fn remove() {
    for path in paths() {
        // Not all are there.
        let _ = fs::remove_file(path);
    }
}

/// So many threads write as much memory as is measured into so many files.
fn write(threads: usize, files: usize) -> Result<u64> {
    let each = usize::try_from(SPAN)? / PIECE / threads;
    let paths = paths();
    let mut outs = Vec::new();
    for thread in 0..threads {
        let path: &Path = paths.get(thread % files).context("no name")?;
        let file = File::options().append(true).create(true).open(path);
        outs.push(file.with_context(|| format!("cannot make {}", path.display()))?);
    }
    let ready = Barrier::new(threads + 1);
    let (start, end) = thread::scope(|scope| {
        let mut writers = Vec::new();
        for (cpu, mut out) in outs.into_iter().enumerate() {
            let ready = &ready;
            writers.push(scope.spawn(move || {
                let pinned = pin(cpu);
                let trace = vec![0x55; LENGTH];
                ready.wait();
                pinned?;
                let mut pieces = trace.chunks(PIECE).cycle().take(each);
                pieces.try_for_each(|piece| out.write_all(piece).context("cannot write"))
            }));
        }
        ready.wait();
        let start = Instant::now();
        for writer in writers {
            match writer.join() {
                Ok(written) => written?,
                Err(_) => bail!("a writer died"),
            }
        }
        Ok((start, Instant::now()))
    })?;
    remove();
    rate(SPAN, end - start)
}

/// A recorder drains full areas into files in memory.
fn drain(target: &[&str]) -> Result<u64> {
    let lost = || counter("pattern", "lost_no_space");
    let before = lost()?;
    let recorder = Recorder::start(Path::new(OUTPUT), &with(TERMS, AREA, target))?;
    let reaches = |bytes: u64| {
        for _ in 0..1_500 {
            let sum: u64 = paths().iter().map(|path| size(path)).sum();
            if sum >= bytes {
                return Ok((sum, Instant::now()));
            }
            sleep(Duration::from_millis(20));
        }
        bail!("the recorder does not write {bytes} bytes")
    };
    let (from, start) = reaches(BEFORE)?;
    let (to, end) = reaches(from + SPAN)?;
    // What it would do at its end is not looked at, and would take the memory once more.
    recorder.kill()?;
    remove();
    released()?;
    ensure!(lost()? > before, "the areas were never full");
    rate(to - from, end - start)
}
