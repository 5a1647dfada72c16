// SPDX-License-Identifier: GPL-2.0

//! Configuration of an event.

use super::fault::Fault;
use core::num::NonZero;
use kernel::{
    prelude::*,
    time::Delta, //
};
use pattern_codec::PACKET_UNIT;

perf::format! {
    /// Terms of an event. 0 stands for the default of each term.
    pub(crate) struct Config {
        /// KiB generated per second.
        rate: config[0..=23],
        /// Packets for each tick.
        burst: config[24..=39],
        /// Length of a packet, in units of 64 bytes.
        packet: config[40..=47],
        /// Seed of the payload.
        seed: config[48..=63],
        /// Where the unit writes: see [`Kind`].
        sink: config1[0..=1],
        /// Whether the unit only moves its write pointer.
        dry: config1[2],
        /// Fault to simulate: see [`Fault`].
        fault: config1[4..=7],
        /// Alignment of the start of each transaction, as an exponent of 2.
        align: config1[8..=12],
        /// Pages of bounce memory.
        bounce: config1[16..=31],
        /// Parameter of the fault: see [`Fault`].
        nth: config1[32..=47],
        /// Minimum size of the AUX area, in pages.
        min: config1[48..=63],
        /// Maximum length of the stream, in bytes.
        limit: config2[0..=63],
    }
}

/// The memory that a unit writes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The pages of the AUX area.
    Direct,
    /// Scattered pages.
    Sg,
    /// One contiguous buffer, in which the unit wraps.
    Flat,
}

/// Default of `rate`, in KiB per second.
const DEFAULT_RATE: NonZero<u64> = NonZero::new(1024).unwrap();
const KIB: NonZero<u64> = NonZero::new(1024).unwrap();
const NSEC_PER_SEC: u64 = 1_000_000_000;
/// Ticks per second with the default of `burst`.
const TICKS_PER_SEC: u64 = 1000;
/// Minimum time between two ticks, in ns. A shorter one would leave too little CPU time to others.
const SHORTEST_TICK: u64 = 20_000;
/// Maximum of contiguous bounce memory, in pages: the largest block of the page allocator. Also the
/// maximum of the default.
pub(crate) const MAX_BOUNCE: usize = 1024;

/// Maximum number of bytes per tick, written with interrupts off, for an unprivileged user.
const LONGEST_TICK: u64 = 64 * 1024;

/// The checked configuration of an event.
pub(crate) struct Plan {
    /// Length of a packet, in bytes.
    pub(crate) packet: NonZero<u16>,
    /// Packets for each tick.
    pub(crate) burst: u64,
    /// Time between two ticks.
    pub(crate) tick: Delta,
    pub(crate) seed: u16,
    /// Maximum length of the stream, in bytes.
    pub(crate) limit: u64,
    pub(crate) sink: Kind,
    /// Whether the unit only moves its write pointer.
    pub(crate) dry: bool,
    pub(crate) fault: Fault,
    /// Alignment of the start of each transaction, in bytes.
    pub(crate) align: NonZero<u64>,
    /// Pages of bounce memory; [`None`] for the default.
    pub(crate) bounce: Option<usize>,
    /// Minimum size of the AUX area, in pages.
    pub(crate) min: usize,
}

impl Plan {
    /// Whether a tick generates more bytes than an unprivileged user may ask for.
    pub(crate) fn is_long(&self) -> bool {
        self.burst.saturating_mul(self.packet.get().into()) > LONGEST_TICK
    }

    pub(crate) fn new(config: &Config) -> Result<Self> {
        let packet = u16::try_from(config.packet().max(1))?
            .checked_mul(PACKET_UNIT)
            .and_then(NonZero::new)
            .ok_or(EINVAL)?;
        let length = NonZero::<u64>::from(packet);
        let rate = NonZero::new(config.rate())
            .unwrap_or(DEFAULT_RATE)
            .saturating_mul(KIB);
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

        let sink = match config.sink() {
            0 => Kind::Direct,
            1 => Kind::Sg,
            2 => Kind::Flat,
            _ => return Err(EINVAL),
        };
        let align = match u32::try_from(config.align())? {
            0 => 0,
            exponent @ 7..=16 => exponent,
            _ => return Err(EINVAL),
        };
        let bounce = match usize::try_from(config.bounce())? {
            0 => None,
            _ if sink == Kind::Direct => return Err(EINVAL),
            pages if !pages.is_power_of_two() => return Err(EINVAL),
            pages if sink == Kind::Flat && pages > MAX_BOUNCE => return Err(EINVAL),
            pages => Some(pages),
        };

        Ok(Self {
            packet,
            burst,
            tick: Delta::from_nanos(tick.try_into()?),
            seed: config.seed().try_into()?,
            limit: match config.limit() {
                0 => u64::MAX,
                limit => limit,
            },
            sink,
            dry: config.dry() != 0,
            fault: Fault::new(config.fault(), config.nth())?,
            align: NonZero::new(1u64.checked_shl(align).ok_or(EINVAL)?).ok_or(EINVAL)?,
            bounce,
            min: config.min().try_into()?,
        })
    }
}
