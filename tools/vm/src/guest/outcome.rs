// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What came of a guest.

use crate::results::ktap::{self, Case};
use crate::results::splat::Splat;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// All that the command wrote.
    pub said: String,
    /// Its exit status, if the guest lived to report one.
    pub status: Option<i32>,
    /// Whether it had to be ended.
    pub timed_out: bool,
    /// Whether it lost its power, as was asked for.
    pub cut: bool,
    /// Why a plugin failed in QEMU, if one did.
    pub failed: Option<String>,
    /// What the kernel complained of.
    pub splats: Vec<Splat>,
    /// The console's log.
    pub console: PathBuf,
    /// Where the files from `/out` are.
    pub files: PathBuf,
    /// The process that ran it.
    pub process: u32,
    /// How long it ran.
    pub elapsed: Duration,
    /// The most memory that QEMU used, in KiB.
    pub peak_kib: u64,
}

impl Outcome {
    /// Whether the guest met a breakpoint that is no longer there, as guests of QEMU's TCG do, before `tcg_int3.ko` was loaded.
    pub(super) fn met_old_breakpoint(&self) -> bool {
        let console = fs::read(&self.console).unwrap_or_default();
        self.status.is_none() && self.said.is_empty() && is_old_breakpoint(&console)
    }

    /// What was wrong with the guest itself, apart from what its command reported.
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
                "ended after {} s; the console is {console}",
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

    /// The suite that the command reported, with a failing case for all that went wrong besides.
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

/// What a console shows of a guest that a breakpoint has killed before its init has run.
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
