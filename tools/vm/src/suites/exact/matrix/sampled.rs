// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the records of sampled instructions in the trace: which instructions they are for, and the values of registers. For the
//! registers, the program is executed once more here.

use super::executed::{Executed, Printed, Step, Verdict};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use std::collections::HashMap;

/// Each block of records must have the number of its counter, and a record in the ring must assign this number to an event.
pub(super) fn numbered(said: &Printed<'_>) -> Verdict {
    let has = |text: &str| said.out.lines().filter(|line| line.contains(text)).count();
    let (ids, records, numbers) = (
        has("PERF_RECORD_AUX_OUTPUT_HW_ID hw_id: 0"),
        has(" BBP SZ 8-byte Type 0x4"),
        has(" BIP ID 0x01 Value 0x1"),
    );
    if ids == 0 || records == 0 || records > numbers {
        return Err(format!(
            "{ids} records of the ring, {records} records in the trace, {numbers} numbers"
        ));
    }
    Ok(format!("{records} records, each with its number"))
}

/// The registers after each `N`th instruction. The address of the stack is taken from the first record. Of the flags, only the trap flag is
/// checked, which must never be set.
pub(super) fn registers<const N: usize>(said: &Printed<'_>) -> Verdict {
    let shown: Vec<_> = said
        .out
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let states = states(said.executed)?;
    let right: Vec<_> = states.chunks_exact(N).filter_map(<[_]>::last).collect();
    if shown.len() != right.len() || right.is_empty() {
        return Err(format!(
            "perf shows {} records, and {} are right",
            shown.len(),
            right.len()
        ));
    }
    let mut stack = None;
    let mut compared = 0;
    for (line, state) in shown.iter().zip(right) {
        let fail = |what: &str| format!("perf shows `{line}`, and {what}");
        let mut words = line.split_whitespace();
        let ip = words
            .next()
            .and_then(|word| u64::from_str_radix(word, 16).ok());
        if ip != Some(state.ip) {
            return Err(fail(&format!("{:x} was executed", state.ip)));
        }
        let mut values = HashMap::new();
        for word in words {
            let (name, value) = word.split_once(':').ok_or_else(|| fail("has no `:`"))?;
            let value = u64::from_str_radix(value.trim_start_matches("0x"), 16);
            values.insert(name, value.map_err(|_| fail("a value is no number"))?);
        }
        let value = |name: &str| values.get(name).copied().ok_or_else(|| fail(name));
        if value("FLAGS")? & 0x100 != 0 {
            return Err(fail("the trap flag is set"));
        }
        if state.next.is_some_and(|next| value("IP") != Ok(next)) {
            return Err(fail("another instruction is next"));
        }
        for (name, register) in NAMES {
            let Some(right) = state.registers.get(&register) else {
                continue;
            };
            let shown = value(name)?;
            let right = match register {
                Register::RSP => {
                    let bottom = *stack.get_or_insert(shown.wrapping_sub(*right));
                    right.wrapping_add(bottom)
                }
                _ => *right,
            };
            if shown != right {
                return Err(fail(&format!("{name} is {right:#x}")));
            }
            compared += 1;
        }
        if state.has_flags && value("R11")? & 0x100 != 0 {
            return Err(fail("the program sees the trap flag"));
        }
    }
    Ok(format!(
        "{} records, {compared} registers of them",
        shown.len()
    ))
}

const NAMES: [(&str, Register); 16] = [
    ("AX", Register::RAX),
    ("BX", Register::RBX),
    ("CX", Register::RCX),
    ("DX", Register::RDX),
    ("SI", Register::RSI),
    ("DI", Register::RDI),
    ("BP", Register::RBP),
    ("SP", Register::RSP),
    ("R8", Register::R8),
    ("R9", Register::R9),
    ("R10", Register::R10),
    ("R11", Register::R11),
    ("R12", Register::R12),
    ("R13", Register::R13),
    ("R14", Register::R14),
    ("R15", Register::R15),
];

/// The known values after an instruction.
struct State {
    ip: u64,
    next: Option<u64>,
    registers: HashMap<Register, u64>,
    /// Whether R11 contains the flags, as a system call saves them there.
    has_flags: bool,
}

/// Executes the program `registers`. Returns its registers after each instruction of the log.
fn states(executed: &Executed) -> Result<Vec<State>, String> {
    let [steps] = executed.threads.as_slice() else {
        return Err("the program has more than one thread".to_owned());
    };
    let mut registers = HashMap::from([(Register::RSP, 0)]);
    let mut has_flags = false;
    let mut called = false;
    let mut states = Vec::new();
    for step in steps {
        if std::mem::take(&mut called) {
            // The system call is getuid(), and the user is root.
            registers.insert(Register::RAX, 0);
        }
        let insn = executed.code.instruction(step.ip);
        let insn = insn.ok_or_else(|| format!("there is no code at {:x}", step.ip))?;
        if insn.mnemonic() == Mnemonic::Syscall {
            registers.insert(Register::RCX, step.behind());
            registers.remove(&Register::R11);
            (called, has_flags) = (true, true);
        } else {
            execute(&insn, step, &mut registers)?;
        }
        states.push(State {
            ip: step.ip,
            next: step.next,
            registers: registers.clone(),
            has_flags,
        });
    }
    Ok(states)
}

/// Executes an instruction. Supports only those that the program has.
fn execute(
    insn: &Instruction,
    step: &Step,
    registers: &mut HashMap<Register, u64>,
) -> Result<(), String> {
    let strange = || format!("{:?} at {:x} is not expected", insn.code(), step.ip);
    let to = insn.op0_register().full_register();
    let old = registers.get(&to).copied();
    let new = match insn.mnemonic() {
        Mnemonic::Jne => return Ok(()),
        Mnemonic::Pushfq => {
            let stack = registers.get_mut(&Register::RSP).ok_or_else(strange)?;
            *stack = stack.wrapping_sub(8);
            return Ok(());
        }
        // A move of 4 bytes clears the upper 4 bytes.
        Mnemonic::Mov if insn.op1_kind() != OpKind::Register => insn.immediate(1),
        Mnemonic::Add => old.ok_or_else(strange)?.wrapping_add(insn.immediate(1)),
        Mnemonic::Dec => old.ok_or_else(strange)?.wrapping_sub(1),
        Mnemonic::Lea if insn.memory_base() == to => old
            .ok_or_else(strange)?
            .wrapping_add(insn.memory_displacement64()),
        _ => return Err(strange()),
    };
    registers.insert(to, new);
    Ok(())
}
