// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What it costs to get trace into a file: `auxrec` and stock `perf record` on the same driver, in one guest whose clock counts
//! instructions.
//!
//! The unit stores nothing (`dry=1`), as a device's DMA costs the processor nothing. A recorder's instructions are those of
//! its process and all that it starts, in user space, in the kernel, and in interrupts meanwhile, as perf's software clock of tasks has them.
//! Two runs that differ only in how much there is to record give the cost of a MiB: what each run costs besides cancels out.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::Event;
use perfdata::{Attr, Flags};

use crate::hostile::software;
use crate::module::{self, counter};

/// The name that perf knows `pattern` by, and its number.
const PMU: (&str, u8) = ("intel_pt", 1);
const RECORDERS: [&str; 2] = ["perf", "auxrec"];
const OUTPUT: &str = "/tmp/bench.data";
const MIB: u64 = 1 << 20;
/// MiB that a short run and a long one record.
const RUNS: [u64; 2] = [16, 80];
/// MiB a second at which nobody loses anything.
const EASY: u64 = 96;
/// The parts of an area of a MiB at which the recorder has itself woken.
const WATERMARKS: [u64; 5] = [32, 16, 8, 4, 2];
/// Snapshots of a run.
const SNAPSHOTS: usize = 5;
/// So many KiB of an area of so many.
const SNAPSHOT_OF: [(usize, usize); 4] = [(1024, 1024), (1024, 2048), (4096, 4096), (4096, 8192)];
/// Events of these kinds count for a task.
const TASK_CLOCK: u64 = 1;
const CONTEXT_SWITCHES: u64 = 3;

/// Prints a line for each figure.
///
/// # Errors
/// If a recorder fails, or loses what it must not.
pub fn run() -> Result<()> {
    module::alias(PMU.1)?;
    println!("record copy {}", copy()?);
    for recorder in RECORDERS {
        let mut costs = [Cost::default(); 2];
        for (cost, mib) in costs.iter_mut().zip(RUNS) {
            *cost = record(recorder, mib, EASY, "128,1024", &[])?;
            ensure!(cost.lost == 0, "{recorder} has lost {} bytes", cost.lost);
        }
        let [short, long] = costs;
        let mib = RUNS[1] - RUNS[0];
        println!(
            "record {recorder} cost {} {}",
            long.instructions.saturating_sub(short.instructions) / mib,
            long.switches.saturating_sub(short.switches) * 1000 / mib,
        );
    }
    for recorder in RECORDERS {
        println!("record {recorder} loss {}", first_loss(recorder, &[])?);
    }
    for part in WATERMARKS {
        let more = ["--aux-watermark", &format!("{}K", MIB / part / 1024)];
        let [short, long] = RUNS.map(|mib| record("auxrec", mib, EASY, "128,256", &more));
        let (short, long) = (short?, long?);
        let cost = long.instructions.saturating_sub(short.instructions) / (RUNS[1] - RUNS[0]);
        println!(
            "record watermark {part} {cost} {}",
            first_loss("auxrec", &more)?
        );
    }
    for recorder in RECORDERS {
        for (size, area) in SNAPSHOT_OF {
            // perf crashes: it takes the head of `intel_pt` for an offset in the area.
            if recorder == "perf" && size != area {
                continue;
            }
            let blind = blind(recorder, size, area)?;
            println!("record {recorder} blind {size} {area} {blind}");
        }
    }
    Ok(())
}

/// Instructions of the kernel's copy of a MiB from memory to a file, in pieces of 256 KiB: what no recorder can do without.
fn copy() -> Result<u64> {
    let trace = vec![0x55; 256 * 1024];
    let meter = Meter::start()?;
    let mut file = File::create(OUTPUT).context("cannot make a file")?;
    let short = meter.cost()?;
    for _ in 0..RUNS[1] * 4 {
        file.write_all(&trace).context("cannot write a file")?;
    }
    let long = meter.cost()?;
    fs::remove_file(OUTPUT)?;
    Ok((long.instructions - short.instructions) / RUNS[1])
}

/// What a recorder has cost.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    instructions: u64,
    switches: u64,
    /// Bytes of trace.
    lost: u64,
}

/// Counts for this thread, and all that it starts from now on once that has ended.
struct Meter([Event; 2]);

impl Meter {
    fn start() -> Result<Self> {
        let open = |config| {
            let attr = Attr {
                flags: Flags::INHERIT,
                ..software(config, 0)
            };
            Event::open(&attr, 0, -1).context("cannot open an event of this thread")
        };
        Ok(Self([open(TASK_CLOCK)?, open(CONTEXT_SWITCHES)?]))
    }

    fn cost(&self) -> Result<Cost> {
        let [instructions, switches] = &self.0;
        let value = |event: &Event| -> Result<u64> {
            Ok(event.count()?.context("an event does not count")?.value)
        };
        Ok(Cost {
            instructions: value(instructions)?,
            switches: value(switches)?,
            lost: 0,
        })
    }
}

/// Starts a recorder of CPU 0 with these terms and options.
fn start(recorder: &str, terms: &str, rings: &str, options: &[&str], ms: u64) -> Result<Child> {
    let mut command = Command::new(recorder);
    command
        .args(["record", "-o", OUTPUT, "-C", "0", "-m", rings])
        .args(["-e", &format!("{}/dry=1,{terms}/", PMU.0)])
        .args(options);
    if recorder == "perf" {
        // Build-ids of programs have nothing to do with it.
        command.args(["-N", "-B"]);
    }
    command
        .args(["--", "auxe2e", "workload", "sleep", "--ms", &ms.to_string()])
        .env("HOME", "/tmp")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {recorder}"))
}

/// Waits for a recorder's end; 3 is auxrec's way to say that trace was lost.
fn end(mut recorder: Child) -> Result<()> {
    let status = recorder.wait()?;
    ensure!(
        matches!(status.code(), Some(0 | 3)),
        "the recorder ended with {status}"
    );
    Ok(())
}

/// Records so many MiB at so many MiB a second; the unit is silent then.
fn record(recorder: &str, mib: u64, rate: u64, rings: &str, more: &[&str]) -> Result<Cost> {
    let lost = counter(PMU.0, "lost_no_space")?;
    let committed = counter(PMU.0, "bytes")?;
    // A tick of 64 KiB, or of what 20 us take, which is the shortest that there is. Packets of 4 KiB.
    let burst = (rate * 6 / 1000 + 1).max(16);
    let terms = format!(
        "packet=64,burst={burst},rate={},limit={}",
        rate * 1024,
        mib * MIB
    );
    let meter = Meter::start()?;
    // The end comes long after the last byte, and in all runs at the same time.
    end(start(recorder, &terms, rings, more, 1500)?)?;
    let cost = meter.cost()?;
    fs::remove_file(OUTPUT).context("the recorder has left no file")?;
    let lost = counter(PMU.0, "lost_no_space")? - lost;
    let committed = counter(PMU.0, "bytes")? - committed;
    ensure!(
        committed + lost == mib * MIB || lost != 0,
        "{recorder}: {committed} bytes of {mib} MiB were traced"
    );
    Ok(Cost { lost, ..cost })
}

/// The lowest rate at which a ring of 1 MiB is full before it is read, in MiB a second, to 1 in 16.
fn first_loss(recorder: &str, more: &[&str]) -> Result<u64> {
    let (mut good, mut bad) = (EASY / 2, 12_000);
    while bad - good > good / 16 {
        let rate = (good * bad).isqrt();
        if record(recorder, RUNS[0], rate, "128,256", more)?.lost == 0 {
            good = rate;
        } else {
            bad = rate;
        }
    }
    Ok(bad)
}

/// For how long a snapshot of so many KiB of an area of so many keeps the unit from tracing, ns: from the commit at which it is
/// stopped to the next begin, as the framework's tracepoints have it, both times if it is stopped twice; the median.
fn blind(recorder: &str, size: usize, area: usize) -> Result<u64> {
    const TRACING: &str = "/sys/kernel/tracing";
    let set = |name: &str, value: &str| {
        let path = format!("{TRACING}/{name}");
        fs::write(&path, value).with_context(|| format!("cannot write {path}"))
    };
    set("trace", "")?;
    set("events/rust_perf/rust_perf_begin/enable", "1")?;
    set("events/rust_perf/rust_perf_commit/enable", "1")?;
    let rate = EASY * 1024;
    let terms = format!("packet=64,rate={rate}");
    let rings = format!("128,{}", area / 4);
    let snapshot = if size == area {
        "-S".to_owned()
    } else {
        format!("-S{}", size * 1024)
    };
    let begins = counter(PMU.0, "begins")?;
    let child = start(recorder, &terms, &rings, &[&snapshot], 3000)?;
    for _ in 0..1000 {
        if counter(PMU.0, "begins")? != begins {
            break;
        }
        sleep(Duration::from_millis(5));
    }
    for _ in 0..SNAPSHOTS {
        // So that the area was written from end to end before.
        sleep(Duration::from_millis(250));
        let pid = i32::try_from(child.id())?;
        let pid = rustix::process::Pid::from_raw(pid).context("a pid of 0")?;
        rustix::process::kill_process(pid, rustix::process::Signal::USR2)?;
    }
    end(child)?;
    fs::remove_file(OUTPUT).context("the recorder has left no file")?;
    set("events/rust_perf/enable", "0")?;
    let text = fs::read_to_string(format!("{TRACING}/trace"))?;
    let mut times = gaps(&text)?;
    ensure!(
        times.len() >= SNAPSHOTS,
        "{recorder} stopped the unit {} times for {SNAPSHOTS} snapshots: {text}",
        times.len()
    );
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// The times between a commit and the begin after it, ns, in the text of a trace.
fn gaps(text: &str) -> Result<Vec<u64>> {
    /// Snapshots are further from each other.
    const APART: u64 = 100_000_000;
    let mut gaps: Vec<u64> = Vec::new();
    let mut stopped = None;
    let mut last = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((front, event)) = line.split_once(": rust_perf_") else {
            bail!("the trace has the line {line:?}");
        };
        let time = front.split_whitespace().last().unwrap_or_default();
        let (seconds, micros) = time.split_once('.').context("a time without a point")?;
        let now = (seconds.parse::<u64>()? * 1_000_000 + micros.parse::<u64>()?) * 1000;
        if event.starts_with("commit") {
            stopped = Some(now);
        } else if let Some(then) = stopped.take() {
            match gaps.last_mut() {
                Some(gap) if last.is_some_and(|last| then - last < APART) => *gap += now - then,
                _ => gaps.push(now - then),
            }
            last = Some(now);
        }
    }
    Ok(gaps)
}
