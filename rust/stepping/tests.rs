// SPDX-License-Identifier: GPL-2.0

//! Tests of registrations and guards, with tracers that leak and drop them where they should not.

use crate::{
    bindings,
    hooks,
    tracer,
    Current,
    Following,
    Handle,
    Registration,
    Tracer,
    Transition,
    Trap, //
};
use kernel::{
    interrupt::{
        local_interrupt_disable,
        LocalInterruptDisabled, //
    },
    module::this_module,
    new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        SpinLock, //
    }, //
};

/// An object that a tracer drops in its callback.
#[expect(dead_code, reason = "they are only dropped")]
enum Victim {
    Registration(Registration<Hostile>),
    Following(Following),
}

#[pin_data]
struct Seen {
    calls: Atomic<usize>,
    dropped: Atomic<usize>,
    #[pin]
    victim: SpinLock<Option<Victim>>,
}

/// A tracer that counts its callbacks, and drops its victim in one of them.
struct Hostile(Arc<Seen>);

impl Drop for Hostile {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Relaxed);
    }
}

#[vtable]
impl Tracer for Hostile {
    fn single_step(&self, _task: &mut Current<'_>, _irq: &LocalInterruptDisabled) -> Trap {
        Trap::Claimed
    }

    fn transition(
        &self,
        task: Option<Current<'_>>,
        transition: Transition<'_>,
        _irq: &LocalInterruptDisabled,
    ) {
        // Tests run in a kernel thread, which has no such transition. So the test has caused it.
        if task.is_none() && transition == Transition::Redirected {
            self.0.calls.fetch_add(1, Relaxed);
            let victim = self.0.victim.lock().take();
            drop(victim);
        }
    }
}

fn seen() -> Result<Arc<Seen>> {
    Arc::pin_init(
        pin_init!(Seen {
            calls: Atomic::new(0),
            dropped: Atomic::new(0),
            victim <- new_spinlock!(None),
        }),
        GFP_KERNEL,
    )
}

/// The number of callbacks that a tracer gets for one transition.
fn calls(seen: &Seen) -> usize {
    let _irq = local_interrupt_disable();
    let before = seen.calls.load(Relaxed);

    tracer::dispatch(Transition::Redirected);
    seen.calls.load(Relaxed).wrapping_sub(before)
}

/// Drops a reference to this module that was leaked.
fn put_module() {
    // SAFETY: A reference is leaked by the caller; the module stays, as it is being loaded.
    unsafe { bindings::module_put(this_module::<crate::LocalModule>().as_ptr()) };
}

#[kunit_tests(rust_stepping_check)]
mod processor {
    use crate::{
        check::Outcome,
        interpret::compare, //
    };

    // The results may differ, depending on the processor.
    #[test]
    fn each_instruction_is_executed_by_both() {
        let (mut both, mut left) = (0, 0);

        compare(|_, outcome| match outcome {
            Outcome::Left => left += 1,
            _ => both += 1,
        });
        // Processors without BMI lack 16 of the instructions, and POPCNT.
        assert!(both > 300 && left < 20);
    }
}

#[kunit_tests(rust_stepping_reported)]
mod reported {
    use crate::{
        bindings,
        interpret::report_code, //
    };
    use kernel::{
        error::to_result,
        prelude::*, //
    };

    /// An address of no program, in the middle of a line of the table.
    const AT: u64 = 0x7000_0000_0020;

    /// The number of bytes after which addresses share a place in the table.
    const TABLE: u64 = 4096 * 64;

    fn is_replaced(first: u64, last: u64, report: u64) -> bool {
        // SAFETY: Reading the table has no requirements.
        unsafe { bindings::rust_stepping_is_replaced(first as c_ulong, last as c_ulong, report) }
    }

    #[test]
    fn the_same_code_does_not_replace_itself() {
        let first = report_code(AT, &[1, 2, 3]);
        assert!(!is_replaced(AT, AT + 2, first));
        // The whole, a part, and what follows.
        for (at, text) in [(0, &[1, 2, 3][..]), (1, &[2]), (2, &[3, 4])] {
            report_code(AT + at, text);
            assert!(!is_replaced(AT, AT + 2, first));
        }
    }

    #[test]
    fn other_code_replaces() {
        let first = report_code(AT, &[1, 2, 3]);
        let other = report_code(AT + 2, &[9]);
        assert!(is_replaced(AT, AT + 2, first));
        assert!(!is_replaced(AT, AT + 2, other));

        // It is changed back.
        let back = report_code(AT, &[1, 2, 3]);
        assert!(is_replaced(AT + 2, AT + 2, other));
        assert!(!is_replaced(AT, AT + 2, back));
    }

    #[test]
    fn code_in_two_lines() {
        let first = report_code(AT, &[7; 100]);
        let other = report_code(AT + 99, &[8]);
        assert!(is_replaced(AT, AT + 99, first));
        assert!(!is_replaced(AT, AT + 31, first));
        assert!(is_replaced(AT + 32, AT + 99, first));
        assert!(!is_replaced(AT, AT + 99, other));
    }

    #[test]
    fn a_line_that_lost_its_place_was_replaced_when_it_comes_back() {
        let first = report_code(AT, &[1, 2, 3]);
        let other = report_code(AT + TABLE, &[1, 2, 3]);
        assert!(!is_replaced(AT, AT + 2, first));
        assert!(!is_replaced(AT + TABLE, AT + TABLE + 2, other));

        let back = report_code(AT, &[1, 2, 3]);
        assert!(is_replaced(AT, AT + 2, first));
        assert!(!is_replaced(AT, AT + 2, back));
        assert!(!is_replaced(AT + TABLE, AT + TABLE + 2, other));
    }

    #[test]
    fn a_probe_of_the_tracepoint_reports_nothing() -> Result {
        let text = [1, 2, 3];
        let mut nested = 0;
        // CAST: An address has 64 bits, and the length is 3.
        let (at, len) = (AT as c_ulong, text.len() as c_uint);

        // SAFETY: `text` has `len` bytes. Both borrows outlive the call, which unregisters its
        // probe and waits for the end of those that run. KUnit runs cases in a task that may sleep.
        to_result(unsafe {
            bindings::rust_stepping_report_nested(at, text.as_ptr(), len, &raw mut nested)
        })?;
        assert_eq!(nested, u64::MAX);
        Ok(())
    }

    #[test]
    fn the_last_address_ends_a_comparison() {
        let first = report_code(u64::MAX, &[1]);
        assert!(!is_replaced(u64::MAX - 100, u64::MAX, first));
    }
}

#[kunit_tests(rust_stepping_tracer)]
mod registrations {
    use super::*;

    #[test]
    fn guards_need_a_tracer() -> Result {
        let seen = seen()?;
        let handle = Handle::<Hostile>::new()?;
        assert_eq!(handle.follow().err(), Some(ENODEV));

        let registration = Registration::new(&handle, Hostile(seen.clone()))?;
        assert!(Registration::new(&handle, Hostile(seen.clone())).err() == Some(EBUSY));
        assert_eq!(seen.dropped.load(Relaxed), 1);

        drop(registration);
        assert_eq!(seen.dropped.load(Relaxed), 2);
        assert_eq!(handle.follow().err(), Some(ENODEV));
        Ok(())
    }

    #[test]
    fn the_first_guard_is_taken_where_it_may_sleep() -> Result {
        let handle = Handle::new()?;
        let _registration = Registration::new(&handle, Hostile(seen()?))?;

        let irq = local_interrupt_disable();
        let refused = handle.follow().err();
        drop(irq);
        assert_eq!(refused, Some(EAGAIN));
        assert!(!hooks::are_followed());

        let _first = handle.follow()?;
        let irq = local_interrupt_disable();
        let refused = handle.follow().err();
        drop(irq);
        assert_eq!(refused, None);
        Ok(())
    }

    #[test]
    fn callbacks_come_while_there_is_a_guard() -> Result {
        let [one, other] = [seen()?, seen()?];
        let handles = [Handle::new()?, Handle::new()?];
        let _first = Registration::new(&handles[0], Hostile(one.clone()))?;
        let second = Registration::new(&handles[1], Hostile(other.clone()))?;
        assert_eq!((calls(&one), calls(&other)), (0, 0));

        let guards = [handles[0].follow()?, handles[0].follow()?];
        assert!(hooks::are_followed());
        assert_eq!((calls(&one), calls(&other)), (1, 0));
        // This is a kernel thread.
        assert!(guards[0].current(&local_interrupt_disable()).is_none());

        let both = handles[1].follow()?;
        assert_eq!((calls(&one), calls(&other)), (1, 1));
        let [guard, last] = guards;
        drop(guard);
        assert_eq!((calls(&one), calls(&other)), (1, 1));
        drop(last);
        assert_eq!((calls(&one), calls(&other)), (0, 1));
        drop(second);
        assert_eq!((calls(&one), calls(&other)), (0, 0));
        drop(both);
        Ok(())
    }

    #[test]
    fn registration_dropped_in_a_callback() -> Result {
        let seen = seen()?;
        let handle = Handle::new()?;
        let registration = Registration::new(&handle, Hostile(seen.clone()))?;
        let guard = handle.follow()?;
        let leak = registration.leak();

        *seen.victim.lock() = Some(Victim::Registration(registration));
        assert_eq!(calls(&seen), 1);
        // The registration was in use. It is leaked, with its module, and is not called any more.
        assert_eq!(seen.dropped.load(Relaxed), 0);
        assert_eq!(calls(&seen), 0);
        drop(guard);
        put_module();
        // SAFETY: The registration was dropped in a callback, which cannot wait.
        unsafe { leak.take_back() };
        assert_eq!(seen.dropped.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn guard_dropped_in_a_callback() -> Result {
        let seen = seen()?;
        let handle = Handle::new()?;
        let registration = Registration::new(&handle, Hostile(seen.clone()))?;

        *seen.victim.lock() = Some(Victim::Following(handle.follow()?));
        assert_eq!(calls(&seen), 1);
        assert_eq!(calls(&seen), 0);
        // The module stays loaded, and the hooks stay.
        assert!(hooks::are_followed());
        hooks::unfollow();
        put_module();

        drop(registration);
        assert_eq!(seen.dropped.load(Relaxed), 1);
        Ok(())
    }

    #[test]
    fn leaked_registration_is_called_only_with_a_guard() -> Result {
        let seen = seen()?;
        let handle = Handle::new()?;
        core::mem::forget(Registration::new(&handle, Hostile(seen.clone()))?);

        assert_eq!(calls(&seen), 0);
        let guard = handle.follow()?;
        assert_eq!(calls(&seen), 1);
        drop(guard);
        assert_eq!(calls(&seen), 0);
        Ok(())
    }

    #[test]
    fn no_more_tracers_than_there_are_places() -> Result {
        let seen = seen()?;
        let mut all = KVec::new();
        let full = loop {
            match Registration::new(&Handle::new()?, Hostile(seen.clone())) {
                Ok(registration) => all.push(registration, GFP_KERNEL)?,
                Err(error) => break error,
            }
        };
        assert_eq!(full, ENOSPC);

        let before = seen.dropped.load(Relaxed);
        let count = all.len();
        drop(all);
        assert_eq!(seen.dropped.load(Relaxed), before.wrapping_add(count));
        Ok(())
    }
}
