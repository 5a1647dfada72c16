// SPDX-License-Identifier: GPL-2.0

//! The part of the ring that a session may write.

use super::{
    buffer::Pages,
    Mode, //
};
use auxcore::ring::{
    Pos,
    Size, //
};
use core::ptr;
use kernel::prelude::*;

/// No room for what was to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

/// The part of the ring that a session may write: from the head on.
///
/// # Invariants
///
/// - `pages` are those of a ring that is not freed while the window exists.
/// - In linear mode `written` is at most `space`, which is less than the ring.
pub struct Window {
    pages: Pages,
    head: Pos,
    mode: Mode,
    space: u64,
    wakeup: Pos,
    written: u64,
}

impl Window {
    /// # Safety
    ///
    /// `pages` must be those of the ring of an open transaction which outlives the window.
    pub(super) unsafe fn new(pages: Pages, head: Pos, space: u64, wakeup: Pos) -> Self {
        // Overwrite mode has no end: what limits a write is the ring itself. In linear mode perf
        // never offers more than one byte less than the ring.
        let mode = pages.mode();
        let space = match mode {
            Mode::Linear => space.min(pages.size().len().saturating_sub(1)),
            Mode::Overwrite => u64::MAX,
        };

        // INVARIANT: The pages by the safety requirement; nothing is written yet.
        Self {
            pages,
            head,
            mode,
            space,
            wakeup,
            written: 0,
        }
    }

    /// The position of the window's first byte.
    pub fn head(&self) -> Pos {
        self.head
    }

    /// The size of the whole ring.
    pub fn size(&self) -> Size {
        self.pages.size()
    }

    /// How user space mapped the ring.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How many bytes may be written in all; [`None`] in overwrite mode, where there is no end.
    pub fn space(&self) -> Option<u64> {
        match self.mode {
            Mode::Linear => Some(self.space),
            Mode::Overwrite => None,
        }
    }

    /// How many bytes have been written by [`Writer`]s.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether the wakeup point has been reached, so that user space wants a commit.
    pub fn wakeup_due(&self) -> bool {
        match self.mode {
            Mode::Linear => {
                self.written > 0 && self.head.advance(self.written).reached(self.wakeup)
            }
            Mode::Overwrite => false,
        }
    }

    /// Takes the next `len` bytes of the window to write them.
    pub fn reserve(&mut self, len: usize) -> Result<Writer<'_>, Full> {
        let wanted = u64::try_from(len).map_err(|_| Full)?;

        if len > self.size().get() || wanted > self.space.saturating_sub(self.written) {
            return Err(Full);
        }

        Ok(Writer {
            at: self.head.advance(self.written),
            left: len,
            window: self,
        })
    }
}

/// Writes a part of a [`Window`], across the end of the ring where need be.
///
/// What was [`put`](Self::put) counts as written only after [`commit`](Self::commit).
#[must_use]
pub struct Writer<'a> {
    window: &'a mut Window,
    at: Pos,
    left: usize,
}

impl Writer<'_> {
    /// Writes `bytes` behind what was put before; [`Full`] if less was reserved, and then nothing
    /// is written.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(Full)?;

        let split = self.window.size().split(self.at, bytes.len()).ok_or(Full)?;
        let (front, back) = bytes.split_at_checked(split.first.len()).ok_or(Full)?;

        self.window.pages.copy_in(split.first.start, front)?;
        self.window.pages.copy_in(split.second.start, back)?;

        self.at = self
            .at
            .advance(u64::try_from(bytes.len()).map_err(|_| Full)?);
        Ok(())
    }

    /// Counts what was put as written.
    pub fn commit(self) {
        // INVARIANT: `reserve()` checked the room for all that `put()` let through.
        self.window.written = self.at.distance_from(self.window.head);
    }
}

impl Pages {
    /// Copies `bytes` to the ring, from `offset` on; they must end within it.
    fn copy_in(&mut self, mut offset: usize, mut bytes: &[u8]) -> Result<(), Full> {
        while !bytes.is_empty() {
            let (place, room) = self.at(offset).ok_or(Full)?;
            let (now, rest) = bytes.split_at(room.min(bytes.len()));

            // SAFETY:
            // - `now` is valid for reads of its length.
            // - `place` is valid for writes of `room` bytes, no fewer than that, by the guarantee
            //   of `Pages::at()`: a page of the ring, which perf keeps until the transaction ends.
            // - They do not overlap: nobody has a Rust reference to the ring's pages.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), place.as_ptr(), now.len()) };

            // Cannot overflow: an offset in the ring.
            offset = offset.wrapping_add(now.len());
            bytes = rest;
        }

        Ok(())
    }
}
