// SPDX-License-Identifier: GPL-2.0

//! Tasks whose registers the kernel is about to change or to copy.
//!
//! - From the delivery of a signal until its handler is about to run, the kernel copies the
//!   registers to user memory, which may fault and sleep.
//! - From a breakpoint of a uprobe until the probed instruction is done, the kernel executes the
//!   instruction for the task. It sends the task a `SIGTRAP` if the trap flag is set.
//! - While the kernel emulates a call of the vsyscall page, the registers look like those of a
//!   system call. Only at the end they have the address where the task continues.
//!
//! Meanwhile the trap flag must not be set, for example when the task gets a CPU again: it would be
//! seen. A task work ends each of these states, and a transition reports the end.

use crate::{
    bindings,
    table::{
        Entry,
        Table, //
    }, //
};
use core::ptr::NonNull;
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// The maximum number of tasks in each table.
const ENTRIES: usize = 128;

/// The tasks in transit whose task work is queued.
static TASKS: Table<ENTRIES> = Table::new();

/// The tasks in transit that have no task work queued. They stay until they are [`seen`] to
/// execute.
static UNTIL_SEEN: Table<ENTRIES> = Table::new();

/// The number of queued task works, also for tasks that found no entry.
static COUNT: Atomic<usize> = Atomic::new(0);

/// A task in transit whose task work is queued.
///
/// # Invariants
///
/// It is counted, and its entry, if it has one, is one of [`TASKS`] and holds the task's frame.
pub(crate) struct Transit {
    entry: Option<&'static Entry>,
}

impl Transit {
    /// Marks the task with these registers as in transit. While there are more such tasks than
    /// entries, every task counts as in transit.
    pub(crate) fn begin(regs: NonNull<bindings::pt_regs>) -> Self {
        seen(regs);
        COUNT.fetch_add(1, Relaxed);

        // INVARIANT: Just counted, and stored.
        Self {
            entry: TASKS.add(regs),
        }
    }

    /// Keeps the task in transit without a task work, until it is [`seen`]. The transit of a task
    /// without an entry ends here.
    pub(crate) fn until_seen(self) {
        if let Some(regs) = self
            .entry
            .and_then(|entry| NonNull::new(entry.load(Relaxed)))
        {
            UNTIL_SEEN.add(regs);
        }
    }
}

impl Drop for Transit {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            TASKS.free(entry);
        }
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// The task with these registers has executed user code, or exits. It is not in transit without a
/// task work any more.
pub(crate) fn seen(regs: NonNull<bindings::pt_regs>) {
    UNTIL_SEEN.remove(regs);
}

/// Whether the task with these registers is in transit.
pub(crate) fn is_in_transit(regs: NonNull<bindings::pt_regs>) -> bool {
    COUNT.load(Relaxed) > ENTRIES || TASKS.contains(regs) || UNTIL_SEEN.contains(regs)
}

#[kunit_tests(rust_stepping_transit)]
mod tests {
    use super::*;

    /// Registers that are only compared.
    type Frames<const N: usize> = [core::mem::MaybeUninit<bindings::pt_regs>; N];

    fn frames<const N: usize>(frames: &mut Frames<N>) -> [NonNull<bindings::pt_regs>; N] {
        frames.each_mut().map(|frame| NonNull::from(frame).cast())
    }

    #[test]
    fn tasks_are_told_apart() {
        let mut two: Frames<2> = [const { core::mem::MaybeUninit::uninit() }; 2];
        let [one, other] = frames(&mut two);
        let transit = Transit::begin(one);

        assert!(is_in_transit(one));
        assert!(!is_in_transit(other));
        drop(transit);
        assert!(!is_in_transit(one));
    }

    #[test]
    fn more_tasks_than_entries() {
        let mut two: Frames<2> = [const { core::mem::MaybeUninit::uninit() }; 2];
        let [one, other] = frames(&mut two);

        for _ in 0..3 {
            let mut all = [const { None }; ENTRIES + 2];

            for transit in &mut all {
                *transit = Some(Transit::begin(one));
            }
            assert!(is_in_transit(other));
            for transit in &mut all[..2] {
                *transit = None;
            }
            assert!(!is_in_transit(other));
            assert!(is_in_transit(one));
        }
        assert!(!is_in_transit(one));
        assert_eq!(COUNT.load(Relaxed), 0);
    }

    #[test]
    fn without_a_work_until_seen() {
        let mut two: Frames<2> = [const { core::mem::MaybeUninit::uninit() }; 2];
        let [one, other] = frames(&mut two);

        for _ in 0..2 * ENTRIES {
            Transit::begin(one).until_seen();
            assert!(is_in_transit(one));
            seen(other);
            assert!(is_in_transit(one) && !is_in_transit(other));
            seen(one);
            assert!(!is_in_transit(one));
        }
        Transit::begin(one).until_seen();
        drop(Transit::begin(one));
        assert!(!is_in_transit(one));
        assert_eq!(COUNT.load(Relaxed), 0);
        assert!(TASKS.is_empty() && UNTIL_SEEN.is_empty());
    }
}
