// SPDX-License-Identifier: GPL-2.0

//! What user space sees of the ring, and does to it.

use super::{
    super::ring::{
        Padding,
        Record,
        Violation, //
    },
    Bench, //
};
use crate::aux::{
    AuxPmu,
    Mode, //
};
use auxcore::ring::Pos;
use kernel::prelude::*;

impl<T: AuxPmu> Bench<T> {
    /// User space reads all trace that it has not read yet. In non-overwrite mode that frees the
    /// space, and user space enables the event again if perf has [disabled](Self::is_disabled) it.
    ///
    /// In overwrite mode it reads the whole ring, or as much of it as was written, the oldest byte
    /// first.
    pub fn read(&mut self) -> Result<KVec<u8>> {
        let (from, to) = self.ring().unread();
        let mut bytes = KVec::new();
        let mut at = from;

        while at != to {
            let byte = self.byte(at.get()).ok_or(EINVAL)?;
            bytes.push(byte, GFP_KERNEL)?;
            at = at.advance(1);
        }
        if self.ring().mode() == Mode::Normal {
            self.set_tail(to.get());
        }

        if self.ring().is_disabled() {
            // perf's irq_work has taken the event off the CPU by now.
            self.del();
            self.ring_mut().enable();
            self.add()?;
        }
        Ok(bytes)
    }

    /// The byte of the ring's memory where `position` lies, whether it was committed or not.
    pub fn byte(&self, position: u64) -> Option<u8> {
        let size = self.ring().size();

        self.memory.byte(size.offset(Pos::new(position)))
    }

    /// The `PERF_RECORD_AUX`s so far, the oldest first.
    pub fn records(&self) -> &[Record] {
        self.ring().records()
    }

    /// The padding that was [skipped](crate::aux::Transaction::skip) so far, the oldest first.
    pub fn paddings(&self) -> impl ExactSizeIterator<Item = Padding<'_>> {
        self.ring().paddings()
    }

    /// `aux_head`: the position behind the newest byte that was committed.
    pub fn head(&self) -> u64 {
        self.ring().head().get()
    }

    /// Sets `aux_tail`, which user space may write at any time, and to anything.
    pub fn set_tail(&mut self, tail: u64) {
        self.ring_mut().set_tail(tail);
    }

    /// Whether a transaction is open.
    pub fn is_open(&self) -> bool {
        self.ring().is_open()
    }

    /// Whether perf has disabled the event for lack of space.
    pub fn is_disabled(&self) -> bool {
        self.ring().is_disabled()
    }

    /// The first violation of perf's rules.
    pub fn violation(&self) -> Option<Violation> {
        self.ring().violation()
    }
}
