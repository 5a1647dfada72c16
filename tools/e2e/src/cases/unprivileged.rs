// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The recorder's messages about perf's limits, for a user without capabilities. The user may be in a rootless container.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{ensure, Context, Result};

use super::released;
use crate::recording::TraceFile;

/// Each message must name the limit, its value, and how to raise it.
pub(super) fn unprivileged(_name: &str) -> Result<String> {
    const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
    const NOBODY: u32 = 65534;
    let before = std::fs::read_to_string(PARANOID).context("cannot read perf_event_paranoid")?;
    let ask = |by: &[&str], paranoid: &str, arguments: &[&str]| -> Result<(i32, String)> {
        std::fs::write(PARANOID, paranoid).context("cannot set perf_event_paranoid")?;
        let file = TraceFile::new("unprivileged");
        let output = Command::new("env")
            .args(by)
            .args(["auxrec", "record"])
            .arg("-o")
            .arg(file.path())
            .args(arguments)
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .context("cannot start auxrec")?;
        let status = output.status.code().context("auxrec was killed")?;
        Ok((status, String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let workload = ["--", "auxe2e", "workload", "spin", "--ms", "50"];
    let program = [&["-e", "pattern//"][..], &workload].concat();
    let large = [&["-e", "pattern//", "-m", "16,16384"][..], &workload].concat();
    let realtime = [&["-e", "pattern//", "-m", "8,8", "-r", "7"][..], &workload].concat();
    let table: [(&str, &[&str], &[&str]); 4] = [
        ("2", &program, &["perf_event_paranoid", "2", "CAP_PERFMON"]),
        (
            "1",
            &["-e", "pattern//", "-a"],
            &["perf_event_paranoid", "1", "CAP_PERFMON"],
        ),
        ("1", &large, &["perf_event_mlock_kb", "RLIMIT_MEMLOCK"]),
        (
            "1",
            &realtime,
            &["real-time priority 7", "CAP_SYS_NICE", "RLIMIT_RTPRIO"],
        ),
    ];

    let small = [&["-e", "pattern//", "-m", "8,8"][..], &workload].concat();
    let shrunk = [&large[..4], &["--shrink"], &workload].concat();
    let is_told = |by: &[&str]| -> Result<()> {
        for (paranoid, arguments, says) in table {
            let (status, errors) = ask(by, paranoid, arguments)?;
            ensure!(
                status == 1,
                "{by:?} {arguments:?}: exit status {status}: {errors}"
            );
            for word in says {
                ensure!(
                    errors.contains(word),
                    "{by:?} {arguments:?}: it does not say {word:?}: {errors}"
                );
            }
        }
        // Recordings within the limits must work. With `--shrink`, larger rings must work, too.
        for (arguments, smaller) in [(&small, false), (&shrunk, true)] {
            let (status, errors) = ask(by, "1", arguments)?;
            // Exit status 3 reports a loss: a small ring may get full on a slow machine.
            ensure!(
                matches!(status, 0 | 3) && errors.contains("the rings are made smaller") == smaller,
                "{by:?} {arguments:?}, within the limits: exit status {status}: {errors}"
            );
        }
        Ok(())
    };
    let mut users = vec![&[][..]];
    if std::fs::exists("/proc/self/ns/user").context("cannot look for namespaces")? {
        users.push(CONTAINED);
    }
    let outcome = users.iter().try_for_each(|by| is_told(by));
    std::fs::write(PARANOID, before).context("cannot restore perf_event_paranoid")?;
    outcome?;
    released()?;

    Ok(format!(
        "{} refusals and two recordings within the limits, {}",
        table.len(),
        match users.len() {
            1 => "of a user alone: this kernel has no user namespaces",
            _ => "of a user, and of one that is root in a container of its own",
        }
    ))
}

/// Enters a user namespace, like a rootless container. The user has all capabilities in it, but perf does not accept them.
const CONTAINED: &[&str] = &["busybox", "unshare", "-U", "-r"];
