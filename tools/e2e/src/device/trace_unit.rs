// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The trace unit that a plugin adds to QEMU, with the driver `trace_unit`. It writes by DMA to AUX pages through a table of regions, and
//! has an interrupt for each CPU.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{bail, ensure, Context, Result};
use pattern_codec::{verify_payload, Follow, Kind, Piece, Reader, HEADER_LEN};
use perfdata::{Attr, Flags, Read};

use crate::events::probe::Probe;
use crate::hostile::drivers::{accounted, Trace};
use crate::module::{self, counter};
use crate::wait::wait_for;

mod asked;
pub mod cases;
mod faults;
mod gone;
mod rows;

const MODULE: &str = "trace_unit";
const DRIVER: &str = "/sys/bus/pci/drivers/trace_unit";
const PMU: &str = "/sys/bus/event_source/devices/trace_unit";

/// Pages of a ring.
const PAGES: usize = 8;
/// Bytes of a packet.
const PACKET: u64 = 256;

fn with<T>(what: impl FnOnce() -> Result<T>) -> Result<T> {
    module::with(MODULE, || {
        ensure!(Path::new(PMU).exists(), "the driver found no device");
        what()
    })
}

/// Attributes of an event that generates 1024 bytes every `rate` microseconds.
fn attr(rate: u64) -> Result<Attr> {
    Ok(Attr {
        kind: module::number(&format!("{PMU}/type"))?,
        // Selects the pattern as source.
        config1: 1 << 32 | rate,
        read_format: Read::FORMAT,
        flags: Flags::DISABLED,
        ..Attr::default()
    })
}

fn open(cpu: i32, rate: u64, overwrite: bool) -> Result<Probe> {
    Probe::open(&attr(rate)?, -1, cpu, PAGES, overwrite)
}

/// Checks that the trace consists of whole, correct packets of the stream of `cpu`. Returns how many bytes are missing between them.
fn verify(trace: &[u8], cpu: u16) -> Result<u64> {
    let streams = follow(trace)?;
    ensure!(
        streams.keys().all(|of| *of == cpu),
        "packets of the CPUs {:?}",
        streams.keys()
    );
    Ok(streams.values().sum())
}

/// Checks that the trace consists of whole, correct packets of the CPUs' streams. Returns how many bytes are missing in the stream of each
/// CPU.
fn follow(trace: &[u8]) -> Result<BTreeMap<u16, u64>> {
    let mut streams: BTreeMap<u16, (Follow, u64)> = BTreeMap::new();
    for piece in Reader::new(trace) {
        let Piece::Packet(header, bytes) = piece else {
            bail!("{} bytes are no packet", piece.bytes().len());
        };
        ensure!(
            header.kind == Kind::Data && header.stream == u32::from(header.cpu) + 1,
            "a packet of another stream: {header:?}"
        );
        let payload = bytes.get(HEADER_LEN..).unwrap_or_default();
        if let Err(offset) = verify_payload(&header, u16::try_from(HEADER_LEN)?, payload) {
            bail!("byte {offset} of the packet at {} is wrong", header.pos);
        }
        let first = (Follow::from(header.pos), 0);
        let (follow, missing) = streams.entry(header.cpu).or_insert(first);
        *missing += follow
            .packet(&header)
            .ok()
            .with_context(|| format!("a packet again: {header:?}"))?;
    }
    let missing = |(cpu, (_, missing))| (cpu, missing);
    Ok(streams.into_iter().map(missing).collect())
}

/// Checks that each byte that the device has generated was recorded or is reported as lost.
fn sum(probe: &mut Probe, cpu: u16, lost: u64) -> Result<String> {
    probe.read_records()?;
    while probe.read_trace(u64::MAX)? > 0 {}
    let bytes = accounted(probe, Trace::Contiguous)?;
    let generated = probe.generated()?;
    ensure!(
        generated == bytes + lost,
        "CPU {cpu}: the device made {generated} bytes: {bytes} are there, {lost} are reported lost"
    );
    let missing = verify(&probe.trace, cpu)?;
    ensure!(
        missing <= lost,
        "CPU {cpu}: {missing} bytes are missing, and {lost} are reported lost"
    );
    Ok(format!("{bytes} bytes and {lost} lost on CPU {cpu}"))
}

fn lost() -> Result<u64> {
    Ok(counter(MODULE, "lost_no_space")? + counter(MODULE, "lost_gap")?)
}

/// Reads while the device writes. Between two reads, it fills only a part of the ring.
fn every_byte() -> Result<String> {
    let mut said = Vec::new();
    for cpu in [0, 1] {
        let before = lost()?;
        let mut probe = open(i32::from(cpu), 20, false)?;
        let wanted = 10 * u64::try_from(PAGES * 4096)?;
        probe.event.enable()?;
        wait_for("the ring goes round", || {
            probe.read_records()?;
            probe.read_trace(u64::MAX)?;
            // A full ring disables the event.
            probe.event.enable()?;
            Ok(probe.head() >= wanted)
        })?;
        probe.event.disable()?;
        said.push(sum(&mut probe, cpu, lost()? - before)?);
    }
    Ok(said.join("; "))
}
