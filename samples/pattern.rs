// SPDX-License-Identifier: GPL-2.0

//! `pattern`: a trace unit in software.
//!
//! A timer is its clock; at every tick it writes packets into the AUX ring, as a unit in hardware
//! would, and raises its interrupt at the wakeup point or when the ring is full. What it writes is
//! described in `auxcore::pattern`: every byte can be verified, and what found no room shows as an
//! exact number of bytes. So it is the ground truth for a recorder, and the test of the framework.
//!
//! ```text
//! # insmod rust_perf.ko; insmod pattern.ko
//! $ auxrec record -e pattern/rate=4096,packet=2/ -m 16,64 -o trace.data -- sleep 1
//! $ auxrec check trace.data
//! ```
//!
//! The event's counter is the number of bytes generated, whether they found room or not.

use auxcore::pattern::{
    Header,
    Kind,
    HEADER_LEN,
    PACKET_UNIT, //
};
use core::num::NonZero;
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    time::Delta, //
};
use perf::{
    aux,
    clock,
    pmu::Capabilities,
    Attr,
    Event,
    Pmu,
    Registration, //
};

module! {
    type: Module,
    name: "pattern",
    authors: ["The auxpmu authors"],
    description: "A perf PMU whose trace is generated in software and can be verified",
    license: "GPL",
    params: {
        alias: u8 {
            default: 0,
            description: "Register as another PMU, for programs that go by names: 1 intel_pt, 2 intel_bts",
        },
    },
}

/// The name to register under.
fn name() -> Result<&'static CStr> {
    match module_parameters::alias.value() {
        0 => Ok(c"pattern"),
        1 => Ok(c"intel_pt"),
        2 => Ok(c"intel_bts"),
        _ => Err(EINVAL),
    }
}

#[pin_data]
struct Module {
    #[pin]
    _pmu: Registration<Pattern>,
}

impl kernel::InPlaceModule for Module {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            _pmu <- Registration::new(name()?, Pattern {
                streams: Atomic::new(0),
            }),
        })
    }
}

perf::format! {
    /// What an event asks of the unit. Every 0 is a default.
    struct Config {
        /// KiB generated each second.
        rate: config[0..=23],
        /// Packets for each tick.
        burst: config[24..=39],
        /// Length of a packet, in units of 64 bytes.
        packet: config[40..=47],
        /// Seed of the payload.
        seed: config[48..=63],
        /// Where the unit writes: 0 for straight into the ring.
        sink: config1[0..=1],
        /// Bytes after which the unit falls silent.
        limit: config2[0..=63],
    }
}

/// KiB a second if nothing is asked for.
const DEFAULT_RATE: NonZero<u64> = NonZero::new(1024).unwrap();
const KIB: NonZero<u64> = NonZero::new(1024).unwrap();
const NSEC_PER_SEC: u64 = 1_000_000_000;
/// How many ticks the default burst aims at.
const TICKS_PER_SEC: u64 = 1000;
/// The unit's clock must leave the CPU to others.
const SHORTEST_TICK: u64 = 20_000;

/// An event's trace stream.
struct Stream {
    number: u32,
    packet: u16,
    burst: u64,
    tick: Delta,
    seed: u16,
    limit: u64,
    /// Bytes generated so far. Only written by the session, of which there is one at a time.
    pos: Atomic<u64>,
    /// Sessions so far.
    runs: Atomic<u32>,
}

/// The unit at work, from start to stop.
struct Unit {
    header: Header,
    /// Bytes that found no room.
    dropped: u64,
    /// Whether it generates nothing for the time being.
    paused: bool,
}

struct Pattern {
    /// Streams so far.
    streams: Atomic<u32>,
}

#[vtable]
impl Pmu for Pattern {
    const CAPABILITIES: Capabilities = Capabilities::EXCLUSIVE
        .and(Capabilities::ITRACE)
        .and(Capabilities::NO_EXCLUDE);

    type Config = Config;
    type Event = Stream;
    type Buffer = ();
    type Run = Unit;

    fn event_init(&self, attr: &Attr<'_, Config>) -> Result<Stream> {
        let config = attr.config();

        if config.sink() != 0 {
            return Err(EOPNOTSUPP);
        }

        let packet = u16::try_from(config.packet().max(1))?
            .checked_mul(PACKET_UNIT)
            .ok_or(EINVAL)?;
        let rate = NonZero::new(config.rate())
            .unwrap_or(DEFAULT_RATE)
            .saturating_mul(KIB);
        let length = NonZero::<u64>::from(NonZero::new(packet).ok_or(EINVAL)?);
        let burst = match config.burst() {
            0 => (rate.get() / TICKS_PER_SEC / length).max(1),
            burst => burst,
        };
        let tick = burst
            .checked_mul(length.get())
            .and_then(|bytes| bytes.checked_mul(NSEC_PER_SEC))
            .ok_or(EINVAL)?
            / rate;

        if tick < SHORTEST_TICK {
            return Err(EINVAL);
        }

        Ok(Stream {
            number: self.streams.fetch_add(1, Relaxed).wrapping_add(1).max(1),
            packet,
            burst,
            tick: Delta::from_nanos(tick.try_into()?),
            seed: config.seed().try_into()?,
            limit: if config.limit() == 0 {
                u64::MAX
            } else {
                config.limit()
            },
            pos: Atomic::new(0),
            runs: Atomic::new(0),
        })
    }

    fn setup_aux(&self, stream: &Event<'_, Self>, pages: &aux::Pages) -> Result {
        // perf offers one byte less than the ring at most: one packet alone must not fill it.
        if pages.size().get() / 2 < usize::from(stream.packet) {
            return Err(EINVAL);
        }
        Ok(())
    }

    fn events() -> &'static [perf::sysfs::Attribute] {
        perf::attributes! {
            slow: "rate=0x40",
            fast: "rate=0x4000,packet=0x10",
        }
    }

    fn caps() -> &'static [perf::sysfs::Attribute] {
        perf::attributes! {
            format_version: "1",
            packet_unit: "64",
        }
    }

    fn start(&self, session: &mut aux::Session<'_, Self>) -> Result<Unit> {
        let stream = session.event;
        let header = Header {
            len: stream.packet,
            kind: Kind::Data,
            pos: stream.pos.load(Relaxed),
            time: 0,
            stream: stream.number,
            cpu: session.cpu.id().try_into()?,
            seed: stream.seed,
            run: stream.runs.load(Relaxed),
        };

        session.set_timer(stream.tick);
        Ok(Unit {
            header,
            dropped: 0,
            paused: true,
        })
    }

    fn tick(&self, session: &mut aux::Session<'_, Self>, unit: &mut Unit) -> aux::Next {
        if unit.paused {
            return aux::Next::Continue;
        }

        let stream = session.event;
        let packet = u64::from(stream.packet);
        let room = stream.limit.saturating_sub(unit.header.pos);
        let packets = stream.burst.min(room.checked_div(packet).unwrap_or(0));

        unit.header.time = clock::monotonic_fast();
        for _ in 0..packets {
            // Once full, the unit drops to the end of the burst: its trace has one gap.
            if unit.dropped > 0 || emit(session.window, &unit.header).is_err() {
                unit.dropped = unit.dropped.saturating_add(packet);
            }
            unit.header.pos = unit.header.pos.wrapping_add(packet);
        }
        session.count(packets.saturating_mul(packet));

        if unit.dropped > 0 || session.window.wakeup_due() {
            aux::Next::Commit
        } else {
            aux::Next::Continue
        }
    }

    fn pause(&self, _session: &mut aux::Session<'_, Self>, unit: &mut Unit) {
        unit.paused = true;
    }

    fn resume(&self, _session: &mut aux::Session<'_, Self>, unit: &mut Unit) {
        unit.paused = false;
    }

    fn snapshot(
        &self,
        session: &mut aux::Session<'_, Self>,
        _unit: &mut Unit,
        sample: aux::Sample<'_>,
    ) -> aux::Taken {
        // The unit writes in `tick()` only, which cannot come meanwhile.
        sample.by_writer(session)
    }

    fn quiesce(&self, session: &mut aux::Session<'_, Self>, unit: Unit) -> aux::Written {
        let stream = session.event;

        stream.pos.store(unit.header.pos, Relaxed);
        stream.runs.store(unit.header.run.wrapping_add(1), Relaxed);

        aux::Written::by_writer(
            session.window,
            match unit.dropped {
                0 => aux::Loss::None,
                bytes => aux::Loss::NoSpace { bytes: Some(bytes) },
            },
        )
    }
}

/// Writes a packet, or nothing if it does not fit.
fn emit(window: &mut aux::Window, header: &Header) -> Result<(), aux::Full> {
    let mut writer = window.reserve(header.len.into())?;

    writer.put(&header.encode())?;
    for offset in (0..header.len).step_by(8).skip(HEADER_LEN / 8) {
        writer.put(&header.payload_word(offset).to_le_bytes())?;
    }
    writer.commit();

    Ok(())
}
