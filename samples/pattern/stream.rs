// SPDX-License-Identifier: GPL-2.0

//! An event's trace stream, over all starts and stops of the event.

use super::config::Plan;
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// An event's trace stream.
///
/// A start begins a transaction, or counting without an AUX area. Only one of them is active at a
/// time, and only it writes the fields that change.
pub(crate) struct Stream {
    pub(crate) number: u32,
    pub(crate) plan: Plan,
    /// Bytes generated so far.
    pos: Atomic<u64>,
    /// Completed transactions and counting periods.
    runs: Atomic<u32>,
    /// Ticks so far in which the unit generated packets.
    ticks: Atomic<u64>,
    /// Whether an interrupt of the last transaction is pending: see
    /// [`Fault::Pending`](super::fault::Fault::Pending).
    pending: Atomic<bool>,
    /// End of the last packet that a flat sink has copied, as a position in the stream.
    kept: Atomic<u64>,
    /// Whether a flat sink has lost packets since then. The next copied packet needs a barrier.
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

    /// Completed transactions and counting periods.
    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Relaxed)
    }

    /// Ticks so far in which the unit generated packets.
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.load(Relaxed)
    }

    /// Whether an interrupt of the last transaction is pending.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Relaxed)
    }

    /// End of the last packet that a flat sink has copied, as a position in the stream. A barrier
    /// reports the bytes lost from there on.
    pub(crate) fn kept(&self) -> u64 {
        self.kept.load(Relaxed)
    }

    /// Whether the next packet that a flat sink copies needs a barrier.
    pub(crate) fn owed(&self) -> bool {
        self.owed.load(Relaxed)
    }

    /// Records that a flat sink has lost packets and copied none.
    pub(crate) fn owe(&self) {
        self.owed.store(true, Relaxed);
    }

    /// Records that a flat sink has copied packets up to `end`, after a barrier for the lost ones.
    pub(crate) fn keep(&self, end: u64) {
        self.kept.store(end, Relaxed);
        self.owed.store(false, Relaxed);
    }

    /// Records that this many transactions and counting periods are complete.
    #[inline]
    pub(crate) fn complete(&self, runs: u32) {
        self.runs.store(runs, Relaxed);
    }

    /// Records that so many bytes were generated.
    #[inline]
    pub(crate) fn reach(&self, pos: u64) {
        self.pos.store(pos, Relaxed);
    }

    /// Saves what faults use in the next transaction.
    pub(crate) fn carry(&self, ticks: u64, pending: bool) {
        self.ticks.store(ticks, Relaxed);
        self.pending.store(pending, Relaxed);
    }
}
