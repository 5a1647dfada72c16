// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the cost of getting trace into a file: `auxrec` and stock `perf record` on the same driver, in a guest whose clock counts
//! instructions.
//!
//! With `dry=1`, the unit stores nothing: a device's DMA costs the processor nothing, either. The cost of a recorder is the instructions of
//! its process and of its children: in user space, in the kernel, and in interrupts meanwhile, as perf's task clock counts them. They are
//! read twice during the recording, at the same point of the unit's period, when the recorder is idle. So the start and the end of the
//! recorder, whose cost varies, are not included. Both recorders record context switches; perf would do so by itself only for trace with
//! times. Nothing else runs.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::Event;
use perfdata::{Attr, Flags};
use rustix::process::Signal;

use crate::attack::software;
use crate::module::{self, counter};
use crate::recording::{auxrec, Recorder};

/// The name under which perf supports `pattern`, and the value of `alias` for it.
pub const PMU: (&str, u8) = ("intel_pt", 1);
pub const RECORDERS: [&str; 2] = ["perf", "auxrec"];
pub const OUTPUT: &str = "/tmp/bench.data";
/// Writing to it costs almost nothing, so it shows the other costs of a recorder.
const NOWHERE: &str = "/dev/null";
const MIB: u64 = 1 << 20;
/// MiB in a run that searches for losses, and MiB over which the cost is measured.
const RUN: u64 = 16;
const SPAN: u64 = 64;
/// How often each cost is measured. The median counts.
const TIMES: usize = 5;
/// A rate in MiB per second at which neither recorder loses trace.
const EASY: u64 = 96;
/// The recorder's watermarks, in sixteenths of an area of 1 MiB.
const WATERMARKS: [u64; 6] = [1, 2, 4, 6, 7, 8];
/// Snapshots in a run.
const SNAPSHOTS: usize = 5;
/// Sizes of a snapshot and of its area, in KiB.
const SNAPSHOT_OF: [(usize, usize); 4] = [(1024, 1024), (1024, 2048), (4096, 4096), (4096, 8192)];
/// `PERF_COUNT_SW_TASK_CLOCK` and `PERF_COUNT_SW_CONTEXT_SWITCHES`.
const TASK_CLOCK: u64 = 1;
const CONTEXT_SWITCHES: u64 = 3;

/// Prints a line for each figure about the cost of a MiB.
///
/// # Errors
/// If a recorder fails, or loses trace at a low rate.
pub fn cost_of_all() -> Result<()> {
    module::alias(PMU.1)?;
    let mut copies = [0; TIMES];
    for one in &mut copies {
        *one = copy()?;
    }
    copies.sort_unstable();
    println!(
        "record copy {} {} {}",
        copies[TIMES / 2],
        copies[0],
        copies[TIMES - 1]
    );
    for (what, output) in [("cost", OUTPUT), ("beyond", NOWHERE)] {
        for recorder in RECORDERS {
            let costs = costs(recorder, output, "128,1024", &[])?;
            let instructions = costs.map(|cost| cost.instructions);
            let switches = costs.map(|cost| cost.switches);
            println!(
                "record {recorder} {what} {} {} {} {}",
                instructions[TIMES / 2],
                instructions[0],
                instructions[TIMES - 1],
                switches[TIMES / 2],
            );
        }
    }
    // A watermark of a quarter of the area, which is perf's default for Intel PT.
    let quarter = costs("auxrec", NOWHERE, "128,1024", &["--aux-watermark", "1M"])?;
    println!(
        "record auxrec quarter {} {}",
        quarter[TIMES / 2].instructions,
        quarter[TIMES / 2].switches
    );
    for (name, rings, more) in [
        ("1", 1, None),
        ("2", 2, None),
        ("split", 2, Some("--split-files")),
    ] {
        let mut runs = (0..TIMES)
            .map(|_| threads(rings, more))
            .collect::<Result<Vec<_>>>()?;
        runs.sort_unstable();
        let costs: Vec<_> = runs[TIMES / 2].iter().map(u64::to_string).collect();
        println!("record threads {name} {}", costs.join(" "));
    }
    Ok(())
}

/// Prints a line for each figure.
///
/// # Errors
/// As [`cost_of_all`].
pub fn run() -> Result<()> {
    cost_of_all()?;
    for recorder in RECORDERS {
        let loss = first_loss(recorder, &[])?;
        println!(
            "record {recorder} loss {loss} {}",
            first_loss_beside(recorder, &[])?
        );
    }
    for part in WATERMARKS {
        let more = ["--aux-watermark", &format!("{}K", MIB / 16 * part / 1024)];
        let loss = first_loss("auxrec", &more)?;
        let beside = first_loss_beside("auxrec", &more)?;
        // If auxrec loses trace at that rate, its cost cannot be compared.
        let cost = if loss > EASY {
            costs("auxrec", OUTPUT, "128,256", &more)?[TIMES / 2].instructions
        } else {
            0
        };
        println!("record watermark {part} {cost} {loss} {beside}");
    }
    for recorder in RECORDERS {
        for (size, area) in SNAPSHOT_OF {
            // perf crashes if the snapshot is smaller than the area: it takes the head of `intel_pt` for an offset in the area.
            if recorder == "perf" && size != area {
                continue;
            }
            let blind = blind(recorder, size, area)?;
            println!("record {recorder} blind {size} {area} {blind}");
        }
    }
    let [wakeups, early, late] = growth()?;
    println!("record memory {wakeups} {early} {late}");
    Ok(())
}

/// Wakes `auxrec` for many small pieces of trace. Returns how often it woke up, and its own memory in KiB after a tenth of the trace and
/// after all.
fn growth() -> Result<[u64; 3]> {
    /// Each packet of 4 KiB wakes the recorder.
    const PACKET: u64 = 4096;
    const PACKETS: u64 = 400_000;
    let begin = counter(PMU.0, "bytes")?;
    let packets = || -> Result<u64> { Ok((counter(PMU.0, "bytes")? - begin) / PACKET) };
    let seconds = (PACKETS * PACKET / MIB / EASY + 5).to_string();
    let often = ["--aux-watermark", "4K"];
    let mut recorder = start(
        "auxrec",
        NOWHERE,
        &terms(EASY, 1),
        "128,16",
        &often,
        &seconds,
    )?;
    let state = |recorder: &Recorder| -> Result<[u64; 2]> {
        let status = fs::read_to_string(format!("/proc/{}/status", recorder.id()))?;
        let number = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().split(' ').next()?.parse().ok()
        };
        let own = number("RssAnon:").zip(number("voluntary_ctxt_switches:"));
        let (own, switches) = own.context("a process does not say how much memory it has")?;
        Ok([own, switches])
    };
    let mut at = |count| -> Result<[u64; 2]> {
        while packets()? < count {
            recorder.runs()?;
            sleep(Duration::from_millis(10));
        }
        state(&recorder)
    };
    let ([early, _], [late, wakeups]) = (at(PACKETS / 10)?, at(PACKETS)?);
    end(recorder)?;
    Ok([wakeups, early, late])
}

/// Instructions of the kernel for copying a MiB from memory to a file, in pieces of 256 KiB. Each recorder needs at least these.
fn copy() -> Result<u64> {
    let trace = vec![0x55; 256 * 1024];
    let clock = Event::open(&software(TASK_CLOCK, 0), 0, -1)
        .context("cannot open an event of this thread")?;
    let now = || -> Result<u64> { Ok(clock.count()?.context("an event does not count")?.value) };
    let mut file = File::create(OUTPUT).context("cannot make a file")?;
    let short = now()?;
    for _ in 0..SPAN * 4 {
        file.write_all(&trace).context("cannot write a file")?;
    }
    let long = now()?;
    fs::remove_file(OUTPUT)?;
    Ok((long - short) / SPAN)
}

/// Counts of instructions and context switches.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    instructions: u64,
    switches: u64,
}

/// Counts for all tasks that this thread starts from now on, without the thread itself.
struct Meter {
    all: [Event; 2],
    own: [Event; 2],
}

impl Meter {
    fn start() -> Result<Self> {
        let open = |config, flags| {
            let attr = Attr {
                flags,
                ..software(config, 0)
            };
            Event::open(&attr, 0, -1).context("cannot open an event of this thread")
        };
        let both = |flags| anyhow::Ok([open(TASK_CLOCK, flags)?, open(CONTEXT_SWITCHES, flags)?]);
        Ok(Self {
            own: both(Flags::empty())?,
            all: both(Flags::INHERIT)?,
        })
    }

    fn cost(&self) -> Result<Cost> {
        let value = |event: &Event| -> Result<u64> {
            Ok(event.count()?.context("an event does not count")?.value)
        };
        let [mut sums, mut own] = [[0; 2]; 2];
        for (n, event) in self.all.iter().enumerate() {
            sums[n] = value(event)?;
            own[n] = value(&self.own[n])?;
        }
        Ok(Cost {
            instructions: sums[0].saturating_sub(own[0]),
            switches: sums[1].saturating_sub(own[1]),
        })
    }
}

/// Starts a recorder of CPU 0 with these terms and options.
fn start(
    recorder: &str,
    output: &str,
    terms: &str,
    rings: &str,
    options: &[&str],
    seconds: &str,
) -> Result<Recorder> {
    let mut command = Command::new(recorder);
    command
        .args(["record", "-o", output, "-C", "0", "-m", rings])
        .args(["-e", &format!("{}/dry=1,{terms}/", PMU.0)])
        .args(options);
    if recorder == "perf" {
        // Build IDs are not part of the comparison. auxrec always records switches.
        command.args(["-N", "-B", "--switch-events"]);
    }
    Recorder::spawn(
        command
            // `sleep` switches once. The records of more switches would be in the figures.
            .args(["--", "sleep", seconds])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )
}

/// Waits for a recorder's end. auxrec exits with 3 if trace was lost.
fn end(recorder: Recorder) -> Result<()> {
    let status = recorder.ended()?;
    ensure!(
        matches!(status.code(), Some(0 | 3)),
        "the recorder ended with {status}"
    );
    Ok(())
}

/// The terms of a unit with this rate in MiB per second, and packets of 4 KiB.
fn terms(rate: u64, burst: u64) -> String {
    format!("packet=64,burst={burst},rate={}", rate * 1024)
}

/// The costs of a MiB in several runs, with switches per 1000 MiB. Both figures are sorted independently.
fn costs(recorder: &str, output: &str, rings: &str, more: &[&str]) -> Result<[Cost; TIMES]> {
    let mut all = [Cost::default(); TIMES];
    for one in &mut all {
        *one = cost(recorder, output, rings, more)?;
    }
    let mut switches = all.map(|cost| cost.switches);
    switches.sort_unstable();
    all.sort_unstable_by_key(|cost| cost.instructions);
    for (cost, switches) in all.iter_mut().zip(switches) {
        cost.switches = switches;
    }
    Ok(all)
}

/// The cost of a MiB while trace comes steadily.
fn cost(recorder: &str, output: &str, rings: &str, more: &[&str]) -> Result<Cost> {
    let committed = || counter(PMU.0, "bytes");
    let lost = counter(PMU.0, "lost_no_space")?;
    let meter = Meter::start()?;
    let begin = committed()?;
    // A tick of 64 KiB.
    let child = start(recorder, output, &terms(EASY, 16), rings, more, "3")?;
    // Waits until the recorder has started, and then for the next commit.
    until(|| Ok(committed()? >= begin + 8 * MIB))?;
    let now = committed()?;
    until(|| Ok(committed()? != now))?;
    // After this time, the recorder has processed the commit.
    sleep(Duration::from_millis(4));
    let (before, from) = (meter.cost()?, committed()?);
    sleep(Duration::from_micros(SPAN * 1_000_000 / EASY));
    let (after, to) = (meter.cost()?, committed()?);
    end(child)?;
    if output == OUTPUT {
        fs::remove_file(OUTPUT).context("the recorder has left no file")?;
    }
    let lost = counter(PMU.0, "lost_no_space")? - lost;
    ensure!(lost == 0, "{recorder} has lost {lost} bytes");
    let bytes = to - from;
    ensure!(
        bytes >= SPAN * MIB / 2,
        "only {bytes} bytes of {SPAN} MiB came in time"
    );
    Ok(Cost {
        instructions: (after.instructions - before.instructions) * MIB / bytes,
        switches: (after.switches - before.switches) * 1000 * MIB / bytes,
    })
}

/// The cost of a MiB for each thread of a recorder that drains `rings` rings with as many threads, the highest cost first. The traced
/// programs run in turn on the only CPU, so the threads never wait for each other. On several CPUs, the recorder would need at least the
/// time of its busiest thread.
fn threads(rings: usize, split: Option<&str>) -> Result<Vec<u64>> {
    let committed = || counter(PMU.0, "bytes");
    let lost = counter(PMU.0, "lost_no_space")?;
    let mut traced = Vec::new();
    for _ in 0..rings {
        let program = Command::new("auxe2e")
            .args(["workload", "spin", "--ms", "3000"])
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a program")?;
        traced.push(program);
    }
    let ids: Vec<_> = traced.iter().map(|p| p.id().to_string()).collect();
    let begin = committed()?;
    let recorder = Recorder::spawn(
        auxrec(["record", "-o", OUTPUT, "--per-thread", "-m", "128,1024"])
            .args(["-t", &ids.join(","), "--threads", &rings.to_string()])
            .args(split)
            .args(["-e", &format!("{}/dry=1,{}/", PMU.0, terms(EASY, 16))])
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )?;
    until(|| Ok(committed()? >= begin + 8 * MIB))?;
    let mut meters = Vec::new();
    for thread in fs::read_dir(format!("/proc/{}/task", recorder.id()))? {
        let tid = thread?.file_name().to_string_lossy().parse()?;
        let clock = Event::open(&software(TASK_CLOCK, 0), tid, -1);
        meters.push(clock.context("cannot open an event of a thread")?);
    }
    let read = || {
        let counts = meters
            .iter()
            .map(|meter| meter.count().map(|c| c.map_or(0, |c| c.value)));
        counts.collect::<std::io::Result<Vec<_>>>()
    };
    let (before, from) = (read()?, committed()?);
    sleep(Duration::from_micros(SPAN * 1_000_000 / EASY));
    let (after, to) = (read()?, committed()?);
    if split.is_some() {
        // The end of the recording is not measured. Joining the files would need as much memory again.
        recorder.signal(Signal::KILL)?;
    }
    for mut program in traced {
        program.wait()?;
    }
    if split.is_some() {
        recorder.ended()?;
        for thread in 0..rings {
            let part = format!("{OUTPUT}.t{thread}");
            fs::remove_file(part).context("a thread has left no file")?;
        }
    } else {
        end(recorder)?;
    }
    fs::remove_file(OUTPUT).context("the recorder has left no file")?;
    let lost = counter(PMU.0, "lost_no_space")? - lost;
    ensure!(lost == 0, "auxrec has lost {lost} bytes");
    let bytes = to - from;
    ensure!(bytes >= SPAN * MIB / 4, "only {bytes} bytes came in time");
    let costs = after.iter().zip(&before);
    let mut costs: Vec<_> = costs.map(|(a, b)| (a - b) * MIB / bytes).collect();
    costs.sort_unstable_by_key(|cost| std::cmp::Reverse(*cost));
    Ok(costs)
}

/// Waits until `is` returns true.
fn until(is: impl Fn() -> Result<bool>) -> Result<()> {
    for _ in 0..10_000 {
        if is()? {
            return Ok(());
        }
        sleep(Duration::from_micros(500));
    }
    bail!("the recorder has not begun")
}

/// Records [`RUN`] MiB at a rate in MiB per second. Returns how many bytes are lost.
fn record(recorder: &str, rate: u64, rings: &str, more: &[&str]) -> Result<u64> {
    let lost = counter(PMU.0, "lost_no_space")?;
    let committed = counter(PMU.0, "bytes")?;
    // A tick generates 64 KiB, or the bytes of 20 µs if that is more: shorter ticks do not exist.
    let terms = terms(rate, (rate * 6 / 1000 + 1).max(16));
    let terms = format!("{terms},limit={}", RUN * MIB);
    // The recording ends long after the last byte.
    end(start(recorder, OUTPUT, &terms, rings, more, "1")?)?;
    fs::remove_file(OUTPUT).context("the recorder has left no file")?;
    let lost = counter(PMU.0, "lost_no_space")? - lost;
    let committed = counter(PMU.0, "bytes")? - committed;
    ensure!(
        committed + lost == RUN * MIB || lost != 0,
        "{recorder}: {committed} bytes of {RUN} MiB were traced"
    );
    Ok(lost)
}

/// The lowest rate at which a ring of 1 MiB gets full before it is read, in MiB per second, with a precision of 1/16.
fn first_loss(recorder: &str, more: &[&str]) -> Result<u64> {
    let (mut good, mut bad) = (EASY / 2, 12_000);
    while bad - good > good / 16 {
        let rate = (good * bad).isqrt();
        if record(recorder, rate, "128,256", more)? == 0 {
            good = rate;
        } else {
            bad = rate;
        }
    }
    Ok(bad)
}

/// Does the same while another program uses the processor all the time, so that the recorder is sometimes scheduled late.
fn first_loss_beside(recorder: &str, more: &[&str]) -> Result<u64> {
    let mut other = Command::new("auxe2e")
        .args(["workload", "spin", "--ms", "1000000000"])
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start a program")?;
    let loss = first_loss(recorder, more);
    other.kill()?;
    other.wait()?;
    loss
}

/// The untraced time for a snapshot of `size` KiB of an area of `area` KiB, in ns. It is the time from the commit that stops the unit to
/// the next begin, by the framework's tracepoints. If the unit is stopped twice, both times are added. Returns the median.
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
    let child = start(recorder, OUTPUT, &terms, &rings, &[&snapshot], "3")?;
    for _ in 0..1000 {
        if counter(PMU.0, "begins")? != begins {
            break;
        }
        sleep(Duration::from_millis(5));
    }
    for _ in 0..SNAPSHOTS {
        // In this time, the whole area is written.
        sleep(Duration::from_millis(250));
        child.signal(Signal::USR2)?;
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

/// The times between a commit and the next begin, in ns, from the text of a trace.
fn gaps(text: &str) -> Result<Vec<u64>> {
    /// Two snapshots are at least this far apart, in ns.
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
