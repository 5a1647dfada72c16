// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A sink that the events of all CPUs share: the driver `shared_sink`. The last event that stops copies the trace.

use std::collections::BTreeMap;
use std::thread;

use anyhow::{ensure, Context, Result};
use auxrec::sys::Event;
use perfdata::{Attr, Flags, Read};

use crate::attack::{attack, random, sleep, Attack};
use crate::events::probe::Probe;
use crate::module::{self, counter, lost};

/// The cases.
pub const ALL: [Attack; 3] = [
    attack("shared sink: the last event to stop has the trace", last),
    attack("shared sink: events start and stop at once", at_once),
    attack("shared sink: no AUX area for two CPUs", one_ring),
];

const NAME: &str = "shared_sink";

/// Length of a frame, in bytes.
const FRAME: u64 = 8;

/// Pages of an AUX area.
const PAGES: usize = 64;

fn attr() -> Result<Attr> {
    Ok(Attr {
        kind: module::pmu_type(NAME)?,
        config: 16,
        read_format: Read::FORMAT,
        flags: Flags::DISABLED,
        ..Attr::default()
    })
}

/// Opens an event on each of the two CPUs.
fn open() -> Result<[Probe; 2]> {
    let attr = attr()?;
    let open = |cpu| Probe::open(&attr, -1, cpu, PAGES, false);
    Ok([open(0)?, open(1)?])
}

/// Reads all records and all trace.
fn read(probe: &mut Probe) -> Result<()> {
    probe.read_records()?;
    probe.read_trace(u64::MAX)?;
    Ok(())
}

/// Each byte that the sources have counted must be in an AUX area or be counted as lost. The frames of a source must be in order in each
/// area, and each frame must be in one area only. Returns the number of frames of each source.
fn accounted(probes: &[Probe], lost: u64) -> Result<BTreeMap<u64, usize>> {
    let (mut counted, mut there) = (0, 0);
    let mut all: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for probe in probes {
        let mut frames: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        ensure!(
            probe.head() == u64::try_from(probe.trace.len())?,
            "aux_head is {}, {} bytes were read",
            probe.head(),
            probe.trace.len()
        );
        counted += probe.generated()?;
        there += probe.head();
        let words = probe.trace.chunks_exact(8);
        ensure!(words.remainder().is_empty(), "a frame that is cut");
        for word in words {
            let word = u64::from_le_bytes(word.try_into()?);
            let numbers = frames.entry(word >> 48).or_default();
            numbers.push(word & ((1 << 48) - 1));
        }
        for (cpu, numbers) in frames {
            ensure!(rising(&numbers), "frames of CPU {cpu} are out of order");
            all.entry(cpu).or_default().extend(numbers);
        }
    }
    ensure!(
        counted == there + lost,
        "{counted} bytes counted, {there} in the AUX areas, {lost} lost"
    );
    for (cpu, numbers) in &mut all {
        numbers.sort_unstable();
        ensure!(*cpu < 2, "frames of CPU {cpu}");
        ensure!(rising(numbers), "frames of CPU {cpu} are there twice");
    }
    let counts = all.into_iter();
    Ok(counts.map(|(cpu, numbers)| (cpu, numbers.len())).collect())
}

fn rising(numbers: &[u64]) -> bool {
    numbers.windows(2).all(|pair| pair[0] < pair[1])
}

/// The event that stops last gets the trace, whichever it is.
fn last() -> Result<String> {
    module::with(NAME, || {
        const TIMES: usize = 10;
        let before = lost(NAME)?;
        let mut probes = open()?;
        for n in 0..TIMES {
            let (first, last) = (n % 2, 1 - n % 2);
            let heads = probes.each_ref().map(Probe::head);
            let mut counts = Vec::new();
            for probe in &probes {
                counts.push(probe.generated()?);
                probe.event.enable()?;
            }
            // Both sources must generate frames.
            for (probe, before) in probes.iter_mut().zip(counts) {
                probe.until("frames", |probe| Ok(probe.generated()? > before))?;
            }
            probes[first].event.disable()?;
            ensure!(
                probes[first].head() == heads[first],
                "the first event to stop has {} bytes",
                probes[first].head() - heads[first]
            );
            probes[last].event.disable()?;
            ensure!(
                probes[last].head() > heads[last],
                "the last event to stop has nothing"
            );
            probes.iter_mut().try_for_each(read)?;
        }
        let frames = accounted(&probes, lost(NAME)? - before)?;
        ensure!(frames.len() == 2, "frames of CPUs {frames:?}");
        Ok(format!("{TIMES} times, frames of each CPU: {frames:?}"))
    })
}

/// Two CPUs start and stop their sources at random.
fn at_once() -> Result<String> {
    module::with(NAME, || {
        const TIMES: u64 = 150;
        let before = (lost(NAME)?, counter(NAME, "begin_refused")?);
        let mut probes = open()?;
        thread::scope(|scope| {
            let mut seeds = [0, TIMES].into_iter();
            let threads = probes.each_mut().map(|probe| {
                let seed = seeds.next().unwrap_or(0);
                scope.spawn(move || -> Result<()> {
                    for n in seed..seed + TIMES {
                        probe.event.enable()?;
                        sleep(random(n) % 8);
                        probe.event.disable()?;
                        read(probe)?;
                    }
                    Ok(())
                })
            });
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("panicked"))?)
        })?;
        // The other CPU's last stop may have been later than the last read here.
        probes.iter_mut().try_for_each(read)?;
        let lost = lost(NAME)? - before.0;
        let frames = accounted(&probes, lost)?;
        ensure!(
            counter(NAME, "begin_refused")? == before.1,
            "an event of the session was refused"
        );
        ensure!(frames.len() == 2, "frames of CPUs {frames:?}");
        Ok(format!(
            "{TIMES} times on each CPU, frames {frames:?}, {} lost",
            lost / FRAME
        ))
    })
}

/// perf redirects an event only to a ring of the same CPU. So each source has its own AUX area.
fn one_ring() -> Result<String> {
    module::with(NAME, || {
        let attr = attr()?;
        let here = Probe::open(&attr, -1, 0, PAGES, false)?;
        let there = Event::open(&attr, -1, 1).context("cannot open an event")?;
        let refused = there.set_output(&here.event);
        ensure!(
            refused
                .as_ref()
                .is_err_and(|e| e.raw_os_error() == Some(22)),
            "an event of CPU 1 is redirected to an AUX area of CPU 0: {refused:?}"
        );
        // A source without an AUX area of its own does not trace.
        there.enable()?;
        here.event.enable()?;
        sleep(20);
        here.event.disable()?;
        there.disable()?;
        let count = there.count()?.context("it does not count")?;
        ensure!(count.value == 0 && here.head() != 0, "it traces");
        Ok("refused".to_owned())
    })
}
