// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where a unit raises its interrupts in a transaction, and where it stops.

use super::{Asked, Entry, Marked, Table};
use crate::ring::Pos;
use core::ops::{Deref, DerefMut};

/// Where a unit that follows the marks raises its first interrupt, and where it stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    /// The position of the first interrupt.
    pub int: Pos,
    /// The position where the unit stops. If this differs from `int`, the unit raises a second
    /// interrupt here.
    pub stop: Pos,
}

/// No region ends within the space: the unit could not be stopped in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoEnd;

impl<S: DerefMut<Target = [Entry]>, I: Deref<Target = [u64]>> Table<S, I> {
    /// Places `INT` and `STOP` for a transaction at `head` with `space` bytes, in which perf wants
    /// to wake the reader at `wakeup`, and returns their positions. The [module](super) has the
    /// rules.
    ///
    /// The unit must not be running. On failure no region is marked.
    #[inline]
    pub fn mark(&mut self, head: Pos, space: u64, wakeup: Pos) -> Result<Marks, NoEnd> {
        let asked = Asked {
            head,
            space,
            wakeup,
        };

        // The marks are in place if the previous transaction committed nothing, and the reader has
        // not freed space since.
        if !matches!(&self.marked, Some(marked) if marked.asked == asked) {
            self.mark_anew(head, space, wakeup);
        }
        match &self.marked {
            Some(marked) => Ok(marked.marks),
            None => Err(NoEnd),
        }
    }

    /// Removes the marks and places new ones, if a region ends within the space.
    #[inline(never)]
    fn mark_anew(&mut self, head: Pos, space: u64, wakeup: Pos) {
        self.clear();
        let Some(shift) = self.uniform else {
            return self.mark_search(head, space, wakeup);
        };
        let size = self.size.len();
        let asked = Asked {
            head,
            space,
            wakeup,
        };

        if let Some(marks) = uniform_marks(shift, size, asked) {
            let ending_at = |pos: Pos| self.find(pos.retreat(1)).region;

            self.place_marks(ending_at(marks.int), ending_at(marks.stop), asked, marks);
        }
    }

    /// Places marks if a region ends within the space. No region may be marked before the call.
    #[inline(never)]
    fn mark_search(&mut self, head: Pos, space: u64, wakeup: Pos) {
        let asked = Asked {
            head,
            space,
            wakeup,
        };

        if let Some((int, stop, marks)) = self.search_marks(asked) {
            self.place_marks(int, stop, asked, marks);
        }
    }

    /// Marks regions. No region may be marked before the call.
    #[inline]
    fn place_marks(&mut self, int: usize, stop: usize, asked: Asked, marks: Marks) {
        let (int, stop) = (self.layout.index(int), self.layout.index(stop));

        // INVARIANT: There are no other marks.
        self.marked = Some(Marked {
            int,
            stop,
            asked,
            marks,
        });
        self.set(int, true, false);
        // Rule 4.
        self.set(stop, true, true);
    }

    /// The regions to mark, and the positions of the marks, if regions have different lengths;
    /// [`None`] if no region ends within the space.
    fn search_marks(&self, asked: Asked) -> Option<(usize, usize, Marks)> {
        let (head, space) = (asked.head, asked.space.min(self.size.len()));
        let due = asked.due();
        // Distances are from the head. `first` is the distance of b1.
        let start = self.find(head);
        let first = self
            .entry(start.region)
            .len()
            .saturating_sub(self.within(start, head));
        if first > space {
            return None;
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

        let marks = Marks {
            int: head.advance(int_at),
            stop: head.advance(stop_at),
        };
        Some((int, stop, marks))
    }

    /// Removes `INT` and `STOP`: for overwrite mode, where the unit wraps and writes until the
    /// driver stops it.
    ///
    /// The unit must not be running.
    #[inline]
    pub fn clear(&mut self) {
        if let Some(Marked { int, stop, .. }) = self.marked.take() {
            self.set(int, false, false);
            self.set(stop, false, false);
        }
    }

    #[inline]
    fn set(&mut self, index: usize, int: bool, stop: bool) {
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = entry.marked(int, stop);
        }
    }
}

/// Where the unit raises its interrupt and stops, if each region has 2^`shift` bytes. The size of
/// the ring is a multiple of that, so the low `shift` bits of a position are the offset in its
/// region.
#[inline]
fn uniform_marks(shift: u32, size: u64, asked: Asked) -> Option<Marks> {
    let (head, space, due) = (asked.head, asked.space.min(size), asked.due());
    let len = 1u64.wrapping_shl(shift);
    let within = |pos: Pos| pos.get() & len.wrapping_sub(1);
    let first = len.wrapping_sub(within(head));

    if first > space {
        return None;
    }
    // Rule 1. The result is at least `first`, which is an end within the space.
    let stop_at = space.wrapping_sub(within(head.advance(space)));
    // Rule 2: the end of the region that holds the last byte before the wakeup point. In the first
    // region the subtraction wraps below 0, and the addition wraps back.
    let byte = due.wrapping_sub(1);
    let mut int_at = match due <= stop_at {
        true => byte
            .wrapping_sub(within(head.advance(byte)))
            .wrapping_add(len),
        false => stop_at,
    };
    // Rule 3.
    if int_at >= stop_at && stop_at > first {
        int_at = stop_at.wrapping_sub(len);
    }

    Some(Marks {
        int: head.advance(int_at),
        stop: head.advance(stop_at),
    })
}
