// SPDX-License-Identifier: GPL-2.0

//! Tasks that return from a system call with the result `ENOSYS`.
//!
//! The kernel sets the result to `ENOSYS` before it makes the call. So the registers of a task that
//! returns with this result look like those of a task whose call has no result yet.
//!
//! A table holds the returning tasks, from the end of the call until they execute an instruction,
//! make another system call, or exit. If the table is full, a returning task is mistaken for a task
//! whose call has no result yet.

use crate::{
    bindings,
    table::Table, //
};
use core::ptr::NonNull;
use kernel::prelude::*;

static TASKS: Table<64> = Table::new();

/// Records that the task with these registers returns.
pub(crate) fn returns(regs: NonNull<bindings::pt_regs>) {
    if !TASKS.contains(regs) {
        TASKS.add(regs);
    }
}

/// Forgets the task with these registers: it has executed an instruction, is in another system
/// call, or exits.
pub(crate) fn has_returned(regs: NonNull<bindings::pt_regs>) {
    TASKS.remove(regs);
}

/// Whether the task with these registers is recorded as returning.
pub(crate) fn is_returning(regs: NonNull<bindings::pt_regs>) -> bool {
    TASKS.contains(regs)
}

/// Forgets all tasks: system calls are not followed any more.
pub(crate) fn forget() {
    TASKS.clear();
}

#[kunit_tests(rust_stepping_syscall)]
mod tests {
    use super::*;
    use crate::task::Regs;

    /// The registers of a task that makes this system call, with this result so far.
    fn regs(number: c_long, result: c_long) -> bindings::pt_regs {
        let mut regs: bindings::pt_regs = pin_init::zeroed();
        // CAST: Both are signed.
        (regs.orig_ax, regs.ax) = (number as c_ulong, result as c_ulong);
        regs
    }

    /// Whether the task is in a system call, first by its registers alone, then also by the table.
    fn is(raw: NonNull<bindings::pt_regs>) -> (bool, bool) {
        // SAFETY: The frame lives on the caller's stack, and no reference to it is used meanwhile.
        let regs = unsafe { Regs::new(raw, false) };
        (regs.has_no_result(), regs.is_in_syscall())
    }

    #[test]
    fn return_is_told_from_entry() {
        let enosys = c_long::try_from(ENOSYS.to_errno()).unwrap_or(0);
        let mut frames = [regs(39, enosys), regs(39, 7), regs(-1, enosys)];
        let [one, done, interrupted] = frames.each_mut().map(NonNull::from);

        assert_eq!(is(one), (true, true));
        assert_eq!(is(done), (false, false));
        assert_eq!(is(interrupted), (false, false));

        returns(one);
        returns(one);
        returns(done);
        assert_eq!(is(one), (true, false));
        has_returned(one);
        assert_eq!(is(one), (true, true));

        returns(one);
        forget();
        assert_eq!(is(one), (true, true));
        assert!(TASKS.is_empty());
    }
}
