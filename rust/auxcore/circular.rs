// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads a circular buffer that a unit overwrites without stopping.
//!
//! The reader copies the newest bytes, as far as the destination has space for them. Bytes that the
//! unit has overwritten, or that do not fit, are lost. After a loss the reader puts a barrier
//! packet in front of what it copies, so that a decoder does not join the two sides of the gap.
//!
//! C counterpart: `tmc_update_etr_buffer()` in `drivers/hwtracing/coresight/coresight-tmc-etr.c`.

use crate::ring::{Pos, Size};
use core::num::NonZeroU64;

/// The reader of a circular buffer, with the position up to which it has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CircularReader {
    size: Size,
    read: Pos,
}

/// The length of the unit's packets, and of the barrier packets that the reader adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packets {
    /// The length of each packet, in bytes. The unit writes whole packets only.
    pub len: NonZeroU64,
    /// The length of a barrier packet, in bytes.
    pub barrier: u64,
}

/// The bytes to copy, and the number of bytes that are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Extent {
    /// The position in the buffer of the first byte to copy.
    pub from: Pos,
    /// The number of bytes to copy: whole packets.
    pub len: u64,
    /// Whether the caller writes a barrier packet in front of them. False if `len` is 0.
    pub barrier: bool,
    /// Bytes that the unit has overwritten since the last read.
    pub overwritten: u64,
    /// Bytes that the buffer still has, but for which the destination has no space.
    pub no_space: u64,
}

impl CircularReader {
    /// A reader of a buffer of this size, in which the unit begins to write at position 0.
    pub const fn new(size: Size) -> Self {
        Self {
            size,
            read: Pos::new(0),
        }
    }

    /// The number of bytes that the unit, which is at `written`, has written since the last
    /// [`read`](Self::read).
    pub const fn pending(&self, written: Pos) -> u64 {
        written.distance_from(self.read)
    }

    /// Reads the bytes that the unit has written up to `written`. The packets and the barrier
    /// packet share the `space` bytes of the destination; [`None`] is a destination without a
    /// limit.
    ///
    /// `barrier_due`: bytes were lost before, and no barrier packet was written since.
    ///
    /// # Examples
    ///
    /// ```
    /// use auxcore::{circular::{CircularReader, Packets}, ring::{Pos, Size}};
    ///
    /// let mut reader = CircularReader::new(Size::new(4096).ok_or("no power of two")?);
    /// let packets = Packets { len: 96.try_into()?, barrier: 64 };
    /// // 50 packets, of which the buffer still has the last 42. 1000 bytes hold 9 and a barrier.
    /// let extent = reader.read(Pos::new(4800), packets, Some(1000), false);
    ///
    /// assert_eq!((extent.from, extent.len), (Pos::new(4800 - 864), 864));
    /// assert_eq!((extent.overwritten, extent.no_space), (8 * 96, 33 * 96));
    /// assert!(extent.barrier);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(
        &mut self,
        written: Pos,
        packets: Packets,
        space: Option<u64>,
        barrier_due: bool,
    ) -> Extent {
        let whole = |len: u64| len.saturating_sub(len % packets.len);
        let fits = |barrier: bool| {
            let barrier = if barrier { packets.barrier } else { 0 };

            whole(space.unwrap_or(u64::MAX).saturating_sub(barrier))
        };
        let pending = self.pending(written);
        let kept = whole(pending.min(self.size.len()));
        let overwritten = pending.saturating_sub(kept);

        // A loss for lack of space needs a barrier packet too, which takes some of the space.
        let mut barrier = barrier_due || overwritten != 0;
        if kept > fits(barrier) {
            barrier = true;
        }
        let len = kept.min(fits(barrier));

        self.read = written;
        Extent {
            from: written.retreat(len),
            len,
            barrier: barrier && len != 0,
            overwritten,
            no_space: kept.saturating_sub(len),
        }
    }
}

#[cfg(test)]
mod tests;
