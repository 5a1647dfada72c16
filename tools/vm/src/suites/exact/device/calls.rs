// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that perf's call trace of a recording has calls that the kernel is known to make, and that `auxrec script` follows each
//! instruction of a recording.

use super::super::Decoder;
use super::perf_script;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::results::ktap::Case;
use crate::tools;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// A call that must be in the call trace.
pub(super) struct Call {
    /// The case's name.
    pub name: &'static str,
    /// Functions, each of which is called by the one before, directly or indirectly. `FILE FUNCTION` is a function that is called from
    /// the code of a file. `*` stands for any text.
    pub chain: &'static [&'static str],
}

/// Checks that each of the calls is in a recording.
pub(super) fn found(recording: &Path, calls: &[Call]) -> Result<Vec<Case>> {
    if calls.is_empty() {
        return Ok(Vec::new());
    }
    let mut perf = perf_script(recording);
    perf.args(["--call-trace", "-F", "-comm,-cpu,-time"]);
    let counts = count(Decoder::start(&mut perf)?, calls);
    let case = |(call, count): (&Call, &u64)| match count {
        0 => Case::fail(
            call.name,
            &format!("no call trace has {}", call.chain.join(" > ")),
        ),
        _ => Case::pass(call.name).with_log(vec![format!("{count} times")]),
    };
    Ok(match counts {
        Ok(counts) => calls.iter().zip(&counts).map(case).collect(),
        Err(error) => {
            let why = format!("perf: {error}");
            calls
                .iter()
                .map(|call| Case::fail(call.name, &why))
                .collect()
        }
    })
}

/// Recordings in which not all instructions can be followed, and the reason.
const EXCEPTIONS: [(&str, &str); 1] = [
    // The unit writes no `MODE.Exec` for 32-bit programs. perf takes the mode from the program's file.
    ("programs", "packets that do not fit the code"),
];

/// Checks that `auxrec script` follows each instruction of a recording. There are `count` of them, according to perf and the log.
pub(super) fn followed(cache: &Cache, name: &str, recording: &Path, count: u64) -> Result<Case> {
    let case = format!("{name}, by auxrec script");
    let tools = tools::build(cache)?;
    let Some((_, auxrec)) = tools.iter().find(|(tool, _)| tool == "auxrec") else {
        return Ok(Case::skip(&case, "tools/auxrec is not in this checkout"));
    };
    let mut script = Command::new(auxrec);
    script.args(["script", "--no-lines", "--clock", "instructions"]);
    script.arg(recording).stdout(Stdio::null());
    let output = script.output().map_err(|source| Error::Spawn {
        program: "auxrec".to_owned(),
        source,
    })?;
    let said = String::from_utf8_lossy(&output.stderr);
    let found = said.lines().find_map(|line| {
        let (found, _) = line.strip_prefix("# ")?.split_once(" instructions of ")?;
        found.parse::<u64>().ok()
    });
    let mut exceptions = EXCEPTIONS.iter().filter(|(one, _)| *one == name);
    let mut reasons = said
        .lines()
        .filter(|line| line.starts_with("# not followed"));
    let right = match exceptions.next() {
        Some((_, why)) => {
            let max = count / 10 * 9..=count;
            found.is_some_and(|found| max.contains(&found))
                && reasons.all(|line| line.contains(why))
        }
        None => found == Some(count) && reasons.next().is_none(),
    };
    Ok(match right {
        true => Case::pass(&case).with_log(vec![said.into_owned()]),
        false => Case::fail(&case, &format!("of {count} instructions: {said}")),
    })
}

/// How often the last function of each chain was called within that chain.
fn count(lines: impl Iterator<Item = io::Result<String>>, calls: &[Call]) -> io::Result<Vec<u64>> {
    let mut counts = vec![0; calls.len()];
    // For each thread, the calls that have not returned: indentation, calling file and function.
    let mut stacks: HashMap<String, Vec<(usize, String, String)>> = HashMap::new();
    for line in lines {
        let line = line?;
        // A line has the thread, the calling file in parentheses, a tab, and the function.
        let parts = line.split_once('\t').and_then(|(head, shown)| {
            let (thread, file) = head.split_once('(')?;
            Some((thread, file.trim_end_matches(')').trim_end(), shown))
        });
        let Some((thread, file, shown)) = parts else {
            continue;
        };
        let function = shown.trim();
        let indentation = shown.len() - shown.trim_start().len();
        let stack = stacks.entry(thread.trim().to_owned()).or_default();
        while stack.last().is_some_and(|(of, ..)| *of >= indentation) {
            stack.pop();
        }
        stack.push((indentation, file.to_owned(), function.to_owned()));
        for (call, count) in calls.iter().zip(&mut counts) {
            if ends(stack, call.chain) {
                *count += 1;
            }
        }
    }
    Ok(counts)
}

/// Whether the top of a stack is the chain's last function, and the chain's other functions are below it in their order.
fn ends(stack: &[(usize, String, String)], chain: &[&str]) -> bool {
    let (Some((top, below)), Some((last, before))) = (stack.split_last(), chain.split_last())
    else {
        return false;
    };
    let is_call = |(_, file, function): &(usize, String, String), wanted: &str| {
        let (from, called) = wanted.split_once(' ').unwrap_or(("*", wanted));
        is(file, from) && is(function, called)
    };
    let mut below = below.iter();
    is_call(top, last)
        && before
            .iter()
            .all(|wanted| below.any(|call| is_call(call, wanted)))
}

/// Whether a name matches. A `*` in `wanted` stands for any text.
fn is(name: &str, wanted: &str) -> bool {
    match wanted.split_once('*') {
        None => name == wanted,
        Some((head, tail)) => name
            .strip_prefix(head)
            .is_some_and(|rest| rest.ends_with(tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "  7 ([k]  )\t  a  \n  7 ([k] )\t    b.isra.0  \n  8 (p)\t    c  \n  7 ([k])\t        c  \n  7  psb offs: 0\n  7 (p)\t    c  \n";

    #[test]
    fn calls_are_counted() {
        let table: [(&'static [&'static str], u64); 12] = [
            (&["a"], 1),
            (&["a", "c"], 2),
            (&["b*", "c"], 1),
            (&["a", "b*0", "c"], 1),
            (&["b", "c"], 0),
            (&["c"], 3),
            (&["b*", "a"], 0),
            (&["c", "c"], 0),
            (&["d"], 0),
            (&["p c"], 2),
            (&["a", "p c"], 1),
            (&["p a"], 0),
        ];
        for (chain, want) in table {
            let lines = TRACE.lines().map(|line| Ok(line.to_owned()));
            let found = count(lines, &[Call { name: "", chain }]).unwrap();
            assert_eq!(found, [want], "{chain:?}");
        }
    }
}
