// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The outcome of a guest.

use crate::results::ktap::{self, Case};
use crate::results::splat::Splat;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// The name of the file with the registers of each CPU of a guest that exceeded its time limit.
pub(super) const CPUS: &str = "cpus.log";

/// The outcome of a guest.
#[derive(Debug)]
pub struct Outcome {
    /// The command's output.
    pub said: String,
    /// The command's exit status. `None` if the guest died before it reported one.
    pub status: Option<i32>,
    /// Whether the guest was killed as it ran too long.
    pub timed_out: bool,
    /// Whether the guest's power was cut, as requested.
    pub cut: bool,
    /// Why a plugin in QEMU failed, or that a file of QEMU's became too long.
    pub failed: Option<String>,
    /// The kernel's warnings and crashes on the console.
    pub splats: Vec<Splat>,
    /// The file with the console's log.
    pub console: PathBuf,
    /// The folder with the files from `/out`.
    pub files: PathBuf,
    /// The ID of the process that ran the guest.
    pub process: u32,
    /// How long the guest ran.
    pub elapsed: Duration,
    /// The peak memory use of QEMU, in KiB. It is 0 under virtme-ng.
    pub peak_kib: u64,
}

impl Outcome {
    /// Whether the guest died of a stale breakpoint before `tcg_int3.ko` was loaded. `tcg_int3.c` explains these breakpoints.
    pub(super) fn met_old_breakpoint(&self) -> bool {
        let console = fs::read(&self.console).unwrap_or_default();
        self.status.is_none() && self.said.is_empty() && is_old_breakpoint(&console)
    }

    /// The failures of the guest itself, without those that its command reported.
    #[must_use]
    pub fn faults(&self) -> Vec<Case> {
        let console = self.console.display();
        let mut faults = Vec::new();
        for splat in &self.splats {
            let case = Case::fail(
                splat.kind,
                &format!("{console}:{}: {}", splat.line, splat.text),
            );
            faults.push(case);
        }
        if let Some(why) = &self.failed {
            faults.push(Case::fail("plugin", why).with_log(self.console_tail()));
        } else if self.timed_out {
            let reason = format!(
                "killed after {} s; see the stack of each task at the end of {console}, and the registers of each CPU in {CPUS} beside it",
                self.elapsed.as_secs()
            );
            faults.push(Case::fail("timeout", &reason).with_log(self.console_tail()));
        } else if self.status.is_none() && !self.cut {
            let reason = format!(
                "the guest died before it reported an exit status; the console is {console}"
            );
            faults.push(Case::fail("died", &reason).with_log(self.console_tail()));
        }
        faults
    }

    /// The suite that the command reported, with a failing case for each other failure.
    #[must_use]
    pub fn suite(&self, name: &str) -> Case {
        let mut cases = ktap::parse(&self.said);
        let failed = cases.iter().any(|c| c.counts().failed > 0);
        cases.extend(self.faults());
        match self.status {
            Some(status) if status != 0 && !failed => {
                let reason = format!(
                    "status {status}, though no case failed; the console is {}",
                    self.console.display()
                );
                cases.push(Case::fail("exit", &reason).with_log(tail(&self.said)));
            }
            _ => {}
        }
        Case::suite(name, cases)
    }

    fn console_tail(&self) -> Vec<String> {
        tail(&String::from_utf8_lossy(
            &fs::read(&self.console).unwrap_or_default(),
        ))
    }
}

/// Whether the console shows that a breakpoint killed the guest before its init ran.
pub(super) fn is_old_breakpoint(console: &[u8]) -> bool {
    let console = String::from_utf8_lossy(console);
    console.contains("Oops: int3") && !console.contains("auxvm: guest is up")
}

fn tail(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..]
        .iter()
        .map(|l| l.trim_end().to_owned())
        .collect()
}
