// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Functions of QEMU that are not part of its plugin interface. QEMU exports them, but another version may not.

use std::cell::Cell;
use std::ffi::{c_int, c_void, CStr};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

#[repr(C)]
struct Cpu(u8);

type Work = extern "C" fn(*mut Cpu, *mut c_void);
type RunOnCpu = unsafe extern "C" fn(*mut Cpu, Work, *mut c_void);
type GetCpu = unsafe extern "C" fn(c_int) -> *mut Cpu;
type Flush = unsafe extern "C" fn();
type Ticks = unsafe extern "C" fn() -> i64;
type Clock = unsafe extern "C" fn(c_int) -> i64;
type ToNanoseconds = unsafe extern "C" fn(i64) -> i64;

/// `QEMU_CLOCK_VIRTUAL`, which advances only while the guest runs.
const VIRTUAL: c_int = 1;

/// QEMU's functions.
#[derive(Debug, Clone, Copy)]
pub struct Inside {
    ticks: Ticks,
    clock: Clock,
    /// QEMU's variable `use_icount`: not 0 if `-icount` was given.
    counts: &'static AtomicI32,
    takes: ToNanoseconds,
    get_cpu: GetCpu,
    run: RunOnCpu,
    flush: Flush,
}

impl Inside {
    /// Finds the functions.
    ///
    /// # Errors
    ///
    /// This version of QEMU lacks one of the functions.
    pub fn find() -> Result<Self, String> {
        let ticks = symbol(c"cpus_get_elapsed_ticks")?;
        let clock = symbol(c"qemu_clock_get_ns")?;
        let counts = symbol(c"use_icount")?;
        let takes = symbol(c"icount_to_ns")?;
        let get_cpu = symbol(c"qemu_get_cpu")?;
        let run = symbol(c"async_safe_run_on_cpu")?;
        let flush = symbol(c"tb_flush__exclusive_or_serial")?;
        // SAFETY: QEMU's function of this name takes nothing, and returns a 64-bit integer.
        let ticks = unsafe { std::mem::transmute::<*mut c_void, Ticks>(ticks) };
        // SAFETY: QEMU's function of this name takes an enumeration, which is an integer to C, and returns
        // a 64-bit integer.
        let clock = unsafe { std::mem::transmute::<*mut c_void, Clock>(clock) };
        // SAFETY: QEMU's variable of this name is an enumeration, which is as large as this and lives as long as
        // QEMU. QEMU writes it while it starts, on the thread on which plugins are loaded.
        let counts = unsafe { &*counts.cast::<AtomicI32>() };
        // SAFETY: QEMU's function of this name takes and returns a 64-bit integer.
        let takes = unsafe { std::mem::transmute::<*mut c_void, ToNanoseconds>(takes) };
        // SAFETY: QEMU's function of this name takes an integer, and returns a pointer.
        let get_cpu = unsafe { std::mem::transmute::<*mut c_void, GetCpu>(get_cpu) };
        // SAFETY: QEMU's function of this name takes a CPU, a function, and a union as large as a
        // pointer, which is passed as one. The function takes that CPU and that union.
        let run = unsafe { std::mem::transmute::<*mut c_void, RunOnCpu>(run) };
        // SAFETY: QEMU's function of this name takes and returns nothing.
        let flush = unsafe { std::mem::transmute::<*mut c_void, Flush>(flush) };
        Ok(Self {
            ticks,
            clock,
            counts,
            takes,
            get_cpu,
            run,
            flush,
        })
    }

    /// The value that the guest reads from the time stamp counter, if it has not set the counter.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        // SAFETY: The function reads the clock under its own lock, on any thread.
        let ticks = unsafe { (self.ticks)() };
        u64::from_ne_bytes(ticks.to_ne_bytes())
    }

    /// With `-icount`, the number of ticks that this number of instructions takes; otherwise 0.
    #[must_use]
    #[inline]
    pub fn ticks_of(&self, instructions: usize) -> u64 {
        if self.counts.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let instructions = i64::try_from(instructions).unwrap_or(0);
        // SAFETY: The function only reads the time per instruction, which does not change while the guest runs, or changes atomically.
        let ticks = unsafe { (self.takes)(instructions) };
        u64::try_from(ticks).unwrap_or(0)
    }

    /// Time for which the guest has run, in nanoseconds.
    #[must_use]
    pub fn nanoseconds(&self) -> u64 {
        // SAFETY: This clock exists. The function reads it under its own lock, on any thread.
        let nanoseconds = unsafe { (self.clock)(VIRTUAL) };
        u64::from_ne_bytes(nanoseconds.to_ne_bytes())
    }

    /// Runs `work` later, on the thread of a virtual CPU, while no virtual CPU executes anything. May be called on any thread. Does nothing
    /// if the guest has no CPU.
    pub fn exclusively(&self, work: impl FnOnce(&Exclusive<'_>) + Send + 'static) {
        // SAFETY: The function walks QEMU's list of CPUs, which is safe on any thread.
        let cpu = unsafe { (self.get_cpu)(0) };
        if cpu.is_null() {
            return;
        }
        let what: Box<What> = Box::new(What {
            flush: self.flush,
            work: Box::new(work),
        });
        // SAFETY: `cpu` is a CPU of QEMU. `exclusive()` gets the pointer of a boxed `What`, and QEMU calls it once. Work may be queued on
        // any thread.
        unsafe { (self.run)(cpu, exclusive, Box::into_raw(what).cast()) };
    }
}

/// QEMU's object of the virtual CPU whose callback this is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThisCpu {
    start: *const u64,
}

thread_local! {
    /// Address of QEMU's variable `current_cpu` of this thread. Null until it is first needed.
    static CURRENT: Cell<*const *const u64> = const { Cell::new(ptr::null()) };
}

impl ThisCpu {
    /// The CPU that this thread executes.
    ///
    /// # Safety
    ///
    /// The result must be used only in the callback of a virtual CPU in which this is called.
    #[inline]
    pub(crate) unsafe fn get() -> Option<Self> {
        let mut current = CURRENT.get();
        if current.is_null() {
            current = find_current()?;
        }
        // SAFETY: This is QEMU's variable of this thread, which only this thread writes.
        let start = unsafe { current.read() };
        (!start.is_null()).then_some(Self { start })
    }

    /// Number of words of the CPU object.
    pub(crate) fn len(self) -> usize {
        // SAFETY: `start` is the address that the C library has returned for the CPU object. QEMU frees the object only when the CPU no
        // longer executes, and it executes by the requirement of `get()`.
        let bytes = unsafe { libc::malloc_usable_size(self.start.cast_mut().cast()) };
        bytes / size_of::<u64>()
    }

    /// A word of the CPU object.
    ///
    /// # Safety
    ///
    /// `index` must be below [`Self::len()`].
    #[inline]
    pub(crate) unsafe fn word(self, index: usize) -> u64 {
        // SAFETY: In the allocation, by the requirement.
        let word = unsafe { self.start.add(index) };
        // SAFETY: This is memory of QEMU that is not freed, by the requirement of `get()`. Other threads may write words that are not
        // registers. The load is volatile, so that the compiler does not assume that they are constant.
        unsafe { word.read_volatile() }
    }
}

#[cold]
fn find_current() -> Option<*const *const u64> {
    let current = symbol(c"current_cpu").ok()?.cast_const().cast();
    CURRENT.set(current);
    Some(current)
}

fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: `name` is a string that lives during the call.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    match found.is_null() {
        false => Ok(found),
        true => Err(format!(
            "this QEMU has no {}: it is another version than 11.1",
            name.to_string_lossy()
        )),
    }
}

/// Proof that no virtual CPU executes anything.
#[derive(Debug)]
pub struct Exclusive<'a> {
    flush: Flush,
    _work: PhantomData<&'a ()>,
}

impl Exclusive<'_> {
    /// Makes QEMU discard all translations, so that it translates each block anew.
    pub fn forget_translations(&self) {
        // SAFETY: No CPU executes anything while an `Exclusive` exists.
        unsafe { (self.flush)() };
    }
}

struct What {
    flush: Flush,
    work: Box<dyn FnOnce(&Exclusive<'_>) + Send>,
}

extern "C" fn exclusive(_cpu: *mut Cpu, what: *mut c_void) {
    // SAFETY: `exclusively()` has given QEMU this box, and QEMU calls this once.
    let what = unsafe { Box::from_raw(what.cast::<What>()) };
    let What { flush, work } = *what;
    work(&Exclusive {
        flush,
        _work: PhantomData,
    });
}
