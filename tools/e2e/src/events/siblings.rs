// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Siblings that throttle, pause and resume the trace of their group; and ioctls while the trace runs.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use auxrec::sys::Event;
use perfdata::Attr;

use crate::attack::{beside, random, records, software, traced, unpin, Victim, CPU_CLOCK};
use crate::wait::PATIENCE;
use crate::workload::{pin, spin};

/// `attr.aux_action`.
pub const START_PAUSED: u32 = 1 << 0;
/// The overflow of the event pauses its leader's trace.
pub const PAUSE: u32 = 1 << 1;
/// The overflow of the event resumes it.
pub const RESUME: u32 = 1 << 2;

/// `PERF_RECORD_THROTTLE`.
pub const THROTTLE: u32 = 5;

/// A kernel parameter that is changed for a while.
pub struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    /// Writes a file of /proc or /sys. When the result is dropped, the file gets its old value again.
    pub fn change(path: &'static str, value: &str) -> Result<Self> {
        let before =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        std::fs::write(path, value).with_context(|| format!("cannot write {path}"))?;
        Ok(Self { path, before })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path, &self.before);
    }
}

/// If a sibling samples too often, perf stops the whole group, from the sibling's interrupt.
pub fn throttle() -> Result<String> {
    let _rate = Setting::change("/proc/sys/kernel/perf_event_max_sample_rate", "250")?;
    let mut attr = traced("pattern")?;
    // A packet every 49 µs, so that there is trace between two samples. The scheduler's tick unthrottles the group.
    attr.config = 1280 | 1 << 24;
    let victim = Victim::open(&attr, -1, 0, 64)?;
    let sibling = Event::open_in(&software(CPU_CLOCK, 500_000), -1, 0, Some(&victim.event))?;
    victim.event.enable()?;
    pin(0)?;
    let end = Instant::now() + PATIENCE;
    let seen = loop {
        spin(Duration::from_millis(50));
        let base = victim.base.as_ref().context("no control page")?;
        let seen = records(base).iter().filter(|&&k| k == THROTTLE).count();
        if seen >= 3 || Instant::now() > end {
            break seen;
        }
        victim.release();
    };
    victim.event.disable()?;
    unpin()?;
    ensure!(seen > 0, "the group was never throttled");
    ensure!(victim.head() > 0, "nothing was traced");
    let samples = sibling.count()?.map_or(0, |count| count.value);
    drop(sibling);
    Ok(format!(
        "throttled {seen} times, {} bytes, the sibling at {samples} ns",
        victim.head()
    ))
}

pub fn ioctls() -> Result<String> {
    let victim = Victim::on_cpu(0, 8)?;
    victim.event.enable()?;
    let event = &victim.event;
    let other = |n: u64| {
        let _ = match n % 4 {
            0 => event.set_period(random(n) >> 32 | 1),
            1 => event.reset(),
            2 => event.refresh(1),
            _ => event.enable(),
        };
    };
    let refused = beside(other, || -> Result<u32> {
        let mut refused = 0;
        for n in 1..400_u64 {
            event.set_period(n)?;
            event.refresh(i32::try_from(n)?)?;
            event.reset()?;
            // perf refuses 0 and periods with the sign bit.
            refused += u32::from(event.set_period(0).is_err());
            refused += u32::from(event.set_period(u64::MAX).is_err());
            victim.release();
        }
        Ok(refused)
    })?;
    victim.event.disable()?;
    victim.traces()?;
    ensure!(refused > 0, "no impossible period was refused");
    Ok(format!("{} bytes meanwhile", victim.head()))
}

/// Siblings pause and resume the trace from their interrupts, while it is started and stopped.
pub fn pause() -> Result<String> {
    let mut bytes_seen = 0;
    for start_paused in [false, true] {
        let mut attr = traced("pattern")?;
        attr.aux_action = if start_paused { START_PAUSED } else { 0 };
        let victim = Victim::open(&attr, -1, 0, 8)?;
        let sibling = |period, action| {
            let attr = Attr {
                aux_action: action,
                ..software(CPU_CLOCK, period)
            };
            Event::open_in(&attr, -1, 0, Some(&victim.event))
        };
        let _siblings = [sibling(130_000, PAUSE)?, sibling(170_000, RESUME)?];
        pin(0)?;
        let end = Instant::now() + Duration::from_millis(400);
        let mut n = 0;
        while Instant::now() < end {
            victim.event.enable()?;
            spin(Duration::from_millis(n % 5));
            victim.release();
            if n % 3 != 0 {
                victim.event.disable()?;
            }
            n += 1;
        }
        victim.event.disable()?;
        unpin()?;
        bytes_seen += victim.head();
    }
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{bytes_seen} bytes meanwhile"))
}
