// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The calls that a decoder expects to return.

/// Return addresses of calls, the newest [`Calls::MAX`] of them.
///
/// # Invariants
///
/// `len` is at most `MAX`, `top` below it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    addresses: [u64; Calls::MAX],
    /// The index of the next address.
    top: usize,
    len: usize,
}

impl Calls {
    /// The number of calls that Intel's trace unit keeps.
    const MAX: usize = 64;

    pub(super) const EMPTY: Self = Self {
        addresses: [0; Self::MAX],
        top: 0,
        len: 0,
    };

    #[inline]
    pub(super) fn push(&mut self, address: u64) {
        if let Some(place) = self.addresses.get_mut(self.top) {
            *place = address;
        }
        // INVARIANT: `top` is reduced, and `len` is limited.
        self.top = self.top.wrapping_add(1) % Self::MAX;
        self.len = self.len.saturating_add(1).min(Self::MAX);
    }

    #[inline]
    pub(super) fn last(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        self.addresses.get(self.newest()).copied()
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        if self.len > 0 {
            // INVARIANT: As in `push()`.
            self.top = self.newest();
            self.len = self.len.saturating_sub(1);
        }
    }

    fn newest(&self) -> usize {
        self.top.wrapping_add(Self::MAX).wrapping_sub(1) % Self::MAX
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}
