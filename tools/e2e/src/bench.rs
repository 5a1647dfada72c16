// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a start and a stop of an event cost.
//!
//! `PERF_EVENT_IOC_PERIOD` on an event that runs is one `stop()` and one `start()` of its PMU, with little around them.
//! What that little costs, the same call on an event of perf's own tells whose `stop()` and `start()` do next to nothing.
//! The unit's clock is so slow that it writes nothing meanwhile, so each stop commits nothing.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use crate::hostile::{software, traced, Victim, DUMMY};
use crate::module;
use crate::workload::pin;
use auxrec::sys::Event;

/// How often.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// How many times each call is made.
    #[arg(default_value_t = 1000)]
    times: u32,
}

/// Prints a line for each figure: name and nanoseconds, which are guest instructions under `-icount shift=0`.
pub fn run(args: &Args) -> Result<ExitCode> {
    module::load_all()?;
    pin(0)?;
    let mut attr = traced("pattern")?;
    // A KiB a second, 65535 packets at a time: more than an hour until the first tick.
    attr.config = 1 | 0xffff << 24;
    let victim = Victim::open(&attr, -1, 0, 16)?;
    let dummy = Event::open(&software(DUMMY, 1), -1, 0)?;
    victim.event.enable()?;
    dummy.enable()?;

    for (name, event) in [("pattern", &victim.event), ("dummy", &dummy)] {
        // The first calls fill caches and resolve static calls.
        period(event, 10)?;
        println!("{name} stop+start {}", period(event, args.times)?);
    }
    for (name, event) in [("pattern", &victim.event), ("dummy", &dummy)] {
        toggle(event, 10)?;
        println!("{name} enable+disable {}", toggle(event, args.times)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn period(event: &Event, times: u32) -> Result<u128> {
    each(times, || Ok(event.set_period(1)?))
}

fn toggle(event: &Event, times: u32) -> Result<u128> {
    event.disable()?;
    each(times, || {
        event.enable()?;
        Ok(event.disable()?)
    })
}

/// The time of one call.
fn each(times: u32, call: impl Fn() -> Result<()>) -> Result<u128> {
    let start = Instant::now();
    for _ in 0..times {
        call()?;
    }
    Ok(start.elapsed().as_nanos() / u128::from(times.max(1)))
}
