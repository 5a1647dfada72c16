// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command as users see it: exit status and messages, above all those of errors.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{kill_process, Pid, Signal};
use tempfile::TempDir;

/// A machine with PMUs of its own: `pattern`, which cannot be opened, and `clock`, which is the kernel's software PMU and has no AUX area.
fn machine() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("pmus/pattern/type", "4000000"),
        ("pmus/pattern/format/rate", "config:0-23"),
        ("pmus/pattern/format/limit", "config2:0-63"),
        ("pmus/pattern/events/fast", "rate=0x1000"),
        ("pmus/clock/type", "1"),
    ] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn auxrec(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_auxrec"))
        .args(args)
        .current_dir(dir)
        .env("AUXREC_PMUS", dir.join("pmus"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    (status.code(), text)
}

#[test]
fn bad_usage() {
    let dir = machine();
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["frobnicate"], "unrecognized subcommand"),
        (&["record", "--", "true"], "--event"),
        (
            &["record", "--sideband", "-e", "pattern//", "--", "true"],
            "'--sideband' cannot be used with '--event <EVENT>'",
        ),
        (
            &["record", "--sideband", "-S", "-a"],
            "'--sideband' cannot be used with '--snapshot",
        ),
        (&["record", "--sideband"], "nothing to record"),
        (
            &["record", "-e", "pattern//"],
            "nothing to record: give a command after --, or -a, -C, -p or -t",
        ),
        (
            &["record", "-e", "patern//", "--", "true"],
            "no PMU `patern` (did you mean `pattern`?); this kernel has: clock, pattern",
        ),
        (
            &["record", "-e", "pattern/rat=1/", "--", "true"],
            "no term `rat` (did you mean `rate`?); it has: limit, rate, fast",
        ),
        (
            &["record", "-e", "pattern/rate=99999999/", "--", "true"],
            "a number from 0 to 16777215, not `99999999`",
        ),
        (
            &["record", "-e", "pattern//x", "--", "true"],
            "`x` in `pattern//x` is not a modifier",
        ),
        (
            &["record", "-e", "pattern", "--", "true"],
            "of the form `pmu/term=value",
        ),
        (
            &["record", "-e", "{cs,pattern//}", "--", "true"],
            "a group begins with the event that writes trace",
        ),
        (
            &[
                "record",
                "-e",
                "pattern//",
                "--trigger",
                "main",
                "--",
                "true",
            ],
            "--trigger takes snapshots: give -S with it",
        ),
        (
            &["record", "-e", "pattern//", "--aux-sample", "--", "true"],
            "give one, such as -e cpu-clock:u",
        ),
        (
            &[
                "record",
                "-e",
                "pattern//,cs",
                "--aux-sample=9",
                "--",
                "true",
            ],
            "a multiple of 8",
        ),
        (
            &["record", "-e", "pattern//", "-G", "x", "--", "true"],
            "give -a or -C with it",
        ),
        (
            &[
                "record",
                "-e",
                "pattern//",
                "-G",
                "no/such",
                "-a",
                "--",
                "true",
            ],
            "there is no control group `no/such`",
        ),
        (
            &["record", "-e", "pattern//", "-m", "16,3", "--", "true"],
            "AUX area must be a power of two of pages, and 3 pages is not; the nearest are 2 pages",
        ),
        (
            &["record", "-e", "pattern//", "-m", "3", "--", "true"],
            "data ring must be a power of two",
        ),
        (
            &["record", "-e", "pattern//", "-m", "x", "--", "true"],
            "`x` is not a size",
        ),
        (
            &[
                "record",
                "-e",
                "pattern//",
                "-m",
                "1,2",
                "--aux-watermark",
                "3",
                "--",
                "true",
            ],
            "--aux-watermark must be between",
        ),
        (
            &["record", "-e", "pattern//", "-C", "0-", "--", "true"],
            "`0-` is not a list of CPUs",
        ),
        (
            &["record", "-e", "pattern//", "-C", "60000", "--", "true"],
            "CPU 60000 is not online; online are: 0",
        ),
        (
            &["record", "-e", "pattern//", "-C", "0", "-a", "--", "true"],
            "cannot be used with",
        ),
        (
            &[
                "record",
                "-e",
                "pattern//",
                "-a",
                "--per-thread",
                "--",
                "true",
            ],
            "choose one of them",
        ),
        (
            &["record", "-e", "pattern//", "-p", "2147483647"],
            "there is no process 2147483647",
        ),
        (
            &["record", "-e", "pattern//", "-S", "x", "--", "true"],
            "-S takes a size in bytes (or with K, M or G), and `e`",
        ),
        (
            &[
                "record",
                "-e",
                "pattern//",
                "-S8K",
                "-m",
                "1,1",
                "--",
                "true",
            ],
            "a snapshot of 8192 bytes cannot be: the AUX area has 4096 bytes",
        ),
        (
            &["record", "-e", "pattern//", "-t", "2147483647"],
            "there is no thread 2147483647",
        ),
        (
            &["record", "-e", "pattern//", "-D", "5-3", "--", "true"],
            "is not a delay",
        ),
        (
            &[
                "record",
                "-e",
                "pattern//",
                "--control",
                "pipe",
                "--",
                "true",
            ],
            "is not a place for commands",
        ),
        (
            &[
                "record",
                "-e",
                "pattern//",
                "--switch-output",
                "7",
                "--",
                "true",
            ],
            "--switch-output takes `signal`",
        ),
        (
            &["record", "-e", "pattern//", "--split-files", "-S", "-a"],
            "--split-files excludes -S",
        ),
        (
            &["record", "-e", "pattern//", "--apart", "-S", "-a"],
            "--split-files excludes -S",
        ),
        (
            &[
                "record",
                "-e",
                "pattern//",
                "--switch-max-files",
                "7",
                "--",
                "true",
            ],
            "--switch-output",
        ),
    ];
    for (args, says) in cases {
        let (status, text) = auxrec(dir.path(), args);
        assert_eq!(status, Some(2), "{args:?}: {text}");
        assert!(
            text.contains(says),
            "{args:?} does not say `{says}`: {text}"
        );
        assert!(
            !dir.path().join("perf.data").exists(),
            "{args:?} left a file"
        );
    }
}

#[test]
fn what_the_system_refuses() {
    let dir = machine();
    // No PMU has this number. The kernel's errno depends on whether it has perf events at all.
    let (status, text) = auxrec(
        dir.path(),
        &["record", "-e", "pattern//", "-m", "1,1", "--", "true"],
    );
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("cannot open `pattern//` for thread"),
        "{text}"
    );
    assert_eq!(
        text.matches("os error").count(),
        1,
        "the kernel's words once: {text}"
    );
    // An errno appears only in brackets after a sentence.
    assert!(text.trim_end().ends_with(')') && text.len() > 120, "{text}");

    let (status, text) = auxrec(
        dir.path(),
        &[
            "record",
            "-e",
            "clock/config=9/u",
            "-m",
            "1,1",
            "--",
            "true",
        ],
    );
    assert_eq!(status, Some(1), "{text}");
    let refused = [
        "cannot map the AUX area of 4 KiB: this PMU has no AUX area",
        "cannot open",
    ];
    assert!(refused.iter().any(|says| text.contains(says)), "{text}");
    assert!(!dir.path().join("perf.data").exists(), "a file was left");
}

#[test]
fn bad_files() {
    let dir = machine();
    fs::write(
        dir.path().join("text"),
        "this is no recording at all, and long enough",
    )
    .unwrap();
    fs::write(dir.path().join("empty"), "").unwrap();
    for command in ["recover", "check", "report", "dump"] {
        for (file, says) in [
            ("absent", "absent: No such file"),
            ("text", "text: magic at file offset 0x0 is"),
            (
                "empty",
                "empty: magic at file offset 0x0 needs 8 bytes and only 0 are there",
            ),
        ] {
            let (status, text) = auxrec(dir.path(), &[command, file]);
            assert_eq!(status, Some(1), "{command} {file}: {text}");
            assert!(text.contains(says), "{command} {file}: {text}");
        }
    }
}

/// `recover` leaves an unfinished file of another recorder as it is, unless the user asks to change it.
#[test]
fn recover_writes_a_copy() {
    use perfdata::{Attr, Auxtrace, File, Writer};
    let dir = machine();
    let path = dir.path().join("perf.data");
    let events = [(Attr::default(), vec![7])];
    let mut file = Writer::new(fs::File::create(&path).unwrap(), &events).unwrap();
    // EVENT_UPDATE, with which perf's files begin.
    file.raw(&[78, 0, 0, 0, 0, 0, 16, 0, 1, 2, 3, 4, 5, 6, 7, 8])
        .unwrap();
    file.auxtrace(&Auxtrace {
        size: 64,
        ..Auxtrace::default()
    })
    .unwrap();
    file.payload(&[7; 64]).unwrap();
    file.checkpoint().unwrap();
    drop(file);
    // The beginning of a record, which is incomplete.
    let mut killed = fs::read(&path).unwrap();
    killed.extend([9, 0, 0, 0, 0, 0, 64, 0, 1]);
    fs::write(&path, &killed).unwrap();
    let says = "2 records, 64 bytes of trace in 1 pieces; 9 bytes at the end were no whole record";
    let check = |name: &str| {
        let bytes = fs::read(dir.path().join(name)).unwrap();
        let file = File::parse(&bytes).unwrap();
        assert!(file.is_finished(), "{name}");
        assert_eq!(file.records().count(), 2, "{name}");
    };
    for (args, written) in [
        (&["recover"][..], "perf.data.recovered"),
        (&["recover", "perf.data", "-o", "other"], "other"),
        (&["recover", "--in-place"], "perf.data"),
    ] {
        let (status, text) = auxrec(dir.path(), args);
        assert_eq!(status, Some(0), "{args:?}: {text}");
        let want = format!("{written}: {says}");
        assert!(text.contains(&want), "{args:?}: {text}");
        if written != "perf.data" {
            assert_eq!(fs::read(&path).unwrap(), killed, "{args:?}");
            let (status, text) = auxrec(dir.path(), args);
            assert_eq!(status, Some(1), "{args:?}: {text}");
            assert!(text.contains("is there already"), "{args:?}: {text}");
        }
        check(written);
    }
    let (status, text) = auxrec(dir.path(), &["recover", "perf.data"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("perf.data is complete"), "{text}");
}

#[test]
fn list_and_help() {
    let dir = machine();
    let (status, text) = auxrec(dir.path(), &["list"]);
    assert_eq!(status, Some(0));
    for says in [
        "pattern (type 4000000)",
        "pattern/rate=0..16777215/",
        "pattern/fast/ is pattern/rate=0x1000/",
    ] {
        assert!(text.contains(says), "{text}");
    }
    let (status, text) = auxrec(dir.path(), &["doctor"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("No AUX area can be recorded here."), "{text}");
    let (status, text) = auxrec(dir.path(), &["doctor", "--json"]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("\"works\": false"), "{text}");
    let (status, text) = auxrec(dir.path(), &["--help"]);
    assert_eq!(status, Some(0));
    assert!(text.contains("3 finished but trace was lost"), "{text}");
}

/// A soft limit below the hard limit, as many systems have it.
#[test]
fn more_files_than_the_limit() {
    let dir = machine();
    let pid = std::process::id().to_string();
    let record = |limit: &str| {
        let auxrec = env!("CARGO_BIN_EXE_auxrec");
        let script = format!(
            "ulimit -Sn {limit} && exec timeout -s INT 2 {auxrec} record --sideband --per-thread -m 1 -q -p {pid}"
        );
        let output = Command::new("sh")
            .args(["-c", &script])
            .current_dir(dir.path())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    if !record("$(ulimit -Hn)").is_empty() {
        // This user may not use perf here.
        return;
    }
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = std::sync::Arc::new(std::sync::Mutex::new(ended));
    let threads: Vec<_> = (0..64)
        .map(|_| {
            let ended = ended.clone();
            std::thread::spawn(move || drop(ended.lock().map(|ended| ended.recv())))
        })
        .collect();
    let said = record("40");
    drop(end);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(said, "");
}

/// A pipe that is full. Its reader reads nothing.
fn full() -> (OwnedFd, OwnedFd) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    rustix::io::ioctl_fionbio(&write, true).unwrap();
    while rustix::io::write(&write, &[b' '; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&write, false).unwrap();
    (read, write)
}

/// Waits for a process to end. With `interrupt`, sends SIGINT again and again once this file is finished.
fn ended(mut child: Child, interrupt: Option<&Path>) -> ExitStatus {
    let is_finished = |path| {
        let bytes = fs::read(path).unwrap_or_default();
        perfdata::File::parse(&bytes).is_ok_and(|file| file.is_finished())
    };
    let pid = Pid::from_child(&child);
    for _ in 0..1200 {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if interrupt.is_some_and(is_finished) {
            kill_process(pid, Signal::INT).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    panic!("it hangs: {:?}", child.wait());
}

/// Neither a reader that has ended nor one that reads nothing changes what the recorder does.
#[test]
fn readers_that_end_or_stop() {
    let dir = machine();
    let auxrec = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_auxrec"));
        command.args(args).current_dir(dir.path());
        command
    };
    let (read, gone) = rustix::pipe::pipe().unwrap();
    drop(read);
    let mut check = auxrec(&["check", "absent"]);
    let status = ended(check.stderr(gone).spawn().unwrap(), None);
    assert_eq!(status.code(), Some(1), "{status}");

    let sideband = ["record", "--sideband", "-q"];
    let record = |more: &[&str]| auxrec(&[&sideband, more].concat());
    if !record(&["--", "true"]).status().unwrap().success() {
        // This user may not use perf here.
        return;
    }
    // Whether standard error is full too, whether SIGINT is sent when the recording is over, and the status
    // or signal that the recorder ends with.
    for (both, interrupt, args, ends) in [
        (false, false, &["--live", "json", "--", "sleep", "2"][..], 0),
        (
            true,
            false,
            &["-v", "--live", "json", "--", "sleep", "2"],
            0,
        ),
        // The recorder waits for the reader of the output that the user asked for.
        (false, true, &["--json", "-", "--", "true"], 2),
    ] {
        let file = dir.path().join("perf.data");
        fs::remove_file(&file).unwrap();
        let (_read, out) = full();
        let err = match both {
            true => Stdio::from(out.try_clone().unwrap()),
            false => Stdio::piped(),
        };
        let mut recorder = record(args).stdout(out).stderr(err).spawn().unwrap();
        let err = recorder.stderr.take();
        let status = ended(recorder, interrupt.then_some(&*file));
        let code = status.code().or(status.signal());
        assert_eq!(code, Some(ends), "{args:?}: {status}");
        if let (Some(err), 0) = (err, ends) {
            let said = std::io::read_to_string(err).unwrap();
            assert!(
                said.contains("lines of --live json were not written ("),
                "{said}"
            );
        }
    }
}

/// Names of commands and arguments are bytes, and need not be UTF-8.
#[test]
fn a_command_that_is_not_utf8() {
    let dir = machine();
    let name = OsStr::from_bytes(b"./c\xff");
    fs::copy("/bin/cat", dir.path().join(name)).unwrap();
    let record = |file: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_auxrec"))
            .args(["record", "--sideband", "-o", file, "--"])
            .args([name, OsStr::from_bytes(b"/dev/null/\xfe")])
            .current_dir(dir.path())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = record("first");
    let Ok(bytes) = fs::read(dir.path().join("first")) else {
        // This user may not use perf here.
        assert!(!said.contains("UTF-8"), "{said}");
        return;
    };
    // This error is the command's own.
    assert!(said.contains("Not a directory"), "{said}");
    assert!(said.contains("ended with status 1"), "{said}");
    let file = perfdata::File::parse(&bytes).unwrap();
    let section = file.feature(perfdata::Feature::CMDLINE).unwrap();
    let line = section.cmdline().unwrap();
    assert!(line.ends_with(&[b"./c\xff".to_vec(), b"/dev/null/\xfe".to_vec()]));
    fs::remove_file(dir.path().join(name)).unwrap();
    let said = record("second");
    assert!(said.contains("cannot run `./c\u{fffd}`: No such"), "{said}");
}
