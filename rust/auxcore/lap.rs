// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What to take from a buffer that a unit laps.
//!
//! A unit that runs free goes round its buffer and overwrites what is oldest there. Whoever copies
//! from the buffer takes the newest of what is left, as far as there is room for it, and puts a
//! barrier in front of what follows a loss, so that no decoder takes two ends for a seam.
//!
//! C counterpart: `tmc_update_etr_buffer()` in `drivers/hwtracing/coresight/coresight-tmc-etr.c`.

use crate::ring::{Pos, Size};
use core::num::NonZeroU64;

/// A buffer that a unit laps, and what was taken of it so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lap {
    size: Size,
    taken: Pos,
}

/// What to take, and what is lost for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Take {
    /// Where it begins in the buffer.
    pub from: Pos,
    /// Its length in bytes: whole packets.
    pub len: u64,
    /// Whether a barrier goes in front of it; never of nothing.
    pub barrier: bool,
    /// Bytes that the unit has overwritten before anybody came.
    pub lapped: u64,
    /// Bytes that are in the buffer, but do not fit.
    pub capped: u64,
}

/// How a stream is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The length of each packet, in bytes: the unit writes whole ones.
    pub packet: NonZeroU64,
    /// The length of a barrier, in bytes.
    pub barrier: u64,
}

impl Lap {
    /// A buffer of this size, in which the unit begins to write at position 0.
    pub const fn new(size: Size) -> Self {
        Self {
            size,
            taken: Pos::new(0),
        }
    }

    /// How much the unit, which is at `written`, has written since the last [`take`](Self::take).
    pub const fn pending(&self, written: Pos) -> u64 {
        written.distance_from(self.taken)
    }

    /// Takes what the unit has written, now at `written`, as far as `room` bytes hold it, those of
    /// the barrier included; [`None`] is room without end. With `owed` there was a loss before, of
    /// which no barrier tells yet.
    ///
    /// # Examples
    ///
    /// ```
    /// use auxcore::{lap::{Lap, Shape}, ring::{Pos, Size}};
    ///
    /// let mut lap = Lap::new(Size::new(4096).ok_or("no power of two")?);
    /// let shape = Shape { packet: 96.try_into()?, barrier: 64 };
    /// // 50 packets, of which the buffer still has the last 42, and 1000 bytes hold 9 and a barrier.
    /// let take = lap.take(Pos::new(4800), shape, Some(1000), false);
    ///
    /// assert_eq!((take.from, take.len), (Pos::new(4800 - 864), 864));
    /// assert_eq!((take.lapped, take.capped), (8 * 96, 33 * 96));
    /// assert!(take.barrier);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take(&mut self, written: Pos, shape: Shape, room: Option<u64>, owed: bool) -> Take {
        let whole = |len: u64| len.saturating_sub(len % shape.packet);
        let fits = |barrier: bool| {
            let barrier = if barrier { shape.barrier } else { 0 };

            whole(room.unwrap_or(u64::MAX).saturating_sub(barrier))
        };
        let pending = self.pending(written);
        let kept = whole(pending.min(self.size.len()));
        let lapped = pending.saturating_sub(kept);

        let mut barrier = owed || lapped != 0;
        if kept > fits(barrier) {
            barrier = true;
        }
        let len = kept.min(fits(barrier));

        self.taken = written;
        Take {
            from: written.retreat(len),
            len,
            barrier: barrier && len != 0,
            lapped,
            capped: kept.saturating_sub(len),
        }
    }
}

#[cfg(test)]
mod tests;
