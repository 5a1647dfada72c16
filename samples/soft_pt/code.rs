// SPDX-License-Identifier: GPL-2.0

//! A task's code, stack and registers.

use crate::{
    ring::Ring,
    sampler::Sampler, //
};
use intel_pt::{
    insn::{
        Insn,
        Mode,
        LEN_MAX, //
    },
    Encoder,
    Full,
    Sample, //
};
use stepping::{
    Code,
    Current,
    Registers, //
};

/// `int3`.
pub(crate) const BREAKPOINT: u8 = 0xcc;

/// The trap flag.
const TRAP_FLAG: u64 = 1 << 8;

/// The mode of this kind of code.
pub(crate) fn mode_of(code: Code) -> Mode {
    match code {
        Code::Bits64 => Mode::Bits64,
        Code::Bits32 => Mode::Bits32,
    }
}

/// The mode of the task's code.
pub(crate) fn mode(task: &Current<'_>) -> Mode {
    task.code().map_or(Mode::Bits64, mode_of)
}

/// The instruction at `ip`, if it can be read now.
pub(crate) fn read(task: &Current<'_>, ip: u64) -> Option<Insn> {
    let mut text = [0; LEN_MAX];
    let len = task.read(ip, &mut text);

    Insn::decode(text.get(..len)?, mode(task))
}

/// Reads the instruction at `ip`, which the task executes. Reports its text to the tracepoint if no
/// file has it. Returns the instruction, and whether it was reported. `int3` is never reported: if
/// the kernel has placed it, the task executes another instruction.
pub(crate) fn read_and_report(task: &Current<'_>, ip: u64) -> (Option<Insn>, bool) {
    let mut text = [0; LEN_MAX];
    let len = task.read(ip, &mut text);
    let text = text.get(..len).unwrap_or(&[]);
    let insn = Insn::decode(text, mode(task));
    let reported = insn
        .and_then(|insn| text.get(..insn.len.into()))
        .filter(|text| text.first() != Some(&BREAKPOINT))
        .is_some_and(|text| task.report_generated(ip, text));

    (insn, reported)
}

/// The instruction at `ip`, which the task executes: `insn`, or the instruction that can be read
/// now. If its text is reported to the tracepoint, the trace begins anew in front of it.
pub(crate) fn executed(
    insn: Option<Insn>,
    ip: u64,
    encoder: &mut Encoder,
    ring: &mut Ring<'_>,
    task: &Current<'_>,
) -> Result<Option<Insn>, Full> {
    if insn.is_some() || !encoder.is_on() {
        return Ok(insn.or_else(|| read(task, ip)));
    }
    let (insn, reported) = read_and_report(task, ip);

    if reported {
        cut(encoder, ring, ip, mode(task))?;
    }
    Ok(insn)
}

/// Ends the trace at `ip` and begins it anew there, with a new time. The decoder then uses the code
/// that was reported to the tracepoint before.
pub(crate) fn cut(
    encoder: &mut Encoder,
    ring: &mut Ring<'_>,
    ip: u64,
    mode: Mode,
) -> Result<(), Full> {
    encoder.disable(ip, ring)?;
    encoder.enable(ip, mode, ring)
}

/// Whether the task has taken the branch at `from`, which it has just executed. [`None`] if the
/// target is not the next instruction: the task's address shows it then. perf decodes bits of data
/// from branches to the next instruction.
pub(crate) fn taken_in_place(task: &mut Current<'_>, insn: &Insn, from: u64) -> Option<bool> {
    if insn.target(from) == Some(insn.next(from)) {
        task.is_taken(from)
    } else {
        None
    }
}

/// Clears the trap flag in the flags that the task has pushed.
pub(crate) fn hide_trap_flag(task: &Current<'_>) {
    let place = task.sp().wrapping_add(1);
    let mut byte = [0];

    if task.read(place, &mut byte) == 1 {
        // If the stack is no longer mapped, the program cannot read the flag.
        let _ = task.write(place, &byte.map(|byte| byte & !1));
    }
}

/// The registers of the task after the instruction at `ip`, which it has executed last. `hide`: the
/// trap flag is not the program's.
pub(crate) fn registers(task: &mut Current<'_>, ip: u64, hide: bool) -> Sample {
    let Registers {
        mut general,
        ip: next,
        flags,
    } = task.registers_behind();
    let hidden = if hide { TRAP_FLAG } else { 0 };

    if task.shows_trap_flag() {
        let [.., r11, _, _, _, _] = &mut general;
        *r11 &= !hidden;
    }
    Sample {
        ip,
        counters: Sampler::bit(),
        next,
        flags: flags & !hidden,
        general,
    }
}
