// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whether what `auxview export` writes for viewers are the calls of the program.

use super::executed::{Code, Kind, Step};
use super::rows::{Said, Verdict};
use std::collections::BTreeMap;

/// The number of instructions before it, and the function that begins; none: the innermost one ends.
type Event = (u64, Option<Option<u64>>);

/// The spans of a thread, by its instructions.
fn right(steps: &[Step], code: &Code) -> Vec<Event> {
    let mut events = Vec::new();
    // Each function, and where it returns to.
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

/// Time, and the name of what begins.
type Shown<'a> = (u64, Option<&'a str>);

/// By thread. Lines of time, thread and perhaps a name.
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

/// Each span of each thread with its name and its place in the others, and no time before the last. With `EXACT` each time is that of
/// the first thread's instructions.
pub(super) fn spans<const EXACT: bool>(said: &Said<'_>) -> Verdict {
    let code = &said.executed.code;
    let shown = shown(said.out)?;
    let (mut count, mut deepest) = (0, 0);
    // Threads have numbers in the order in which they are made.
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
