// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that perf shows all branches that were executed, each with its addresses and its kind, in order, and no others.
//!
//! If only user code is traced, perf shows a branch to 0 where the trace ends, and a branch from 0 where it begins again. At each system
//! call, there must be both. There may be more of them between two instructions, where the kernel had the CPU. These are skipped.

use super::executed::{Kind, Printed, Step, Verdict};
use std::collections::BTreeMap;

/// A branch as perf shows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub flags: String,
    pub from: u64,
    pub to: u64,
}

/// Calls, and ends of the trace.
pub(super) const CALLS: u8 = 1;
/// Returns, and beginnings of the trace.
pub(super) const RETURNS: u8 = 2;
/// All branches.
pub(super) const ALL: u8 = 7;

/// Compares lines of `-F tid,flags,ip,addr` with all branches of these kinds.
pub(super) fn branches<const WHICH: u8>(said: &Printed<'_>) -> Verdict {
    let mut shown: BTreeMap<u32, Vec<Shown>> = BTreeMap::new();
    for line in said.out.lines().filter(|line| !line.trim().is_empty()) {
        let (tid, branch) = read(line).ok_or_else(|| format!("perf shows `{line}`"))?;
        shown.entry(tid).or_default().push(branch);
    }
    let threads = &said.executed.threads;
    if shown.len() != threads.len() {
        return Err(format!(
            "{} threads were executed, and branches of {} are shown",
            threads.len(),
            shown.len()
        ));
    }
    let mut counts = Counts::default();
    for (steps, (tid, shown)) in threads.iter().zip(&shown) {
        follow(steps, shown, WHICH, &mut counts).map_err(|why| format!("thread {tid}: {why}"))?;
    }
    Ok(format!(
        "{} branches and {} system calls, each of them; the trace ends {} times between instructions",
        counts.branches, counts.syscalls, counts.breaks
    ))
}

#[derive(Default)]
struct Counts {
    branches: usize,
    syscalls: usize,
    breaks: usize,
}

/// Parses a line such as ` 1034 tr end  syscall  401000 => 0`.
pub(super) fn read(line: &str) -> Option<(u32, Shown)> {
    let (left, right) = line.split_once("=>")?;
    let mut words: Vec<_> = left.split_whitespace().collect();
    // Removes flags in parentheses: the rows for events check whether interrupts are enabled.
    words.retain(|word| !word.starts_with('('));
    let from = address(words.pop()?)?;
    let to = address(right.split_whitespace().next()?)?;
    let (tid, flags) = words.split_first()?;
    // perf may also call the beginning of a trace a jump.
    let flags = match flags {
        ["tr", "strt", ..] => "tr strt".to_owned(),
        _ => flags.join(" "),
    };
    Some((tid.parse().ok()?, Shown { flags, from, to }))
}

fn address(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
}

/// The flags that perf shows for a branch.
pub(super) fn flags(kind: Kind) -> &'static str {
    match kind {
        Kind::Plain => "",
        Kind::Conditional => "jcc",
        Kind::Jump | Kind::IndirectJump => "jmp",
        Kind::Call | Kind::IndirectCall => "call",
        Kind::Return => "return",
        Kind::Syscall => "tr end syscall",
        Kind::FarReturn => "iret",
    }
}

/// Whether a step is shown among the branches of these kinds.
fn is_shown(step: &Step, which: u8) -> bool {
    match step.kind {
        Kind::Syscall => which & CALLS != 0,
        _ if step.target().is_none() => false,
        Kind::Call | Kind::IndirectCall => which & CALLS != 0,
        Kind::Return => which & RETURNS != 0,
        _ => which == ALL,
    }
}

/// Compares the steps of one thread with the branches that are shown of it.
fn follow(steps: &[Step], shown: &[Shown], which: u8, counts: &mut Counts) -> Result<(), String> {
    let begins = which & RETURNS != 0;
    let ends = which & CALLS != 0;
    let mut shown = shown.iter().peekable();
    // The address at which the trace must begin next, if its beginnings are shown.
    let mut begin = begins.then(|| steps.first().map(|step| step.ip)).flatten();
    let mut at = 0;
    loop {
        let next = steps.get(at..).unwrap_or_default();
        let is_next = |step: &Step| {
            is_shown(step, which) || begins && step.kind == Kind::Syscall && step.next.is_some()
        };
        let next = next.iter().position(is_next);
        let next = next.map(|next| at + next);
        let Some(branch) = shown.peek() else {
            return match next {
                None => Ok(()),
                Some(next) => Err(format!(
                    "{:x?} is executed, and the end is shown",
                    steps.get(next)
                )),
            };
        };
        if let Some(to) = begin.take() {
            if **branch
                != (Shown {
                    flags: "tr strt".to_owned(),
                    from: 0,
                    to,
                })
            {
                return Err(format!(
                    "the trace begins at {to:x}, and perf shows {branch:x?}"
                ));
            }
            shown.next();
            continue;
        }
        // The trace may end before any of the instructions up to the next branch.
        let straight = steps
            .get(at..next.map_or(steps.len(), |next| next + 1))
            .unwrap_or_default();
        let is_here = |ip: u64| straight.iter().any(|step| step.ip == ip);
        let (is_end, is_begin) = (is_break(&branch.flags), branch.flags == "tr strt");
        if is_end && branch.to == 0 && is_here(branch.from)
            || is_begin && branch.from == 0 && is_here(branch.to)
        {
            counts.breaks += usize::from(is_end || !ends);
            shown.next();
            continue;
        }
        let Some(step) = next.and_then(|next| steps.get(next)) else {
            return Err(format!(
                "no branch is executed any more, and perf shows {branch:x?}"
            ));
        };
        if step.kind == Kind::Syscall {
            begin = step.next.filter(|_| begins);
            counts.syscalls += 1;
        }
        if is_shown(step, which) {
            let right = Shown {
                flags: flags(step.kind).to_owned(),
                from: step.ip,
                to: step.target().unwrap_or(0),
            };
            if **branch != right {
                return Err(format!(
                    "{right:x?} is executed, and perf shows {branch:x?}"
                ));
            }
            counts.branches += usize::from(step.kind != Kind::Syscall);
            shown.next();
        }
        at = next.map_or(steps.len(), |next| next + 1);
    }
}

/// Whether these are the flags of an end of the trace between two instructions.
fn is_break(flags: &str) -> bool {
    flags.starts_with("tr end") && flags != "tr end syscall"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call at 0x10 to 0x40, a branch back at 0x42, a system call at 0x46, a return at 0x48 to 0x15.
    fn steps() -> Vec<Step> {
        let all = [
            (0x10, 5, Kind::Call),
            (0x40, 2, Kind::Plain),
            (0x42, 2, Kind::Conditional),
            (0x40, 2, Kind::Plain),
            (0x42, 2, Kind::Conditional),
            (0x44, 2, Kind::Plain),
            (0x46, 2, Kind::Syscall),
            (0x48, 1, Kind::Return),
            (0x15, 2, Kind::Plain),
        ];
        let nexts = all.iter().skip(1).map(|(ip, ..)| Some(*ip)).chain([None]);
        let step = |((ip, len, kind), next): (&(u64, u64, Kind), _)| Step {
            ip: *ip,
            len: *len,
            kind: *kind,
            next,
        };
        all.iter().zip(nexts).map(step).collect()
    }

    fn right(lines: &[&str], which: u8) -> bool {
        let shown: Vec<_> = lines.iter().map(|line| read(line).unwrap().1).collect();
        follow(&steps(), &shown, which, &mut Counts::default()).is_ok()
    }

    #[test]
    fn each_branch_is_needed() {
        let lines = [
            "7 tr strt jmp 0 => 10",
            "7 call 10 => 40",
            "7 jcc 42 => 40",
            "7 tr end syscall 46 => 0",
            "7 tr strt jmp 0 => 48",
            "7 return 48 => 15",
        ];
        assert!(right(&lines, ALL));
        for missing in 0..lines.len() {
            let mut less = lines.to_vec();
            let line = less.remove(missing);
            assert!(!right(&less, ALL), "without `{line}`");
            less.insert(missing, "7 jcc 42 => 44");
            assert!(!right(&less, ALL), "another for `{line}`");
        }
        // The trace may end and begin between two executed instructions, but not elsewhere.
        for (at, allowed) in [("44", true), ("40", true), ("48", false)] {
            let pair = [
                format!("7 tr end hw int {at} => 0"),
                format!("7 tr strt 0 => {at}"),
            ];
            let pair = pair.each_ref().map(String::as_str);
            let more = [&lines[..3], &pair, &lines[3..]].concat();
            assert_eq!(right(&more, ALL), allowed, "{at}");
        }
        assert!(right(&[lines[1], lines[3]], CALLS));
        assert!(right(&[lines[0], lines[4], lines[5]], RETURNS));
        assert!(!right(&[lines[0], lines[5]], RETURNS));
    }
}
