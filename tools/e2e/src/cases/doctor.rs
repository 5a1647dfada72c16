// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `auxrec doctor` and `auxrec list` must predict correctly whether recording works, under any limits.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Output};

use anyhow::{ensure, Context, Result};
use rustix::io::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use serde_json::Value;

use super::released;
use crate::events::siblings::Setting;
use crate::module;
use crate::recording::TraceFile;

/// The user, limits and filters of a process that records.
struct Who {
    user: u32,
    paranoid: &'static str,
    mlock_kb: &'static str,
    /// A shell command that sets limits first.
    limits: &'static str,
    /// The error that a seccomp filter makes perf_event_open() return.
    filter: Option<Errno>,
    /// Whether the process can record anything.
    works: bool,
    /// Findings that `auxrec doctor` must report.
    finds: &'static [&'static str],
}

const USER: u32 = 65534;
const FREE: Who = Who {
    user: USER,
    paranoid: "-1",
    mlock_kb: "516",
    limits: "",
    filter: None,
    works: true,
    finds: &[],
};

/// A seccomp filter, as containers have it.
const FILTERED: Who = Who {
    works: false,
    finds: &["perf_event_open"],
    ..FREE
};

/// Debian's kernel refuses all events from level 3 on.
const ALL: [Who; 13] = [
    Who {
        user: 0,
        paranoid: "2",
        ..FREE
    },
    FREE,
    Who {
        paranoid: "0",
        ..FREE
    },
    Who {
        paranoid: "1",
        finds: &["perf_event_paranoid"],
        ..FREE
    },
    Who {
        paranoid: "2",
        finds: &["perf_event_paranoid"],
        ..FREE
    },
    Who {
        paranoid: "3",
        works: false,
        finds: &["perf_event_paranoid"],
        ..FREE
    },
    Who {
        user: 0,
        filter: Some(Errno::PERM),
        ..FILTERED
    },
    Who {
        filter: Some(Errno::PERM),
        ..FILTERED
    },
    Who {
        filter: Some(Errno::NOSYS),
        ..FILTERED
    },
    // Neither the rings of all CPUs nor those of one CPU fit into the limit.
    Who {
        paranoid: "1",
        mlock_kb: "4",
        limits: "ulimit -l 64",
        works: false,
        finds: &["locked_memory"],
        ..FREE
    },
    Who {
        limits: "ulimit -n 12",
        works: false,
        finds: &["open_files"],
        ..FREE
    },
    Who {
        // Root may also raise the hard limit.
        user: 0,
        limits: "ulimit -n 20",
        ..FREE
    },
    Who {
        limits: "ulimit -Sn 20",
        ..FREE
    },
];

impl Who {
    fn run(&self, arguments: &[&str]) -> Result<Output> {
        let script = format!(
            "{} exec \"$@\"",
            if self.limits.is_empty() {
                String::new()
            } else {
                format!("{};", self.limits)
            }
        );
        let mut command = Command::new("busybox");

        command.args(["sh", "-c", &script, "sh"]);
        if let Some(errno) = self.filter {
            command.args(["auxe2e", "filtered", &errno.raw_os_error().to_string()]);
        }
        command
            .arg("auxrec")
            .args(arguments)
            .uid(self.user)
            .gid(self.user)
            .output()
            .context("cannot start auxrec")
    }

    /// Records with the arguments that `doctor` shows. If that fails, returns the message.
    fn record(&self, arguments: &str) -> Result<Option<String>> {
        const WORKLOAD: [&str; 5] = ["auxe2e", "workload", "spin", "--ms", "20"];
        let file = TraceFile::new("doctor");
        let path = file.path().to_string_lossy().into_owned();
        let mut all = vec!["record", "-q", "-o", &path];
        all.extend(
            arguments
                .split(' ')
                .filter(|word| !["--", "COMMAND"].contains(word)),
        );
        all.push("--");
        all.extend(WORKLOAD);
        let output = self.run(&all)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Exit status 3 reports a loss: a small ring may get full on a slow machine.
        Ok((!matches!(output.status.code(), Some(0 | 3))).then_some(said))
    }

    fn check(&self, tally: &mut (u32, u32)) -> Result<()> {
        let _paranoid = Setting::change("/proc/sys/kernel/perf_event_paranoid", self.paranoid)?;
        let _mlock = Setting::change("/proc/sys/kernel/perf_event_mlock_kb", self.mlock_kb)?;
        let output = self.run(&["doctor", "--json"])?;
        let report: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("doctor writes no JSON: {output:?}"))?;
        let mut works = false;
        let mut seen = Vec::new();
        for pmu in list(&report, "pmus") {
            let name = pmu["name"].as_str().context("a PMU without a name")?;
            seen.push(name);
            for way in list(pmu, "ways") {
                let arguments = way["arguments"]
                    .as_str()
                    .context("a way without arguments")?;
                let refused = self.record(arguments)?;
                let predicted = way["error"].as_str();
                works |= refused.is_none();
                match refused {
                    None => tally.0 += 1,
                    Some(_) => tally.1 += 1,
                }
                ensure!(
                    predicted.is_some() == refused.is_some(),
                    "{arguments}: doctor says {predicted:?}, recording {refused:?}"
                );
                // Only the ends of the messages are compared, because they contain different thread numbers. A recording may reach the
                // limit of open files before it opens an event.
                if let (Some(predicted), Some(said)) = (predicted, refused) {
                    let tail = predicted.rsplit(": ").next().unwrap_or(predicted);
                    ensure!(
                        said.contains(tail) || said.contains("Too many open files"),
                        "{arguments}: doctor says {predicted}, recording {said}"
                    );
                }
            }
        }
        for name in ["pattern", "soft_pt"] {
            ensure!(seen.contains(&name), "doctor does not see {name}: {seen:?}");
        }
        let status = output.status.code();
        ensure!(
            status == Some(i32::from(!works)),
            "doctor ends with {status:?}, and recording works: {works}"
        );
        ensure!(works == self.works, "recording works: {works}");
        let found: Vec<_> = list(&report, "findings")
            .filter_map(|finding| finding["name"].as_str())
            .collect();
        for name in self.finds {
            ensure!(
                found.contains(name),
                "doctor does not find {name}: {found:?}"
            );
        }
        Ok(())
    }
}

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

pub(super) fn doctor(_name: &str) -> Result<String> {
    let mut tally = (0, 0);
    module::with("soft_pt", || {
        for who in &ALL {
            let Who {
                user,
                paranoid,
                mlock_kb,
                limits,
                filter,
                ..
            } = who;
            who.check(&mut tally).with_context(|| {
                format!("user {user}, paranoid {paranoid}, mlock_kb {mlock_kb}, {limits:?}, filter {filter:?}")
            })?;
        }
        Ok(())
    })?;
    released()?;
    let (works, refused) = tally;
    Ok(format!(
        "of {} predictions all are right: {works} recordings, {refused} refusals",
        works + refused
    ))
}

/// A program that finds `perf_event_open()` refused.
#[derive(clap::Args, Debug)]
pub struct Filtered {
    /// What the call fails with.
    errno: u32,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Applies the filter, and executes the program.
pub fn filtered(asked: &Filtered) -> Result<ExitCode> {
    let filter = SeccompFilter::new(
        [(libc::SYS_perf_event_open, Vec::new())].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(asked.errno),
        TargetArch::x86_64,
    )?;
    let program: BpfProgram = filter.try_into()?;
    let (name, arguments) = asked.command.split_first().context("no program")?;

    seccompiler::apply_filter(&program).context("cannot filter system calls")?;
    Err(Command::new(name).args(arguments).exec()).context("cannot start the program")
}
