// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where in a table a position of the ring is.

use super::{Entry, Table};
use crate::ring::Pos;
use core::ops::Deref;

/// A region of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// The number of its entry in the storage.
    pub(super) index: usize,
    /// Its offset in the ring.
    pub(super) start: u64,
}

impl Place {
    pub(super) const FIRST: Self = Self { index: 0, start: 0 };
}

impl<S: Deref<Target = [Entry]>> Table<S> {
    /// The region whose entry is `index`.
    pub(super) fn at(&self, index: usize) -> Option<Place> {
        if let Some(len) = self.uniform {
            let n = self.layout.region(index).filter(|n| *n < self.count)?;
            let start = u64::try_from(n).ok()?.checked_mul(len.get())?;

            return Some(Place { index, start });
        }

        // From the head on: the unit is not far, as a rule.
        let mut place = self.head;
        for _ in 0..self.count {
            if place.index == index {
                return Some(place);
            }
            place = self.next(place);
        }
        None
    }

    pub(super) fn entry(&self, place: Place) -> Entry {
        // The type invariants: it is there.
        self.entries.get(place.index).copied().unwrap_or_default()
    }

    /// How far `pos` is from the beginning of the region at `place`, which holds it.
    pub(super) fn within(&self, place: Place, pos: Pos) -> u64 {
        self.offset(pos).saturating_sub(place.start)
    }

    fn offset(&self, pos: Pos) -> u64 {
        pos.get() & self.size.len().wrapping_sub(1)
    }

    /// The region that holds `pos`, looked for from `place` on if it must be looked for.
    pub(super) fn find(&self, mut place: Place, pos: Pos) -> Place {
        let offset = self.offset(pos);

        if let Some(len) = self.uniform {
            // No more than there are bytes, of which the size is in a `usize`.
            let n = usize::try_from(offset / len).unwrap_or(usize::MAX);

            return Place {
                index: self.layout.index(n),
                start: offset.saturating_sub(offset % len),
            };
        }

        for _ in 0..self.count {
            // Below the start it becomes a huge number.
            if offset.wrapping_sub(place.start) < self.entry(place).len() {
                break;
            }
            place = self.next(place);
        }
        place
    }

    pub(super) fn next(&self, place: Place) -> Place {
        if place == self.last {
            return Place::FIRST;
        }

        let index = place.index.wrapping_add(1);
        Place {
            index: if self.layout.is_last(index) {
                index.wrapping_add(1)
            } else {
                index
            },
            start: place.start.saturating_add(self.entry(place).len()),
        }
    }

    pub(super) fn previous(&self, place: Place) -> Place {
        let Some(index) = place.index.checked_sub(1) else {
            return self.last;
        };

        let mut previous = Place {
            index: if self.layout.is_last(index) {
                index.saturating_sub(1)
            } else {
                index
            },
            start: 0,
        };
        previous.start = place.start.saturating_sub(self.entry(previous).len());
        previous
    }
}
