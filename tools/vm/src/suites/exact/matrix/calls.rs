// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that call chains, call traces and last branches are those of the program at each instruction.

use super::executed::{Code, Printed, Step, Verdict};
use std::collections::BTreeMap;

/// Visits each step, with the return addresses of all calls that have not returned yet.
pub(super) fn walk(steps: &[Step], mut visit: impl FnMut(&Step, &[u64])) {
    let mut stack = Vec::new();
    for step in steps {
        visit(step, &stack);
        match step.target() {
            Some(_) if step.is_call() => stack.push(step.behind()),
            Some(target) if step.kind == super::executed::Kind::Return => {
                // Functions that are left by a jump do not return.
                if let Some(at) = stack.iter().rposition(|address| *address == target) {
                    stack.truncate(at);
                }
            }
            _ => {}
        }
    }
}

fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
}

/// Every `N`th instruction must have its call chain, of at most `MAX` entries: lines of `-F ip`, with an empty one after each sample.
pub(super) fn chains<const N: usize, const MAX: usize>(said: &Printed<'_>) -> Verdict {
    let mut right = Vec::new();
    let mut number = 0;
    walk(said.executed.first(), |step, stack| {
        number += 1;
        if number % N == 0 {
            let callers = stack.iter().rev().copied();
            right.push(
                std::iter::once(step.ip)
                    .chain(callers)
                    .take(MAX)
                    .collect::<Vec<_>>(),
            );
        }
    });
    let shown: Vec<Vec<u64>> = said
        .out
        .split("\n\n")
        .map(|sample| sample.split_whitespace().filter_map(hex).collect())
        .filter(|sample: &Vec<_>| !sample.is_empty())
        .collect();
    for (number, (shown, right)) in shown.iter().zip(&right).enumerate() {
        if shown != right {
            return Err(format!(
                "chain {number} is {shown:x?}, and {right:x?} is right"
            ));
        }
    }
    if shown.len() != right.len() || right.is_empty() {
        return Err(format!(
            "perf shows {} chains, and {} are right",
            shown.len(),
            right.len()
        ));
    }
    let longest = right.iter().map(Vec::len).max().unwrap_or_default();
    Ok(format!(
        "{} call chains of {longest} entries at most, each of them",
        right.len()
    ))
}

/// Every `N`th instruction must have the `MAX` branches before it: lines of `-F ip,brstack`, with the newest branch first.
pub(super) fn last_branches<const N: usize, const MAX: usize>(said: &Printed<'_>) -> Verdict {
    let mut taken: Vec<(u64, u64)> = Vec::new();
    let mut right = Vec::new();
    for (number, step) in (1..).zip(said.executed.first()) {
        if number % N == 0 {
            right.push((
                step.ip,
                taken.iter().rev().take(MAX).copied().collect::<Vec<_>>(),
            ));
        }
        taken.extend(step.target().map(|target| (step.ip, target)));
    }
    let mut shown = 0;
    let mut entries = 0;
    let mut lines = said.out.lines().filter(|line| !line.trim().is_empty());
    for (ip, right) in &right {
        let Some(line) = lines.next() else { break };
        let mut words = line.split_whitespace();
        let at = words.next().and_then(hex);
        let pairs = words.map(|entry| {
            let mut parts = entry.split('/');
            Some((hex(parts.next()?)?, hex(parts.next()?)?))
        });
        // A branch from 0 is the beginning of the trace, and a branch to 0 its end.
        let pairs: Option<Vec<_>> = pairs.collect();
        let pairs = pairs.ok_or_else(|| format!("perf shows `{line}`"))?;
        let mut ends = 0;
        let branches: Vec<_> = pairs
            .iter()
            .filter(|(from, to)| {
                let real = *from != 0 && *to != 0;
                ends += usize::from(!real);
                real
            })
            .copied()
            .collect();
        let len = right.len().min(MAX - ends.min(MAX));
        if at != Some(*ip) || branches.get(..) != right.get(..len) {
            return Err(format!(
                "sample {shown} is {at:x?} with {branches:x?}, and {ip:x} with {right:x?} is right"
            ));
        }
        shown += 1;
        entries += branches.len();
    }
    if shown != right.len() || lines.next().is_some() {
        return Err(format!(
            "perf shows {shown} samples, or more; {} are right",
            right.len()
        ));
    }
    Ok(format!(
        "{shown} samples with {entries} branches, each of them"
    ))
}

/// Each call of the only thread must be shown with its depth: lines such as `call   (FILE)<TAB>    NAME`. Lines about the beginning and the
/// end of the trace are skipped.
pub(super) fn call_trace(said: &Printed<'_>) -> Verdict {
    let mut right = Vec::new();
    walk(said.executed.first(), |step, stack| {
        if let Some(target) = step.target().filter(|_| step.is_call()) {
            right.push((target, stack.len()));
        }
    });
    let mut right = right.iter();
    let (mut count, mut deepest, mut base) = (0, 0, None);
    for line in said.out.lines().filter(|line| !line.contains(" tr ")) {
        let Some((_, shown)) = line.split_once('\t') else {
            continue;
        };
        let name = shown.trim();
        if name.is_empty() {
            continue;
        }
        let indentation = shown.len() - shown.trim_start().len();
        let Some((target, depth)) = right.next() else {
            return Err(format!(
                "after {count} calls, which are all, perf shows {name}"
            ));
        };
        let indented = (indentation / 4).checked_sub(*depth);
        let base = *base.get_or_insert(indented);
        if !said.executed.code.is_in(*target, name) || indented != base || indented.is_none() {
            return Err(format!(
                "after {count} calls perf shows {name}, {indentation} to the right, for {target:x} at depth {depth}"
            ));
        }
        count += 1;
        deepest = deepest.max(*depth);
    }
    match right.len() {
        0 => Ok(format!("{count} calls, {deepest} deep, each of them")),
        left => Err(format!("perf does not show the last {left} calls")),
    }
}

/// The same as [`call_trace`], with a line for each return, too.
pub(super) fn call_and_return_trace(said: &Printed<'_>) -> Verdict {
    let is_return = |line: &&str| line.split_whitespace().nth(1) == Some("return");
    let (returns, calls): (Vec<_>, Vec<_>) = said.out.lines().partition(is_return);
    let right = said.executed.count(super::executed::Kind::Return);
    if returns.len() != right {
        return Err(format!(
            "perf shows {} returns, and {right} are right",
            returns.len()
        ));
    }
    let out = calls.join("\n");
    call_trace(&Printed { out: &out, ..*said }).map(|note| format!("{note}; {right} returns"))
}

/// Lines of `intel-pt-events.py`: each branch must be shown. Branches from 0 or to 0 are skipped.
pub(super) fn by_script(said: &Printed<'_>) -> Verdict {
    let mut right = said
        .executed
        .first()
        .iter()
        .filter_map(|step| Some((step.ip, step.target()?)));
    let mut count = 0;
    for line in said.out.lines() {
        let Some((from, to)) = line.split_once("=>") else {
            continue;
        };
        // The source has an address, a symbol and a file.
        let from = from.split_whitespace().rev().nth(2).and_then(hex);
        let to = to.split_whitespace().next().and_then(hex);
        let (Some(from @ 1..), Some(to @ 1..)) = (from, to) else {
            continue;
        };
        let next = right.next();
        if next != Some((from, to)) {
            return Err(format!(
                "after {count} branches {next:x?} is executed, and the script shows `{line}`"
            ));
        }
        count += 1;
    }
    match right.count() {
        0 => Ok(format!("{count} branches, each of them")),
        left => Err(format!("the script does not show the last {left} branches")),
    }
}

/// The share of samples in each function and its callees, and the number of samples in itself: lines such as ` 53.83%  27072  [.] fib`.
pub(super) fn inclusive(said: &Printed<'_>) -> Verdict {
    let code = &said.executed.code;
    let mut right: BTreeMap<Option<u64>, (u32, u32)> = BTreeMap::new();
    walk(said.executed.first(), |step, stack| {
        let own = code.function(step.ip);
        right.entry(own).or_default().1 += 1;
        let callers = stack.iter().map(|address| code.function(*address));
        let mut all: Vec<_> = callers.chain([own]).collect();
        all.sort_unstable();
        all.dedup();
        for function in all {
            right.entry(function).or_default().0 += 1;
        }
    });
    let total = u32::try_from(said.executed.total()).map_err(|error| error.to_string())?;
    let mut count = 0;
    // The other lines are parts of call graphs.
    for line in said.out.lines().filter(|line| line.contains("[.]")) {
        let words: Vec<_> = line.split_whitespace().collect();
        let [share, own, .., name] = words[..] else {
            return Err(format!("perf shows `{line}`"));
        };
        let is = |at: &Option<u64>| at.map_or(name.starts_with("0x"), |at| code.is_in(at, name));
        let mut found = right.iter().filter(|(at, _)| is(at));
        let fits = found.any(|(_, (with, alone))| {
            let with = format!("{:.2}%", 100.0 * f64::from(*with) / f64::from(total));
            with == share && alone.to_string() == own
        });
        if !fits {
            return Err(format!(
                "perf shows `{}`, and {right:x?} of {total} are right",
                line.trim()
            ));
        }
        count += 1;
    }
    match count {
        _ if count == right.len() => Ok(format!("{count} functions, each with its shares")),
        _ => Err(format!("perf shows {count} functions of {}", right.len())),
    }
}

/// The number of instructions in each symbol itself: lines `COUNT  [.] NAME` of `perf report`.
pub(super) fn histogram(said: &Printed<'_>) -> Verdict {
    let mut right: BTreeMap<Option<u64>, u64> = BTreeMap::new();
    for step in said.executed.threads.iter().flatten() {
        *right
            .entry(said.executed.code.function(step.ip))
            .or_default() += 1;
    }
    counted(said, &right)
}

fn counted(said: &Printed<'_>, right: &BTreeMap<Option<u64>, u64>) -> Verdict {
    let code: &Code = &said.executed.code;
    let mut left = right.clone();
    let mut sum = 0;
    for line in said
        .out
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
    {
        let mut words = line.split_whitespace();
        let count = words.next().and_then(|count| count.parse::<u64>().ok());
        let name = words.next_back();
        let (Some(count), Some(name)) = (count, name) else {
            return Err(format!("perf shows `{line}`"));
        };
        let is = |at: &Option<u64>| match at {
            Some(at) => code.is_in(*at, name),
            None => name.starts_with("0x"),
        };
        let found = left.iter().find(|(at, right)| is(at) && **right == count);
        let Some((at, _)) = found else {
            let others: Vec<_> = right
                .iter()
                .filter(|(at, _)| is(at))
                .map(|(_, n)| *n)
                .collect();
            return Err(format!(
                "perf shows {count} samples in {name}, and {others:?} are right"
            ));
        };
        let at = *at;
        left.remove(&at);
        sum += count;
    }
    match left.first_key_value() {
        None => Ok(format!(
            "{sum} samples in {} functions, as many as instructions",
            right.len()
        )),
        Some((at, count)) => Err(format!(
            "perf does not show {count} instructions at {at:x?}"
        )),
    }
}
