// SPDX-License-Identifier: GPL-2.0 OR MIT

//! AUX samples: records of a sibling that carry the newest trace.
//!
//! The oracle is exact: each sample has the counter of the trace's event too, which is the number of bytes generated, so it
//! is known which bytes of the stream are the newest.

use std::io::ErrorKind;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{page_size, Event, Field, Mapping};
use pattern_codec::{verify_payload, Header, HEADER_LEN, PACKET_UNIT};
use perfdata::{Attr, ReadFormat, SampleType};

use crate::attack::{
    attack, beside, bytes, get, set, sleep, software, traced, unpin, Attack, Victim, CPU_CLOCK,
};
use crate::ktap::Skip;
use crate::module::counter;
use crate::wait::PATIENCE;
use crate::workload::{pin, spin};

/// What there is of it.
pub const ALL: [Attack; 3] = [
    attack("AUX samples hold the newest trace", newest),
    attack("AUX samples while the trace comes and goes", comes_and_goes),
    attack("AUX samples of a PMU or kernel without", refused),
];

const PAGE_FAULTS: u64 = 2;
/// `PERF_SAMPLE_READ` and `PERF_SAMPLE_AUX`.
const READ: SampleType = SampleType::from_bits_retain(1 << 4);
const AUX: SampleType = SampleType::from_bits_retain(1 << 20);
/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;

/// Pages of the data ring: samples are large.
pub const DATA_PAGES: usize = 128;

/// Whether this kernel exports what the framework needs: the same that `rust/Makefile` looks at, seen from the other side.
pub fn exported() -> Result<bool> {
    let symbols = std::fs::read_to_string("/proc/kallsyms").context("cannot read kallsyms")?;
    ensure!(
        symbols.contains("__ksymtab_perf_aux_output_begin"),
        "the kernel's symbols do not tell what is exported"
    );
    Ok(symbols.contains("__ksymtab_perf_output_copy_aux"))
}

/// A sibling that samples `size` bytes of trace.
pub fn sampler(config: u64, period: u64, size: u32) -> Attr {
    Attr {
        sample_type: READ | AUX,
        read_format: ReadFormat::GROUP,
        aux_sample_size: size,
        ..software(config, period)
    }
}

/// How much is traced and sampled.
#[derive(Clone, Copy)]
struct Case {
    /// Pages of the AUX ring.
    ring: usize,
    overwrite: bool,
    /// Units of a packet.
    packet: u64,
    /// Bytes of a sample.
    size: u32,
    /// Bytes of trace, 0 for no end.
    limit: u64,
    /// Whether a reader moves `aux_tail`.
    reads: bool,
    /// What samples: a clock in its interrupt, or page faults, where interrupts are on.
    config: u64,
}

const CASE: Case = Case {
    ring: 16,
    overwrite: true,
    packet: 1,
    size: 4096,
    limit: 0,
    reads: false,
    config: CPU_CLOCK,
};

/// The first samples of each are of a ring that does not hold that much yet.
const CASES: [Case; 8] = [
    CASE,
    Case {
        packet: 3,
        size: 1000,
        ..CASE
    },
    // All of the ring, and more than there is.
    Case {
        ring: 2,
        size: 8192,
        ..CASE
    },
    Case {
        ring: 2,
        packet: 3,
        size: 50_000,
        ..CASE
    },
    // A ring in non-overwrite mode without a reader, which is never full.
    Case {
        overwrite: false,
        limit: 40_000,
        size: 20_000,
        ..CASE
    },
    // A ring that wraps, whose reader keeps up: a sample can still have bytes that were read.
    Case {
        overwrite: false,
        reads: true,
        ring: 64,
        size: 30_000,
        ..CASE
    },
    Case {
        config: PAGE_FAULTS,
        ..CASE
    },
    Case {
        overwrite: false,
        limit: 60_000,
        config: PAGE_FAULTS,
        ..CASE
    },
];

fn newest() -> Result<String> {
    if !exported()? {
        bail!(Skip("this kernel does not export perf_output_copy_aux()"));
    }
    let (mut samples, mut whole) = (0, 0);
    for (n, case) in CASES.iter().enumerate() {
        let seen = case.run().with_context(|| format!("row {n}"))?;
        samples += seen.samples;
        whole += seen.whole;
    }
    Ok(format!("{samples} samples, {whole} of them full of trace"))
}

/// What samples were seen.
#[derive(Default)]
struct Seen {
    samples: u64,
    /// Those without a byte from before the trace began.
    whole: u64,
    /// Those without a byte of trace.
    empty: u64,
}

impl Case {
    fn run(&self) -> Result<Seen> {
        let end = Instant::now() + PATIENCE;
        let mut slower = 1;
        loop {
            let lost = counter("pattern", "lost_no_space")?;
            let seen = self.once(slower);
            // A reader that did not keep up, on a machine with other work: then positions in the ring are not those in the
            // stream.
            let kept_up = counter("pattern", "lost_no_space")? == lost;
            let late = Instant::now() > end;
            match &seen {
                // The samples filled the data ring before the unit, which got little time, had generated so much.
                Ok(seen) if kept_up && seen.whole == 0 && !late => slower *= 2,
                _ if kept_up || late => {
                    let seen = seen?;
                    ensure!(seen.whole > 0, "no sample is full of trace");
                    return Ok(seen);
                }
                _ => {}
            }
        }
    }

    /// With so many times the usual time between two samples.
    fn once(&self, slower: u64) -> Result<Seen> {
        let mut attr = traced("pattern")?;
        attr.config = 1024 | self.packet << 40;
        attr.config2 = self.limit;
        let leader = Event::open(&attr, -1, 0)?;
        let control = Mapping::new(&leader, 0, (1 + DATA_PAGES) * page_size(), true)?;
        set(&control, Field::AuxOffset, bytes(1 + DATA_PAGES));
        set(&control, Field::AuxSize, bytes(self.ring));
        let _aux = Mapping::new(
            &leader,
            bytes(1 + DATA_PAGES),
            self.ring * page_size(),
            !self.overwrite,
        )?;
        let period = if self.config == CPU_CLOCK {
            2_000_000 * slower
        } else {
            20
        };
        let attr = sampler(self.config, period, self.size);
        let sibling =
            Event::open_in(&attr, -1, 0, Some(&leader)).context("cannot open the sampler")?;
        sibling.set_output(&leader)?;

        pin(0)?;
        leader.enable()?;
        let limit = Instant::now() + PATIENCE;
        let wanted = u64::from(self.size) + 3 * bytes(self.ring);
        let wanted = if self.limit == 0 {
            wanted
        } else {
            self.limit - 200
        };
        // Until it has gone round, or is at its end, and somewhat longer.
        for more in 0.. {
            if self.config == PAGE_FAULTS {
                faults()?;
            }
            spin(Duration::from_millis(10));
            if self.reads {
                set(&control, Field::AuxTail, get(&control, Field::AuxHead));
            }
            let seen = samples(&control)?;
            let generated = seen.last().map_or(0, |sample| sample.generated);
            let full = get(&control, Field::DataHead) + 70_000 > bytes(DATA_PAGES);
            if full || (generated >= wanted && more > 20) {
                break;
            }
            ensure!(
                Instant::now() < limit,
                "only {generated} bytes in {} s",
                PATIENCE.as_secs()
            );
        }
        leader.disable()?;
        unpin()?;
        self.check(&control)
    }

    fn check(&self, control: &Mapping) -> Result<Seen> {
        let mut seen = Seen::default();
        let asked = usize::try_from(self.size & !7)?.min(self.ring * page_size());
        for sample in samples(control)? {
            ensure!(
                sample.trace.len() == asked,
                "a sample has {} bytes, not {asked}",
                sample.trace.len()
            );
            let trace = match newest_end(&sample, self.packet)? {
                Some(end) => {
                    // Interrupts are on in a page fault: the unit may tick between the two.
                    let later = self.config == PAGE_FAULTS && end > sample.generated;
                    ensure!(
                        end == sample.generated || later,
                        "a sample ends at {end}, but {} bytes were generated",
                        sample.generated
                    );
                    verify(&sample.trace, end, self.packet)?
                }
                None => 0,
            };
            ensure!(
                trace > 0 || sample.generated == 0 || sample.generated > self.stalls(),
                "a sample without trace after {} bytes",
                sample.generated
            );
            seen.samples += 1;
            seen.whole += u64::from(trace == sample.trace.len());
            seen.empty += u64::from(trace == 0);
        }
        ensure!(seen.samples > 10, "only {} samples", seen.samples);
        ensure!(
            seen.empty <= seen.samples / 2,
            "{} of {} samples are empty",
            seen.empty,
            seen.samples
        );
        Ok(seen)
    }

    /// A linear ring can be full: then there is no session.
    fn stalls(&self) -> u64 {
        if self.reads {
            bytes(self.ring) / 2
        } else {
            u64::MAX
        }
    }
}

/// Page faults, by a program that is started.
pub fn faults() -> Result<()> {
    let status = Command::new("true").status();
    let status = status.context("cannot start true")?;
    ensure!(status.success(), "true is false");
    Ok(())
}

/// A sample.
pub struct Sample {
    /// What the unit had generated.
    generated: u64,
    /// The newest trace.
    pub trace: Vec<u8>,
}

/// The samples in a data ring that was never full.
///
/// # Errors
/// When a record is none.
pub fn samples(control: &Mapping) -> Result<Vec<Sample>> {
    let end = usize::try_from(get(control, Field::DataHead))?;
    let mut samples = Vec::new();
    let mut at = 0;
    while at < end {
        let mut header = [0; 8];
        control
            .copy_out(page_size() + at, &mut header)
            .context("a record that begins behind the ring")?;
        let [a, b, c, d, _, _, low, high] = header;
        let len = usize::from(u16::from_le_bytes([low, high]));
        ensure!(len >= 8 && at + len <= end, "a record of {len} bytes");
        if u32::from_le_bytes([a, b, c, d]) == SAMPLE {
            let mut body = vec![0; len - 8];
            control
                .copy_out(page_size() + at + 8, &mut body)
                .context("a record that ends behind the ring")?;
            samples.push(Sample::decode(&body)?);
        }
        at += len;
    }
    Ok(samples)
}

impl Sample {
    /// How many events there are, and the counter of each; then the trace.
    fn decode(body: &[u8]) -> Result<Self> {
        let word = |n: usize| -> Result<u64> {
            let bytes = body
                .get(8 * n..8 * n + 8)
                .context("a sample is too short")?;
            Ok(u64::from_le_bytes(bytes.try_into()?))
        };
        ensure!(word(0)? == 2, "a group of {} events", word(0)?);
        let len = usize::try_from(word(3)?)?;
        let trace = body.get(32..).context("a sample is too short")?;
        ensure!(
            trace.len() == len,
            "{len} bytes of trace, but {} in the record",
            trace.len()
        );
        Ok(Self {
            generated: word(1)?,
            trace: trace.to_vec(),
        })
    }
}

/// Where in its stream the last byte of a sample stands, and one more; [`None`] without trace.
fn newest_end(sample: &Sample, packet: u64) -> Result<Option<u64>> {
    if sample.trace.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    // All ends are those of packets, so the last packet is where it must be.
    let len = usize::try_from(packet)? * usize::from(PACKET_UNIT);
    let last = sample
        .trace
        .len()
        .checked_sub(len)
        .and_then(|at| sample.trace.get(at..))
        .context("a sample that is shorter than a packet")?;
    let header = Header::decode(last)
        .map_err(|error| anyhow::anyhow!("the last packet of a sample: {error}"))?;
    ensure!(
        usize::from(header.len) == len,
        "a packet of {} bytes",
        header.len
    );
    Ok(Some(header.pos + u64::from(header.len)))
}

/// Verifies every byte, of a sample that ends at `end` of its stream; how many are trace. What stands before the stream must
/// be 0.
fn verify(trace: &[u8], end: u64, packet: u64) -> Result<usize> {
    let len = packet * u64::from(PACKET_UNIT);
    let mut at = trace.len();
    let mut pos = end;
    let mut stream = None;
    while at > 0 && pos > 0 {
        let take = at.min(usize::try_from(len)?);
        pos -= len;
        let bytes = &trace[at - take..at];
        if bytes.len() == usize::try_from(len)? {
            let header = Header::decode(bytes)
                .map_err(|error| anyhow::anyhow!("the packet at {pos} of the stream: {error}"))?;
            ensure!(
                header.pos == pos && u64::from(header.len) == len,
                "a packet of {} bytes at {} stands at {pos}",
                header.len,
                header.pos
            );
            ensure!(
                stream.is_none_or(|stream| stream == header.stream),
                "a packet of another stream"
            );
            stream = Some(header.stream);
            if let Err(offset) =
                verify_payload(&header, HEADER_LEN.try_into()?, &bytes[HEADER_LEN..])
            {
                bail!("the byte at {} is wrong", pos + u64::from(offset));
            }
        } else if let Some(stream) = stream {
            // The end of a packet, whose header is not there: but its payload is known.
            let header = Header {
                len: len.try_into()?,
                kind: pattern_codec::Kind::Data,
                pos,
                time: 0,
                stream,
                cpu: 0,
                seed: 0,
                run: 0,
            };
            let offset = usize::try_from(len)? - take;
            let skip = HEADER_LEN.saturating_sub(offset).min(take);
            let offset = (offset + skip).try_into()?;
            if verify_payload(&header, offset, &bytes[skip..]).is_err() {
                bail!("the rest of the packet at {pos} is wrong");
            }
        }
        at -= take;
    }
    ensure!(
        trace[..at].iter().all(|&byte| byte == 0),
        "there is something before the front of the stream"
    );
    Ok(trace.len() - at)
}

/// Samples while the event is stopped, started, paused, restarted, and loses its ring.
fn comes_and_goes() -> Result<String> {
    const TIMES: u64 = 24;
    if !exported()? {
        bail!(Skip("this kernel does not export perf_output_copy_aux()"));
    }
    let before = (
        counter("pattern", "samples")?,
        counter("pattern", "samples_missed")?,
    );
    pin(0)?;
    for n in 0..TIMES {
        let mut victim = Victim::open(&traced("pattern")?, -1, 0, 8)?;
        let open = |config, period, size, action| -> Result<Event> {
            let attr = Attr {
                aux_action: action,
                ..sampler(config, period, size)
            };
            let event = Event::open_in(&attr, -1, 0, Some(&victim.event))?;
            event.set_output(&victim.event)?;
            Ok(event)
        };
        let clock = open(CPU_CLOCK, 150_000, 256, 0)?;
        let faulting = open(PAGE_FAULTS, 1, 65_535, 0)?;
        let event = &victim.event;
        // From CPU 1, so that it is by interrupts.
        let other = |k: u64| {
            if k == 0 {
                let _ = pin(1);
            }
            let _ = match (n + k) % 6 {
                0 => event.disable(),
                1 | 3 => event.enable(),
                2 => event.set_period(k + 1),
                4 => event.refresh(1),
                _ => event.reset(),
            };
            victim.release();
        };
        beside(other, || {
            for _ in 0..6 {
                let _ = faults();
                spin(Duration::from_millis(2));
                victim.read();
            }
        });
        victim.event.enable()?;
        // It loses its ring while it is sampled.
        drop(victim.unmap());
        faults()?;
        spin(Duration::from_millis(1));
        if n % 2 == 0 {
            drop(clock);
            drop(victim);
            drop(faulting);
        } else {
            drop(victim);
            spin(Duration::from_millis(1));
            drop((faulting, clock));
        }
        sleep(1);
    }
    unpin()?;
    let taken = counter("pattern", "samples")? - before.0;
    let missed = counter("pattern", "samples_missed")? - before.1;
    ensure!(taken > 0, "no sample was taken");
    Ok(format!("{taken} samples with trace, {missed} without"))
}

/// The errno that perf has where it cannot be done.
fn refused() -> Result<String> {
    let leader = Event::open(&traced("pattern")?, -1, 0)?;
    let open = |leader| Event::open_in(&sampler(CPU_CLOCK, 1_000_000, 512), -1, 0, Some(leader));
    let can = exported()?;
    match open(&leader) {
        Ok(_) => ensure!(can, "a kernel without the export has taken a sampler"),
        Err(error) => {
            ensure!(
                !can,
                "a kernel with the export has refused a sampler: {error}"
            );
            ensure!(
                error.kind() == ErrorKind::InvalidInput,
                "a sampler was refused, but so: {error}"
            );
        }
    }
    // A PMU without snapshot(), here one without AUX, wherever.
    let clock = Event::open(&software(CPU_CLOCK, 1_000_000), -1, 0)?;
    match open(&clock) {
        Ok(_) => bail!("a sampler was taken that has nothing to sample"),
        Err(error) => ensure!(
            error.kind() == ErrorKind::InvalidInput,
            "a sampler was refused, but so: {error}"
        ),
    }
    // Without the size it is a sibling as any.
    Event::open_in(&software(CPU_CLOCK, 1_000_000), -1, 0, Some(&leader))
        .context("a sibling that wants no trace")?;
    Ok(if can {
        "taken by pattern, EINVAL from others".into()
    } else {
        "EINVAL".into()
    })
}
