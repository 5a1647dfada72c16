// SPDX-License-Identifier: GPL-2.0

//! User code: its registers, its memory, and where it enters and leaves the kernel.
//!
//! A driver that traces programs with the processor's own traps has [`Pmu::step`] and
//! [`Pmu::cross`]: the framework calls them in the session that is open on the CPU, if there is
//! one, and nobody's otherwise. A task steps while its [trap flag](Regs::set_trap_flag) is set.
//!
//! C header: [`arch/x86/include/asm/ptrace.h`](srctree/arch/x86/include/asm/ptrace.h)
//!
//! [`Pmu::step`]: crate::Pmu::step
//! [`Pmu::cross`]: crate::Pmu::cross

#[path = "user/delivery.rs"]
mod delivery;
#[path = "user/hooks.rs"]
mod hooks;
#[path = "user/leaving.rs"]
mod leaving;
#[path = "user/left.rs"]
mod left;
#[path = "user/places.rs"]
mod places;

pub(crate) use hooks::Hooks;

use crate::{
    aux::Next,
    bindings,
    context, //
};
use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

/// The trap flag in the flags register: the processor traps after each instruction.
const TRAP_FLAG: c_ulong = 1 << 8;

/// How the processor reads user code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// As 64-bit code, also of x32 programs.
    Bits64,
    /// As 32-bit code.
    Bits32,
}

/// The registers of a task's user code, as they will be when it goes on.
///
/// # Invariants
///
/// `raw` is the register frame at the base of the kernel stack of a task that returns to user mode
/// and does not run user code during `'a`; nobody has a Rust reference to it.
pub struct Regs<'a> {
    raw: NonNull<bindings::pt_regs>,
    /// An NMI may have broken in where they are saved or put back: what they say may be old, and what
    /// is written may be lost.
    nmi: bool,
    _cpu: PhantomData<&'a context::Cpu>,
}

impl Regs<'_> {
    /// The address of the next instruction.
    pub fn ip(&self) -> u64 {
        // SAFETY: Live, by the type invariant. CAST: An address has 64 bits.
        unsafe { (*self.raw.as_ptr()).ip as u64 }
    }

    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        // SAFETY: Live, by the type invariant. CAST: An address has 64 bits.
        unsafe { (*self.raw.as_ptr()).sp as u64 }
    }

    /// The kind of code that it is; [`None`] in a code segment of the program's own, where `ip`
    /// is not an address.
    pub fn code(&self) -> Option<Code> {
        // SAFETY: Live, by the type invariant.
        match unsafe { bindings::rust_perf_user_bits(self.raw.as_ptr()) } {
            64 => Some(Code::Bits64),
            32 => Some(Code::Bits32),
            _ => None,
        }
    }

    /// Whether the task is inside a system call that has no result yet: it comes by
    /// [`Crossing::Return`] before it goes back. In an NMI that is not known, and false.
    pub fn is_in_syscall(&self) -> bool {
        self.is_syscall() && !leaving::is_under_way(self.raw)
    }

    /// Whether the task has come by a system call that has no result yet, or whose result was
    /// [`ENOSYS`]. In an NMI that is not known, and false.
    pub fn is_syscall(&self) -> bool {
        if self.nmi {
            return false;
        }
        // SAFETY: Live, by the type invariant.
        let number = unsafe { (*self.raw.as_ptr()).orig_ax };
        // SAFETY: As above.
        let result = unsafe { (*self.raw.as_ptr()).ax };

        // The number is -1 in other entries. CAST: Both are signed.
        number as c_long >= 0 && is_no_result(result as c_long)
    }

    /// Whether a signal is on its way to the task, so that its registers are being copied to where
    /// the program sees them: [`Crossing::Handler`] comes before it goes back.
    pub fn is_before_handler(&self) -> bool {
        delivery::is_under_way(self.raw)
    }

    /// Whether the processor will trap after the next instruction.
    pub fn trap_flag(&self) -> bool {
        // SAFETY: Live, by the type invariant.
        unsafe { (*self.raw.as_ptr()).flags & TRAP_FLAG != 0 }
    }

    /// Has the processor trap after the next instruction, and so on, or not.
    ///
    /// Whoever sets it takes it away again before the task gets off the CPU: a trap that is
    /// nobody's kills the task. From an NMI it cannot be set, and is taken away later; traps that
    /// come till then are nobody's and do no harm.
    pub fn set_trap_flag(&mut self, trap: bool) {
        if self.nmi {
            if !trap {
                left::leave(self.raw);
            }
            return;
        }
        // SAFETY: Live, by the type invariant.
        let flags = unsafe { &raw mut (*self.raw.as_ptr()).flags };
        // SAFETY: As above; nobody else writes to it while the task does not run user code.
        let old = unsafe { flags.read() };
        let new = if trap {
            old | TRAP_FLAG
        } else {
            old & !TRAP_FLAG
        };

        // SAFETY: As above.
        unsafe { flags.write(new) };
    }

    /// Whether the trap flag is in the copy of the flags that the `syscall` instruction leaves in
    /// `r11`.
    pub fn shows_trap_flag(&self) -> bool {
        // SAFETY: Live, by the type invariant.
        let flags = unsafe { (*self.raw.as_ptr()).r11 };
        // SAFETY: As above.
        let next = unsafe { (*self.raw.as_ptr()).cx };
        // SAFETY: As above.
        let ip = unsafe { (*self.raw.as_ptr()).ip };

        // It leaves the address of the next instruction in `rcx`. After `int 0x80` both registers are
        // the program's own.
        flags & TRAP_FLAG != 0 && next == ip
    }

    /// The task has executed an instruction that makes a system call: takes the trap flag out of the
    /// copy of the flags that `syscall` leaves in `r11`.
    pub fn hide_trap_flag(&mut self) {
        leaving::end(self.raw);
        if self.shows_trap_flag() {
            // SAFETY: Live, by the type invariant; nobody else writes to it while the task is in the
            // kernel.
            unsafe { (*self.raw.as_ptr()).r11 &= !TRAP_FLAG };
        }
    }
}

/// Whether this is what the entry code sets a system call's result to.
fn is_no_result(result: c_long) -> bool {
    c_long::try_from(ENOSYS.to_errno()) == Ok(result)
}

/// The current task, if it is one that has user code.
///
/// While perf switches tasks, it is the one that comes.
///
/// Dereferences to its registers.
pub struct Current<'a>(Regs<'a>);

impl<'a> Current<'a> {
    /// The task whose user code this CPU goes back to; [`None`] if that never returns to user mode:
    /// a thread of the kernel's, or a task that exits.
    pub fn new(cpu: &'a context::Cpu) -> Option<Self> {
        // SAFETY: There always is a current task, and interrupts are off by the invariant of `Cpu`.
        let raw = NonNull::new(unsafe { bindings::rust_perf_current_user_regs() })?;

        let nmi = cpu.is_nmi();
        if !nmi {
            // SAFETY: The current task's, and this is the kernel; references to frames are never made.
            unsafe { settle(raw) };
        }
        // INVARIANT: The task is in the kernel: this is the kernel, and the CPU does not leave it
        // while the token is borrowed.
        Some(Self(Regs {
            raw,
            nmi,
            _cpu: PhantomData,
        }))
    }

    /// Reads the task's memory at `address`, as far as it can be read without a page fault; how
    /// many bytes were read. While tasks are switched it is not known whose memory that is.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        // Up to the end of the page, and then what lies in the next one.
        let page = u64::try_from(PAGE_SIZE).unwrap_or(u64::MAX);
        let first = usize::try_from(page - address % page)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let (front, back) = bytes.split_at_mut(first);

        if !copy_in(address, front) {
            return 0;
        }
        // CAST: No more than a page.
        if back.is_empty() || !copy_in(address.wrapping_add(first as u64), back) {
            return first;
        }
        bytes.len()
    }

    /// Writes to the task's memory at `address`; [`EFAULT`] if that would fault.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result {
        // CAST: An address.
        let to = address as *mut c_void;

        // SAFETY: `bytes` may be read; the function checks that `to` is in user space, and does
        // not fault.
        match unsafe { bindings::copy_to_user_nofault(to, bytes.as_ptr().cast(), bytes.len()) } {
            0 => Ok(()),
            _ => Err(EFAULT),
        }
    }
}

impl<'a> Deref for Current<'a> {
    type Target = Regs<'a>;

    fn deref(&self) -> &Regs<'a> {
        &self.0
    }
}

impl core::ops::DerefMut for Current<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Takes the trap flag away that an NMI has left in these registers; whether there was one.
///
/// # Safety
///
/// `raw` must be the register frame of a task in the kernel, which stays there until this returns,
/// and nobody may have a Rust reference to it.
unsafe fn settle(raw: NonNull<bindings::pt_regs>) -> bool {
    let left = left::take(raw);

    if left {
        // INVARIANT: By the safety requirement.
        let mut regs = Regs {
            raw,
            nmi: false,
            _cpu: PhantomData,
        };
        if regs.is_in_syscall() {
            regs.hide_trap_flag();
        }
        regs.set_trap_flag(false);
    }
    left
}

/// The registers of the task that runs, if it has user code; also where nobody notes switches.
fn running() -> Option<NonNull<bindings::pt_regs>> {
    // SAFETY: There always is a current task.
    NonNull::new(unsafe { bindings::rust_perf_running_user_regs() })
}

/// Takes the flag away that an NMI has left to the task that runs, which must be in the kernel by a
/// trap, a system call, a signal or a switch; whether there was one.
fn settle_running() -> bool {
    // SAFETY: The current task's, and this is the kernel; references to frames are never made.
    running().is_some_and(|raw| unsafe { settle(raw) })
}

/// An event gets off this CPU: takes the flag away that an NMI has left to the task whose user code
/// the CPU goes back to.
///
/// What an NMI has left to a task that is on another CPU by now, or waits for one, was taken away when
/// it got off this one.
pub(crate) fn settle_current(cpu: &context::Cpu) {
    // In an NMI it stays left.
    let _settled = Current::new(cpu);
}

/// Reads memory of the current task, which has user memory; whether all of it could be read.
fn copy_in(address: u64, bytes: &mut [u8]) -> bool {
    // CAST: An address.
    let from = address as *const c_void;

    // SAFETY: `bytes` may be written; the function checks that `from` is in user space, and does
    // not fault.
    unsafe { bindings::copy_from_user_nofault(bytes.as_mut_ptr().cast(), from, bytes.len()) == 0 }
}

/// How the current task leaves user code, or goes back to it.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crossing {
    /// It has executed an instruction that makes a system call, and will return to the one behind.
    Syscall,
    /// It is about to return from a system call. A signal may still come in between, or the call be
    /// made again.
    Return,
    /// A signal ends the program, or comes to its handler; the registers are those of the code that
    /// it interrupts, and are about to be saved in a core dump or in the handler's frame.
    Signal,
    /// It is about to return to user code, to a signal's handler if all went well.
    Handler,
    /// It gets off the CPU. perf may end the session after this, or not: it lets tasks that inherit
    /// the same events have each other's.
    SwitchOut,
    /// The next task gets on the CPU, and is [`Current`].
    SwitchIn,
}

/// Whose a trap was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Step {
    /// The driver's: the task goes on.
    Ours(Next),
    /// Somebody else's: the task gets its `SIGTRAP`.
    Others,
}
