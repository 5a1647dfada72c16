// SPDX-License-Identifier: GPL-2.0

//! Tracers: the trait that a client implements, its registration, and the guard that keeps tasks
//! followed.

use crate::{
    bindings,
    hooks,
    task::Current, //
};
use core::{
    ffi::c_void,
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    build_error,
    error::VTABLE_DEFAULT_ERROR,
    interrupt::{
        self,
        LocalInterruptDisabled, //
    },
    module::this_module,
    pr_warn_once,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        rcu,
        Arc, //
    }, //
};

/// How a task leaves user code, or returns to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transition<'a> {
    /// The task has executed an instruction that makes a system call.
    Syscall,
    /// The task is about to return from a system call. A signal may still come in between, or the
    /// call be restarted.
    Return,
    /// A signal ends the program or is delivered to its handler. The registers are those of the
    /// interrupted code, and are about to be saved in a core dump or in the handler's frame.
    Signal,
    /// The task is about to return to user code after a [`Signal`](Self::Signal): to the handler,
    /// if its frame could be set up.
    Handler,
    /// The task has hit a breakpoint that may belong to a uprobe. [`Probed`](Self::Probed) or
    /// [`Signal`](Self::Signal) follows. Until then the trap flag must be clear: otherwise the
    /// kernel takes it for the program's, and sends a `SIGTRAP`.
    Breakpoint,
    /// The task is about to return to user code after a [`Breakpoint`](Self::Breakpoint). If the
    /// breakpoint belongs to a uprobe, the kernel has executed the probed instruction.
    Probed {
        /// The address of the breakpoint.
        from: u64,
        /// The contents of the mapped file from the instruction on. It may be more than the
        /// instruction. Empty if no file is mapped there.
        text: &'a [u8],
    },
    /// The kernel has changed the address where the task continues: a restartable sequence is
    /// aborted.
    Redirected,
    /// The task is about to return to user code from a call of the vsyscall page, which the kernel
    /// has emulated.
    Emulated,
    /// The task leaves the CPU.
    SwitchOut,
    /// The next task gets the CPU, and is [`Current`].
    SwitchIn,
}

/// The owner of a trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Trap {
    /// The trap belongs to the tracer: the task continues.
    Claimed,
    /// The trap does not belong to the tracer: the task gets its `SIGTRAP`, unless another tracer
    /// claims it.
    Unclaimed,
}

/// A client of this crate.
///
/// Callbacks run on the CPU of the task, with interrupts off. Locks of the scheduler or of signals
/// may be held. So a callback must not sleep, allocate, or take a lock under which a callback can
/// run.
#[vtable]
pub trait Tracer: Sized + Send + Sync + 'static {
    /// The task has executed an instruction with its trap flag set, which stays set.
    ///
    /// C counterpart: `register_die_notifier()` and `DIE_DEBUG`.
    fn single_step(&self, task: &mut Current<'_>, irq: &LocalInterruptDisabled) -> Trap;

    /// The processor does not know the task's next instruction. A tracer that claims this trap has
    /// executed the instruction, by [`Current::skip_ptwrite()`]; otherwise the task gets its
    /// `SIGILL`. Optional.
    ///
    /// C counterpart: `register_die_notifier()`, `DIE_TRAP` and `X86_TRAP_UD`.
    fn invalid_opcode(&self, task: &mut Current<'_>, irq: &LocalInterruptDisabled) -> Trap {
        let _ = (task, irq);
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The task leaves user code, or returns to it. `task` is [`None`] if it has no user code.
    ///
    /// C counterpart: probes of the tracepoints `sys_enter`, `sys_exit`, `signal_deliver`,
    /// `sched_switch`, `rseq_ip_fixup` and `emulate_vsyscall`, `DIE_INT3`, and `task_work_add()`.
    fn transition(
        &self,
        task: Option<Current<'_>>,
        transition: Transition<'_>,
        irq: &LocalInterruptDisabled,
    );
}

/// The data that callbacks need of a tracer, independent of its type.
///
/// # Invariants
///
/// - `tracer` is null, or a `*const T` that is live, where `T` is the type of the functions; it is
///   live until an RCU grace period after it was set to null.
/// - While `followings` is not 0, and an RCU grace period longer, there is a reference to `module`,
///   which has the code of `T`, and tasks are followed.
struct Entry {
    tracer: Atomic<*mut c_void>,
    followings: Atomic<usize>,
    module: *mut bindings::module,
    single_step: OnTrap,
    /// [`None`] if the tracer has no such function.
    invalid_opcode: Option<OnTrap>,
    transition:
        unsafe fn(*const c_void, Option<Current<'_>>, Transition<'_>, &LocalInterruptDisabled),
}

// SAFETY: `module` is only counted, which any task may do; the tracer is `Send` and `Sync`.
unsafe impl Send for Entry {}
// SAFETY: `module` is only counted, which any task may do; the tracer is `Send` and `Sync`.
unsafe impl Sync for Entry {}

impl Entry {
    /// # Safety
    ///
    /// `tracer` must be a live `*const T`.
    unsafe fn call_single_step<T: Tracer>(
        tracer: *const c_void,
        task: &mut Current<'_>,
        irq: &LocalInterruptDisabled,
    ) -> Trap {
        // SAFETY: The caller guarantees that `tracer` is a live `*const T`.
        unsafe { &*tracer.cast::<T>() }.single_step(task, irq)
    }

    /// # Safety
    ///
    /// `tracer` must be a live `*const T`.
    unsafe fn call_invalid_opcode<T: Tracer>(
        tracer: *const c_void,
        task: &mut Current<'_>,
        irq: &LocalInterruptDisabled,
    ) -> Trap {
        // SAFETY: The caller guarantees that `tracer` is a live `*const T`.
        unsafe { &*tracer.cast::<T>() }.invalid_opcode(task, irq)
    }

    /// # Safety
    ///
    /// `tracer` must be a live `*const T`.
    unsafe fn call_transition<T: Tracer>(
        tracer: *const c_void,
        task: Option<Current<'_>>,
        transition: Transition<'_>,
        irq: &LocalInterruptDisabled,
    ) {
        // SAFETY: The caller guarantees that `tracer` is a live `*const T`.
        unsafe { &*tracer.cast::<T>() }.transition(task, transition, irq);
    }

    /// The tracer, if it follows tasks.
    fn active(&self) -> Option<NonNull<c_void>> {
        // Pairs with the release in `Handle::follow()`.
        if self.followings.load(Acquire) == 0 {
            return None;
        }
        // Pairs with the release in `Registration::new()`.
        NonNull::new(self.tracer.load(Acquire))
    }
}

/// The maximum number of tracers.
const TRACERS: usize = 8;

/// The registered tracers: from [`Arc::into_raw`], or null. An entry that is removed may be in use
/// for an RCU grace period.
static ENTRIES: [Atomic<*mut Entry>; TRACERS] = [const { Atomic::new(ptr::null_mut()) }; TRACERS];

/// Calls `f` with each tracer that follows tasks, until it returns something.
fn each<R>(mut f: impl FnMut(&Entry, *const c_void) -> Option<R>) -> Option<R> {
    let _reader = rcu::read_lock();

    ENTRIES.iter().find_map(|place| {
        // Pairs with the release in `Registration::new()`.
        let entry = NonNull::new(place.load(Acquire))?;
        // SAFETY: The entry is live until an RCU grace period after it is taken out of `ENTRIES`,
        // and this is a reader.
        let entry = unsafe { entry.as_ref() };

        f(entry, entry.active()?.as_ptr())
    })
}

/// Reports a transition of the current task to all tracers.
pub(crate) fn dispatch(transition: Transition<'_>) {
    if !hooks::are_followed() {
        return;
    }
    let irq = interrupt::local_interrupt_disable();

    let _: Option<()> = each(|entry, tracer| {
        // SAFETY: A tracer follows tasks, so switches are noted, and are until the RCU section
        // ends.
        let task = unsafe { Current::new(&irq) };
        // SAFETY: The tracer is live until the RCU section ends, and of the function's type, by the
        // invariant of `Entry`.
        unsafe { (entry.transition)(tracer, task, transition, &irq) };
        None
    });
}

/// Reports a single step of the current task to the tracers until one claims it. Returns whether
/// one has.
pub(crate) fn single_step() -> bool {
    claim(|entry| Some(entry.single_step))
}

/// Reports to the tracers that the processor does not know the current task's next instruction,
/// until one claims the trap. Returns whether one has.
pub(crate) fn invalid_opcode() -> bool {
    claim(|entry| entry.invalid_opcode)
}

/// The type of a tracer's functions for traps.
type OnTrap = unsafe fn(*const c_void, &mut Current<'_>, &LocalInterruptDisabled) -> Trap;

/// Calls a function of each tracer until one claims the current task's trap. Returns whether one
/// has.
#[inline]
fn claim(function: impl Fn(&Entry) -> Option<OnTrap>) -> bool {
    if !hooks::are_followed() {
        return false;
    }
    let irq = interrupt::local_interrupt_disable();

    let claimed = each(|entry, tracer| {
        let function = function(entry)?;
        // SAFETY: A tracer follows tasks, so switches are noted, and are until the RCU section
        // ends.
        let mut task = unsafe { Current::new(&irq) }?;
        // SAFETY: The tracer is live until the RCU section ends, and of the function's type, by the
        // invariant of `Entry`.
        let trap = unsafe { function(tracer, &mut task, &irq) };
        (trap == Trap::Claimed).then_some(())
    });
    claimed.is_some()
}

/// A client's access to this crate.
///
/// It is created before the tracer. So the client can create objects that need [`Following`]s
/// first, and then the tracer with references to them.
pub struct Handle<T: Tracer> {
    entry: Arc<Entry>,
    _tracer: PhantomData<fn(T)>,
}

impl<T: Tracer> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self {
            entry: self.entry.clone(),
            _tracer: PhantomData,
        }
    }
}

impl<T: Tracer> Handle<T> {
    /// A handle without a tracer.
    pub fn new() -> Result<Self> {
        // INVARIANT: There is neither a tracer nor a guard.
        let entry = Entry {
            tracer: Atomic::new(ptr::null_mut()),
            followings: Atomic::new(0),
            module: this_module::<T::OwnerModule>().as_ptr(),
            single_step: Entry::call_single_step::<T>,
            invalid_opcode: if T::HAS_INVALID_OPCODE {
                Some(Entry::call_invalid_opcode::<T>)
            } else {
                None
            },
            transition: Entry::call_transition::<T>,
        };

        Ok(Self {
            entry: Arc::new(entry, GFP_KERNEL)?,
            _tracer: PhantomData,
        })
    }

    /// Follows tasks, and calls the tracer, until the guard is dropped. [`ENODEV`] if there is no
    /// tracer, or if the client's module is being unloaded.
    ///
    /// The first guard hooks system calls and task switches, and may sleep: [`EAGAIN`] where that is
    /// impossible. While any client has a guard, this takes no lock.
    ///
    /// While the guard exists, the client's module cannot be unloaded.
    pub fn follow(&self) -> Result<Following> {
        let entry = self.entry.clone();

        if entry.tracer.load(Relaxed).is_null() {
            return Err(ENODEV);
        }
        // SAFETY: `THIS_MODULE` of the client, or null if that is built in. Its code calls this, so
        // that it is there.
        if !unsafe { bindings::try_module_get(entry.module) } {
            return Err(ENODEV);
        }
        hooks::follow().inspect_err(|_| {
            // SAFETY: This gives back the reference that `try_module_get()` has taken. The module's
            // code stays without it, since it calls this function.
            unsafe { bindings::module_put(entry.module) }
        })?;
        // INVARIANT: The module is held, and tasks are followed. Pairs with the acquire in
        // `active()`.
        entry.followings.fetch_add(1, Release);
        Ok(Following { entry })
    }
}

/// A guard: as long as it exists, tasks are followed.
///
/// If it is leaked, the client's module stays loaded.
///
/// # Invariants
///
/// It is counted in its entry's `followings`, and holds a reference to the client's module.
pub struct Following {
    entry: Arc<Entry>,
}

impl Following {
    /// The task to whose user code this CPU returns; [`None`] for a kernel thread, or a task that
    /// exits. May be called in an NMI.
    pub fn current<'a>(&'a self, irq: &'a LocalInterruptDisabled) -> Option<Current<'a>> {
        // SAFETY: By the type invariant tasks are followed during `'a`, so switches are noted.
        unsafe { Current::new(irq) }
    }
}

impl Drop for Following {
    /// If this is the client's last guard, waits for its callbacks. Where waiting is impossible, in
    /// a callback or with a lock held, the client's module stays loaded instead.
    fn drop(&mut self) {
        if self.entry.followings.fetch_sub(1, Relaxed) == 1 {
            if !hooks::may_sleep() {
                pr_warn_once!("the last guard of a tracer is dropped where it cannot wait\n");
                return;
            }
            // Waits for callbacks that began while this guard existed.
            rcu::synchronize_rcu();
        }
        hooks::unfollow();
        // SAFETY: Gives back the reference of `Handle::follow()`. No callback of this client's
        // needs it, and whatever called this code keeps the module itself.
        unsafe { bindings::module_put(self.entry.module) };
    }
}

/// A registered tracer.
///
/// Its callbacks are called while its handle has a [`Following`]. Dropping the registration waits
/// until no callback runs. Where waiting is impossible, in a callback or with a lock held, the
/// tracer and its module are leaked instead.
///
/// # Invariants
///
/// `place` is this registration's: it has a reference to `handle`'s entry, whose tracer is
/// `tracer`, from [`KBox::into_raw`].
pub struct Registration<T: Tracer> {
    handle: Handle<T>,
    tracer: NonNull<T>,
    place: &'static Atomic<*mut Entry>,
}

// SAFETY: It owns a `T`, which is `Send`; the rest is atomic.
unsafe impl<T: Tracer> Send for Registration<T> {}
// SAFETY: It gives shared access to a `T`, which is `Sync`.
unsafe impl<T: Tracer> Sync for Registration<T> {}

impl<T: Tracer> Registration<T> {
    /// Registers `tracer`. [`EBUSY`] if the handle has a tracer, [`ENOSPC`] if there are too many.
    pub fn new(handle: &Handle<T>, tracer: T) -> Result<Self> {
        let tracer = NonNull::from(KBox::leak(KBox::new(tracer, GFP_KERNEL)?));
        // Pairs with the acquire in `active()`.
        let set = handle
            .entry
            .tracer
            .cmpxchg(ptr::null_mut(), tracer.as_ptr().cast(), Release);
        if set.is_err() {
            // SAFETY: The pointer is from `KBox::leak()` in this function, and is stored nowhere.
            drop(unsafe { KBox::from_raw(tracer.as_ptr()) });
            return Err(EBUSY);
        }

        let entry = Arc::into_raw(handle.entry.clone()).cast_mut();
        // Pairs with the acquire in `each()`.
        let free =
            |place: &&Atomic<*mut Entry>| place.cmpxchg(ptr::null_mut(), entry, Release).is_ok();
        let Some(place) = ENTRIES.iter().find(free) else {
            handle.entry.tracer.store(ptr::null_mut(), Relaxed);
            // SAFETY: The pointer is from `Arc::into_raw()` in this function, and no place has it.
            drop(unsafe { Arc::from_raw(entry) });
            // SAFETY: The pointer is from `KBox::leak()` in this function. No callback has had it,
            // as the entry was in no place.
            drop(unsafe { KBox::from_raw(tracer.as_ptr()) });
            return Err(ENOSPC);
        };
        // INVARIANT: Just stored.
        Ok(Self {
            handle: handle.clone(),
            tracer,
            place,
        })
    }

    /// The tracer.
    pub fn tracer(&self) -> &T {
        // SAFETY: The tracer is live until `self` is dropped, by the type invariant.
        unsafe { self.tracer.as_ref() }
    }
}

impl<T: Tracer> Drop for Registration<T> {
    fn drop(&mut self) {
        let entry = self.place.xchg(ptr::null_mut(), Relaxed);
        self.handle.entry.tracer.store(ptr::null_mut(), Relaxed);

        if !hooks::may_sleep() {
            // If the module is being unloaded, there is no guard, so no callback runs.
            //
            // SAFETY: `THIS_MODULE` of the client, or null if that is built in. Its code calls
            // this.
            let _held = unsafe { bindings::try_module_get(self.handle.entry.module) };
            pr_warn_once!("a tracer is dropped where its callbacks cannot be waited for\n");
            return;
        }
        rcu::synchronize_rcu();
        // SAFETY: The entry is from `Arc::into_raw()` in `new()`. No callback uses it any more: it
        // was taken out of `ENTRIES` a grace period ago.
        drop(unsafe { Arc::from_raw(entry) });
        // SAFETY: The tracer is from `KBox::leak()` in `new()`. No callback uses it any more: the
        // entry's pointer was set to null a grace period ago.
        drop(unsafe { KBox::from_raw(self.tracer.as_ptr()) });
    }
}

/// The objects that a [`Registration`] leaks if it is dropped where it cannot wait. A test frees
/// them.
#[cfg(CONFIG_KUNIT = "y")]
pub(crate) struct Leak<T: Tracer> {
    entry: *const Entry,
    tracer: NonNull<T>,
}

#[cfg(CONFIG_KUNIT = "y")]
impl<T: Tracer> Registration<T> {
    /// The objects that the registration leaks if it is dropped where it cannot wait.
    pub(crate) fn leak(&self) -> Leak<T> {
        Leak {
            entry: Arc::as_ptr(&self.handle.entry),
            tracer: self.tracer,
        }
    }
}

#[cfg(CONFIG_KUNIT = "y")]
impl<T: Tracer> Leak<T> {
    /// Frees the leaked entry and tracer. The caller must be able to sleep.
    ///
    /// # Safety
    ///
    /// The registration must have been dropped where it could not wait.
    pub(crate) unsafe fn take_back(self) {
        rcu::synchronize_rcu();
        // SAFETY: The entry is from `Arc::into_raw()` in `Registration::new()`. The caller
        // guarantees that the registration was dropped where it could not wait: it took the entry
        // out of `ENTRIES` and kept the reference. A grace period has passed since.
        drop(unsafe { Arc::from_raw(self.entry) });
        // SAFETY: The tracer is from `KBox::leak()` in `Registration::new()`. The caller guarantees
        // that the registration was dropped where it could not wait: it set the entry's pointer to
        // null and freed nothing. A grace period has passed since.
        drop(unsafe { KBox::from_raw(self.tracer.as_ptr()) });
    }
}
