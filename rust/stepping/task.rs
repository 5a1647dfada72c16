// SPDX-License-Identifier: GPL-2.0

//! A task's user code: its registers and its memory.
//!
//! C header: [`arch/x86/include/asm/ptrace.h`](srctree/arch/x86/include/asm/ptrace.h)

use crate::{
    bindings,
    pending,
    syscall,
    transit, //
};
use core::{
    marker::PhantomData,
    ops::{
        Deref,
        DerefMut, //
    },
    ptr::NonNull, //
};
use interpreter::{
    Registers,
    ARITHMETIC,
    DIRECTION, //
};
use kernel::{
    interrupt::LocalInterruptDisabled,
    page::PAGE_SIZE,
    prelude::*, //
};

/// The trap flag in the flags register: the processor traps after each instruction.
pub(crate) const TRAP_FLAG: c_ulong = 1 << 8;

/// The beginning of `uretprobe_trampoline_entry` in `arch/x86/kernel/uprobes.c`: `push %rax`,
/// `push %rcx`, `push %r11`, `mov $__NR_uretprobe, %rax`, `syscall`.
const TRAMPOLINE: [u8; 13] = [
    0x50, 0x51, 0x41, 0x53, 0x48, 0xc7, 0xc0, 0x4f, 0x01, 0, 0, 0x0f, 0x05,
];

/// The kind of user code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// 64-bit code, also of x32 programs.
    Bits64,
    /// 32-bit code.
    Bits32,
}

/// The registers of a task's user code, as they will be when it continues.
///
/// # Invariants
///
/// `raw` is the register frame at the base of the kernel stack of a task that returns to user mode
/// and does not run user code during `'a`. There is no Rust reference to the frame.
pub struct Regs<'a> {
    raw: NonNull<bindings::pt_regs>,
    /// Whether this is an NMI, which may have interrupted the kernel where it saves or restores the
    /// registers. Then a value that is read may be old, and a value that is written may be lost.
    nmi: bool,
    /// Makes the lifetime invariant: neither a longer nor a shorter one is accepted in its place.
    _context: PhantomData<fn(&'a ()) -> &'a ()>,
}

impl Regs<'_> {
    /// # Safety
    ///
    /// During the lifetime that the caller picks:
    ///
    /// - `raw` must be the frame of a task that is in the kernel and stays there.
    /// - There must be no Rust reference to the frame.
    pub(crate) unsafe fn new(raw: NonNull<bindings::pt_regs>, nmi: bool) -> Self {
        // INVARIANT: By the safety requirement.
        Self {
            raw,
            nmi,
            _context: PhantomData,
        }
    }

    /// The address of the next instruction.
    pub fn ip(&self) -> u64 {
        // SAFETY: `raw` is live, by the type invariant. CAST: An address has 64 bits.
        unsafe { (*self.raw.as_ptr()).ip as u64 }
    }

    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        // SAFETY: `raw` is live, by the type invariant. CAST: An address has 64 bits.
        unsafe { (*self.raw.as_ptr()).sp as u64 }
    }

    /// The kind of code; [`None`] in a code segment that the program has defined, where `ip` is not
    /// an address.
    pub fn code(&self) -> Option<Code> {
        // SAFETY: `raw` is live, by the type invariant.
        match unsafe { bindings::rust_stepping_user_bits(self.raw.as_ptr()) } {
            64 => Some(Code::Bits64),
            32 => Some(Code::Bits32),
            _ => None,
        }
    }

    /// Whether the task entered the kernel by a system call. In an NMI this is unknown, and the
    /// result is false.
    pub fn entered_by_syscall(&self) -> bool {
        if self.nmi {
            return false;
        }
        // SAFETY: `raw` is live, by the type invariant.
        let number = unsafe { (*self.raw.as_ptr()).orig_ax };

        // Other entries set it to -1. CAST: Both are signed.
        number as c_long >= 0
    }

    /// Whether the task entered by a system call that has no result yet, or the result [`ENOSYS`].
    /// In an NMI this is unknown, and the result is false.
    pub fn has_no_result(&self) -> bool {
        if !self.entered_by_syscall() {
            return false;
        }
        // SAFETY: `raw` is live, by the type invariant.
        let result = unsafe { (*self.raw.as_ptr()).ax };

        // The entry code sets the result to `ENOSYS`. CAST: Both are signed.
        c_long::try_from(ENOSYS.to_errno()) == Ok(result as c_long)
    }

    /// Whether the task is in a system call that has no result yet. In an NMI this is unknown, and
    /// the result is false.
    pub(crate) fn is_in_syscall(&self) -> bool {
        self.has_no_result() && !syscall::is_returning(self.raw)
    }

    /// Whether a transition follows before the task returns to user code:
    /// [`Return`](crate::Transition::Return), [`Handler`](crate::Transition::Handler),
    /// [`Probed`](crate::Transition::Probed) or [`Emulated`](crate::Transition::Emulated). Until
    /// then the kernel may copy the registers to where the program sees them, and must not find a
    /// trap flag that is not the program's.
    pub fn will_transition(&self) -> bool {
        self.is_in_syscall() || transit::is_in_transit(self.raw)
    }

    /// The frame.
    pub(crate) fn raw(&mut self) -> NonNull<bindings::pt_regs> {
        self.raw
    }

    /// The registers as the interpreter takes them.
    pub(crate) fn registers(&mut self) -> Registers {
        let raw = self.raw.as_ptr();
        // SAFETY: The frame is live, by the type invariant; plain numbers are copied.
        let frame = unsafe { raw.read() };

        Registers {
            // CAST: Registers have 64 bits.
            general: [
                frame.ax, frame.cx, frame.dx, frame.bx, frame.sp, frame.bp, frame.si, frame.di,
                frame.r8, frame.r9, frame.r10, frame.r11, frame.r12, frame.r13, frame.r14,
                frame.r15,
            ]
            .map(|register| register as u64),
            ip: frame.ip as u64,
            flags: frame.flags as u64,
        }
    }

    /// The registers as the last executed instruction has left them. In a system call that has no
    /// result yet, RAX still holds the number of the call. The trap flag is not hidden, neither in
    /// the flags nor in the copy that `syscall` makes.
    pub fn registers_behind(&mut self) -> Registers {
        let mut registers = self.registers();

        if self.has_no_result() {
            let [ax, ..] = &mut registers.general;
            // SAFETY: The frame is live, by the type invariant. CAST: A register has 64 bits.
            *ax = unsafe { (*self.raw.as_ptr()).orig_ax } as u64;
        }
        registers
    }

    /// Sets the general registers, the address of the next instruction, and the flags that the
    /// interpreter changes.
    pub(crate) fn set_registers(&mut self, registers: &Registers) {
        let raw = self.raw.as_ptr();
        // SAFETY: The frame is live, by the type invariant; plain numbers are copied.
        let mut frame = unsafe { raw.read() };
        let flags = ARITHMETIC | DIRECTION;
        // CAST: Registers have 64 bits.
        let general = registers.general.map(|register| register as c_ulong);

        [
            frame.ax, frame.cx, frame.dx, frame.bx, frame.sp, frame.bp, frame.si, frame.di,
            frame.r8, frame.r9, frame.r10, frame.r11, frame.r12, frame.r13, frame.r14, frame.r15,
        ] = general;
        // CAST: Registers have 64 bits.
        frame.ip = registers.ip as c_ulong;
        frame.flags = (frame.flags as u64 & !flags | registers.flags & flags) as c_ulong;
        // SAFETY: The frame is live, by the type invariant, and there is no reference to it; the
        // task, which alone would write to it, does not run user code.
        unsafe { raw.write(frame) };
    }

    /// Whether an NMI may have interrupted the kernel where it saves or restores the registers.
    pub(crate) fn is_nmi(&self) -> bool {
        self.nmi
    }

    /// Whether the processor will trap after the next instruction.
    pub fn trap_flag(&self) -> bool {
        // SAFETY: `raw` is live, by the type invariant.
        unsafe { (*self.raw.as_ptr()).flags & TRAP_FLAG != 0 }
    }

    /// Whether a debugger has set the trap flag, by `PTRACE_SINGLESTEP`. In an NMI this is unknown,
    /// and the result is false.
    pub fn debugger_steps(&self) -> bool {
        // SAFETY: `raw` is live, by the type invariant.
        !self.nmi && unsafe { bindings::rust_stepping_is_forced(self.raw.as_ptr()) }
    }

    /// Sets or clears the trap flag: while it is set, the processor traps after each instruction.
    ///
    /// A client that sets the flag clears it before the task leaves the CPU. The kernel sends a
    /// `SIGTRAP` for a trap that no client claims. In an NMI the flag cannot be set. If it is
    /// cleared in an NMI, the clear stays pending until the task's next trap or entry into the
    /// kernel. Traps until then have no effect.
    pub fn set_trap_flag(&mut self, trap: bool) {
        if self.nmi {
            if !trap {
                pending::add(self.raw);
            }
            return;
        }
        // SAFETY: `raw` is live, by the type invariant.
        let flags = unsafe { &raw mut (*self.raw.as_ptr()).flags };
        // SAFETY: This is a field of `raw`, which is live by the type invariant; the task, which
        // alone would write to it, does not run user code.
        let old = unsafe { flags.read() };
        let new = if trap {
            old | TRAP_FLAG
        } else {
            old & !TRAP_FLAG
        };

        // SAFETY: This is a field of `raw`, which is live by the type invariant, and to which there
        // is no reference.
        unsafe { flags.write(new) };
    }

    /// Whether the program would see the trap flag in the copy of the flags that the `syscall`
    /// instruction makes in `r11`.
    pub fn shows_trap_flag(&self) -> bool {
        // SAFETY: `raw` is live, by the type invariant.
        let flags = unsafe { (*self.raw.as_ptr()).r11 };
        // SAFETY: `raw` is live, by the type invariant.
        let next = unsafe { (*self.raw.as_ptr()).cx };
        // SAFETY: `raw` is live, by the type invariant.
        let ip = unsafe { (*self.raw.as_ptr()).ip };

        // `syscall` leaves the address of the next instruction in `rcx`. After `int 0x80` both
        // registers belong to the program.
        flags & TRAP_FLAG != 0 && next == ip
    }

    /// Clears the trap flag in the copy that `syscall` made in `r11`.
    pub fn hide_trap_flag(&mut self) {
        syscall::has_returned(self.raw);
        if self.shows_trap_flag() {
            // SAFETY: `raw` is live, by the type invariant, and there is no reference to it; the
            // task, which alone would write to it, does not run user code.
            unsafe { (*self.raw.as_ptr()).r11 &= !TRAP_FLAG };
        }
    }
}

/// The task to whose user code this CPU returns.
///
/// During a switch of tasks that is the next task. Dereferences to its registers.
///
/// Its lifetime is that of a callback, or of a [`Following`](crate::Following) and of a section
/// with interrupts off: until either ends, the task neither runs user code nor exits.
pub struct Current<'a>(Regs<'a>);

impl<'a> Current<'a> {
    /// The current task; [`None`] if this CPU does not return to user code: for a kernel thread, or
    /// a task that exits.
    ///
    /// # Safety
    ///
    /// Switches of tasks must be noted during `'a`.
    pub(crate) unsafe fn new(_irq: &'a LocalInterruptDisabled) -> Option<Self> {
        // SAFETY: Interrupts are off, which `_irq` proves, and switches are noted by the safety
        // requirement.
        let raw = NonNull::new(unsafe { bindings::rust_stepping_current_user_regs() })?;
        // SAFETY: Reading the context has no requirements.
        let nmi = unsafe { bindings::rust_stepping_in_nmi() };

        if !nmi {
            // SAFETY: The frame of the task that this CPU returns to, which is in the kernel while
            // this runs there; references to frames are not made.
            unsafe { clear_pending(raw) };
        }
        // SAFETY: This CPU does not leave the kernel while interrupts are off, which `_irq` proves
        // for `'a`; references to frames are not made.
        Some(Self(unsafe { Regs::new(raw, nmi) }))
    }

    /// Reads the task's memory at `address`, as far as that is possible without a page fault.
    /// Returns the number of bytes read. During a switch of tasks the memory may be the previous
    /// task's.
    ///
    /// Protection keys are not applied: text that the task can execute but not read is read too.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        // Reads up to the end of the page, then the rest in the next page.
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

    /// Whether `ip` is in the page that the kernel has put into the task for probes. No file has
    /// this code.
    ///
    /// Only for the running task: during a switch of tasks this is about the previous task.
    pub fn is_trampoline(&self, ip: u64) -> bool {
        // SAFETY: This reads the current task, and there always is one.
        if !unsafe { bindings::rust_stepping_has_probe_state() } {
            return false;
        }
        // The page of out-of-line copies begins with the trampoline.
        let page = u64::try_from(PAGE_SIZE).unwrap_or(u64::MAX);
        let mut text = [0; TRAMPOLINE.len()];
        let len = self.read(ip - ip % page, &mut text);

        len == text.len() && text == TRAMPOLINE
    }

    /// Writes to the task's memory at `address`; [`EFAULT`] if that would fault. Also [`EFAULT`]
    /// during a switch of tasks, when the memory may be the previous task's, and in an NMI while
    /// the task's page tables are not loaded.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result {
        if running() != Some(self.0.raw) {
            return Err(EFAULT);
        }
        // CAST: An address.
        let to = address as *mut c_void;
        let mut byte = 0u8;
        // `copy_to_user_nofault()` does not check which page tables are loaded, but this does. They
        // do not change until the copy: interrupts are off, and an NMI is not preempted by the code
        // that it interrupted.
        //
        // SAFETY: `byte` may be written; the function checks that `to` is in user space, and does
        // not fault.
        if unsafe { bindings::copy_from_user_nofault((&raw mut byte).cast(), to, 1) } != 0 {
            return Err(EFAULT);
        }

        // SAFETY: `bytes` may be read for its length; the function checks that `to` is in user
        // space, and does not fault. The task's page tables are loaded.
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

impl DerefMut for Current<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Clears the trap flag in these registers if a clear is pending. Returns whether it was.
///
/// # Safety
///
/// - `raw` must be the frame of a task that is in the kernel until this returns, or a frame of no
///   task.
/// - There must be no Rust reference to it.
pub(crate) unsafe fn clear_pending(raw: NonNull<bindings::pt_regs>) -> bool {
    let was = pending::take(raw);

    if was {
        // SAFETY: The caller guarantees both: the frame is of a task that is in the kernel until
        // this returns, or of no task, and there is no reference to it.
        let mut regs = unsafe { Regs::new(raw, false) };
        if regs.is_in_syscall() {
            regs.hide_trap_flag();
        }
        regs.set_trap_flag(false);
    }
    was
}

/// The frame of the running task, if it returns to user mode.
pub(crate) fn running() -> Option<NonNull<bindings::pt_regs>> {
    // SAFETY: This reads the current task, and there always is one.
    NonNull::new(unsafe { bindings::rust_stepping_running_user_regs() })
}

/// Reads memory of the current task. Returns whether all of it was read.
fn copy_in(address: u64, bytes: &mut [u8]) -> bool {
    // CAST: Both are addresses, and have 64 bits.
    let (from, len) = (address as c_ulong, bytes.len() as c_ulong);

    // SAFETY: `bytes` may be written for its length; the function checks that `from` is in user
    // space, and does not fault.
    unsafe { bindings::rust_stepping_read(bytes.as_mut_ptr().cast(), from, len) == 0 }
}
