// SPDX-License-Identifier: GPL-2.0 OR MIT

//! When a trace may begin again after a truncation or a new mapping, and whether it does.
//!
//! For `PERF_AUX_FLAG_TRUNCATED`, perf disables the event from an interrupt that follows soon. Until then, the driver must not begin a
//! transaction, whatever made perf call `start()`. On x86, the inter-processor interrupt of `PERF_EVENT_IOC_PERIOD` has a higher vector
//! than the one that disables. If both come while the unit's timer function runs, the CPU handles that of the ioctl first.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{Event, Field};
use perfdata::Attr;

use crate::attack::{attack, aux, base, get, random, set, sleep, traced, unpin, Attack};
use crate::events::probe::Probe;
use crate::wait::PATIENCE;
use crate::workload::{pin, spin};

/// The cases.
pub const ALL: [Attack; 2] = [
    attack("period set while a disable is pending", pending),
    attack("sg: AUX unmapped and mapped while running", remapped),
];

/// A tracefs instance, which records events of its own.
struct Tracing(PathBuf);

impl Tracing {
    fn new(events: &[&str]) -> Result<Self> {
        let dir = Path::new("/sys/kernel/tracing/instances/auxpmu");
        fs::create_dir(dir).context("cannot make a trace buffer")?;
        let tracing = Self(dir.to_owned());
        tracing.write("buffer_size_kb", "8192")?;
        // This clock shows the order of events, even if the CPUs' clocks differ.
        tracing.write("trace_clock", "counter")?;
        for event in events {
            tracing.write(&format!("events/{event}/enable"), "1")?;
        }
        Ok(tracing)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        fs::write(self.0.join(file), text).with_context(|| format!("cannot write {file}"))
    }

    fn read(&self) -> Result<String> {
        Ok(fs::read_to_string(self.0.join("trace"))?)
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        let _ = self.write("events/enable", "0");
        let _ = fs::remove_dir(&self.0);
    }
}

/// This mark is written to the trace buffer before the event is enabled.
const ENABLE: &str = "auxe2e: enable";

fn pending() -> Result<String> {
    const WANTED: usize = 200;
    let tracing = Tracing::new(&["rust_perf/rust_perf_begin", "rust_perf/rust_perf_commit"])?;
    // A tick every 500 µs generates four packets of 16320 bytes, through bounce memory. So a full ring has some bytes left, with which a
    // transaction could begin.
    let attr = Attr {
        config: 127_500 | 4 << 24 | 255 << 40,
        config1: 1,
        ..traced("pattern")?
    };
    let mut probe = Probe::open(&attr, -1, 1, 16, false)?;
    let (event, done) = (probe.event.try_clone()?, AtomicBool::new(false));
    pin(0)?;
    let turned_off = thread::scope(|scope| {
        scope.spawn(|| {
            let _ = pin(0);
            for n in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                // The pauses are long enough for the unit's timer to expire.
                spin(Duration::from_micros(600 + random(n) % 400));
                let _ = event.set_period(n % 7 + 1);
            }
        });
        let turned_off = turn_on_and_on(&mut probe, &tracing, WANTED);
        done.store(true, Ordering::Relaxed);
        turned_off
    });
    probe.event.disable()?;
    unpin()?;
    let turned_off = turned_off?;
    let id = probe.event.id()?;
    let (ends, early) = begun_early(&tracing.read()?, id);
    ensure!(
        ends >= WANTED / 2,
        "{ends} of {turned_off} truncations are in the kernel's trace"
    );
    if let Some(first) = early.first() {
        bail!(
            "{} of {ends} times a transaction was begun, or tried, before perf had disabled the event: {first}",
            early.len()
        );
    }
    Ok(format!(
        "turned off {turned_off} times, and not begun before"
    ))
}

/// Enables the event each time that perf has disabled it, and only then. Returns how often perf has disabled it.
fn turn_on_and_on(probe: &mut Probe, tracing: &Tracing, wanted: usize) -> Result<usize> {
    let end = Instant::now() + PATIENCE;
    tracing.write("trace_marker", ENABLE)?;
    probe.event.enable()?;
    let mut seen = 0;
    while seen < wanted && Instant::now() < end {
        sleep(1);
        probe.read_records()?;
        if probe.truncations() > seen {
            // Longer than an interrupt stays pending.
            sleep(3);
            probe.read_records()?;
            seen = probe.truncations();
            probe.read_trace(u64::MAX)?;
            probe.trace.clear();
            tracing.write("trace_marker", ENABLE)?;
            probe.event.enable()?;
        }
    }
    Ok(seen)
}

/// Searches the text of the trace buffer. Returns the number of truncating commits of this event, and the begins that follow such a commit
/// without a mark in between.
fn begun_early(text: &str, id: u64) -> (usize, Vec<String>) {
    let id = format!(" id={id} ");
    let (mut ends, mut early, mut off) = (0, Vec::new(), false);
    for line in text.lines() {
        if line.contains(ENABLE) {
            off = false;
        } else if line.contains("rust_perf_commit:") && line.contains(&id) {
            if line.contains("truncated") {
                ends += 1;
                off = true;
            }
        } else if line.contains("rust_perf_begin:") && line.contains(&id) && off {
            early.push(line.trim().to_owned());
        }
    }
    (ends, early)
}

/// Unmaps the AUX area of a running event, and maps another one. The event must trace again after it is disabled and enabled.
fn remapped() -> Result<String> {
    const TIMES: u64 = 200;
    let mut longest = Duration::ZERO;
    for cpu in [0, 1] {
        let attr = Attr {
            config: 512,
            config1: 1,
            ..traced("pattern")?
        };
        let event = Event::open(&attr, -1, cpu)?;
        let control = base(&event)?;
        pin(1)?;
        for n in 0..TIMES / 2 {
            // The area holds half a second of trace at this rate.
            let area = aux(&event, &control, 64).with_context(|| format!("mapping {n}"))?;
            let head = get(&control, Field::AuxHead);
            set(&control, Field::AuxTail, head);
            event.disable()?;
            event.enable()?;
            let begun = Instant::now();
            while get(&control, Field::AuxHead) == head {
                // The unit writes to bounce memory. The driver copies after a quarter of the ring, and when the unit is stopped.
                spin(Duration::from_micros(random(n) % 3000));
                event.set_period(n + 1)?;
                ensure!(
                    begun.elapsed() < PATIENCE,
                    "CPU {cpu}, mapping {n}: no trace in {} s; {} bytes generated",
                    PATIENCE.as_secs(),
                    event.count()?.map_or(0, |count| count.value)
                );
            }
            longest = longest.max(begun.elapsed());
            spin(Duration::from_micros(random(n) % 2000));
            // The event is running.
            drop(area);
        }
    }
    unpin()?;
    Ok(format!(
        "{TIMES} areas, the first trace after {} ms at most",
        longest.as_millis()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_between_a_truncation_and_the_mark_are_found() {
        let commit = "x-1 [001] d.h1. 1.0: rust_perf_commit: type=9 id=7 head=0x0 size=0x1 flags=";
        let begin = "x-1 [001] d.h1. 1.0: rust_perf_begin: type=9 id=7 begun head=0x0 space=0x1";
        let mark = format!("x-1 [000] ..... 1.0: tracing_mark_write: {ENABLE}");
        let other = begin.replace("id=7", "id=70");
        let text = |lines: &[&str]| lines.join("\n");
        let cut = format!("{commit}truncated");
        let table: [(&[&str], (usize, usize)); 5] = [
            (&[&mark, begin, &cut, &mark, begin], (1, 0)),
            (&[&mark, begin, &cut, begin, &mark, begin], (1, 1)),
            (&[&mark, begin, commit, begin, &cut, &other], (1, 0)),
            (&[&cut, begin, commit, begin, &mark, begin, &cut], (2, 2)),
            (&[], (0, 0)),
        ];
        for (lines, want) in table {
            let (ends, early) = begun_early(&text(lines), 7);
            assert_eq!((ends, early.len()), want, "{lines:?}");
        }
    }
}
