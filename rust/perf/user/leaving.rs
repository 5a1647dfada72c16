// SPDX-License-Identifier: GPL-2.0

//! Tasks on their way out of a system call whose result is `ENOSYS`: their registers look as if it
//! had none yet.
//!
//! A task stands here from when the kernel has told of the result until it is seen to execute
//! something, to make another system call, or until nobody looks any more. Without a place it is
//! taken for one that is on its way in.

use super::places::Places;
use crate::bindings;
use core::ptr::NonNull;
use kernel::prelude::*;

/// The tasks. One that is stepped through leaves with its first step.
static TASKS: Places<64> = Places::new();

/// The task with these registers is on its way out.
pub(super) fn begin(regs: NonNull<bindings::pt_regs>) {
    if !TASKS.has(regs) {
        TASKS.put(regs);
    }
}

/// The task with these registers has executed something, or is in another system call.
pub(super) fn end(regs: NonNull<bindings::pt_regs>) {
    TASKS.take(regs);
}

/// Whether the task with these registers is on its way out.
pub(super) fn is_under_way(regs: NonNull<bindings::pt_regs>) -> bool {
    TASKS.has(regs)
}

/// Nobody is: nobody will tell.
pub(super) fn forget() {
    TASKS.clear();
}

#[kunit_tests(rust_perf_user_leaving)]
mod tests {
    use super::*;
    use crate::user::Regs;
    use core::marker::PhantomData;

    /// Of a task that makes this system call, with this result so far.
    fn regs(number: c_long, result: c_long) -> bindings::pt_regs {
        let mut regs: bindings::pt_regs = pin_init::zeroed();
        // CAST: Both are signed.
        (regs.orig_ax, regs.ax) = (number as c_ulong, result as c_ulong);
        regs
    }

    /// Whether it is in a system call, as far as its registers say, and in truth.
    fn is(raw: NonNull<bindings::pt_regs>) -> (bool, bool) {
        // INVARIANT: They are no task's, and nobody else looks at them.
        let regs = Regs {
            raw,
            nmi: false,
            _cpu: PhantomData,
        };
        (regs.is_syscall(), regs.is_in_syscall())
    }

    #[test]
    fn who_leaves_is_told_from_who_comes() {
        let enosys = c_long::try_from(ENOSYS.to_errno()).unwrap_or(0);
        let mut frames = [regs(39, enosys), regs(39, 7), regs(-1, enosys)];
        let [one, done, interrupted] = frames.each_mut().map(NonNull::from);

        assert_eq!(is(one), (true, true));
        assert_eq!(is(done), (false, false));
        assert_eq!(is(interrupted), (false, false));

        begin(one);
        begin(one);
        begin(done);
        assert_eq!(is(one), (true, false));
        end(one);
        assert_eq!(is(one), (true, true));

        begin(one);
        forget();
        assert_eq!(is(one), (true, true));
        assert!(TASKS.is_empty());
    }
}
