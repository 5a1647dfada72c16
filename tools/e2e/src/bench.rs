// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures what a start and a stop of an event cost, with and without bytes to commit, and how fast a unit may be.
//!
//! `PERF_EVENT_IOC_PERIOD` on a running event is one `stop()` and one `start()` of its PMU, with little overhead around them. The same call
//! on an event of a software PMU of perf measures that overhead: its `stop()` and `start()` do next to nothing.
//!
//! A unit that writes to memory by itself costs the processor nothing. With `dry=1`, the unit of `pattern` costs nothing either: it moves
//! its write pointer and stores no bytes. So only the driver's cost is measured: a commit for `direct`, a commit and a copy for the other
//! sinks.

pub mod parallel;
pub mod recorders;
pub mod restarts;
pub mod starts;
pub mod steps;
pub mod twins;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{ensure, Result};
use auxrec::pmu::Pmus;
use auxrec::sys::Event;
use perfdata::{Attr, Flags, Read};

use crate::attack::{software, DUMMY};
use crate::events::probe::{bytes, Probe};
use crate::module;
use crate::ring;
use crate::workload::pin;

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(value_enum)]
    what: What,
    /// How many times each call is made.
    #[arg(long, default_value_t = 1000)]
    times: u32,
}

/// What can be measured.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A start and a stop, and a commit, of our drivers and of the same in C.
    Driver,
    /// The same on each CPU at once, with a mark before and behind each for the plugin of `tools/bench`.
    Windows,
    /// The same when there is something, by sink, ring and bytes.
    Commit,
    /// The rate from which on each sink loses something.
    Loss,
    /// Interrupts of units that restart a transaction, with a mark before and behind those of each unit for the same plugin.
    Restarts,
    /// An event of tracefs that is read.
    Ring,
    /// The recorder's work, and stock perf's.
    Record,
    /// Of these only what a MiB costs.
    Cost,
    /// How much faster two CPUs are drained than one, by the clock on the wall.
    Parallel,
    /// How soon all CPUs are recorded, by the same clock.
    Starts,
    /// An instruction of a program that is traced by single-stepping.
    Steps,
    /// The kernel's memory, while a program is so traced for as many seconds as `--times` says.
    Memory,
}

/// The sinks, by their names and their terms.
const SINKS: [(&str, u32); 3] = [("direct", 0), ("sg", 1), ("flat", 2)];

/// Prints a line for each figure. Times are in ns, which are guest instructions under `-icount shift=0`.
///
/// # Errors
/// If the driver cannot be loaded, or an event cannot be opened.
pub fn run(args: &Args) -> Result<ExitCode> {
    module::load_all()?;
    // These measurements are about several CPUs.
    if !matches!(args.what, What::Parallel | What::Windows | What::Starts) {
        pin(0)?;
    }
    match args.what {
        What::Driver => twins::run(args.times)?,
        What::Windows => twins::windows(args.times)?,
        What::Commit => commits()?,
        What::Loss => losses()?,
        What::Restarts => restarts::run(args.times)?,
        What::Ring => ring::bench::run()?,
        What::Record => recorders::run()?,
        What::Cost => recorders::cost_of_all()?,
        What::Parallel => parallel::run()?,
        What::Starts => starts::run()?,
        What::Steps => module::with("soft_pt", steps::run)?,
        What::Memory => module::with("soft_pt", || steps::memory(args.times.into()))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The attributes of an event of `pattern` whose unit stores nothing, so that only the driver's cost is measured.
fn dry(pmu: &str, terms: &str) -> Result<Attr> {
    let pmus = Pmus::at(Path::new("/sys/bus/event_source/devices"));
    let mut attr = pmus.event(&format!("{pmu}/dry=1,{terms}/"))?.attr();
    attr.sample_period = 1;
    attr.read_format = Read::FORMAT;
    attr.flags |= Flags::DISABLED;
    Ok(attr)
}

/// For rings from 64 KiB to 16 MiB: measures one stop and one start, with nothing to commit and with half the ring.
fn commits() -> Result<()> {
    for (name, sink) in SINKS {
        for pages in [16, 64, 256, 1024, 4096] {
            for share in [0, 2] {
                let mut calls = Vec::new();
                let len = bytes(pages) / 2 * share / 2;
                // If the bounce memory wraps, it keeps only the newest trace.
                let least = if sink == 2 { len.min(1) } else { len };
                for _ in 0..3 {
                    calls.push(commit(
                        "pattern",
                        &sink_terms(sink, pages),
                        pages,
                        len,
                        least,
                    )?);
                }
                calls.sort_unstable();
                println!("commit {name} {} {len} {}", bytes(pages), calls[0]);
            }
        }
    }
    Ok(())
}

/// The terms of a sink with so much bounce memory that no interrupt comes before the stop. `sg` raises its interrupt at half of its memory,
/// which is the length of the ring. `flat` raises none.
fn sink_terms(sink: u32, pages: usize) -> String {
    match sink {
        0 => "sink=0,".to_owned(),
        1 => format!("sink=1,bounce={},", pages * 2),
        _ => format!("sink={sink},bounce={},", pages.min(1024)),
    }
}

/// The time of one stop and one start of an event with `len` bytes to commit. At least `least` of them must arrive.
pub fn commit(pmu: &str, terms: &str, pages: usize, len: u64, least: u64) -> Result<u64> {
    // Packets of 4 KiB. One tick, a hundredth of a second after the start, generates all of them; then `limit` is reached.
    let packets = (len / 4096).max(1);
    let rate = packets * 4 * 100;
    let limit = len.max(1);
    let mut attr = dry(
        pmu,
        &format!("{terms}packet=64,burst={packets},rate={rate},limit={limit}"),
    )?;
    attr.aux_watermark = u32::try_from(bytes(pages))?;
    let mut probe = Probe::open(&attr, -1, 0, pages, false)?;
    probe.event.enable()?;
    probe.until("what is to be committed", |probe| {
        Ok(probe.generated()? >= len)
    })?;
    // One call before the measurement, as a warm-up.
    let other = Event::open(&software(DUMMY, 1), -1, 0)?;
    other.enable()?;
    other.set_period(1)?;
    let start = Instant::now();
    probe.event.set_period(1)?;
    let time = start.elapsed();
    let idle = Instant::now();
    other.set_period(1)?;
    let idle = idle.elapsed();
    ensure!(
        (least..=len).contains(&probe.head()),
        "{} bytes were committed, and not {len}",
        probe.head()
    );
    Ok(u64::try_from(time.saturating_sub(idle).as_nanos())?)
}

/// For each sink, finds the lowest rate at which trace is lost, although the reader does nothing else.
fn losses() -> Result<()> {
    for (name, sink) in SINKS {
        // In MiB per second. The term takes at most 16 GiB.
        let (mut good, mut bad) = (16, 16_000);
        while bad - good > good / 32 + 1 {
            let rate = (good + bad) / 2;
            if loses(sink, rate)? {
                bad = rate;
            } else {
                good = rate;
            }
        }
        println!("loss {name} {bad}");
    }
    Ok(())
}

/// Whether trace is lost at a rate of `rate` MiB per second. The unit skips ticks for which the processor has no time. A device would not
/// skip them, so the bytes of skipped ticks count as lost too.
fn loses(sink: u32, rate: u64) -> Result<bool> {
    const PAGES: usize = 256;
    const TOTAL: u64 = 16 << 20;
    // A tick generates 64 KiB, or the bytes of 20 µs if that is more: shorter ticks do not exist. Packets of 4 KiB.
    let burst = (rate * 6 / 1000 + 1).max(16);
    let mut attr = dry(
        "pattern",
        &format!(
            "sink={sink},packet=64,burst={burst},rate={},limit={TOTAL}",
            rate * 1024
        ),
    )?;
    attr.aux_watermark = u32::try_from(bytes(PAGES) / 4)?;
    let mut probe = Probe::open(&attr, -1, 0, PAGES, false)?;
    probe.event.enable()?;
    let start = Instant::now();
    let mut got = 0;
    let mut generated = 0;
    while generated < TOTAL && probe.truncations() == 0 {
        probe.wait()?;
        got += probe.read_trace(u64::MAX)?;
        probe.trace.clear();
        probe.read_records()?;
        generated = probe.generated()?;
    }
    let time = u64::try_from(start.elapsed().as_micros())?;
    probe.event.disable()?;
    got += probe.read_trace(u64::MAX)?;
    let would = rate * time * 1024 * 1024 / 1_000_000;
    // The last read comes some ticks after the last byte: one sixteenth is the tolerance.
    Ok(got < generated || would > generated + generated / 16)
}

/// The time of one stop and one start.
pub fn period(event: &Event, times: u32) -> Result<u128> {
    each(times, || Ok(event.set_period(1)?))
}

/// The time of enabling an event and disabling it.
pub fn toggle(event: &Event, times: u32) -> Result<u128> {
    event.disable()?;
    each(times, || {
        event.enable()?;
        Ok(event.disable()?)
    })
}

/// The time of one call. The kernel's other work disturbs some calls, so this is the median. The time that reading the clock takes is
/// subtracted.
fn each(times: u32, call: impl Fn() -> Result<()>) -> Result<u128> {
    let median = |call: &dyn Fn() -> Result<()>| {
        let mut all = Vec::new();
        for _ in 0..times {
            let start = Instant::now();
            call()?;
            all.push(start.elapsed().as_nanos());
        }
        all.sort_unstable();
        anyhow::Ok(all.get(all.len() / 2).copied().unwrap_or_default())
    };
    Ok(median(&call)?.saturating_sub(median(&|| Ok(()))?))
}
