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
    is_no_result,
    leaving,
    running,
    settle,
    settle_running,
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
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        rcu,
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

/// The kernel's tracepoints that are hooked while there is an event.
const TRACEPOINTS: usize = 3;

/// What a PMU with [`Pmu::step`] hangs into the kernel.
///
/// Most of it is there only while there is an event, as it costs each system call and each switch of
/// tasks something, also of those that nobody traces. Signals are followed from the beginning: one
/// that is on its way when an event is opened would not be seen otherwise, and its frame would show
/// the trap flag.
///
/// Pinned, since the kernel's list of notifiers goes through it.
///
/// # Invariants
///
/// - While `events` is not 0, the notifier and all of `tracepoints` are hooked.
/// - `events` leaves 0, and gets there, only by who holds `changing`.
#[pin_data]
pub(crate) struct Hooks<T: Pmu> {
    #[pin]
    notifier: Opaque<bindings::notifier_block>,
    /// How many events there are, or others that want the hooks to stay.
    events: Atomic<usize>,
    #[pin]
    changing: Mutex<()>,
    /// Those that are hooked.
    tracepoints: [Atomic<*mut bindings::tracepoint>; TRACEPOINTS],
    /// That of signals, if it is hooked.
    signals: Atomic<*mut bindings::tracepoint>,
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
            // INVARIANT: No event.
            events: Atomic::new(0),
            changing <- new_mutex!(()),
            signals: Atomic::new(core::ptr::null_mut()),
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

    /// The tracepoints that are hooked while there is an event, and what is called for them.
    fn probes() -> [(&'static CStr, *mut c_void); TRACEPOINTS] {
        type Syscall = unsafe extern "C" fn(*mut c_void, *mut bindings::pt_regs, c_long);
        type Switch = unsafe extern "C" fn(
            *mut c_void,
            bool,
            *mut bindings::task_struct,
            *mut bindings::task_struct,
            c_uint,
        );

        let enter: Syscall = Self::sys_enter;
        let exit: Syscall = Self::sys_exit;
        let switch: Switch = Self::sched_switch;

        // CAST: Functions have an address; the tracepoint knows their type.
        [
            (c"sys_enter", enter as *mut c_void),
            (c"sys_exit", exit as *mut c_void),
            (c"sched_switch", switch as *mut c_void),
        ]
    }

    /// The tracepoint of signals, and what is called for it.
    fn signal_probe() -> (&'static CStr, *mut c_void) {
        type Signal = unsafe extern "C" fn(
            *mut c_void,
            c_int,
            *mut bindings::kernel_siginfo,
            *mut bindings::k_sigaction,
        );
        let signal: Signal = Self::signal_deliver;

        // CAST: As above.
        (c"signal_deliver", signal as *mut c_void)
    }

    /// What the probes are called with.
    fn data(registration: &Registration<T>) -> *mut c_void {
        core::ptr::from_ref(registration).cast_mut().cast()
    }

    /// A tracepoint of the kernel's own, so that it stays; [`ENOENT`] if it was built without.
    fn find(name: &CStr) -> Result<NonNull<bindings::tracepoint>> {
        // SAFETY: The name is terminated by 0.
        NonNull::new(unsafe { bindings::rust_perf_find_tracepoint(name.as_char_ptr()) })
            .ok_or(ENOENT)
    }

    /// Hooks a tracepoint, and notes it in `slot`.
    ///
    /// # Safety
    ///
    /// - The probe must have the parameters of the tracepoint's prototype.
    /// - It must be [unhooked](Self::unhook), and calls waited for, before `registration` goes.
    unsafe fn hook(
        slot: &Atomic<*mut bindings::tracepoint>,
        (name, probe): (&CStr, *mut c_void),
        registration: &Registration<T>,
    ) -> Result {
        let found = Self::find(name)?.as_ptr();
        let data = Self::data(registration);

        // SAFETY:
        // - The tracepoint stays, by `find()`.
        // - `probe` has the parameters, and `data` outlives the calls, by the safety requirement.
        to_result(unsafe { bindings::tracepoint_probe_register(found, probe, data) })?;
        slot.store(found, Relaxed);
        Ok(())
    }

    /// Undoes [`Self::hook`], if it was done. A call may still be under way.
    fn unhook(
        slot: &Atomic<*mut bindings::tracepoint>,
        (_, probe): (&CStr, *mut c_void),
        registration: &Registration<T>,
    ) {
        if let Some(found) = NonNull::new(slot.xchg(core::ptr::null_mut(), Relaxed)) {
            let data = Self::data(registration);

            // SAFETY: Registered in `hook()`, with the same function and data.
            unsafe { bindings::tracepoint_probe_unregister(found.as_ptr(), probe, data) };
        }
    }

    /// Begins to follow signals.
    ///
    /// [`ENOENT`] if the kernel was built without one of the tracepoints, also of those that are
    /// hooked later.
    ///
    /// # Safety
    ///
    /// - `self` must be the hooks of `registration`, which must stay where it is, and be
    ///   [removed](Self::remove) before either goes.
    /// - The registration's slots must be initialised.
    pub(crate) unsafe fn add(&self, registration: &Registration<T>) -> Result {
        for (name, _) in Self::probes() {
            Self::find(name)?;
        }

        // First: a signal may come at once, and its work goes through the door.
        self.door
            .registration
            .store(Self::data(registration), Relaxed);
        // SAFETY:
        // - `signal_deliver()` has the parameters of the tracepoint of that name.
        // - `remove()` unhooks it and waits, by the safety requirement.
        unsafe { Self::hook(&self.signals, Self::signal_probe(), registration) }
    }

    /// Stops to follow signals; when it returns, no call is under way.
    ///
    /// # Safety
    ///
    /// There must be no event of the registration's, and nobody who could open one. A task that may
    /// sleep.
    pub(crate) unsafe fn remove(&self, registration: &Registration<T>) {
        Self::unhook(&self.signals, Self::signal_probe(), registration);
        // SAFETY: This is a task that may sleep.
        unsafe { bindings::rust_perf_tracepoint_synchronize() };
        // Nobody queues a work any more; those that are queued find nobody, but one may be inside.
        self.door.registration.store(core::ptr::null_mut(), Relaxed);
        rcu::synchronize_rcu();
    }

    /// One event more, if there is any already; whether there is.
    fn join(&self) -> bool {
        let mut events = self.events.load(Relaxed);

        while events != 0 {
            // The hooks that another task has hooked are there: pairs with the release in `open()`.
            match self.events.cmpxchg(events, events.wrapping_add(1), Acquire) {
                Ok(_) => return true,
                Err(now) => events = now,
            }
        }
        false
    }

    /// One event less, unless it is the last; whether it is not.
    fn part(&self) -> bool {
        let mut events = self.events.load(Relaxed);

        while events > 1 {
            // What was done with the event is done before who takes the last one unhooks: pairs with
            // the acquire in `close()`.
            match self.events.cmpxchg(events, events.wrapping_sub(1), Release) {
                Ok(_) => return true,
                Err(now) => events = now,
            }
        }
        false
    }

    /// There is another event. With the first, begins to call the driver for traps, system calls and
    /// switches of tasks.
    ///
    /// It takes locks only for the first: children inherit events, and are born, with locks held.
    ///
    /// # Safety
    ///
    /// `self` must be the hooks of `registration`, which must stay where it is until the event is
    /// [closed](Self::close). A task that may sleep.
    pub(crate) unsafe fn open(&self, registration: &Registration<T>) -> Result {
        if self.join() {
            return Ok(());
        }
        let _changing = self.changing.lock();
        if self.join() {
            return Ok(());
        }

        for (slot, probe) in self.tracepoints.iter().zip(Self::probes()) {
            // SAFETY:
            // - The functions have the parameters of the tracepoints whose names stand beside them.
            // - `unhook_all()` unhooks it and waits: below, or in `close()`, by the safety
            //   requirement.
            unsafe { Self::hook(slot, probe, registration) }
                .inspect_err(|_| self.unhook_all(registration))?;
        }
        // What was noted when there were events before is stale.
        //
        // SAFETY: This is a task with interrupts on, and `sched_switch()` notes them now.
        unsafe { bindings::rust_perf_forget_switches() };
        // SAFETY: Pinned; taken away in `close()`, before it goes.
        to_result(unsafe { bindings::rust_perf_register_die_notifier(self.notifier.get()) })
            .inspect_err(|_| self.unhook_all(registration))?;

        // INVARIANT: All is hooked, and `changing` is held. Pairs with the acquire in `join()`.
        self.events.store(1, Release);
        Ok(())
    }

    /// There is an event less. With the last, stops to call the driver; then no call is under way.
    ///
    /// No task has a trap flag of the driver's then: a session takes it away when it ends, from the
    /// task on its CPU, as does the driver when that task gets off it; and what an NMI has left is
    /// taken away at the latest when perf takes the event off that CPU.
    ///
    /// # Safety
    ///
    /// The event must have been [opened](Self::open) with this registration, and have no session,
    /// nor ever get one. A task that may sleep.
    pub(crate) unsafe fn close(&self, registration: &Registration<T>) {
        if self.part() {
            return;
        }
        let _changing = self.changing.lock();

        // INVARIANT: `changing` is held. Pairs with the release in `part()`.
        if self.events.fetch_sub(1, Acquire) == 1 {
            // SAFETY: Registered by `open()`. Waits for who is inside.
            unsafe { bindings::rust_perf_unregister_die_notifier(self.notifier.get()) };
            self.unhook_all(registration);
        }
    }

    /// Unhooks the tracepoints of events that are hooked, and waits for who is inside. To be called by
    /// who holds `changing`.
    fn unhook_all(&self, registration: &Registration<T>) {
        for (slot, probe) in self.tracepoints.iter().zip(Self::probes()) {
            Self::unhook(slot, probe, registration);
        }
        // SAFETY: Who opens or closes an event may sleep.
        unsafe { bindings::rust_perf_tracepoint_synchronize() };
        // Nobody tells any more when they call the kernel again.
        leaving::forget();
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
        // SAFETY: As above; it stays until the notifier is unregistered.
        let registration = unsafe { Registration::<T>::of_hooks(hooks) };
        // The entry code leaves interrupts off for `exc_debug()`, and so does what calls the chain
        // for a trap in user mode.
        //
        // SAFETY: Interrupts are off until this returns.
        let cpu = unsafe { context::Cpu::current() };

        let left = running().is_some_and(|regs| {
            leaving::end(regs);
            // Whoever set the flag has gone since, if so.
            //
            // SAFETY: The current task's, which is in this trap; references to frames are never made.
            unsafe { settle(regs) }
        });
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
            leaving::end(regs);
            // SAFETY: The tracepoint gives the current task's, which is in a system call; references to
            // frames are never made.
            unsafe { settle(regs) };
        }
        // SAFETY: The registration, by `hook()`.
        unsafe { Self::tell(data, Crossing::Syscall) };
    }

    /// # Safety
    ///
    /// Called by the tracepoint with the data that it was given.
    unsafe extern "C" fn sys_exit(data: *mut c_void, regs: *mut bindings::pt_regs, result: c_long) {
        // It must not get off the CPU between the two.
        let _irq = interrupt::local_interrupt_disable();
        // SAFETY: The registration, by `hook()`.
        let told = unsafe { Self::tell(data, Crossing::Return) };

        if let (true, Some(regs)) = (told && is_no_result(result), NonNull::new(regs)) {
            leaving::begin(regs);
        }
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

        settle_running();
        // Also if nobody listens now: somebody may before the handler is reached.
        //
        // SAFETY: The registration, by `hook()`; this is `get_signal()`, which comes back to the
        // return to user mode, or ends the task.
        unsafe { Work::<T>::queue(data) };
        // SAFETY: The registration, by `hook()`.
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
        settle_running();
        // SAFETY: The registration, by `hook()`.
        let told = unsafe { Self::tell(data, Crossing::SwitchOut) };

        // SAFETY: In `trace_sched_switch()`, with these tasks.
        unsafe { bindings::rust_perf_note_switch(prev, next) };
        if told {
            // SAFETY: The registration, by `hook()`.
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
        let Some(delivery) = running().map(Delivery::begin) else {
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
