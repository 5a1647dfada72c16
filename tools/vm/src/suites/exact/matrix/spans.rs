// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that the spans that `auxview export` writes for viewers are the calls of the program.

use super::executed::{Code, Executed, Kind, Printed, Step, Verdict};
use std::collections::BTreeMap;

/// The number of instructions before an event, and the function that begins, if its address is known. `None`: the innermost function ends.
type Event = (u64, Option<Option<u64>>);

/// The beginnings and ends of functions in a thread, derived from its instructions.
fn right(steps: &[Step], code: &Code) -> Vec<Event> {
    let mut events = Vec::new();
    // Each open function, and the address to which it returns.
    let mut stack: Vec<(Option<u64>, Option<u64>)> = Vec::new();
    let mut count = 0;
    for step in steps {
        let function = code.function(step.ip);
        match stack.last().copied() {
            Some((top, _)) if top == function => {}
            top => {
                if top.is_some() {
                    stack.pop();
                    events.push((count, None));
                }
                stack.push((function, top.and_then(|(_, back)| back)));
                events.push((count, Some(function)));
            }
        }
        count += 1;
        match step.target() {
            Some(target) if step.is_call() && target != step.behind() => {
                let function = code.function(target);
                stack.push((function, Some(step.behind())));
                events.push((count, Some(function)));
            }
            Some(target) if step.kind == Kind::Return => {
                let at = stack.iter().rposition(|(_, back)| *back == Some(target));
                for _ in at.unwrap_or(stack.len())..stack.len() {
                    events.push((count, None));
                }
                stack.truncate(at.unwrap_or(stack.len()));
            }
            _ => {}
        }
    }
    events.extend(stack.iter().map(|_| (count, None)));
    events
}

/// The time of an event, and the name of the function that begins. `None`: the innermost function ends.
type Shown<'a> = (u64, Option<&'a str>);

/// The events of each thread. A line has a time, a thread, and a name if a function begins.
fn shown(text: &str) -> Result<BTreeMap<&str, Vec<Shown<'_>>>, String> {
    let mut threads: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let time = words.next().and_then(|time| time.parse().ok());
        let (Some(time), Some(thread)) = (time, words.next()) else {
            return Err(format!("the file has the line `{line}`"));
        };
        threads
            .entry(thread)
            .or_default()
            .push((time, words.next()));
    }
    Ok(threads)
}

/// Each span of each thread must have its name and its place in the other spans. No time may be before the last. With `EXACT`, each time
/// must be as many units after the thread's first time as there are instructions before.
pub(super) fn spans<const EXACT: bool>(said: &Printed<'_>) -> Verdict {
    let code = &said.executed.code;
    let shown = shown(said.out)?;
    let (mut count, mut deepest) = (0, 0);
    // The numbers of threads are in the order of their creation.
    let threads = &said.executed.threads;
    if shown.len() != threads.len() || threads.is_empty() {
        return Err(format!(
            "{} threads are shown, and {} are right",
            shown.len(),
            threads.len()
        ));
    }
    for (steps, (thread, shown)) in threads.iter().zip(shown) {
        let right = right(steps, code);
        let first = shown.first().map_or(0, |(time, _)| *time);
        let (mut last, mut depth) = (0, 0_usize);
        for (number, ((time, name), (at, function))) in shown.iter().zip(&right).enumerate() {
            let is_right = match (name, function) {
                (None, None) => true,
                (Some(name), Some(Some(at))) => code.is_in(*at, name),
                (Some(name), Some(None)) => name.contains("+0x"),
                _ => false,
            };
            if !is_right {
                return Err(format!(
                    "event {number} of thread {thread} is {name:?}, and {function:x?} behind {at} instructions is right"
                ));
            }
            if *time < last || EXACT && time - first != *at {
                return Err(format!(
                    "event {number} of thread {thread} is at {time}, behind one at {last} and {at} instructions"
                ));
            }
            last = *time;
            depth = match name {
                Some(_) => depth + 1,
                None => depth.saturating_sub(1),
            };
            deepest = deepest.max(depth);
        }
        if shown.len() != right.len() {
            return Err(format!(
                "thread {thread} has {} begins and ends, and {} are right",
                shown.len(),
                right.len()
            ));
        }
        count += right.len() / 2;
    }
    Ok(format!("{count} spans, {deepest} deep, each of them"))
}

/// A line of `auxview script`.
struct Line<'a> {
    /// The number of instructions before it.
    at: usize,
    thread: &'a str,
    /// The function that begins. `None`: the innermost function ends.
    begins: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let words: Vec<_> = line.split('\t').collect();
        let (at, thread) = (words.first()?.parse().ok()?, words.get(2)?);
        let begins = match (words.get(4), words.get(6)) {
            (Some(&"begin"), Some(name)) => Some(*name),
            (Some(&"end"), None) => None,
            _ => return None,
        };
        Some(Self { at, thread, begins })
    }
}

/// The open functions of the threads on a CPU, according to the lines so far.
#[derive(Default)]
struct Threads<'a> {
    stacks: BTreeMap<&'a str, Vec<&'a str>>,
    /// The thread that runs.
    runs: &'a str,
    /// The number of instructions that have been checked.
    until: usize,
    deepest: usize,
}

impl<'a> Threads<'a> {
    /// Checks that the instructions up to `at` are in the innermost function of the thread that runs.
    fn go_to(&mut self, at: usize, executed: &Executed) -> Result<(), String> {
        let top = self.stacks.get(self.runs).and_then(|stack| stack.last());
        let steps = executed.first().get(self.until..at);
        let steps = steps.ok_or_else(|| format!("there is no instruction {at}"))?;
        // The symbols of programs are not known, so only kernel code is checked.
        for (number, step) in steps
            .iter()
            .enumerate()
            .filter(|(_, step)| step.ip >> 63 != 0)
        {
            if !top.is_some_and(|top| executed.code.is_in(step.ip, top)) {
                return Err(format!(
                    "instruction {}, at {:x}, is shown in {top:?} of thread {}",
                    self.until + number,
                    step.ip,
                    self.runs
                ));
            }
        }
        self.until = at;
        Ok(())
    }

    fn takes(&mut self, line: &Line<'a>) -> Result<(), String> {
        let stack = self.stacks.entry(line.thread).or_default();
        match line.begins {
            Some(name) => stack.push(name),
            None => drop(stack.pop().ok_or("nothing is there to end")?),
        }
        self.deepest = self.deepest.max(stack.len());
        Ok(())
    }
}

/// All functions of a CPU, also the kernel's, in lines of `auxview script --clock instructions`:
/// - Each instruction of the kernel must be in the innermost function of the thread that runs.
/// - A call must begin a function, and must end none.
/// - A return into an open function must begin none.
pub(super) fn spans_of_cpu(said: &Printed<'_>) -> Verdict {
    let executed = said.executed;
    let steps = executed.first();
    let lines: Option<Vec<_>> = said.out.lines().map(Line::read).collect();
    let lines = lines.ok_or("a line is none of `auxview script`")?;
    let mut threads = Threads::default();
    let (mut calls, mut returns) = (0, 0);
    for together in lines.chunk_by(|a, b| a.at == b.at && a.thread == b.thread) {
        let Some(first) = together.first() else {
            continue;
        };
        // After an exec, the functions of the program before it end late.
        let at = first.at.max(threads.until);
        threads.go_to(at, executed)?;
        if first.at == at {
            threads.runs = first.thread;
        }
        let step = first.at.checked_sub(1).and_then(|last| steps.get(last));
        let open = threads
            .stacks
            .get(first.thread)
            .cloned()
            .unwrap_or_default();
        for line in together {
            threads.takes(line)?;
        }
        let (Some(step), true) = (step, first.at == at && at < steps.len()) else {
            continue;
        };
        let begins = together.iter().filter(|line| line.begins.is_some()).count();
        let wrong = |what: &str| {
            Err(format!(
                "behind instruction {} at {:x}, {what}: {begins} functions begin, {} end",
                at - 1,
                step.ip,
                together.len() - begins
            ))
        };
        match step.target() {
            Some(target) if step.is_call() && executed.code.function(target) == Some(target) => {
                if begins == 0 || begins != together.len() {
                    return wrong("a call");
                }
                calls += 1;
            }
            Some(target) if step.kind == Kind::Return => {
                let is_open = open.iter().any(|name| executed.code.is_in(target, name));
                if is_open && begins != 0 {
                    return wrong("a return into a function that is open");
                }
                returns += 1;
            }
            _ => {}
        }
    }
    threads.go_to(steps.len(), executed)?;
    if calls == 0 || threads.stacks.len() < 2 {
        return Err(format!("{calls} calls of {} threads", threads.stacks.len()));
    }
    Ok(format!(
        "{} instructions, {calls} calls, {returns} returns, {} threads, {} deep, each of them",
        steps.len(),
        threads.stacks.len(),
        threads.deepest
    ))
}
