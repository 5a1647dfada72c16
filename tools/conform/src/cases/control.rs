// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls on the descriptor of an event while it runs.

use anyhow::{ensure, Context, Result};
use auxrec::sys::Event;
use rustix::io::Errno;

use super::{at_both, case, core, refused, skip, Case};
use crate::pmu::{Place, Pmu};
use crate::records::THROTTLE;
use crate::rig::{makes_trace, map_base, rounds, software, work, Mode, Rig, CPU_CLOCK};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(at_both(
        "control: the period is set while it runs",
        core(
            6527,
            "static void __perf_event_period(struct perf_event *event,",
        ),
        |pmu, place| {
            let mut attr = pmu.attr();
            attr.sample_period = attr.sample_period.max(1);
            let mut rig = Rig::with(pmu, &attr, place, pmu.pages(16), Mode::Normal)?;
            rig.event.enable()?;
            for n in 1..100 {
                if n % 10 == 0 {
                    work();
                }
                // A driver may refuse a period, but its trace must stay correct.
                let _ = rig.event.set_period(n);
                rig.follows()?;
            }
            rig.traces(1)?;
            rig.settles()?;
            rig.is_exact()
        },
    ));
    cases.extend(at_both(
        "control: reset while it runs",
        core(
            6332,
            "static void _perf_event_reset(struct perf_event *event)",
        ),
        reset,
    ));
    cases.extend(at_both(
        "control: its group is throttled",
        core(
            2805,
            "static void perf_event_throttle_group(struct perf_event *event)",
        ),
        throttled,
    ));
    cases.extend(at_both(
        "control: enabled 10 times in a row",
        core(
            3290,
            "static void _perf_event_enable(struct perf_event *event)",
        ),
        |pmu, place| {
            let mut rig = Rig::open(pmu, place, pmu.pages(8), Mode::Normal)?;
            for _ in 0..10 {
                rig.event.enable()?;
            }
            rig.traces(1)?;
            for _ in 0..10 {
                rig.event.disable()?;
            }
            rig.settles()?;
            rig.is_exact()
        },
    ));
    cases.extend([
        case(
            "control: the data ring is paused",
            core(6703, "rb_toggle_paused(rb, !!arg);"),
            data_paused,
        ),
        case(
            "control: refreshed",
            core(
                3443,
                "static int _perf_event_refresh(struct perf_event *event, int refresh)",
            ),
            |pmu| {
                let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(8), Mode::Normal)?;
                // perf refuses this for an event that is inherited or does not sample. Otherwise it enables the event for 3 overflows.
                let said = match rig.event.refresh(3) {
                    Ok(()) => "taken".to_owned(),
                    Err(error) => error.to_string(),
                };
                for _ in 0..5 {
                    work();
                    rig.follows()?;
                }
                rig.settles()?;
                Ok(said)
            },
        ),
    ]);
    let filters: [(&str, &std::ffi::CStr); 8] = [
        ("nothing", c""),
        ("a word", c"filter"),
        ("no size", c"filter 0x1000/"),
        ("no file", c"filter 0x1000/0x1000@"),
        ("a file that is not there", c"filter 0/0x1000@/nowhere"),
        ("garbage", c"\xff\x01%n%s"),
        ("an action that is none", c"trace 0x1000/0x1000"),
        (
            "a number that is too large",
            c"filter 0xfffffffffffffffffff/1",
        ),
    ];
    for (what, filter) in filters {
        cases.push(case(
            format!("control: a filter: {what}"),
            core(
                12174,
                "perf_event_set_addr_filter(struct perf_event *event, char *filter_str)",
            ),
            move |pmu| {
                let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(8), Mode::Normal)?;
                let said = rig.event.set_filter(filter);
                ensure!(
                    said.is_err() || what == "nothing",
                    "the filter `{}` was taken",
                    filter.to_string_lossy()
                );
                rig.event.enable()?;
                rig.traces(1)?;
                rig.settles()?;
                let said = said.map_or_else(|error| error.to_string(), |()| "taken".to_owned());
                Ok(format!("{said}; then {}", rig.is_exact()?))
            },
        ));
    }
    cases.push(case(
        "control: 50 filters at once",
        core(12192, "ret = event->pmu->addr_filters_validate(&filters);"),
        |pmu| {
            let rig = Rig::open(pmu, pmu.place(), pmu.pages(8), Mode::Normal)?;
            let one: Vec<_> = (1..=50)
                .map(|n| format!("filter {:#x}/0x1000", n << 20))
                .collect();
            let all = std::ffi::CString::new(one.join(","))?;
            let said = rig.event.set_filter(&all);
            ensure!(said.is_err(), "50 filters were taken");
            let number = said.err().and_then(|error| error.raw_os_error());
            Ok(format!("refused with error {number:?}"))
        },
    ));
    cases.push(case(
        "control: read of a PMU's event has what it asked for",
        core(6216, "static int perf_read_one(struct perf_event *event,"),
        |pmu| {
            let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(8), Mode::Normal)?;
            let before = rig.count()?;
            ensure!(before.enabled == 0, "{before:?} before it was enabled");
            rig.event.enable()?;
            rig.traces(1)?;
            rig.settles()?;
            let after = rig.count()?;
            ensure!(
                after.enabled >= after.running && after.running > 0,
                "{after:?} when it had traced"
            );
            let again = rig.count()?;
            ensure!(after == again, "{after:?}, and then {again:?}, off");
            Ok(format!("{after:?}"))
        },
    ));
    cases.push(case(
        "control: output into a file that is no event",
        core(6666, "if (!is_perf_file(output))"),
        |pmu| {
            let event = pmu.open(pmu.place())?;
            let file = std::fs::File::open("/dev/null")?;
            refused("a file", event.set_output(&file), Errno::BADF)?;
            Ok("refused".to_owned())
        },
    ));
    cases.push(case(
        "control: output into an event without a ring",
        core(13784, "rb = ring_buffer_get(output_event);"),
        |pmu| {
            let (pid, cpu) = pmu.place().args();
            let other = Event::open(&software(CPU_CLOCK, 0), pid, cpu)?;
            let event = pmu.open(pmu.place())?;
            refused(
                "a ring that is not there",
                other.set_output(&event),
                Errno::INVAL,
            )?;
            // Nothing but the ring is missing.
            let _base = map_base(&event)?;
            other
                .set_output(&event)
                .context("output into its data ring")?;
            Ok("refused, until there is a ring".to_owned())
        },
    ));
    cases
}

/// Lowers `perf_event_max_sample_rate`. Dropping this restores it.
struct MaxRate(String);

impl MaxRate {
    const FILE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

    fn lower() -> Result<Self> {
        let before = Self(std::fs::read_to_string(Self::FILE)?);
        let written = std::fs::write(Self::FILE, "250");
        written.map_err(|_| skip("this user cannot set perf_event_max_sample_rate"))?;
        Ok(before)
    }
}

impl Drop for MaxRate {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::FILE, self.0.trim());
    }
}

/// A sibling that overflows too often throttles the group: perf stops the leader, perhaps in an NMI, and starts it at the next tick.
fn throttled(pmu: &Pmu, place: Place) -> Result<String> {
    let _rate = MaxRate::lower()?;
    let mut rig = Rig::open(pmu, place, pmu.pages(32), Mode::Normal)?;
    let (pid, cpu) = place.args();
    // Only one sample or a few are allowed in a tick of the scheduler.
    let sibling = Event::open_in(&software(CPU_CLOCK, 500_000), pid, cpu, Some(&rig.event))?;
    sibling.set_output(&rig.event)?;
    rig.event.enable()?;
    for _ in 0..100 {
        work();
        rig.follows()?;
    }
    drop(sibling);
    rig.traces(1)?;
    rig.settles()?;
    let throttled = rig
        .others
        .iter()
        .filter(|record| record.kind == THROTTLE)
        .count();
    ensure!(throttled > 0, "perf has not throttled the group");
    Ok(format!("throttled {throttled} times; {}", rig.is_exact()?))
}

/// A reset sets the count back, while the event runs and while it is off.
fn reset(pmu: &Pmu, place: Place) -> Result<String> {
    let mut rig = Rig::open(pmu, place, pmu.pages(8), Mode::Normal)?;
    rig.event.enable()?;
    let (mut counts, mut less) = (false, false);
    rounds(10, || {
        rig.traces(1)?;
        let before = rig.count()?.value;
        rig.event.reset()?;
        // The event continues to count. Usually it has counted less since the reset than before.
        let after = rig.count()?.value;
        counts |= before > 0 || after > 0;
        less |= after < before;
        Ok(!counts || less)
    })?;
    ensure!(
        !counts || less,
        "the count is never smaller after a reset than before"
    );
    rig.settles()?;
    let counted = rig.count()?.value;
    rig.event.reset()?;
    let now = rig.count()?.value;
    ensure!(
        now == 0,
        "the event is off, and its count is {now} after a reset"
    );
    Ok(match counts {
        true => format!("{counted}, and 0 after a reset"),
        false => "it counts nothing".to_owned(),
    })
}

/// Records are lost, but trace is not.
fn data_paused(pmu: &Pmu) -> Result<String> {
    let mut rig = Rig::open(pmu, pmu.place(), pmu.pages(16), Mode::Normal)?;
    rig.event.pause_output(true)?;
    let base = rig.base.as_ref().context("there is no ring")?;
    let head = makes_trace(&rig.event, base)?;
    let records = rig.drain()?;
    ensure!(records == 0, "{records} records in a ring that is paused");
    rig.event.pause_output(false)?;
    Ok(format!("{head} bytes that no record has"))
}
