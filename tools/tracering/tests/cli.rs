// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the command's error messages. The other tests need a kernel: see `tools/e2e/src/ring.rs`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

/// Runs the command on a directory that looks like tracefs. Returns the exit status and the output.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    for path in [
        "per_cpu/cpu0",
        "instances/mine",
        "events/sched/sched_switch",
    ] {
        fs::create_dir_all(dir.path().join(path)).unwrap();
    }
    fs::write(dir.path().join("per_cpu/cpu0/trace_pipe_raw"), [0; 4096]).unwrap();
    let header = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";
    fs::write(dir.path().join("events/header_page"), header).unwrap();
    let events = "type_len : 5 bits\ntime_delta : 27 bits\narray : 32 bits\npadding : type == 29\n\
        time_extend : type == 30\ntime_stamp : type == 31\ndata max type_len == 28\n";
    fs::write(dir.path().join("events/header_event"), events).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tracering"))
        .arg("--tracefs")
        .arg(dir.path())
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let left = fs::read_dir(dir.path().join("instances")).unwrap().count();
    assert_eq!(left, 1, "an instance is left: {said}");
    (output.status.code(), said)
}

#[test]
fn errors() {
    for (arguments, status, says) in [
        (
            &["stat"][..],
            1,
            "is no file of tracefs: give the trace_pipe_raw",
        ),
        (
            &["cat", "--drain"],
            1,
            "is no file of tracefs: give the trace_pipe_raw",
        ),
        (&["stat", "-C", "0,7"], 1, "no CPU 7 in"),
        (&["stat", "-i", "yours"], 1, "no instance yours in"),
        (&["stat", "-i", "../x"], 1, "no instance ../x in"),
        (&["stat", "-i", "mine"], 1, "there is no such file"),
        (
            &["cat", "-e", "sched"],
            1,
            "sched is no event: give SYSTEM:EVENT",
        ),
        (&["cat", "-e", "../a:b"], 1, "../a:b is no event"),
        (
            &["cat", "-e", "sched:nothing"],
            1,
            "no event sched:nothing:",
        ),
        (&["cat", "-e", "none:*"], 1, "no system none"),
        (
            &["cat", "-e", "a:b", "-i", "mine"],
            2,
            "cannot be used with",
        ),
        (&["stat", "--drain"], 2, "unexpected argument"),
        (
            &["record", "-e", "sched:nothing"],
            1,
            "no event sched:nothing:",
        ),
        (
            &["record", "-e", "a:b", "-i", "mine"],
            2,
            "cannot be used with",
        ),
        (&["record", "--clock", "mono"], 2, "--event"),
        (
            &["record", "--drain", "--", "true"],
            2,
            "cannot be used with",
        ),
        (
            &["record", "-o", "/nowhere/trace.dat"],
            1,
            "cannot write beside /nowhere/trace.dat: No such file",
        ),
        (&[], 2, "Usage:"),
    ] {
        let (code, said) = run(arguments);
        assert!(
            code == Some(status) && said.contains(says),
            "{arguments:?}: {code:?}: {said}"
        );
    }
}
