// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings without trace, of this machine.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{kill, Signal};
use nix::sys::wait::{waitpid, WaitPidFlag, WaitStatus};
use nix::unistd::Pid;
use perfdata::{Event, File};

/// The number of the system call that a process is in, and its second argument.
fn call(of: Pid) -> (u64, u64) {
    let registers = ptrace::getregs(of).unwrap();
    #[cfg(target_arch = "x86_64")]
    return (registers.orig_rax, registers.rsi);
    #[cfg(target_arch = "aarch64")]
    return (registers.regs[8], registers.regs[1]);
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap())
}

/// The string at this address, or its first 4096 bytes.
fn string(of: Pid, address: u64) -> Vec<u8> {
    let mut text = Vec::new();
    while text.len() < 4096 {
        let at = usize::try_from(address).unwrap() + text.len();
        let at = std::ptr::without_provenance_mut(at);
        let Ok(word) = ptrace::read(of, at) else {
            break;
        };
        let word = word.to_le_bytes();
        let len = word.iter().position(|byte| *byte == 0);
        text.extend(&word[..len.unwrap_or(word.len())]);
        if len.is_some() {
            break;
        }
    }
    text
}

/// Continues the recorder until it has read and closed this file. Returns false if it ends before.
fn runs_until_read(recorder: Pid, file: &str) -> bool {
    let mut is_open = false;
    let mut signal = None;
    loop {
        ptrace::syscall(recorder, signal.take()).unwrap();
        match waitpid(recorder, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::PtraceSyscall(_) => {
                let (number, second) = call(recorder);
                match i64::try_from(number).unwrap() {
                    libc::SYS_openat if string(recorder, second) == file.as_bytes() => {
                        is_open = true;
                    }
                    libc::SYS_close if is_open => return true,
                    _ => {}
                }
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP | Signal::SIGSTOP | Signal::SIGCONT) => {}
            WaitStatus::Stopped(_, other) => signal = Some(other),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return false,
            _ => {}
        }
    }
}

/// The process executes another program after the recorder has read its mappings.
#[test]
fn a_program_that_begins_while_proc_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("perf.data");
    let mut target = Command::new("sh")
        .args(["-c", "read line; exec sleep 1000000"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let number = target.id().to_string();
    let mut recorder = Command::new("sh")
        .args(["-c", "kill -STOP $$; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_auxrec"))
        .args(["record", "--sideband", "-q", "-p", &number, "-o"])
        .arg(&data)
        .spawn()
        .unwrap();
    let traced = pid(&recorder);
    waitpid(traced, Some(WaitPidFlag::WUNTRACED)).unwrap();
    ptrace::attach(traced).unwrap();
    waitpid(traced, Some(WaitPidFlag::__WALL)).unwrap();
    ptrace::setoptions(
        traced,
        Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL,
    )
    .unwrap();
    kill(traced, Signal::SIGCONT).unwrap();

    let may_record = runs_until_read(traced, &format!("/proc/{number}/maps"));
    let mut input = target.stdin.take().unwrap();
    writeln!(input).unwrap();
    while may_record && fs::read(format!("/proc/{number}/comm")).unwrap() != b"sleep\n" {
        thread::yield_now();
    }
    if may_record {
        ptrace::detach(traced, None).unwrap();
    }
    // The recording ends with the process.
    target.kill().unwrap();
    target.wait().unwrap();
    let status = recorder.wait();
    if !may_record {
        // This user may not use perf here.
        return;
    }
    assert!(status.unwrap().success());

    let bytes = fs::read(&data).unwrap();
    let file = File::parse(&bytes).unwrap();
    let (mut names, mut mapped) = (Vec::new(), 0);
    for record in file.records().map(Result::unwrap) {
        match file.decode(&record).unwrap().0 {
            Event::Comm(comm) => names.push((comm.exec, comm.comm.to_vec())),
            Event::Mmap2(map) if map.filename.ends_with(b"/sleep") => mapped += 1,
            _ => {}
        }
    }
    assert_eq!(names, [(false, b"sh".to_vec()), (true, b"sleep".to_vec())]);
    assert!(mapped > 0);
}

/// Without trace the records have perf's own clock, whatever CLOCK_MONOTONIC is. In a time namespace that one may be weeks ahead.
#[test]
fn counts_have_the_time_of_the_other_records() {
    const AHEAD: u64 = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("perf.data");
    let namespace = format!("--monotonic={AHEAD}");
    let recorded = Command::new("unshare")
        .args(["--time", &namespace, env!("CARGO_BIN_EXE_auxrec")])
        .args(["record", "--sideband", "-q", "-o"])
        .arg(&data)
        .args(["--", "true"])
        .status();
    if !recorded.is_ok_and(|status| status.success()) {
        // This user may not use perf here, or may not create such a namespace.
        return;
    }
    let bytes = fs::read(&data).unwrap();
    let file = File::parse(&bytes).unwrap();
    let (mut others, mut counts) = (Vec::new(), Vec::new());
    for record in file.records().map(Result::unwrap) {
        let (event, id) = file.decode(&record).unwrap();
        let time = id.and_then(|id| id.time).filter(|time| *time != 0);
        match event {
            Event::Read(_) => counts.extend(time),
            _ => others.extend(time),
        }
    }
    let last = others.into_iter().max().unwrap();
    assert!(!counts.is_empty());
    for time in counts {
        assert!(
            time >= last && time - last < AHEAD * 1_000_000_000,
            "{last} {time}"
        );
    }
}
