// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how much faster two CPUs are drained than one: into one file, and with a file for each thread.
//!
//! The areas are always full: with `dry=1`, the unit stores nothing and is faster than any writer of files. The rate is computed from the
//! size of the files at two times during the recording, in real time. For comparison, threads that only write memory to files show what the
//! machine can do. All measurements are repeated in turn, and each is compared with another one in the same turn. So other work on the
//! machine affects all of them.

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

/// How often each rate is measured. The median counts.
pub const TIMES: usize = 9;
const MIB: u64 = 1 << 20;
/// How many bytes are written before the measurement, and during it.
const BEFORE: u64 = 16 * MIB;
const SPAN: u64 = 256 * MIB;
/// Bytes in one write. The recorder writes as much at once for an area of 4 MiB, and four times as much for the areas of 16 MiB here.
const PIECE: usize = 1 << 20;
const OUTPUT: &str = "/tmp/parallel.data";
/// Ticks of 4 MiB, at 16 GiB per second. A tick costs an emulated processor much time. A device's DMA would cost nothing.
const TERMS: &str = "dry=1,packet=64,burst=1024,rate=16777215";
/// Pages of an area.
const AREA: u64 = 4096;
/// Length of a writer's memory. It is as long as an area, so that it is not cached better than a recorder's area.
const LENGTH: usize = 16 * PIECE;

type Measure = fn() -> Result<u64>;

/// The measurements: a name, the index of the measurement to compare with, and a function.
const RUNS: [(&str, usize, Measure); 7] = [
    ("write-one", 0, || write(1, 1)),
    ("write-two", 0, || write(2, 2)),
    ("write-shared", 0, || write(2, 1)),
    ("drain-one", 3, || drain(&["-C", "0"])),
    ("drain-own", 3, || drain(&["-C", "0", "--split-files"])),
    ("drain-two", 3, || drain(&["-C", "0,1"])),
    ("drain-split", 4, || drain(&["-C", "0,1", "--split-files"])),
];

/// Prints a line for each measurement: KiB per second, and percent of the compared rate in the same turn. Both have the median, the minimum
/// and the maximum.
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

/// Formats the median, the minimum and the maximum.
pub fn spread(mut of: [u64; TIMES]) -> String {
    of.sort_unstable();
    let [least, .., max] = of;
    format!("{} {least} {max}", of[TIMES / 2])
}

/// The rate in KiB per second.
fn rate(bytes: u64, time: Duration) -> Result<u64> {
    let micros = u64::try_from(time.as_micros())?.max(1);
    Ok(bytes / 1024 * 1_000_000 / micros)
}

/// The files that a recorder or a writer may leave behind.
fn paths() -> [PathBuf; 3] {
    ["", ".t0", ".t1"].map(|end| PathBuf::from(format!("{OUTPUT}{end}")))
}

fn remove() {
    for path in paths() {
        // Some files may not exist.
        let _ = fs::remove_file(path);
    }
}

/// Threads write [`SPAN`] bytes of memory in total into the files. Returns the rate.
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

/// A recorder drains full areas into files in memory. Returns the rate.
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
    // The end of the recording is not measured. Joining the files would need as much memory again.
    recorder.kill()?;
    remove();
    released()?;
    ensure!(lost()? > before, "the areas were never full");
    rate(to - from, end - start)
}
