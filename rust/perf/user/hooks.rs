// SPDX-License-Identifier: GPL-2.0

//! The kernel's hooks through which a driver learns what user code does.
//!
//! C headers: [`include/linux/kdebug.h`](srctree/include/linux/kdebug.h),
//! [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h),
//! [`include/linux/task_work.h`](srctree/include/linux/task_work.h)

use super::{
    delivery::{
        self,
        Delivery, //
    },
    settle,
    settle_current,
    Crossing,
    Step, //
};
use crate::{
    aux::Next,
    bindings,
    context,
    held::{
        Header,
        TaskWork, //
    },
    pmu::{
        Pmu,
        Registration, //
    }, //
};
use core::{
    ffi::c_void,
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    container_of,
    error::to_result,
    interrupt,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        rcu,
        Arc, //
    },
    types::Opaque, //
};

/// The kernel's tracepoints that are hooked.
const TRACEPOINTS: usize = 4;

/// What a PMU with [`Pmu::step`] hangs into the kernel.
///
/// Pinned, since the kernel's list of notifiers goes through it.
#[pin_data]
pub(crate) struct Hooks<T: Pmu> {
    #[pin]
    notifier: Opaque<bindings::notifier_block>,
    /// Those that are hooked.
    tracepoints: [Atomic<*mut bindings::tracepoint>; TRACEPOINTS],
    door: Arc<Door<T>>,
}

/// The way of a [`Work`] to its registration, as long as that is there.
struct Door<T: Pmu> {
    registration: Atomic<*mut c_void>,
    _driver: PhantomData<fn(T)>,
}

// SAFETY: The list that goes through it has a lock of its own.
unsafe impl<T: Pmu> Send for Hooks<T> {}
// SAFETY: As above; the tracepoints are atomic.
unsafe impl<T: Pmu> Sync for Hooks<T> {}

impl<T: Pmu> Hooks<T> {
    pub(crate) fn new() -> impl PinInit<Self, Error> {
        let mut notifier: bindings::notifier_block = pin_init::zeroed();
        if T::HAS_STEP {
            notifier.notifier_call = Some(Self::trap);
        }

        try_pin_init!(Self {
            notifier: Opaque::new(notifier),
            tracepoints: [const { Atomic::new(core::ptr::null_mut()) }; TRACEPOINTS],
            door: Arc::new(
                Door {
                    registration: Atomic::new(core::ptr::null_mut()),
                    _driver: PhantomData,
                },
                GFP_KERNEL,
            )?,
        })
    }

    /// The tracepoints, and what is called for them.
    fn probes() -> [(&'static CStr, *mut c_void); TRACEPOINTS] {
        type Syscall = unsafe extern "C" fn(*mut c_void, *mut bindings::pt_regs, c_long);
        type Signal = unsafe extern "C" fn(
            *mut c_void,
            c_int,
            *mut bindings::kernel_siginfo,
            *mut bindings::k_sigaction,
        );
        type Switch = unsafe extern "C" fn(
            *mut c_void,
            bool,
            *mut bindings::task_struct,
            *mut bindings::task_struct,
            c_uint,
        );

        let enter: Syscall = Self::sys_enter;
        let exit: Syscall = Self::sys_exit;
        let signal: Signal = Self::signal_deliver;
        let switch: Switch = Self::sched_switch;

        // CAST: Functions have an address; the tracepoint knows their type.
        [
            (c"sys_enter", enter as *mut c_void),
            (c"sys_exit", exit as *mut c_void),
            (c"signal_deliver", signal as *mut c_void),
            (c"sched_switch", switch as *mut c_void),
        ]
    }

    /// Begins to call the driver of `registration`.
    ///
    /// [`ENOENT`] if the kernel was built without one of the tracepoints.
    ///
    /// # Safety
    ///
    /// - `self` must be the hooks of `registration`, which must stay where it is, and be
    ///   [removed](Self::remove) before either goes.
    /// - The registration's slots must be initialised.
    pub(crate) unsafe fn add(&self, registration: &Registration<T>) -> Result {
        let data = core::ptr::from_ref(registration).cast_mut().cast();

        self.door.registration.store(data, Relaxed);
        // SAFETY: Pinned; taken away in `remove()`.
        to_result(unsafe { bindings::rust_perf_register_die_notifier(self.notifier.get()) })?;

        for (slot, (name, probe)) in self.tracepoints.iter().zip(Self::probes()) {
            // SAFETY: The name is terminated by 0.
            let found = unsafe { bindings::rust_perf_find_tracepoint(name.as_char_ptr()) };
            let hook = || -> Result {
                let found = NonNull::new(found).ok_or(ENOENT)?.as_ptr();

                // SAFETY:
                // - A tracepoint of the kernel itself, which stays.
                // - `probe` has the parameters that its prototype has.
                to_result(unsafe { bindings::tracepoint_probe_register(found, probe, data) })
            };

            // SAFETY: The notifier is added, and the tracepoints so far.
            hook().inspect_err(|_| unsafe { self.remove(registration) })?;
            slot.store(found, Relaxed);
        }

        // SAFETY: This is a task with interrupts on, and `sched_switch()` notes them now.
        unsafe { bindings::rust_perf_forget_switches() };
        Ok(())
    }

    /// Stops to call the driver; when it returns, no call is under way.
    ///
    /// # Safety
    ///
    /// The notifier must have been added, once. A task that may sleep.
    pub(crate) unsafe fn remove(&self, registration: &Registration<T>) {
        // Since the last event ended, every CPU was in user mode or has switched: flags that were left
        // are gone.
        rcu::synchronize_rcu();
        for (slot, (_, probe)) in self.tracepoints.iter().zip(Self::probes()) {
            let Some(found) = NonNull::new(slot.xchg(core::ptr::null_mut(), Relaxed)) else {
                continue;
            };
            let data = core::ptr::from_ref(registration).cast_mut().cast();

            // SAFETY: Registered in `add()`, with the same function and data.
            unsafe { bindings::tracepoint_probe_unregister(found.as_ptr(), probe, data) };
        }
        // SAFETY: This is a task that may sleep.
        unsafe { bindings::rust_perf_tracepoint_synchronize() };
        // Nobody queues a work any more; those that are queued find nobody, but one may be inside.
        self.door.registration.store(core::ptr::null_mut(), Relaxed);
        rcu::synchronize_rcu();

        // Waits for who is inside.
        //
        // SAFETY: Added, by the safety requirement.
        unsafe { bindings::rust_perf_unregister_die_notifier(self.notifier.get()) };
    }

    /// The function of the notifier.
    ///
    /// # Safety
    ///
    /// `block` must be the notifier of the hooks of a `Registration<T>`, `args` what the die chain
    /// passes.
    unsafe extern "C" fn trap(
        block: *mut bindings::notifier_block,
        event: c_ulong,
        args: *mut c_void,
    ) -> c_int {
        // SAFETY: By the safety requirement.
        if !unsafe { bindings::rust_perf_die_is_user_step(event, args) } {
            return NOTIFY_DONE;
        }

        // SAFETY: By the safety requirement.
        let hooks = unsafe { container_of!(Opaque::cast_from(block), Self, notifier) };
        // SAFETY: As above; it stays until the hooks are removed.
        let registration = unsafe { Registration::<T>::of_hooks(hooks) };
        // The entry code leaves interrupts off for `exc_debug()`, and so does what calls the chain
        // for a trap in user mode.
        //
        // SAFETY: Interrupts are off until this returns.
        let cpu = unsafe { context::Cpu::current() };

        // Whoever set the flag has gone since, if so.
        let left = settle_current();
        let claimed = registration.with_session(&cpu, |session, run| {
            match registration.driver().step(session, run) {
                Step::Ours(next) => (next, true),
                Step::Others => (Next::Continue, false),
            }
        });
        match claimed {
            Some(false) | None if !left => NOTIFY_DONE,
            // SAFETY: A trap in user mode, as checked.
            _ => unsafe { bindings::rust_perf_die_claim_step(args) },
        }
    }

    /// Tells the driver, if it has a session on this CPU; whether it has.
    ///
    /// # Safety
    ///
    /// `data` must be a registered `Registration<T>`.
    unsafe fn tell(data: *mut c_void, crossing: Crossing) -> bool {
        // SAFETY: By the safety requirement.
        let registration = unsafe { &*data.cast::<Registration<T>>() };
        let _irq = interrupt::local_interrupt_disable();
        // SAFETY: Interrupts are off until `_irq` is dropped, after `cpu`.
        let cpu = unsafe { context::Cpu::current() };

        let told = registration.with_session(&cpu, |session, run| {
            (registration.driver().cross(session, run, crossing), ())
        });
        told.is_some()
    }

    /// # Safety
    ///
    /// Called by the tracepoint with the data that it was given.
    unsafe extern "C" fn sys_enter(
        data: *mut c_void,
        regs: *mut bindings::pt_regs,
        _number: c_long,
    ) {
        if let Some(regs) = NonNull::new(regs) {
            delivery::seen(regs);
            // SAFETY: The tracepoint gives the current task's, which is in a system call; references to
            // frames are never made.
            unsafe { settle(regs) };
        }
        // SAFETY: The registration, by `add()`.
        unsafe { Self::tell(data, Crossing::Syscall) };
    }

    /// # Safety
    ///
    /// Called by the tracepoint with the data that it was given.
    unsafe extern "C" fn sys_exit(
        data: *mut c_void,
        _regs: *mut bindings::pt_regs,
        _result: c_long,
    ) {
        // SAFETY: The registration, by `add()`.
        unsafe { Self::tell(data, Crossing::Return) };
    }

    /// # Safety
    ///
    /// Called by the tracepoint with the data that it was given, in the task that gets the signal.
    unsafe extern "C" fn signal_deliver(
        data: *mut c_void,
        signal: c_int,
        _info: *mut bindings::kernel_siginfo,
        action: *mut bindings::k_sigaction,
    ) {
        // SAFETY: What the tracepoint passes.
        if unsafe { bindings::rust_perf_signal_passes(signal, action) } {
            return;
        }

        settle_current();
        // Also if nobody listens now: somebody may before the handler is reached.
        //
        // SAFETY: The registration, by `add()`; this is `get_signal()`, which comes back to the
        // return to user mode, or ends the task.
        unsafe { Work::<T>::queue(data) };
        // SAFETY: The registration, by `add()`.
        unsafe { Self::tell(data, Crossing::Signal) };
    }

    /// # Safety
    ///
    /// Called by the tracepoint with the data that it was given.
    unsafe extern "C" fn sched_switch(
        data: *mut c_void,
        _preempt: bool,
        prev: *mut bindings::task_struct,
        next: *mut bindings::task_struct,
        _prev_state: c_uint,
    ) {
        settle_current();
        // SAFETY: The registration, by `add()`.
        let told = unsafe { Self::tell(data, Crossing::SwitchOut) };

        // SAFETY: In `trace_sched_switch()`, with these tasks.
        unsafe { bindings::rust_perf_note_switch(prev, next) };
        if told {
            // SAFETY: The registration, by `add()`.
            unsafe { Self::tell(data, Crossing::SwitchIn) };
        }
    }
}

/// What is called when the current task is about to return to user mode.
///
/// That may be long after the registration is gone, if the task is stopped meanwhile.
#[repr(C)]
struct Work<T: Pmu> {
    // First: the kernel has a pointer to it.
    work: TaskWork,
    door: Arc<Door<T>>,
    delivery: Option<Delivery>,
}

impl<T: Pmu> Work<T> {
    /// Has the driver told of [`Crossing::Handler`] when the current task is about to return to
    /// user mode. If there is no memory for that, it is not told.
    ///
    /// # Safety
    ///
    /// - `data` must be a registered `Registration<T>`, in a call that its hooks wait for.
    /// - The current task must be on its way back to user mode.
    unsafe fn queue(data: *mut c_void) {
        // SAFETY: By the safety requirement.
        let registration = unsafe { &*data.cast::<Registration<T>>() };
        // SAFETY: There always is a current task.
        let regs = NonNull::new(unsafe { bindings::rust_perf_current_user_regs() });
        let Some(delivery) = regs.map(Delivery::begin) else {
            return;
        };
        let work = Self {
            work: TaskWork::new::<T::OwnerModule>(Self::run),
            door: registration.hooks().door.clone(),
            delivery: None,
        };
        // The lock of the signal handlers is held.
        let Ok(mut work) = KBox::new(work, GFP_ATOMIC) else {
            // Nobody will tell when the handler is reached.
            delivery.lose();
            return;
        };
        work.delivery = Some(delivery);

        let work = NonNull::from(KBox::leak(work));
        // SAFETY:
        // - The first field of the box, which `run()` takes back.
        // - The hooks' removal waits for this call, and the module's exit for that.
        if !unsafe { TaskWork::queue(work.cast()) } {
            // SAFETY: From `leak()`, and not queued.
            drop(unsafe { KBox::from_raw(work.as_ptr()) });
        }
    }

    /// # Safety
    ///
    /// `header` must be that of a `Work<T>` which [`Self::queue`] has queued, for the last time.
    unsafe fn run(header: NonNull<Header>) {
        // SAFETY: By the safety requirement.
        let work = unsafe { TaskWork::of(header) };
        // SAFETY: From `KBox::leak()`; it is the first field.
        let mut work = unsafe { KBox::from_raw(work.cast::<Self>()) };

        // The frame is there.
        drop(work.delivery.take());

        // The registration's hooks are removed by somebody who waits for readers.
        let _reader = rcu::read_lock();
        let registration = work.door.registration.load(Relaxed);
        if !registration.is_null() {
            // SAFETY: Registered, and it stays until `_reader` is dropped.
            unsafe { Hooks::<T>::tell(registration, Crossing::Handler) };
        }
    }
}

/// Nothing was done; the rest of the chain is called.
// CAST: The constant is 0.
const NOTIFY_DONE: c_int = bindings::NOTIFY_DONE as c_int;
