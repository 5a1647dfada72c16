// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that the instructions that perf shows or samples are those that were executed.

use super::executed::{Printed, Step, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// The instructions of each thread, from lines of `-F tid,ip`.
fn by_thread(out: &str) -> Result<Vec<Vec<u64>>, String> {
    let mut threads: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for line in out.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let pair = words
            .next()
            .zip(words.next())
            .filter(|_| words.next().is_none());
        let pair =
            pair.and_then(|(tid, ip)| Some((tid.parse().ok()?, u64::from_str_radix(ip, 16).ok()?)));
        let (tid, ip) = pair.ok_or_else(|| format!("perf shows `{line}`"))?;
        threads.entry(tid).or_default().push(ip);
    }
    Ok(threads.into_values().collect())
}

/// Checks that both lists are the same. The error has the first difference.
fn same(shown: &[u64], right: &[u64]) -> Result<(), String> {
    let both = shown.iter().zip(right);
    let at = both.take_while(|(shown, right)| shown == right).count();
    match (shown.get(at), right.get(at)) {
        (None, None) => Ok(()),
        (shown, right) => Err(format!(
            "after {at} that are right perf shows {shown:x?} for {right:x?}"
        )),
    }
}

fn ips(steps: &[Step]) -> Vec<u64> {
    steps.iter().map(|step| step.ip).collect()
}

/// Compares the instructions of each thread with those that `right` returns for its steps.
fn compare(said: &Printed<'_>, right: impl Fn(&[Step]) -> Vec<u64>) -> Verdict {
    let shown = by_thread(said.out)?;
    let threads = &said.executed.threads;
    if shown.len() != threads.len() {
        return Err(format!(
            "{} threads were executed, and {} are shown",
            threads.len(),
            shown.len()
        ));
    }
    let mut count = 0;
    for (shown, steps) in shown.iter().zip(threads) {
        same(shown, &right(steps))?;
        count += shown.len();
    }
    Ok(format!(
        "{count} of {} instructions in {} threads, each of them",
        said.executed.total(),
        threads.len()
    ))
}

/// Each instruction, in lines of `-F tid,ip`.
pub(super) fn each(said: &Printed<'_>) -> Verdict {
    compare(said, ips)
}

/// Every `N`th instruction of each thread.
pub(super) fn every<const N: usize>(said: &Printed<'_>) -> Verdict {
    compare(said, |steps| {
        let last = steps.chunks_exact(N).filter_map(<[_]>::last);
        last.map(|step| step.ip).collect()
    })
}

/// A sample for each `N` instructions. perf counts those of all threads of a CPU together.
pub(super) fn one_in<const N: usize>(said: &Printed<'_>) -> Verdict {
    let right = said.executed.total() / N;
    let shown = said
        .out
        .lines()
        .filter(|line| !line.trim().is_empty())
        .count();
    if shown != right {
        return Err(format!("perf shows {shown} samples, and {right} are right"));
    }
    some::<1>(said)
}

/// A sample for each `N` instructions that an event has counted. Each thread has an event. If a thread follows another one on a CPU, perf
/// may pass it the other one's event. Up to `N - 1` instructions at the end of each event are not sampled.
pub(super) fn one_in_of_each<const N: usize>(said: &Printed<'_>) -> Verdict {
    let max = said.executed.total() / N;
    let least = max.saturating_sub(said.executed.threads.len() - 1);
    let shown = by_thread(said.out)?.iter().map(Vec::len).sum();
    if !(least..=max).contains(&shown) {
        return Err(format!(
            "perf shows {shown} samples, and {least} to {max} are right"
        ));
    }
    some::<1>(said)
}

/// All instructions of the first thread that is started, and none of the others that are started. Of the thread that starts them, only
/// instructions that it has executed.
pub(super) fn one_thread(said: &Printed<'_>) -> Verdict {
    let shown = by_thread(said.out)?;
    let threads = &said.executed.threads;
    let (Some(starter), Some(started)) = (threads.first(), threads.get(1)) else {
        return Err("no thread was started".to_owned());
    };
    let (own, before) = shown.split_last().ok_or("perf shows no instruction")?;
    same(own, &ips(started))?;
    match before {
        [] => {}
        [one] => in_order(one, starter)?,
        _ => return Err(format!("perf shows {} threads", shown.len())),
    }
    Ok(format!(
        "{} instructions of the thread, each of them",
        own.len()
    ))
}

/// The maximum number of instructions at the beginning of the second window whose times may differ. Between two packets with a time, perf
/// estimates times. After a gap, its estimate is different.
const ESTIMATED: usize = 1000;

/// The output has each instruction with its time, a line `windows` with the bounds of two windows, and the instructions in these windows.
/// Instructions are lines of `-F time,ip`.
pub(super) fn windows(said: &Printed<'_>) -> Verdict {
    let (all, rest) = said
        .out
        .split_once("\nwindows ")
        .ok_or("there is no line `windows`")?;
    let (bounds, shown) = rest.split_once('\n').ok_or("perf shows nothing")?;
    let time = |text: &str| text.trim().replace('.', "").parse::<u64>().ok();
    let read = |line: &str| {
        let (at, ip) = line.split_once(':')?;
        Some((time(at)?, u64::from_str_radix(ip.trim(), 16).ok()?))
    };
    let all: Option<Vec<_>> = all.lines().map(read).collect();
    let all = all.ok_or("a line has no time and address")?;
    let found: Vec<_> = all.iter().map(|(_, ip)| *ip).collect();
    same(&found, &ips(said.executed.first()))?;
    let bounds: Vec<_> = bounds.split(' ').filter_map(time).collect();
    let &[one, two, three, four] = bounds.as_slice() else {
        return Err(format!("the windows are {bounds:?}"));
    };
    let is_in = |time: u64| (one..=two).contains(&time) || (three..=four).contains(&time);
    let right: Vec<_> = all
        .iter()
        .filter(|(time, _)| is_in(*time))
        .copied()
        .collect();
    let shown: Vec<_> = shown.lines().filter_map(read).collect();
    let first = right.iter().take_while(|(time, _)| *time <= two).count();
    let behind = first..first + ESTIMATED;
    let is_same = |at: usize, shown: (u64, u64), right: (u64, u64)| {
        let estimated = behind.contains(&at) && (three..=four).contains(&shown.0);
        shown.1 == right.1 && (shown.0 == right.0 || estimated)
    };
    let mut pairs = shown.iter().zip(&right).enumerate();
    let differ = pairs.position(|(at, (shown, right))| !is_same(at, *shown, *right));
    let at = differ.unwrap_or_else(|| shown.len().min(right.len()));
    match (shown.get(at), right.get(at)) {
        (None, None) if at > 0 && at < all.len() => Ok(format!(
            "{at} of {} instructions, those of two windows",
            all.len()
        )),
        (shown, right) => Err(format!(
            "after {at} that are right perf shows {shown:x?} for {right:x?}"
        )),
    }
}

/// Each instruction with its bytes: lines such as ` 122 401022 insn: e8 a9 04 00 00`, optionally with `ilen: 5` before `insn:`.
pub(super) fn bytes(said: &Printed<'_>) -> Verdict {
    let mut steps = said.executed.first().iter();
    for line in said.out.lines().filter(|line| !line.trim().is_empty()) {
        let Some(step) = steps.next() else {
            return Err(format!(
                "nothing is executed any more, and perf shows `{line}`"
            ));
        };
        let len = usize::try_from(step.len).unwrap_or_default();
        let text = said.executed.code.bytes(step.ip, len);
        let text: Vec<_> = text.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = text.join(" ");
        let (head, shown) = line
            .split_once("insn:")
            .ok_or_else(|| format!("perf shows `{line}`"))?;
        let mut words = head.split_whitespace().skip(1);
        let ip = words
            .next()
            .and_then(|word| u64::from_str_radix(word, 16).ok());
        let said_len = words
            .next()
            .map_or(Some(step.len), |_| words.next()?.parse().ok());
        if ip != Some(step.ip) || shown.trim() != text || said_len != Some(step.len) {
            return Err(format!(
                "{:x} with `{text}` is executed, and perf shows `{line}`",
                step.ip
            ));
        }
    }
    match steps.len() {
        0 => Ok(format!(
            "{} instructions with their bytes",
            said.executed.total()
        )),
        left => Err(format!("perf does not show the last {left} instructions")),
    }
}

/// How often each instruction of the function `work` was executed, in lines of `perf annotate -n` such as `  12 :   4013e0: push   %r13`.
pub(super) fn annotated(said: &Printed<'_>) -> Verdict {
    let code = &said.executed.code;
    let mut right: BTreeMap<u64, u64> = BTreeMap::new();
    for step in said.executed.first() {
        if code.is_in(step.ip, "work") {
            *right.entry(step.ip).or_default() += 1;
        }
    }
    let instruction = |line: &str| {
        let (count, rest) = line.split_once(" :")?;
        let (ip, text) = rest.trim_start().split_once(':')?;
        let ip = u64::from_str_radix(ip, 16).ok()?;
        // Lines of source have numbers, too.
        let count = match count.trim() {
            "" => 0,
            count => count.parse::<u64>().ok()?,
        };
        (!text.trim().is_empty() && count > 0).then_some((ip, count))
    };
    let shown: BTreeMap<u64, u64> = said.out.lines().filter_map(instruction).collect();
    if shown != right || right.is_empty() {
        let differ = right
            .iter()
            .find(|(ip, count)| shown.get(ip) != Some(count));
        return Err(format!(
            "perf shows {} instructions, {} are right; the first that differs is {differ:x?}",
            shown.len(),
            right.len()
        ));
    }
    Ok(format!(
        "{} instructions, each as often as it was executed",
        right.len()
    ))
}

/// The output has every hundredth instruction with its line of source, a line `lines`, and the lines of source by `addr2line`.
pub(super) fn lines(said: &Printed<'_>) -> Verdict {
    let (shown, right) = said
        .out
        .split_once("\nlines\n")
        .ok_or("there is no line `lines`")?;
    let mut shown = shown.lines().filter(|line| !line.trim().is_empty());
    let mut steps = said
        .executed
        .first()
        .chunks_exact(100)
        .filter_map(<[_]>::last);
    let mut count = 0;
    for right in right.lines() {
        // addr2line prints lines such as `branches.c:20 (discriminator 3)`.
        let right = right.split(' ').next().unwrap_or_default();
        let ip = shown
            .next()
            .and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
        let line = shown.next().unwrap_or_default().trim();
        let step = steps.next().map(|step| step.ip);
        if ip.is_none() || ip != step || line != right {
            return Err(format!(
                "perf shows {ip:x?} at {line}, and {step:x?} at {right} is right"
            ));
        }
        count += 1;
    }
    match steps.next() {
        None if count > 0 => Ok(format!("{count} instructions with their lines")),
        _ => Err(format!("perf shows {count} lines, and more are right")),
    }
}

/// Every `N`th instruction. After each, there are lines with `insn:`: the executed instructions from an earlier branch up to it.
pub(super) fn between_branches<const N: usize>(said: &Printed<'_>) -> Verdict {
    let steps = said.executed.first();
    let hex = |word: &str| u64::from_str_radix(word.trim(), 16).ok();
    let branches = steps.iter().filter(|step| step.target().is_some());
    let branches: BTreeSet<u64> = branches.map(|step| step.ip).collect();
    let mut samples: Vec<(u64, Vec<u64>)> = Vec::new();
    // The address in the line before, if that is marked as a branch.
    let mut marked = None;
    for line in said.out.lines() {
        match (line.split_once("insn:"), samples.last_mut()) {
            (Some((ip, rest)), Some((_, listed))) => {
                let ip = hex(ip).ok_or(line)?;
                // If an interrupt came before an instruction, perf lists the instruction twice, and marks it the first time.
                if marked != Some(ip) || branches.contains(&ip) {
                    listed.push(ip);
                }
                marked = rest.contains('#').then_some(ip);
            }
            (None, _) => {
                samples.extend(hex(line).map(|ip| (ip, Vec::new())));
                marked = None;
            }
            (Some(_), None) => return Err(format!("perf shows `{line}` first")),
        }
    }
    let mut listed_in_all = 0;
    for (number, (ip, listed)) in samples.iter().enumerate() {
        let end = (number + 1) * N;
        let window = |end: usize| steps.get(end.checked_sub(listed.len())?..end);
        let is_right = |end| window(end).is_some_and(|steps| ips(steps) == *listed);
        let before = steps.get(..end - 1).unwrap_or_default();
        // If a sample has the address of the newest branch, perf takes the sample for that branch.
        let branch = before.iter().rposition(|step| step.target().is_some());
        let at_branch = branch.filter(|at| before.get(*at).is_some_and(|step| step.ip == *ip));
        let ends = [Some(end), Some(end - 1), at_branch.map(|at| at + 1)];
        let step = steps.get(end - 1).map(|step| step.ip);
        if step != Some(*ip) || !ends.into_iter().flatten().any(is_right) {
            return Err(format!(
                "sample {number} is {ip:x} behind {listed:x?}, and {:x?} is right",
                window(end).map(ips)
            ));
        }
        listed_in_all += listed.len();
    }
    if samples.len() != steps.len() / N || listed_in_all == 0 {
        return Err(format!("perf shows {} samples", samples.len()));
    }
    Ok(format!(
        "{} samples with {listed_in_all} instructions before them, each of them",
        samples.len()
    ))
}

/// All instructions of each thread, except its first `N`.
pub(super) fn skips<const N: usize>(said: &Printed<'_>) -> Verdict {
    compare(said, |steps| ips(steps.get(N..).unwrap_or_default()))
}

/// Some instructions of each thread, in their order. In total, there must be at least `N`.
fn some<const N: usize>(said: &Printed<'_>) -> Verdict {
    let shown = by_thread(said.out)?;
    let threads = &said.executed.threads;
    if shown.len() > threads.len() {
        return Err(format!(
            "{} threads were executed, and {} are shown",
            threads.len(),
            shown.len()
        ));
    }
    for (shown, steps) in shown.iter().zip(threads) {
        in_order(shown, steps)?;
    }
    let count: usize = shown.iter().map(Vec::len).sum();
    if count < N {
        return Err(format!("perf shows {count} instructions, {N} are right"));
    }
    Ok(format!(
        "{count} of {} instructions, in their order",
        said.executed.total()
    ))
}

/// Checks that these instructions were executed, in this order. There may be others in between.
pub(super) fn in_order(shown: &[u64], steps: &[Step]) -> Result<(), String> {
    let mut steps = steps.iter();
    for (number, ip) in shown.iter().enumerate() {
        if !steps.any(|step| step.ip == *ip) {
            return Err(format!(
                "{ip:x}, which is number {number} in what perf shows, is not executed there"
            ));
        }
    }
    Ok(())
}

/// perf must show nothing.
pub(super) fn nothing(said: &Printed<'_>) -> Verdict {
    match said.out.lines().find(|line| !line.trim().is_empty()) {
        None => Ok("nothing is shown".to_owned()),
        Some(line) => Err(format!("perf shows `{line}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::executed::{Code, Executed};
    use super::*;

    #[test]
    fn windows_have_what_is_in_them() {
        let code = Code::of_kernel(&[0x90; 16], "0 10 1000\n", "");
        let executed = Executed::by_cpu("1000 1001 1002 1003 1004 1005".split(' '), code).unwrap();
        let all = "1.0: 1000\n1.1: 1001\n1.2: 1002\n1.3: 1003\n1.4: 1004\n1.5: 1005\n";
        let table = [
            (all, "1.4", "1.1: 1001\n1.2: 1002\n1.4: 1004\n", true),
            (all, "1.4", "1.1: 1001\n1.4: 1004\n", false),
            (
                all,
                "1.4",
                "1.1: 1001\n1.2: 1002\n1.3: 1003\n1.4: 1004\n",
                false,
            ),
            (all, "1.4", "1.1: 1001\n1.2: 1001\n1.4: 1004\n", false),
            (all, "1.4", "1.2: 1001\n1.2: 1002\n1.4: 1004\n", false),
            (all, "1.4", "1.1: 1001\n1.2: 1002\n1.5: 1004\n", false),
            (
                all,
                "1.5",
                "1.1: 1001\n1.2: 1002\n1.5: 1004\n1.5: 1005\n",
                true,
            ),
            (
                all,
                "1.5",
                "1.1: 1001\n1.2: 1002\n1.4: 1005\n1.5: 1005\n",
                false,
            ),
            (
                &all[10..],
                "1.4",
                "1.1: 1001\n1.2: 1002\n1.4: 1004\n",
                false,
            ),
        ];
        for (all, end, shown, right) in table {
            let out = format!("{all}windows 1.1 1.2 1.4 {end}\n{shown}");
            let said = Printed {
                out: &out,
                executed: &executed,
            };
            assert_eq!(windows(&said).is_ok(), right, "{out}");
        }
    }

    #[test]
    fn an_instruction_behind_an_interrupt_is_listed_twice() {
        let code = Code::of_kernel(&[0x90; 16], "0 10 1000\n", "");
        let executed = Executed::by_cpu("1000 1001 1002 1003".split(' '), code).unwrap();
        let table = [
            ("\t1000\tinsn: 90\n\t1001\tinsn: 90\n", true),
            (
                "\t1000\tinsn: 90\t#\n\t1000\tinsn: 90\n\t1001\tinsn: 90\n",
                true,
            ),
            (
                "\t1000\tinsn: 90\n\t1000\tinsn: 90\n\t1001\tinsn: 90\n",
                false,
            ),
            (
                "\t1000\tinsn: 90\t#\n\t1001\tinsn: 90\n\t1001\tinsn: 90\n",
                false,
            ),
        ];
        for (listed, right) in table {
            let out = format!("1001\n{listed}1003\n\t1003\tinsn: 90\n");
            let said = Printed {
                out: &out,
                executed: &executed,
            };
            assert_eq!(between_branches::<2>(&said).is_ok(), right, "{out}");
        }
    }
}
