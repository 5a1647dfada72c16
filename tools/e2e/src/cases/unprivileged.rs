// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an ordinary user is told about the limits of perf.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{ensure, Context, Result};

use super::released;
use crate::recording::TraceFile;

/// What an ordinary user is told: which limit bites, its value, and how to raise it.
pub(super) fn unprivileged(_name: &str) -> Result<String> {
    const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
    const NOBODY: u32 = 65534;
    let before = std::fs::read_to_string(PARANOID).context("cannot read perf_event_paranoid")?;
    let ask = |paranoid: &str, arguments: &[&str]| -> Result<(i32, String)> {
        std::fs::write(PARANOID, paranoid).context("cannot set perf_event_paranoid")?;
        let file = TraceFile::new("unprivileged");
        let output = Command::new("auxrec")
            .arg("record")
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

    let mut outcome = Ok(());
    for (paranoid, arguments, says) in table {
        outcome = ask(paranoid, arguments).and_then(|(status, errors)| {
            ensure!(status == 1, "{arguments:?}: exit status {status}: {errors}");
            for word in says {
                ensure!(
                    errors.contains(word),
                    "{arguments:?}: it does not say {word:?}: {errors}"
                );
            }
            Ok(())
        });
        if outcome.is_err() {
            break;
        }
    }
    // And what is within the limits works, or is made to be.
    let small = ["-e", "pattern//", "-m", "8,8"];
    let shrunk = [&large[..4], &["--shrink"]].concat();
    let allowed = outcome.and_then(|()| {
        let small = ask("1", &[&small[..], &workload].concat())?;
        Ok((small, ask("1", &[&shrunk[..], &workload].concat())?))
    });
    std::fs::write(PARANOID, before).context("cannot restore perf_event_paranoid")?;
    let (small, shrunk) = allowed?;
    for ((status, errors), smaller) in [(small, false), (shrunk, true)] {
        // On a machine that is slow a small ring may be full once, which is told of.
        ensure!(
            matches!(status, 0 | 3) && errors.contains("the rings are made smaller") == smaller,
            "a recording within the limits: exit status {status}: {errors}"
        );
    }
    released()?;

    Ok(format!(
        "{} refusals, and two recordings within the limits",
        table.len()
    ))
}
