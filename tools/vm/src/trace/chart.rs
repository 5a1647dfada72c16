// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A picture of a call: all functions that it calls, directly and indirectly, on a time line.
//!
//! perf prints the calls of a recording. The first call of the wanted function that returns without a context switch is chosen. Then perf
//! prints all branches within the time of this call. A jump to the beginning of another function replaces the function on top of the
//! stack, as retpolines and tail calls do.

use crate::error::{Error, OnFile, Result};
use crate::step::Progress;
use inferno::flamegraph::{from_lines, Options};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// A number of nested calls that no kernel stack has.
const DEEPEST: usize = 100;

/// The effect of a branch on the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Calls,
    Returns,
    /// A jump. `begins` is whether it leads to the beginning of a function.
    Jumps {
        begins: bool,
    },
    /// The trace has a gap here.
    Ends,
}

/// A branch: one line of perf's output.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Branch<'a> {
    /// The thread's name and ID.
    who: &'a str,
    /// The CPU, as perf prints it.
    cpu: &'a str,
    /// In nanoseconds.
    time: u64,
    does: Does,
    /// The function that contains the branch. `to` is the function that the branch leads to.
    from: &'a str,
    to: &'a str,
}

impl<'a> Branch<'a> {
    /// Parses "  ls  71 [000]  1.206557781:   call   ffffffff8148d07d a+0x1d => ffffffff8148d117 b+0x0". [`None`] for another line.
    fn parse(line: &'a str) -> Option<Self> {
        let (front, to) = line.split_once(" => ")?;
        let (who, rest) = front.split_once(": ").or_else(|| front.split_once(":\t"))?;
        let (who, time) = who.trim().rsplit_once(' ')?;
        let (who, cpu) = who.trim().rsplit_once(' ')?;
        let (seconds, nanoseconds) = time.split_once('.')?;
        let time =
            seconds.parse::<u64>().ok()? * 1_000_000_000 + nanoseconds.parse::<u64>().ok()?;
        let mut words = rest.split_whitespace().rev();
        let (from, _) = (words.next()?, words.next()?);
        let mut words = to.split_whitespace();
        let to = words.nth(1)?;
        let (to, offset) = to.split_once("+0x").unwrap_or((to, ""));
        let flags = rest.trim_start();
        let is = |kinds: &[&str]| kinds.iter().any(|kind| flags.starts_with(kind));
        let does = if is(&["tr ", "unknown"]) {
            Does::Ends
        } else if is(&["call", "int", "hw int", "syscall"]) {
            Does::Calls
        } else if is(&["return", "iret", "sysret"]) {
            Does::Returns
        } else {
            let begins = offset == "0";
            Does::Jumps { begins }
        };
        Some(Self {
            who: who.trim(),
            cpu,
            time,
            does,
            from: from.split_once("+0x").map_or(from, |(name, _)| name),
            to,
        })
    }
}

/// The IDs of the command's threads: that of its script, and of all that descend from it.
#[derive(Debug, Default)]
struct Threads(BTreeSet<u32>);

impl Threads {
    /// Parses "sh  114 [000]  2.807111: PERF_RECORD_COMM exec: traced:114/114" and "traced  114 [000]  2.810843:
    /// PERF_RECORD_FORK(115:115):(114:114)". Ignores other lines.
    fn read(&mut self, line: &str) -> Option<()> {
        if let Some((_, exec)) = line.split_once("PERF_RECORD_COMM exec: ") {
            let (name, ids) = exec.rsplit_once(':')?;
            if name == super::SCRIPT {
                self.0.insert(ids.split_once('/')?.1.parse().ok()?);
            }
        } else if let Some((_, fork)) = line.split_once("PERF_RECORD_FORK(") {
            let (child, parent) = fork.strip_suffix(')')?.split_once("):(")?;
            if self.0.contains(&parent.split_once(':')?.1.parse().ok()?) {
                self.0.insert(child.split_once(':')?.1.parse().ok()?);
            }
        }
        Some(())
    }

    /// Whether the thread `who` is one of them.
    fn have(&self, who: &str) -> bool {
        let id = who.split_whitespace().next_back();
        id.and_then(|id| id.parse().ok())
            .is_some_and(|id| self.0.contains(&id))
    }
}

/// A call that is followed branch by branch.
#[derive(Debug)]
struct Call {
    /// The thread's name and ID.
    who: String,
    cpu: String,
    name: String,
    begins: u64,
    ends: u64,
    stack: Vec<String>,
    /// The stacks from branch to branch, each with its time in nanoseconds.
    spans: Vec<(String, u64)>,
}

/// The state of a call after a branch.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Goes,
    Returned,
    Lost,
}

impl Call {
    fn new(branch: &Branch<'_>) -> Self {
        Self {
            who: branch.who.to_owned(),
            cpu: branch.cpu.to_owned(),
            name: branch
                .who
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned(),
            begins: branch.time,
            ends: branch.time,
            stack: vec![branch.to.to_owned()],
            spans: Vec::new(),
        }
    }

    fn follow(&mut self, branch: &Branch<'_>) -> Outcome {
        if branch.cpu != self.cpu {
            return Outcome::Goes;
        }
        if branch.who != self.who || branch.does == Does::Ends || self.stack.len() > DEEPEST {
            return Outcome::Lost;
        }
        let passed = branch.time.saturating_sub(self.ends);
        self.spans.push((self.stack.join(";"), passed));
        self.ends = branch.time;
        match branch.does {
            Does::Calls => self.stack.push(branch.to.to_owned()),
            Does::Returns => {
                self.stack.pop();
            }
            Does::Jumps { begins: true } if branch.from != branch.to => {
                self.stack.pop();
                self.stack.push(branch.to.to_owned());
            }
            Does::Jumps { .. } | Does::Ends => {}
        }
        match self.stack.is_empty() {
            true => Outcome::Returned,
            false => Outcome::Goes,
        }
    }

    /// The lines from which inferno makes a flame chart. The newest is first, as inferno expects it.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        // Several branches can have the same time. Spans without a time of their own share that of the next span.
        for spans in self.spans.split_inclusive(|(_, passed)| *passed != 0) {
            let passed: u64 = spans.iter().map(|(_, passed)| passed).sum();
            let mut count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
            let mut left = passed;
            for (stack, _) in spans {
                let share = left / count.max(1);
                (left, count) = (left - share, count.saturating_sub(1));
                if share != 0 {
                    lines.push(format!("{stack} {share}"));
                }
            }
        }
        lines.reverse();
        lines
    }
}

/// Draws the first call of `function` in a recording that returns without a context switch. Returns a description of the picture.
///
/// # Errors
///
/// When there is no such call, or perf fails.
pub(super) fn draw(data: &Path, function: &str, to: &Path) -> Result<String> {
    let none = || {
        Error::Other(format!(
            "the recording has no call of {function} that returns without a context switch, while the command runs: \
             `perf script -i {} --call-trace` shows the calls",
            data.display()
        ))
    };
    let progress = Progress::begin(&format!("decoding with perf until a call of {function}"));
    let mut threads = Threads::default();
    let calls = first(data, function, "--itrace=cr", None, &mut threads)?.ok_or_else(none)?;
    // perf takes microseconds, so the window is one longer on both sides.
    let window = (
        calls.begins.saturating_sub(1000),
        calls.ends.saturating_add(1000),
    );
    let call = first(data, function, "--itrace=b", Some(window), &mut threads)?.ok_or_else(none)?;
    progress.end("done");
    let lines = call.lines();
    let mut options = Options::default();
    options.title = format!("{function}() of {}", call.name);
    options.subtitle = Some(format!(
        "{} ns: each instruction takes one",
        call.ends - call.begins
    ));
    options.count_name = "ns".to_owned();
    options.flame_chart = true;
    options.hash = true;
    options.no_javascript = true;
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .map_err(|error| Error::Other(format!("the picture cannot be drawn: {error}")))?;
    fs::write(to, svg).on("write", to)?;
    Ok(format!(
        "{function}() of {}, {} ns and {} branches: {}",
        call.name,
        call.ends - call.begins,
        call.spans.len(),
        to.display()
    ))
}

/// The first call of `function` within these times that returns without a context switch. `branches` is an option of perf: which branches
/// it prints.
fn first(
    data: &Path,
    function: &str,
    branches: &str,
    window: Option<(u64, u64)>,
    threads: &mut Threads,
) -> Result<Option<Call>> {
    let mut perf = Command::new("perf");
    perf.args(["script", "--ns", "--show-task-events", branches, "-F"])
        .arg("comm,tid,cpu,time,flags,ip,sym,symoff,addr")
        .arg("-i")
        .arg(data);
    if let Some((begins, ends)) = window {
        let seconds = |time: u64| format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000);
        perf.arg(format!("--time={},{}", seconds(begins), seconds(ends)));
    }
    let mut child = perf
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Error::Other(format!("cannot start perf: {error}")))?;
    let stdout = child.stdout.take();
    let found = stdout.map_or(Ok(None), |stdout| {
        search(BufReader::new(stdout), function, threads).on("read what perf shows of", data)
    });
    // perf may still have output.
    let _ = child.kill();
    let _ = child.wait();
    found
}

/// As [`first`], in perf's output.
fn search(
    mut shown: impl BufRead,
    function: &str,
    threads: &mut Threads,
) -> std::io::Result<Option<Call>> {
    let mut call: Option<Call> = None;
    let mut line = Vec::new();
    while shown.read_until(b'\n', &mut line)? != 0 {
        let text = String::from_utf8_lossy(&line);
        if let Some(branch) = Branch::parse(text.trim_end()) {
            match &mut call {
                Some(found) => match found.follow(&branch) {
                    Outcome::Returned => return Ok(call),
                    Outcome::Goes => {}
                    Outcome::Lost => call = None,
                },
                None if branch.does == Does::Calls
                    && branch.to == function
                    && threads.have(branch.who) =>
                {
                    call = Some(Call::new(&branch));
                }
                None => {}
            }
        } else {
            // Lines of other forms are ignored.
            let _ = threads.read(text.trim_end());
        }
        line.clear();
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "\
             :-1      -1 [001]     1.000000001:   call                   ffffffff81000001 x+0x1 => ffffffff81000100 wanted+0x0
          auxrec      69 [001]     1.000000003:   call                   ffffffff81000001 x+0x1 => ffffffff81000100 wanted+0x0
          auxrec      69 [001]     1.000000004:   return                 ffffffff81000112 wanted+0x12 => ffffffff81000006 x+0x6
              sh      70 [001]     1.000000005: PERF_RECORD_COMM exec: traced:70/70
          traced      70 [001]     1.000000006: PERF_RECORD_FORK(71:71):(70:70)
              ls      71 [001]     1.000000007: PERF_RECORD_COMM exec: ls:71/71
        modprobe      72 [001]     1.000000008:   call                   ffffffff81000001 x+0x1 => ffffffff81000100 wanted+0x0
        modprobe      72 [001]     1.000000009:   return                 ffffffff81000112 wanted+0x12 => ffffffff81000006 x+0x6
              ls      71 [001]     1.000000010:   call                   ffffffff81000001 x+0x1 => ffffffff81000100 wanted+0x0
              ls      71 [001]     1.000000012:   tr end  async          ffffffff81000102 wanted+0x2 =>                0 [unknown]
              ls      71 [001]     1.000000020:   call                   ffffffff81000001 x+0x1 => ffffffff81000100 wanted+0x0
              ls      71 [001]     1.000000025:   call                   ffffffff81000105 wanted+0x5 => ffffffff81000200 __x86_indirect_thunk_rax+0x0
              ls      71 [001]     1.000000027:   jmp                    ffffffff81000202 __x86_indirect_thunk_rax+0x2 => ffffffff81000300 a+0x0
              sh      70 [000]     1.000000027:   return                 ffffffff81000500 y+0x0 => ffffffff81000600 z+0x6
              ls      71 [001]     1.000000027:   jcc                    ffffffff81000302 a+0x2 => ffffffff81000310 a+0x10
              ls      71 [001]     1.000000030:   hw int                 ffffffff81000310 a+0x10 => ffffffff81000400 irq+0x0
 instruction trace error type 1
              ls      71 [001]     1.000000040:   iret                   ffffffff81000410 irq+0x10 => ffffffff81000310 a+0x10
              ls      71 [001]     1.000000042:   return                 ffffffff81000312 a+0x12 => ffffffff8100010a wanted+0xa
              ls      71 [001]     1.000000050:   return                 ffffffff81000112 wanted+0x12 => ffffffff81000006 x+0x6
";

    #[test]
    fn the_first_whole_call_is_found() {
        let search = |function| search(SHOWN.as_bytes(), function, &mut Threads::default());
        let call = search("wanted").unwrap().unwrap();
        assert_eq!((call.begins, call.ends), (1_000_000_020, 1_000_000_050));
        assert_eq!(
            call.lines(),
            [
                "wanted 8",
                "wanted;a 2",
                "wanted;a;irq 10",
                "wanted;a 2",
                "wanted;a 1",
                "wanted;__x86_indirect_thunk_rax 2",
                "wanted 5",
            ]
        );
        assert!(search("a").unwrap().is_none());
        assert!(search("nothing").unwrap().is_none());
    }
}
