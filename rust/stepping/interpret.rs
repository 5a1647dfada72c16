// SPDX-License-Identifier: GPL-2.0

//! Interprets a task's next instructions in its single-step trap.
//!
//! The interpreter accesses the task's own memory, with the task's permissions. If an access
//! faults, the instruction is left to the task. So the kernel sees the same faults, at the same
//! instructions.

use crate::{
    bindings,
    check::{
        self,
        Outcome, //
    },
    decoded::{
        Decoded,
        Pages, //
    },
    processor,
    task::{
        Code,
        Current, //
    }, //
};
use interpreter::{
    Ended,
    Float,
    Form,
    How,
    Machine,
    Native,
    Observer,
    PtWrite,
    Ran,
    Registers,
    Values,
    Width, //
};
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// The longest instruction, in bytes.
const LEN_MAX: usize = 15;

/// The resume flag in the flags register.
const RESUME_FLAG: c_ulong = 1 << 16;

/// The memory and the processor of the current task, with page faults disabled.
struct Here<'a> {
    fs_base: Option<u64>,
    pages: &'a mut Pages,
    /// Whether the tracepoint for generated code is enabled.
    reports_code: bool,
}

impl<'a> Here<'a> {
    /// Interrupts must be off, and `pages` must have been renewed.
    fn new(pages: &'a mut Pages) -> Self {
        // SAFETY: Page faults may be disabled in any context. `drop()` enables them again.
        unsafe { bindings::rust_stepping_access_begin() };
        Self {
            fs_base: None,
            pages,
            // SAFETY: Reading a static key has no requirements.
            reports_code: unsafe { bindings::rust_stepping_reports_code() },
        }
    }

    /// Whether the task may execute code in `words` words at `address`, which are at most a page.
    #[inline]
    fn can_execute(&mut self, address: u64, words: u32) -> bool {
        let last = address
            .wrapping_add(u64::from(words).wrapping_mul(8))
            .wrapping_sub(1);

        self.pages.can_execute(address, last)
    }

    /// Moves a vector register from or to memory, by the function for this register.
    #[inline]
    fn move_vector(
        &mut self,
        moves: &[bindings::rust_stepping_vector_move; 16],
        number: u8,
        address: u64,
    ) -> Option<()> {
        let function = (*moves.get(usize::from(number & 15))?)?;

        // SAFETY: The task's own register, with interrupts off, while it does not run user code;
        // the function keeps to user space, and does not wait for a page, by `new()`. CAST: An
        // address has 64 bits.
        unsafe { function(address as c_ulong) }.then_some(())
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        // SAFETY: `new()` has disabled page faults, for the same task: interrupts have been off
        // since.
        unsafe { bindings::rust_stepping_access_end() };
    }
}

/// Whether the processor has the instruction.
fn knows(native: Native) -> bool {
    let feature = match native {
        Native::Popcnt => Some(bindings::rust_stepping_feature_RUST_STEPPING_POPCNT),
        Native::Andn | Native::Blsr | Native::Blsmsk | Native::Blsi => {
            Some(bindings::rust_stepping_feature_RUST_STEPPING_BMI1)
        }
        Native::Bzhi | Native::Shlx | Native::Shrx | Native::Sarx => {
            Some(bindings::rust_stepping_feature_RUST_STEPPING_BMI2)
        }
        Native::Movbe => Some(bindings::rust_stepping_feature_RUST_STEPPING_MOVBE),
        _ => None,
    };
    // SAFETY: Reading the processor's features has no requirements.
    let lacks = |feature| !unsafe { bindings::rust_stepping_has(feature) };

    !feature.is_some_and(lacks)
}

impl Machine for Here<'_> {
    #[inline]
    fn load(&mut self, address: u64, width: Width) -> Option<u64> {
        let load = match width {
            Width::B1 => bindings::rust_stepping_load_1,
            Width::B2 => bindings::rust_stepping_load_2,
            Width::B4 => bindings::rust_stepping_load_4,
            Width::B8 => bindings::rust_stepping_load_8,
        };
        // SAFETY: The function keeps to user space, and does not wait for a page, by `new()`. CAST:
        // An address has 64 bits.
        let loaded = unsafe { load(address as c_ulong) };

        loaded.is_there.then_some(loaded.value)
    }

    #[inline]
    fn store(&mut self, address: u64, width: Width, value: u64) -> Option<()> {
        let store = match width {
            Width::B1 => bindings::rust_stepping_store_1,
            Width::B2 => bindings::rust_stepping_store_2,
            Width::B4 => bindings::rust_stepping_store_4,
            Width::B8 => bindings::rust_stepping_store_8,
        };

        // SAFETY: The function keeps to user space, and does not wait for a page, by `new()`. CAST:
        // An address has 64 bits.
        unsafe { store(address as c_ulong, value) }.then_some(())
    }

    fn replace(&mut self, address: u64, width: Width, old: u64, new: u64) -> Option<bool> {
        let replace = match width {
            Width::B1 => bindings::rust_stepping_replace_1,
            Width::B2 => bindings::rust_stepping_replace_2,
            Width::B4 => bindings::rust_stepping_replace_4,
            Width::B8 => bindings::rust_stepping_replace_8,
        };
        // SAFETY: The function keeps to user space, and does not wait for a page, by `new()`. CAST:
        // An address has 64 bits.
        let replaced = unsafe { replace(address as c_ulong, old, new) };

        replaced.is_there.then_some(replaced.value != 0)
    }

    #[inline]
    fn load_vector(&mut self, number: u8, address: u64, how: How) -> Option<()> {
        // SAFETY: C has defined the arrays `const`.
        let moves = unsafe {
            match how {
                How::Legacy => &bindings::rust_stepping_vector_load_legacy,
                How::Low => &bindings::rust_stepping_vector_load_low,
                How::Whole => &bindings::rust_stepping_vector_load_whole,
            }
        };

        self.move_vector(moves, number, address)
    }

    #[inline]
    fn store_vector(&mut self, number: u8, address: u64, how: How) -> Option<()> {
        // SAFETY: C has defined the arrays `const`.
        let moves = unsafe {
            match how {
                How::Legacy | How::Low => &bindings::rust_stepping_vector_store,
                How::Whole => &bindings::rust_stepping_vector_store_whole,
            }
        };

        self.move_vector(moves, number, address)
    }

    fn vector(&mut self, number: u8) -> Option<[u64; 4]> {
        let mut value = [0; 4];

        // SAFETY: `value` may be written. The task's own register, with interrupts off.
        unsafe { bindings::rust_stepping_vector_get(number.into(), value.as_mut_ptr()) }
            .then_some(value)
    }

    fn set_vector(&mut self, number: u8, value: [u64; 4], how: How) -> Option<()> {
        let set = match how {
            How::Legacy => bindings::rust_stepping_vector_set_legacy,
            How::Low => bindings::rust_stepping_vector_set_low,
            How::Whole => bindings::rust_stepping_vector_set_whole,
        };

        // SAFETY: `value` may be read. The task's own register, with interrupts off; the task does
        // not run user code.
        unsafe { set(number.into(), value.as_ptr()) }.then_some(())
    }

    fn zero_upper(&mut self) -> Option<()> {
        // SAFETY: The task's own registers, with interrupts off; the task does not run user code.
        unsafe { bindings::rust_stepping_vector_zero_upper() }.then_some(())
    }

    #[inline]
    fn text(&mut self, address: u64, words: &mut [u64]) -> bool {
        let Ok(len) = u32::try_from(words.len()) else {
            return false;
        };
        if !self.can_execute(address, len) {
            return false;
        }

        // SAFETY: `words` may be written for its length; the function checks that the address is in
        // user space, and does not wait for a page, by `new()`. CAST: An address has 64 bits.
        unsafe { bindings::rust_stepping_text(address as c_ulong, words.as_mut_ptr(), len) }
    }

    #[inline]
    fn has_text(&mut self, address: u64, words: &[u64], [first, last]: [u64; 2]) -> bool {
        let Ok(len) = u32::try_from(words.len()) else {
            return false;
        };
        if !self.can_execute(address, len) {
            return false;
        }

        // SAFETY: `words` may be read for its length; the function checks that the address is in
        // user space, and does not wait for a page, by `new()`. CAST: An address has 64 bits.
        unsafe {
            bindings::rust_stepping_has_text(address as c_ulong, words.as_ptr(), len, first, last)
        }
    }

    #[inline]
    fn pass(&self) -> u64 {
        self.pages.pass()
    }

    #[inline]
    fn is_settled(&mut self, first: u64, last: u64) -> bool {
        self.pages.is_settled(first, last)
    }

    #[inline]
    fn is_generated(&mut self, first: u64, last: u64) -> bool {
        self.reports_code && is_generated(first, last)
    }

    fn report(&mut self, first: u64, text: &[u8]) -> u64 {
        report_code(first, text)
    }

    fn is_replaced(&mut self, first: u64, last: u64, report: u64) -> bool {
        // SAFETY: Reading the table has no requirements. CAST: An address has 64 bits.
        unsafe { bindings::rust_stepping_is_replaced(first as c_ulong, last as c_ulong, report) }
    }

    #[inline]
    fn distrusts(&self) -> bool {
        DISTRUSTED.iter().any(|word| word.load(Relaxed) != 0)
    }

    fn is_distrusted(&self, form: Form) -> bool {
        let (word, bit) = bit(form);

        word.is_some_and(|word| word.load(Relaxed) & bit != 0)
    }

    #[inline]
    fn fs_base(&mut self) -> Option<u64> {
        // SAFETY: Interrupts are off, so the task stays on this CPU. CAST: An address has 64 bits.
        let read = || unsafe { bindings::rust_stepping_fs_base() } as u64;

        Some(*self.fs_base.get_or_insert_with(read))
    }

    #[inline]
    fn compute(
        &mut self,
        native: Native,
        width: Width,
        a: u64,
        b: u64,
        c: u64,
        flags: u64,
    ) -> Option<Values> {
        if !knows(native) {
            return None;
        }
        // SAFETY: The interpreter has found that a quotient fits. The instruction is known.
        unsafe { processor::compute(native, width, a, b, c, flags) }
    }

    fn float(
        &mut self,
        float: Float,
        double: bool,
        width: Width,
        a: u64,
        b: u64,
    ) -> Option<Values> {
        // SAFETY: Reading the state has no requirements. It does not change, as interrupts are off.
        if !unsafe { bindings::rust_stepping_vector_are_there() } {
            return None;
        }
        // SAFETY: The registers are the task's, which does not run user code; interrupts are off,
        // so nothing else uses them.
        unsafe { processor::float(float, double, width, a, b) }
    }
}

/// The processor of this machine.
struct This;

// SAFETY: The kernel knows what the processor has. `rust_stepping_vectors_begin()` gives the vector
// registers to its caller until `rust_stepping_vectors_end()`, and masks all exceptions.
unsafe impl check::Processor for This {
    fn knows(&self, native: Native) -> bool {
        knows(native)
    }

    fn with_vectors(&self, f: impl FnOnce() -> Outcome) -> Outcome {
        // SAFETY: This task calls `rust_stepping_vectors_end()` as soon as `f` has returned.
        // `compare()` is not called in an interrupt, so the vector registers may be used.
        unsafe { bindings::rust_stepping_vectors_begin() };
        let outcome = f();
        // SAFETY: This task has called `rust_stepping_vectors_begin()`.
        unsafe { bindings::rust_stepping_vectors_end() };
        outcome
    }
}

/// Forms for which this machine's processor and the interpreter differ, one bit each.
static DISTRUSTED: [Atomic<u64>; Form::COUNT / 64] = [Atomic::new(0), Atomic::new(0)];

/// The word and the bit of a form in [`DISTRUSTED`].
fn bit(form: Form) -> (Option<&'static Atomic<u64>>, u64) {
    let number = form.number();

    (
        DISTRUSTED.get(usize::from(number / 64)),
        1_u64.wrapping_shl(number.into()),
    )
}

/// Compares the interpreter with the processor. Passes the name of each instruction and the result
/// to `each`. Called in a task that may be preempted.
pub(crate) fn compare(each: impl FnMut(&'static str, Outcome)) {
    check::all(&This, each);
}

/// Finds the forms that differ, by [`compare()`]. Leaves them to the processor from now on, and
/// logs their names. Called once, before anything is interpreted.
pub(crate) fn check() {
    compare(|name, outcome| {
        if let Outcome::Differs(form) = outcome {
            pr_warn!("this processor executes `{name}` otherwise than expected: such instructions are stepped\n");
            if let (Some(word), bit) = bit(form) {
                word.store(word.load(Relaxed) | bit, Relaxed);
            }
        }
    });
}

/// Why a task executes an instruction itself, by a single step, and is not interpreted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Reason {
    /// The instruction is the first one after a return from the kernel. Interpretation begins only
    /// after a step.
    First = 0,
    /// The interpreter leaves the instruction to the processor.
    Left = 1,
    /// The interpreter has executed or decoded as many instructions as it may in one trap.
    Limit = 2,
    /// The client's observer has stopped the interpreter.
    Refused = 3,
    /// The task could not be interpreted: see [`Current::interpret`].
    State = 4,
    /// The client has not called the interpreter.
    Off = 5,
}

impl Reason {
    /// Why the next instruction is stepped after this outcome of [`Current::interpret`].
    pub fn after(ran: Option<&Ran>) -> Self {
        match ran.map(|ran| ran.ended) {
            None => Self::State,
            Some(Ended::Left) => Self::Left,
            Some(Ended::Limit) => Self::Limit,
            Some(Ended::Refused | Ended::Stopped { .. }) => Self::Refused,
        }
    }
}

/// Whether the current task's code from `first` to `last` is generated: no file has it. It is in
/// one page or two. False while the tracepoint `rust_stepping_code` is disabled.
fn is_generated(first: u64, last: u64) -> bool {
    // SAFETY: Reading a static key has no requirements.
    if !unsafe { bindings::rust_stepping_reports_code() } {
        return false;
    }
    // SAFETY: The function disables interrupts, so that the page tables stay. CAST: An address has
    // 64 bits.
    let is = |address: u64| unsafe { bindings::rust_stepping_is_generated(address as c_ulong) };

    is(first) || first >> PAGE_SHIFT != last >> PAGE_SHIFT && is(last)
}

impl Current<'_> {
    /// Interprets at most `limit` of the task's next instructions, until one is left to the
    /// processor. [`None`] if interpretation is not possible now.
    ///
    /// Rounds of a string instruction count towards the limit too. The caller keeps `decoded` from
    /// one call to the next, for the same task or another.
    ///
    /// Only in [`single_step`](crate::Tracer::single_step), for a trap that the tracer claims.
    /// Interrupts are off meanwhile.
    pub fn interpret(
        &mut self,
        decoded: &mut Decoded,
        observer: &mut impl Observer,
        limit: u32,
    ) -> Option<Ran> {
        // SAFETY: The frame is live, by the type invariant of `Regs`.
        let can = unsafe { bindings::rust_stepping_can_interpret(self.raw().as_ptr()) };
        if self.is_nmi() || !can {
            return None;
        }
        let mut registers = self.registers();
        decoded.begin();
        let mut here = Here::new(&mut decoded.pages);
        let ran = interpreter::run(
            &mut decoded.blocks,
            &mut registers,
            &mut here,
            observer,
            limit,
        );

        drop(here);

        self.set_registers(&registers);
        Some(ran)
    }

    /// Operand and width of the PTWRITE at `ip`, which is the task's next instruction or the one
    /// that it has just executed. [`None`] if another instruction is there, if the interpreter
    /// leaves the instruction to the processor, or if the operand cannot be read without a page
    /// fault.
    pub fn ptwrite(&mut self, ip: u64) -> Option<(u64, Width)> {
        self.find_ptwrite(ip)
            .map(|found| (found.operand, found.width))
    }

    /// Executes the task's next instruction if that is a PTWRITE: the task continues behind it.
    /// Returns whether it is one. [`ptwrite`](Self::ptwrite) returns its operand.
    pub fn skip_ptwrite(&mut self) -> bool {
        let Some(found) = self.find_ptwrite(self.ip()) else {
            return false;
        };
        let raw = self.raw().as_ptr();
        // SAFETY: The frame is live, by the type invariant; plain numbers are copied.
        let mut frame = unsafe { raw.read() };

        // CAST: An address has 64 bits.
        frame.ip = found.next as c_ulong;
        // The processor clears this flag after each instruction. It sets the flag when it reports a
        // fault.
        frame.flags &= !RESUME_FLAG;
        // SAFETY: The frame is live, by the type invariant, and there is no reference to it; the
        // task, which alone would write to it, does not run user code.
        unsafe { raw.write(frame) };
        true
    }

    fn find_ptwrite(&mut self, ip: u64) -> Option<PtWrite> {
        if self.is_nmi() || self.code() != Some(Code::Bits64) {
            return None;
        }
        let mut text = [0; LEN_MAX];
        let len = self.read(ip, &mut text);
        let registers = Registers {
            ip,
            ..self.registers()
        };

        // The text was read already, so the pages are not used.
        let mut pages = Pages::EMPTY;
        let mut here = Here::new(&mut pages);

        PtWrite::of(text.get(..len)?, &registers, &mut here)
    }

    /// Whether the task has taken the Jcc or JRCXZ at `ip`, which it has just executed. [`None`] if
    /// another instruction is there, or one that the interpreter leaves to the processor.
    pub fn is_taken(&mut self, ip: u64) -> Option<bool> {
        let mut text = [0; LEN_MAX];
        let len = self.read(ip, &mut text);
        let registers = Registers {
            ip,
            ..self.registers()
        };

        interpreter::is_taken(text.get(..len)?, &registers)
    }

    /// Reports `text` at `address` by the tracepoint `rust_stepping_code`, if no file has this
    /// code. The task is about to execute it, or has executed it. Returns whether no file has it.
    ///
    /// In a probe of this tracepoint, nothing is reported. In an NMI neither, and the result is
    /// false.
    pub fn report_generated(&self, address: u64, text: &[u8]) -> bool {
        let len = u64::try_from(text.len()).unwrap_or(0);
        let last = address.wrapping_add(len).wrapping_sub(1);
        let generated = !self.is_nmi() && !text.is_empty() && is_generated(address, last);

        if generated {
            report_code(address, text);
        }
        generated
    }

    /// Reports to the tracepoint `rust_stepping_step` that the task has executed the instruction at
    /// `address` itself.
    ///
    /// - `reason`: why it was not interpreted.
    /// - `instructions`: how many instructions the client counts for it.
    /// - `interpreted`: how many instructions the interpreter has executed since the last report.
    ///
    /// Costs next to nothing while the tracepoint is disabled.
    pub fn report_step(&self, address: u64, reason: Reason, instructions: u64, interpreted: u64) {
        // SAFETY: Reading a static key has no requirements.
        if unsafe { bindings::rust_stepping_reports_steps() } {
            self.report(address, reason, instructions, interpreted);
        }
    }

    #[cold]
    fn report(&self, address: u64, reason: Reason, instructions: u64, interpreted: u64) {
        let mut text = [0; LEN_MAX];
        let len = self.read(address, &mut text);

        // SAFETY: `text` may be read for `len` bytes, which are no more than it has. CAST: An
        // address has 64 bits; the others are small.
        unsafe {
            bindings::rust_stepping_report_step(
                address as c_ulong,
                text.as_ptr(),
                len as c_uint,
                reason as c_uint,
                instructions as c_uint,
                interpreted,
            )
        };
    }
}

/// Reports the current task's code at this address by the tracepoint `rust_stepping_code`. The
/// caller knows that no file has it. Returns the result of [`Machine::report`]. Does nothing in a
/// probe of the tracepoint.
pub(crate) fn report_code(address: u64, text: &[u8]) -> u64 {
    let Ok(len) = u32::try_from(text.len()) else {
        return u64::MAX;
    };

    // SAFETY: `text` may be read for its length. CAST: An address has 64 bits.
    unsafe { bindings::rust_stepping_report_code(address as c_ulong, text.as_ptr(), len) }
}
