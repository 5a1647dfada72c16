// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how soon recorders trace all CPUs: `auxrec` and stock `perf record`, from the recorder's start to the first instruction of the
//! program that it records. By then, the units of all CPUs run.
//!
//! This uses real time, because a clock that counts instructions needs a single processor. So the recorders run in turn, and the ratio of
//! their times in each turn counts.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use rustix::fs::{mknodat, FileType, Mode, CWD};

use super::parallel::{spread, TIMES};
use super::recorders::{OUTPUT, PMU, RECORDERS};
use crate::module::{self, counter};
use crate::recording::Recorder;

/// A FIFO that the recorded program opens first.
const STARTED: &str = "/tmp/started";
/// Bytes of trace that each unit generates.
const LIMIT: u64 = 4096;

/// Prints a line for each recorder, in µs, and a line with auxrec's time in percent of perf's in the same turn. Each has the median, the
/// minimum and the maximum.
///
/// # Errors
/// If a recorder fails, or does not trace all CPUs.
pub fn run() -> Result<()> {
    module::alias(PMU.1)?;
    let cpus = thread::available_parallelism()?.get();
    mknodat(CWD, STARTED, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .context("cannot make a pipe")?;
    let mut times = RECORDERS.map(|_| [0; TIMES]);
    // The first start loads the programs into memory, and is not measured.
    for recorder in RECORDERS {
        start(recorder, cpus)?;
    }
    for turn in 0..TIMES {
        for (times, recorder) in times.iter_mut().zip(RECORDERS) {
            times[turn] = u64::try_from(start(recorder, cpus)?.as_micros())?;
        }
    }
    let [perf, auxrec] = times;
    let mut parts = auxrec;
    for (part, perf) in parts.iter_mut().zip(perf) {
        *part = *part * 100 / perf.max(1);
    }
    for (name, all) in [("perf", perf), ("auxrec", auxrec), ("part", parts)] {
        println!("starts {name} {cpus} {}", spread(all));
    }
    Ok(())
}

/// Measures the time until the recorded program is executed.
fn start(recorder: &str, cpus: usize) -> Result<Duration> {
    let bytes = counter(PMU.0, "bytes")?;
    let mut command = Command::new(recorder);

    command
        .args(["record", "-o", OUTPUT, "-a", "-m", "128,1024", "-e"])
        .arg(format!(
            "{}/rate=4096,packet=64,burst=1,limit={LIMIT}/",
            PMU.0
        ));
    if recorder == "perf" {
        command.args(["-N", "-B"]);
    }
    command
        .args(["--", "sh", "-c", "echo > $0; exec sleep 1", STARTED])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let begin = Instant::now();
    let running = Recorder::spawn(&mut command)?;
    // Opening a FIFO waits for the other side.
    let mut pipe = File::open(STARTED).context("cannot open a pipe")?;
    let time = begin.elapsed();
    pipe.read_to_end(&mut Vec::new())?;
    let status = running.ended()?;
    ensure!(status.success(), "{recorder} ended with {status}");
    fs::remove_file(Path::new(OUTPUT)).context("the recorder has left no file")?;
    let bytes = counter(PMU.0, "bytes")? - bytes;
    let all = LIMIT * u64::try_from(cpus)?;
    ensure!(
        bytes == all,
        "{recorder}: {cpus} units have traced {bytes} bytes, not {all}"
    );
    Ok(time)
}
