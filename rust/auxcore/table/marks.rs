// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where a session raises its interrupts, and where it stops.

use super::{Entry, Place, Table};
use crate::ring::Pos;
use core::ops::DerefMut;

/// Where a unit that follows the marks raises its first interrupt, and where it stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    /// The position of the first interrupt.
    pub int: Pos,
    /// The position where it stops, with another interrupt if that is not the same.
    pub stop: Pos,
}

/// No region ends within the room: the unit could not be stopped in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoEnd;

impl<S: DerefMut<Target = [Entry]>> Table<S> {
    /// Places `INT` and `STOP` for a session at `head` with `room` bytes, which wants to wake the
    /// reader at `wakeup`, and says where they are; the [module](self) has the rules.
    ///
    /// The unit must not be running. Without an end in the room nothing is marked.
    pub fn mark(&mut self, head: Pos, room: u64, wakeup: Pos) -> Result<Marks, NoEnd> {
        self.clear();

        let room = room.min(self.size.len());
        // What is past is due with the first byte.
        let due = if head.reached(wakeup) {
            1
        } else {
            wakeup.distance_from(head)
        };

        self.head = self.find(self.head, head);
        // Distances from the head, from here on. b1 is below 2 * 128 MiB.
        let first = self
            .entry(self.head)
            .len()
            .saturating_sub(self.within(self.head, head));
        if first > room {
            return Err(NoEnd);
        }

        // Rule 1: the end of the region before the one of the first byte that is not ours.
        let limit = head.advance(room);
        let beyond = self.find(self.next(self.stop), limit);
        let stop_at = room.saturating_sub(self.within(beyond, limit));
        self.stop = self.previous(beyond);

        // Rule 2: the end of the region of the last byte before the wakeup point.
        let (mut int, mut int_at) = (self.stop, stop_at);
        if due <= stop_at {
            let byte = due.wrapping_sub(1);

            int = self.find(self.int, head.advance(byte));
            int_at = byte
                .saturating_sub(self.within(int, head.advance(byte)))
                .saturating_add(self.entry(int).len());
            if int == self.head && byte < first {
                int_at = first;
            }
        }
        // Rule 3.
        if int_at >= stop_at && stop_at > first {
            int = self.previous(self.stop);
            int_at = stop_at.saturating_sub(self.entry(self.stop).len());
        }
        self.int = int;

        // INVARIANT: `clear()` took the old ones away. Rule 4.
        self.marked = true;
        self.set(self.int, true, false);
        self.set(self.stop, true, true);

        Ok(Marks {
            int: head.advance(int_at),
            stop: head.advance(stop_at),
        })
    }

    /// Takes `INT` and `STOP` away: for overwrite mode, where the unit goes round and round.
    pub fn clear(&mut self) {
        if self.marked {
            self.set(self.int, false, false);
            self.set(self.stop, false, false);
            self.marked = false;
        }
    }

    fn set(&mut self, place: Place, int: bool, stop: bool) {
        if let Some(entry) = self.entries.get_mut(place.index) {
            *entry = entry.marked(int, stop);
        }
    }
}
