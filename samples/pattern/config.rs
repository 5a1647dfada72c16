// SPDX-License-Identifier: GPL-2.0

//! What an event asks of the unit.

use super::fault::Fault;
use core::num::NonZero;
use kernel::{
    prelude::*,
    time::Delta, //
};
use pattern_codec::PACKET_UNIT;

perf::format! {
    /// What an event asks of the unit. Every 0 is a default.
    pub(crate) struct Config {
        /// KiB generated each second.
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
        /// What goes wrong: see [`Fault`].
        fault: config1[4..=7],
        /// What each session begins at a multiple of, as an exponent of 2.
        align: config1[8..=12],
        /// Pages of bounce memory.
        bounce: config1[16..=31],
        /// A number for the fault.
        nth: config1[32..=47],
        /// Pages that the ring must have.
        min: config1[48..=63],
        /// Bytes after which the unit falls silent.
        limit: config2[0..=63],
    }
}

/// Where a unit writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Into the ring's pages.
    Direct,
    /// Into pages that lie anywhere.
    Sg,
    /// Into one contiguous buffer, round and round.
    Flat,
}

/// KiB a second if nothing is asked for.
const DEFAULT_RATE: NonZero<u64> = NonZero::new(1024).unwrap();
const KIB: NonZero<u64> = NonZero::new(1024).unwrap();
const NSEC_PER_SEC: u64 = 1_000_000_000;
/// How many ticks the default burst aims at.
const TICKS_PER_SEC: u64 = 1000;
/// The unit's clock must leave the CPU to others.
const SHORTEST_TICK: u64 = 20_000;
/// The most bounce memory, in pages: what the page allocator has in one piece.
pub(crate) const MOST_BOUNCE: usize = 1024;

/// Maximum of bytes that a tick writes with interrupts off for an unprivileged user.
const LONGEST_TICK: u64 = 64 * 1024;

/// What an event asks of the unit, checked.
pub(crate) struct Plan {
    /// Length of a packet, in bytes.
    pub(crate) packet: NonZero<u16>,
    /// Packets for each tick.
    pub(crate) burst: u64,
    /// The unit's clock.
    pub(crate) tick: Delta,
    pub(crate) seed: u16,
    /// Bytes after which the unit falls silent.
    pub(crate) limit: u64,
    pub(crate) sink: Kind,
    /// Whether the unit only moves its write pointer.
    pub(crate) dry: bool,
    pub(crate) fault: Fault,
    /// What each session begins at a multiple of, in bytes.
    pub(crate) align: NonZero<u64>,
    /// Pages of bounce memory, if the event says how many.
    pub(crate) bounce: Option<usize>,
    /// Pages that the ring must have.
    pub(crate) min: usize,
}

impl Plan {
    /// Whether a tick keeps user code away for longer than any user may ask for.
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
            pages if sink == Kind::Flat && pages > MOST_BOUNCE => return Err(EINVAL),
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
