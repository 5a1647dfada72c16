// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where a unit raises its interrupts in a transaction, and where it stops.

use super::{Entry, Marked, Table};
use crate::ring::Pos;
use core::ops::{Deref, DerefMut};

/// Where a unit that follows the marks raises its first interrupt, and where it stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    /// The position of the first interrupt.
    pub int: Pos,
    /// The position where the unit stops. If it is not that of the first interrupt, the unit raises
    /// another one there.
    pub stop: Pos,
}

/// No region ends within the space: the unit could not be stopped in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoEnd;

impl<S: DerefMut<Target = [Entry]>, I: Deref<Target = [u64]>> Table<S, I> {
    /// Places `INT` and `STOP` for a transaction at `head` with `space` bytes, in which perf wants
    /// to wake the reader at `wakeup`, and returns where they are. The [module](super) has the
    /// rules.
    ///
    /// The unit must not be running. If it fails, no region is marked.
    pub fn mark(&mut self, head: Pos, space: u64, wakeup: Pos) -> Result<Marks, NoEnd> {
        self.clear();

        let space = space.min(self.size.len());
        // A wakeup point in the past is due with the first byte.
        let due = if head.reached(wakeup) {
            1
        } else {
            wakeup.distance_from(head)
        };

        // Distances are from the head. `first` is that of b1.
        let start = self.find(head);
        let first = self
            .entry(start.region)
            .len()
            .saturating_sub(self.within(start, head));
        if first > space {
            return Err(NoEnd);
        }

        // Rule 1: the end of the region before the one that holds the first byte behind the space.
        let limit = head.advance(space);
        let beyond = self.find(limit);
        let stop_at = space.saturating_sub(self.within(beyond, limit));
        let stop = self.previous(beyond.region);

        // Rule 2: the end of the region that holds the last byte before the wakeup point.
        let (mut int, mut int_at) = (stop, stop_at);
        if due <= stop_at {
            let byte = due.saturating_sub(1);
            let place = self.find(head.advance(byte));

            int = place.region;
            int_at = if place == start && byte < first {
                first
            } else {
                byte.saturating_sub(self.within(place, head.advance(byte)))
                    .saturating_add(self.entry(int).len())
            };
        }
        // Rule 3.
        if int_at >= stop_at && stop_at > first {
            int = self.previous(stop);
            int_at = stop_at.saturating_sub(self.entry(stop).len());
        }

        // INVARIANT: `clear()` has removed the old marks.
        self.marked = Some(Marked { int, stop });
        self.set(int, true, false);
        // Rule 4.
        self.set(stop, true, true);

        Ok(Marks {
            int: head.advance(int_at),
            stop: head.advance(stop_at),
        })
    }

    /// Removes `INT` and `STOP`: for overwrite mode, where the unit goes round the ring and nothing
    /// stops it.
    ///
    /// The unit must not be running.
    pub fn clear(&mut self) {
        if let Some(Marked { int, stop }) = self.marked.take() {
            self.set(int, false, false);
            self.set(stop, false, false);
        }
    }

    fn set(&mut self, region: usize, int: bool, stop: bool) {
        let index = self.layout.index(region);

        if let Some(entry) = self.entries.get_mut(index) {
            *entry = entry.marked(int, stop);
        }
    }
}
