// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The cases of the trace unit.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::Event;
use pattern_codec::{Piece, Reader};
use perfdata::AuxFlags;

use super::{
    asked, attr, every_byte, faults, gone, lost, open, rows, sum, verify, with, DRIVER, MODULE,
    PACKET, PAGES,
};
use crate::attack::{attack, unpin, Attack, Named, CPU_CLOCK};
use crate::device::kernel::{affinity, interrupt, of_driver, served_by, without_faults};
use crate::events::probe;
use crate::events::sampling;
use crate::hotplug;
use crate::ktap::Skip;
use crate::wait::wait_for;
use crate::workload::{pin, spin};

/// The cases.
const ALL: [Attack; 14] = [
    attack("device, trace unit: every byte, on both CPUs", || {
        with(every_byte)
    }),
    attack("device, trace unit: no reader", || with(full)),
    attack("device, trace unit: the newest trace", || with(overwrite)),
    attack("device, trace unit: AUX samples", || with(sampled)),
    attack("device, trace unit: terms that it has, and others", || {
        with(asked::terms)
    }),
    attack("device, trace unit: a user without privilege", || {
        with(asked::nobody)
    }),
    attack("device, trace unit: its interrupts on another CPU", || {
        with(forwarded)
    }),
    attack("device, trace unit: its CPU goes and comes back", || {
        with(cpu_goes)
    }),
    attack("device, trace unit: loses the bus while it traces", || {
        with(no_master)
    }),
    attack("device, trace unit: unbound while it traces", || {
        with(gone::unbound)
    }),
    attack("device, trace unit: removed while it traces", || {
        with(gone::removed)
    }),
    attack(
        "device, trace unit: loses its power while it traces",
        || with(gone::powerless),
    ),
    attack("device, trace unit: reset while it traces", || {
        with(gone::reset)
    }),
    attack("device, trace unit: the system is suspended", || {
        with(gone::suspended)
    }),
];

/// All cases, and the rows of faults and of the matrix.
pub fn all() -> Vec<Named> {
    with_faults(faults::rows())
}

fn with_faults(faults: Vec<Named>) -> Vec<Named> {
    let cases = Attack::named(&ALL);
    cases.chain(faults).chain(rows::rows()).collect()
}

/// The cases for a guest where an IOMMU translates the units' DMA.
pub fn translated() -> Vec<Named> {
    let named = |(name, run): Named| -> Named {
        let name = name.replace("trace unit:", "trace unit, IOMMU:");
        (name, Box::new(move || without_faults(gone::found, &run)))
    };
    let cases = with_faults(faults::translated());
    cases.into_iter().map(named).collect()
}

/// The device must stop at the end of the space, and report how many bytes it dropped.
fn full() -> Result<String> {
    let before = lost()?;
    let mut probe = open(0, 20, false)?;
    probe.event.enable()?;
    wait_for("the ring is full", || {
        probe.read_records()?;
        Ok(probe.truncations() != 0)
    })?;
    probe.event.disable()?;
    let lost = lost()? - before;
    ensure!(
        probe.head() < u64::try_from(PAGES * 4096)?,
        "{} bytes are in a ring that was not read",
        probe.head()
    );
    sum(&mut probe, 0, lost)
}

/// The ring must hold the last bytes that the device wrote.
fn overwrite() -> Result<String> {
    let mut probe = open(1, 20, true)?;
    let ring = u64::try_from(PAGES * 4096)?;
    wait_for("the ring goes round", || {
        probe.event.enable()?;
        spin(Duration::from_millis(20));
        probe.event.disable()?;
        Ok(probe.head() > 2 * ring)
    })?;
    probe.snapshot()?;
    let generated = probe.generated()?;
    ensure!(
        probe.head() == generated,
        "the device made {generated} bytes, aux_head is {:#x}",
        probe.head()
    );
    // The oldest packet may be half overwritten.
    let skip = usize::try_from(probe.from.next_multiple_of(PACKET) - probe.from)?;
    let newest = probe.trace.get(skip..).unwrap_or_default();
    ensure!(verify(newest, 1)? == 0, "bytes are missing");
    Ok(format!("{} of {generated} bytes", newest.len()))
}

/// A sibling samples the newest trace: the unit must stop for a sample, and continue.
fn sampled() -> Result<String> {
    const RING: usize = 16;
    const SIZE: u32 = 4096;
    if !sampling::exported()? {
        bail!(Skip("this kernel does not export perf_output_copy_aux()"));
    }
    let attr = attr(20)?;
    let leader = Event::open(&attr, -1, 0).context("cannot open an event")?;
    let (control, _aux) = probe::rings(&leader, sampling::DATA_PAGES, RING, true)?;
    let attr = sampling::sampler(CPU_CLOCK, 2_000_000, SIZE);
    let sibling = Event::open_in(&attr, -1, 0, Some(&leader)).context("cannot open the sampler")?;
    sibling.set_output(&leader)?;
    pin(0)?;
    leader.enable()?;
    let outcome = wait_for("samples are full of trace", || {
        spin(Duration::from_millis(5));
        let samples = sampling::samples(&control)?;
        let full = |sample: &&sampling::Sample| sample.trace.iter().any(|&byte| byte != 0);
        Ok(samples.iter().filter(full).count() > 20)
    });
    leader.disable()?;
    unpin()?;
    outcome?;
    let (mut ends, mut full) = (0, 0);
    for sample in sampling::samples(&control)? {
        // The first samples come before the ring is full of trace.
        let packet = usize::try_from(PACKET)?;
        let empty = sample
            .trace
            .chunks(packet)
            .take_while(|packet| packet.iter().all(|&byte| byte == 0));
        let trace = sample
            .trace
            .get(packet * empty.count()..)
            .unwrap_or_default();
        let Some(last) = trace.len().checked_sub(packet) else {
            continue;
        };
        ensure!(verify(trace, 0)? == 0, "bytes are missing in a sample");
        let Some(Piece::Packet(header, _)) =
            Reader::new(trace.get(last..).unwrap_or_default()).next()
        else {
            bail!("a sample does not end with a packet");
        };
        ensure!(header.pos >= ends, "a sample is older than the one before");
        ends = header.pos;
        full += u64::from(trace.len() == sample.trace.len());
    }
    ensure!(full > 0, "no sample is full of trace");
    Ok(format!("{full} samples of {SIZE} bytes"))
}

/// Number and counts of the interrupt of a CPU. The first interrupt is that for errors.
fn of_cpu(cpu: usize) -> Result<(String, Vec<u64>)> {
    interrupt(MODULE, cpu + 1)
}

/// User space lets CPU 0 serve the interrupt of CPU 1's unit. The driver must forward it.
fn forwarded() -> Result<String> {
    let (number, before) = of_cpu(1)?;
    let path = affinity(&number);
    fs::write(&path, "0").with_context(|| format!("cannot write to {path}"))?;
    let lost_before = lost()?;
    let mut probe = open(1, 20, false)?;
    probe.event.enable()?;
    let there = |counts: &[u64]| counts.first().copied().unwrap_or(0);
    wait_for("the interrupt comes on CPU 0", || {
        probe.read_records()?;
        probe.read_trace(u64::MAX)?;
        probe.event.enable()?;
        Ok(there(&of_cpu(1)?.1) > there(&before) + 5)
    })?;
    probe.event.disable()?;
    sum(&mut probe, 1, lost()? - lost_before)
}

/// The trace of CPU 1 must end when the CPU goes offline. When it is back, it must serve its interrupt again.
fn cpu_goes() -> Result<String> {
    if !Path::new(hotplug::ONLINE).exists() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    let before = lost()?;
    let mut probe = open(1, 20, false)?;
    probe.event.enable()?;
    wait_for("there is trace", || {
        probe.read_records()?;
        Ok(probe.read_trace(u64::MAX)? > 0)
    })?;
    hotplug::switch(false)?;
    let seen = sum(&mut probe, 1, lost()? - before);
    hotplug::switch(true)?;
    let seen = seen?;
    drop(probe);

    let (number, _) = of_cpu(1)?;
    let served = served_by(&number)?;
    ensure!(served == "1", "CPU {served} serves it");
    pin(1)?;
    let again = every_byte();
    unpin()?;
    Ok(format!("{seen}; then {}", again?))
}

/// Writes the command register of the device.
fn command(value: u16) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let path = of_driver(DRIVER)?.0.join("config");
    let file = fs::File::options()
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    file.write_all_at(&value.to_le_bytes(), 4)
        .with_context(|| format!("cannot write to {}", path.display()))
}

/// Without bus mastering, the device cannot write, and cannot raise message-signalled interrupts. The driver notices when it stops the
/// unit, and must report a gap.
fn no_master() -> Result<String> {
    const MEMORY: u16 = 2;
    const MASTER: u16 = 4;
    let before = lost()?;
    let mut probe = open(0, 20, false)?;
    command(MEMORY)?;
    let gap = wait_for("a record that reports a gap", || {
        probe.event.enable()?;
        spin(Duration::from_millis(5));
        probe.event.disable()?;
        probe.read_records()?;
        probe.read_trace(u64::MAX)?;
        let partial = |record: &perfdata::Aux| record.flags.contains(AuxFlags::PARTIAL);
        Ok(probe.records.iter().any(partial))
    });
    command(MEMORY | MASTER)?;
    gap?;
    let seen = sum(&mut probe, 0, lost()? - before)?;
    // A CPU can have only one event at a time.
    drop(probe);
    Ok(format!("{seen}; then {}", every_byte()?))
}
