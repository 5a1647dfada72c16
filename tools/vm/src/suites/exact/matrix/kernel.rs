// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that perf shows from the trace unit's trace what a CPU executed, according to the log of the plugin that implements the unit. The
//! log has no interrupts and exceptions, only the instruction that is executed next.

use super::branches::{flags, read, Shown, CALLS, RETURNS};
use super::executed::{Code, Executed, Kind, Printed, Step, Verdict};
use super::packets::error_of_clock;
use std::collections::HashMap;
use std::iter::Peekable;

/// Every `N`th instruction, in lines of `-F ip`.
pub(super) fn every_of_cpu<const N: usize>(said: &Printed<'_>) -> Verdict {
    let mut right = said
        .executed
        .first()
        .chunks_exact(N)
        .filter_map(<[_]>::last);
    let mut count = 0;
    for line in said.out.lines().filter(|line| !line.trim().is_empty()) {
        let right = right.next().map(|step| step.ip);
        let shown = u64::from_str_radix(line.trim(), 16).ok();
        if shown.is_none() || shown != right {
            return Err(format!(
                "after {count} that are right perf shows `{line}` for {right:x?}"
            ));
        }
        count += 1;
    }
    match right.count() {
        0 if count > 0 => Ok(format!("{count} instructions, each of them")),
        left => Err(format!("perf does not show the last {left} instructions")),
    }
}

/// All branches of the kernel's code, in lines of `-F tid,flags,ip,addr`.
pub(super) fn branches_of_kernel(said: &Printed<'_>) -> Verdict {
    let lines = said.out.lines().filter(|line| !line.trim().is_empty());
    let shown: Result<Vec<_>, _> = lines
        .map(|line| read(line).map(|(_, shown)| shown).ok_or(line))
        .collect();
    let shown = shown.map_err(|line| format!("perf shows `{line}`"))?;
    let mut follow = Follow {
        executed: said.executed,
        shown: shown.into_iter().peekable(),
        branches: 0,
        interrupts: 0,
        to_user: 0,
    };
    follow.all()?;
    Ok(format!(
        "{} branches, {} interrupts and exceptions, {} returns to user space, each of them",
        follow.branches, follow.interrupts, follow.to_user
    ))
}

/// The output has all branches, a line `some`, and lines of the same form with the branches of the kinds `WHICH`.
pub(super) fn some_of_kernel<const WHICH: u8>(said: &Printed<'_>) -> Verdict {
    let (all, shown) = said
        .out
        .split_once("\nsome\n")
        .ok_or("there is no line `some`")?;
    branches_of_kernel(&Printed { out: all, ..*said })?;
    let is = |line: &&str| {
        let flags = read(line).map(|(_, shown)| shown.flags).unwrap_or_default();
        let calls = ["call", "int", "hw int", "syscall", "async"];
        let returns = ["return", "iret", "sysret"];
        let kind = flags.strip_prefix("tr end").unwrap_or(&flags).trim();
        WHICH & CALLS != 0 && (flags.starts_with("tr end") || calls.contains(&kind))
            || WHICH & RETURNS != 0 && (flags == "tr strt" || returns.contains(&kind))
    };
    let mut right = all.lines().filter(is);
    let mut count = 0;
    for line in shown.lines().filter(|line| !line.trim().is_empty()) {
        let right = right.next();
        if right != Some(line) {
            return Err(format!("perf shows `{line}`, and {right:?} is right"));
        }
        count += 1;
    }
    match right.count() {
        0 if count > 0 => Ok(format!("{count} branches, each of them")),
        left => Err(format!("perf does not show the last {left} branches")),
    }
}

struct Follow<'a, I: Iterator<Item = Shown>> {
    executed: &'a Executed,
    shown: Peekable<I>,
    branches: usize,
    interrupts: usize,
    to_user: usize,
}

impl<I: Iterator<Item = Shown>> Follow<'_, I> {
    fn all(&mut self) -> Result<(), String> {
        let steps = self.executed.first();
        let first = steps.first().ok_or("nothing is executed")?;
        self.begins(first.ip)?;
        for step in steps {
            match step.next {
                Some(next) => self.leads_to(step, next)?,
                // The trace ends here.
                None => return self.ends(step),
            }
        }
        Ok(())
    }

    /// After the last instruction, perf may show only its branch and the end of the trace.
    fn ends(&mut self, step: &Step) -> Result<(), String> {
        // The target of the last instruction is not in the log.
        let leads = step.kind != Kind::Conditional || !self.is_break(step.behind());
        let at = match leads {
            true => self.branches_to(step, u64::MAX)?,
            false => Some(step.behind()),
        };
        if let Some(at) = at {
            let to = self.take(&[at], |flags| flags.starts_with("tr end"), "the end")?;
            if to != 0 {
                return Err(format!("the trace ends, and perf shows {to:x}"));
            }
        }
        match self.shown.next() {
            None => Ok(()),
            more => Err(format!(
                "{step:x?} is executed last, and perf shows {more:x?}"
            )),
        }
    }

    /// Takes the next branch that perf shows. It must come from one of these addresses, and its flags must be right. Returns its target.
    fn take(
        &mut self,
        from: &[u64],
        is_right: impl Fn(&str) -> bool,
        what: &str,
    ) -> Result<u64, String> {
        match self.shown.next() {
            Some(shown) if from.contains(&shown.from) && is_right(&shown.flags) => Ok(shown.to),
            shown => Err(format!(
                "after {} branches {what} at {from:x?} is executed, and perf shows {shown:x?}",
                self.branches
            )),
        }
    }

    fn begins(&mut self, at: u64) -> Result<(), String> {
        let to = self.take(&[0], |flags| flags == "tr strt", "a beginning")?;
        match to == at {
            true => Ok(()),
            false => Err(format!("the trace begins at {at:x}, and perf shows {to:x}")),
        }
    }

    fn leads_to(&mut self, step: &Step, next: u64) -> Result<(), String> {
        let Some(at) = self.branches_to(step, next)? else {
            return Ok(());
        };
        if at == next && !self.is_break(next) {
            return Ok(());
        }
        // If the instruction has faulted, the interrupt comes from the instruction itself.
        let from: &[u64] = match step.kind {
            Kind::Plain => &[at, step.ip],
            _ => &[at],
        };
        let is_interrupt = |flags: &str| {
            let flags = flags.strip_prefix("tr end").unwrap_or(flags);
            ["", "int", "hw int", "async"].contains(&flags.trim())
        };
        let to = self.take(from, is_interrupt, "an interrupt")?;
        if to == 0 {
            return self.begins(next);
        }
        self.interrupts += 1;
        let is_entry = ["asm_", "irq_entries", "error_entry", "nmi"]
            .iter()
            .any(|prefix| self.executed.code.has_name(next, prefix));
        match to == next && is_entry {
            true => Ok(()),
            false => Err(format!(
                "{next:x} is executed behind {step:x?}, and perf shows an interrupt to {to:x}"
            )),
        }
    }

    /// Where the instruction itself leads, as perf shows it. `None` if it leads to user space: then the next beginning of the trace is
    /// checked here.
    fn branches_to(&mut self, step: &Step, next: u64) -> Result<Option<u64>, String> {
        let target = self.executed.code.target(step.ip);
        let right = flags(step.kind);
        let is_shown = self.shown.peek().is_some_and(|shown| shown.from == step.ip);
        match step.kind {
            Kind::Plain => return Ok(Some(step.behind())),
            Kind::Conditional => {
                let takes = |shown: &Shown| shown.from == step.ip && Some(shown.to) == target;
                // perf shows a conditional branch only if it is taken.
                let taken = next != step.behind() && self.shown.peek().is_some_and(takes);
                if !taken {
                    return Ok(Some(step.behind()));
                }
            }
            Kind::FarReturn if is_shown => {
                let to = self.take(
                    &[step.ip],
                    |flags| ["iret", "sysret", "tr end iret", "tr end sysret"].contains(&flags),
                    "a far return",
                )?;
                if to == 0 {
                    self.to_user += 1;
                    self.begins(next)?;
                    return Ok(None);
                }
                self.branches += 1;
                return Ok(Some(to));
            }
            _ => {}
        }
        let to = self.take(&[step.ip], |flags| flags == right, right)?;
        let is_direct = matches!(step.kind, Kind::Conditional | Kind::Jump | Kind::Call);
        if is_direct && Some(to) != target {
            return Err(format!("{step:x?} is executed, and perf shows {to:x}"));
        }
        self.branches += 1;
        Ok(Some(to))
    }

    /// Whether perf shows next that the trace ends before this instruction, without a branch that ends it.
    fn is_break(&mut self, at: u64) -> bool {
        let ends = |shown: &Shown| {
            shown.from == at && shown.to == 0 && ["tr end", "tr end async"].contains(&&*shown.flags)
        };
        self.shown.peek().is_some_and(ends)
    }
}

/// Lines of `--ns -F time,flags,ip,addr`, with a clock that advances by 1 ns an instruction. Between two branches that have their own
/// packets, it must advance by the number of executed instructions. It may advance more for an instruction that repeats itself, and for an
/// interrupt.
pub(super) fn times(said: &Printed<'_>) -> Verdict {
    let steps = said.executed.first();
    let mut repeats: HashMap<u64, bool> = HashMap::new();
    let mut at = 0;
    let mut before = None;
    // Whether more time may have passed since the branch before.
    let mut more = false;
    let (mut exact, mut all) = (0_u64, 0_u64);
    let mut last = 0;
    let error = error_of_clock(said.out);
    let is_branch = |line: &&str| !line.trim().is_empty() && !line.contains("Time ");
    for line in said.out.lines().filter(is_branch) {
        let wrong = || format!("perf shows `{line}`");
        let (time, rest) = line.split_once(':').ok_or_else(wrong)?;
        let time: u64 = time.trim().replace('.', "").parse().map_err(|_| wrong())?;
        if time < last {
            return Err(format!("{last} is before `{line}`"));
        }
        last = time;
        let (_, shown) = read(&format!("0 {rest}")).ok_or_else(wrong)?;
        if shown.from == 0 || is_by_processor(&shown.flags) {
            more = true;
            continue;
        }
        let behind = steps.get(at..).unwrap_or_default();
        let passed = behind.iter().position(|step| step.ip == shown.from);
        let passed = passed.ok_or_else(|| format!("`{line}` is not executed"))? + 1;
        let passed_steps = behind.get(..passed).unwrap_or_default();
        more |= passed_steps.iter().any(|step| {
            let repeats = repeats
                .entry(step.ip)
                .or_insert_with(|| said.executed.code.repeats(step.ip));
            *repeats
        });
        at += passed;
        let by_address = |step: &Step| has_address(step, shown.to, &said.executed.code);
        if !passed_steps.last().is_some_and(by_address) {
            continue;
        }
        if let Some((time_before, at_before)) = before.replace((time, at)) {
            let passed = u64::try_from(at - at_before).unwrap_or(u64::MAX);
            let right = passed.abs_diff(time - time_before) <= error;
            if !right && (!more || time - time_before < passed) {
                return Err(format!(
                    "{passed} instructions are executed in {} ns up to `{line}`",
                    time - time_before
                ));
            }
            all += 1;
            exact += u64::from(right);
        }
        more = false;
    }
    match exact {
        0 => Err("no time between two branches can be compared".to_owned()),
        _ => Ok(format!(
            "{exact} of {all} times are exact, the others have user code, interrupts, or instructions that repeat between"
        )),
    }
}

/// Whether the trace has a packet with the target of this instruction, `to`. A return to the first instruction of a function has one, as no
/// call has such a return address. The next step does not tell: it can be that of an interrupt.
fn has_address(step: &Step, to: u64, code: &Code) -> bool {
    match step.kind {
        Kind::IndirectJump | Kind::IndirectCall => true,
        Kind::Return => code.function(to) == Some(to),
        _ => false,
    }
}

/// Whether these flags are not those of a branch instruction.
fn is_by_processor(flags: &str) -> bool {
    matches!(
        flags,
        "hw int" | "int" | "async" | "tr end" | "tr end async" | "tr end hw int"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call, an interrupt in front of the return, a branch that is taken, and a return to user space.
    fn executed() -> Executed {
        let mut image = vec![0x90; 0x3000];
        let mut put = |at: usize, bytes: &[u8]| {
            image[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, &[0xe8, 0x0b, 0, 0, 0, 0x74, 0x02]);
        put(9, &[0x48, 0xcf]);
        put(0x11, &[0xc3]);
        put(0x1001, &[0x48, 0xcf]);
        let symbols = "1000 t f\n1010 t g\n1020 t h\n2000 T asm_exc\n3000 T entry\n";
        let code = Code::of_kernel(&image, "0 3000 1000\n", symbols);
        let log = "1000 1010 2000 2001 1011 1005 1009 3000 3001";
        Executed::by_cpu(log.split(' '), code).unwrap()
    }

    fn verdict(right: fn(&Printed<'_>) -> Verdict, lines: &[&str]) -> Verdict {
        let (out, executed) = (lines.join("\n"), executed());
        right(&Printed {
            out: &out,
            executed: &executed,
        })
    }

    const BRANCHES: [&str; 9] = [
        "7 tr strt jmp 0 => 1000",
        "7 call 1000 => 1010",
        "7 hw int 1011 => 2000",
        "7 iret 2001 => 1011",
        "7 return 1011 => 1005",
        "7 jcc 1005 => 1009",
        "7 tr end iret 1009 => 0",
        "7 tr strt jmp 0 => 3000",
        "7 tr end 3002 => 0",
    ];

    #[test]
    fn each_branch_is_needed() {
        verdict(branches_of_kernel, &BRANCHES).unwrap();
        for (at, line) in BRANCHES.iter().enumerate() {
            let mut less = BRANCHES.to_vec();
            less.remove(at);
            verdict(branches_of_kernel, &less).expect_err(line);
            less.insert(at, "7 jmp 1005 => 1009");
            verdict(branches_of_kernel, &less).expect_err(line);
        }
        // An interrupt must lead to an entry point for interrupts.
        let elsewhere = BRANCHES.map(|line| line.replace("2000", "1020"));
        let elsewhere = elsewhere.each_ref().map(String::as_str);
        verdict(branches_of_kernel, &elsewhere).unwrap_err();
    }

    #[test]
    fn each_branch_of_a_kind_is_needed() {
        type Right = fn(&Printed<'_>) -> Verdict;
        let table: [(Right, &[usize]); 2] = [
            (some_of_kernel::<CALLS>, &[1, 2, 6, 8]),
            (some_of_kernel::<RETURNS>, &[0, 3, 4, 6, 7]),
        ];
        for (right, of_kind) in table {
            let mut lines = BRANCHES.to_vec();
            lines.push("some");
            lines.extend(of_kind.iter().map(|at| BRANCHES[*at]));
            verdict(right, &lines).unwrap();
            for at in BRANCHES.len() + 1..lines.len() {
                let mut less = lines.clone();
                let line = less.remove(at);
                verdict(right, &less).expect_err(line);
            }
            lines.push(BRANCHES[5]);
            verdict(right, &lines).expect_err("a branch of another kind");
            lines.remove(4);
            verdict(right, &lines).expect_err("a branch is not executed");
        }
    }

    #[test]
    fn each_instruction_is_needed() {
        let all = [
            "1000", "1010", "2000", "2001", "1011", "1005", "1009", "3000", "3001",
        ];
        verdict(every_of_cpu::<1>, &all).unwrap();
        verdict(every_of_cpu::<1>, &all[..8]).unwrap_err();
        verdict(every_of_cpu::<1>, &all[1..]).unwrap_err();
        verdict(every_of_cpu::<4>, &["2001", "3000"]).unwrap();
        verdict(every_of_cpu::<4>, &["2001", "1009"]).unwrap_err();
    }

    fn are_right(out: &str, executed: &Executed) -> bool {
        times(&Printed { out, executed }).is_ok()
    }

    #[test]
    fn times_are_exact() {
        let mut image = vec![0x90; 0x30];
        // Three indirect calls. There is a NOP before the second, and an instruction that repeats itself before the third.
        for at in [0x00, 0x11, 0x22] {
            image[at..at + 2].copy_from_slice(&[0xff, 0xd0]);
        }
        image[0x20..0x22].copy_from_slice(&[0xf3, 0xaa]);
        let code = Code::of_kernel(&image, "0 30 1000\n", "1000 t f\n");
        let log = "1000 1010 1011 1020 1022 1028".split(' ');
        let executed = Executed::by_cpu(log, code).unwrap();
        let table = [
            ("1.000000002", "1.000000004", true),
            ("1.000000002", "1.000000009", true),
            ("1.000000001", "1.000000009", false),
            ("1.000000003", "1.000000009", false),
            ("1.000000002", "1.000000003", false),
            ("0.999999999", "1.000000009", false),
        ];
        for (second, third, right) in table {
            let out = format!(
                "1.000000000: call 1000 => 1010\n{second}: call 1011 => 1020\n{third}: call 1022 => 1028\n"
            );
            assert_eq!(are_right(&out, &executed), right, "{second} {third}");
        }
    }

    #[test]
    fn a_return_before_an_interrupt_has_no_time() {
        let mut image = vec![0x90; 0x30];
        // Indirect calls, a return, and IRET.
        for (at, code) in [
            (0, &[0xff, 0xd0, 0xff, 0xd0][..]),
            (0x10, &[0xc3]),
            (0x20, &[0x48, 0xcf]),
        ] {
            image[at..at + code.len()].copy_from_slice(code);
        }
        let symbols = "1000 t f\n1010 t g\n1020 t asm_exc\n1028 t h\n";
        let code = Code::of_kernel(&image, "0 30 1000\n", symbols);
        let log = "1000 1010 1020 1002 1028".split(' ');
        let executed = Executed::by_cpu(log, code).unwrap();
        for (last, right) in [("1.000000003", true), ("1.000000002", false)] {
            // The return is a bit of a packet that was written later.
            let out = format!(
                "1.000000000: call 1000 => 1010\n1.000000002: return 1010 => 1002\n1.000000002: hw int 1002 => 1020\n1.000000002: iret 1020 => 1002\n{last}: call 1002 => 1028\n"
            );
            assert_eq!(are_right(&out, &executed), right, "{last}");
        }
    }
}
