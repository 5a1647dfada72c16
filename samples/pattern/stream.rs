// SPDX-License-Identifier: GPL-2.0

//! An event's trace stream, over all its sessions.

use super::{
    config::Plan,
    fault::{
        Fault,
        Line, //
    },
    unit::Unit, //
};
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// An event's trace stream.
///
/// What changes is only written by the transaction, of which there is one at a time.
pub(crate) struct Stream {
    pub(crate) number: u32,
    pub(crate) plan: Plan,
    /// Bytes generated so far.
    pos: Atomic<u64>,
    /// Sessions so far.
    runs: Atomic<u32>,
    /// Ticks so far.
    ticks: Atomic<u64>,
    /// Whether an interrupt is still to be taken.
    pending: Atomic<bool>,
    /// The position behind the last packet that a flat sink has kept.
    kept: Atomic<u64>,
    /// Whether such a sink has lost packets since, of which no barrier tells.
    owed: Atomic<bool>,
}

impl Stream {
    pub(crate) fn new(number: u32, plan: Plan) -> Self {
        Self {
            number,
            plan,
            pos: Atomic::new(0),
            runs: Atomic::new(0),
            ticks: Atomic::new(0),
            pending: Atomic::new(false),
            kept: Atomic::new(0),
            owed: Atomic::new(false),
        }
    }

    /// Bytes generated so far.
    pub(crate) fn pos(&self) -> u64 {
        self.pos.load(Relaxed)
    }

    /// Sessions so far.
    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Relaxed)
    }

    /// Ticks so far.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.load(Relaxed)
    }

    /// Whether an interrupt of the last session is still to be taken.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Relaxed)
    }

    /// The position behind the last packet that a flat sink has kept, if a barrier is to tell what was
    /// lost since.
    pub(crate) fn kept(&self) -> u64 {
        self.kept.load(Relaxed)
    }

    /// Whether a barrier is owed.
    pub(crate) fn owed(&self) -> bool {
        self.owed.load(Relaxed)
    }

    /// A flat sink has lost packets, and none was kept since.
    pub(crate) fn owe(&self) {
        self.owed.store(true, Relaxed);
    }

    /// A flat sink has kept all bytes up to `end`, or has reported the missing ones.
    pub(crate) fn keep(&self, end: u64) {
        self.kept.store(end, Relaxed);
        self.owed.store(false, Relaxed);
    }

    /// A session of `unit` is over: a transaction, or a run without a ring.
    #[inline]
    pub(crate) fn leave(&self, unit: &mut Unit) {
        unit.header.run = unit.header.run.wrapping_add(1);
        self.runs.store(unit.header.run, Relaxed);
        if unit.is_used() {
            unit.rest();
            self.pos.store(unit.header.pos, Relaxed);
            if self.plan.fault != Fault::None {
                self.carry(unit);
            }
        }
    }

    /// Takes along to the next session what faults make use of.
    #[cold]
    fn carry(&self, unit: &mut Unit) {
        let pending = unit.line.is_pending(self.plan.fault);

        unit.line = Line::new(pending);
        self.ticks.store(unit.ticks, Relaxed);
        self.pending.store(pending, Relaxed);
    }
}
