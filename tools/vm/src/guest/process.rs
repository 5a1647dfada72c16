// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The QEMU process: its limits, its memory use, and messages about its failures.

use rustix::process::{Pid, Resource, Rlimit};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::Duration;

/// The size limit of files that QEMU writes, in bytes. The longest file is the log of executed instructions, which stays well below it.
pub(super) const LONGEST: u64 = 8 << 30;

/// Messages of QEMU and the plugins, each with its cause and remedy.
const KNOWN: [(&str, &str); 9] = [
    (
        "plugin interface not enabled",
        "this QEMU has no plugins: install one built with --enable-plugins, such as Debian's qemu-system-x86 11",
    ),
    (
        "plugin requires API version",
        "the plugin and this QEMU have different plugin APIs: install QEMU 11.1",
    ),
    (
        "undefined symbol: qemu_plugin",
        "this QEMU lacks a function that the plugin calls: install QEMU 11.1",
    ),
    (
        "it is another version than 11.1",
        "this QEMU lacks a function that the plugin calls: install QEMU 11.1",
    ),
    (
        "'vfio-user-pci' is not a valid device model name",
        "this QEMU has no vfio-user-pci device, which the trace unit needs: install QEMU 11.1",
    ),
    (
        "UNIX socket path",
        "the path of the trace unit's socket is too long: it must have less than 108 bytes",
    ),
    (
        "traceunit: cannot serve",
        "the trace unit cannot make its socket: check that /tmp is writable",
    ),
    (
        "invalid object type: memory-backend-memfd",
        "this machine's kernel has no memfd_create(), and the trace unit needs the guest's memory in one: it is in Linux since 3.17",
    ),
    (
        "unable to map backing store for guest RAM",
        "the host has too little memory for the guest: free some",
    ),
];

/// The monitor has answered all commands when it was silent for this long.
const ANSWER: Duration = Duration::from_secs(2);

/// The monitor's prompt.
const PROMPT: &str = "(qemu)";

/// How many lines of an unknown message are shown.
const LINES: usize = 3;

/// Why QEMU ended early, according to its output.
pub(super) fn ended(said: &str) -> String {
    for line in said.lines() {
        if let Some((_, sentence)) = KNOWN.iter().find(|(what, _)| line.contains(what)) {
            return format!("{sentence} ({})", line.trim());
        }
    }
    let lines: Vec<_> = said.lines().map(str::trim).collect();
    let lines: Vec<_> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].join("; ")
}

/// A message if QEMU ended because a file that it wrote became too long.
pub(super) fn too_long(ended: Option<ExitStatus>) -> Option<String> {
    let signal = ended?.signal();
    (signal == Some(rustix::process::Signal::XFSZ.as_raw())).then(|| {
        format!(
            "a file that QEMU writes became longer than {} GiB, likely the log of executed instructions: the guest did not end",
            LONGEST >> 30
        )
    })
}

/// Why the trace unit or another plugin failed while the guest ran, according to QEMU's output.
pub(super) fn failed(said: &str) -> Option<String> {
    let mut lines = said.lines();
    while let Some(line) = lines.next() {
        if line.contains("traceunit: QEMU cannot be served any more") {
            return Some(format!("the trace unit lost its connection: {line}"));
        }
        if line.starts_with("thread '") && line.contains("panicked at") {
            let message = lines.next().unwrap_or_default();
            return Some(format!("a plugin in QEMU panicked: {line} {message}"));
        }
    }
    None
}

/// Limits the size of QEMU's files, so that the log of a guest that never ends does not fill the disk.
pub(super) fn limit_files(qemu: &Child) {
    let limit = Rlimit {
        current: Some(LONGEST),
        maximum: Some(LONGEST),
    };
    if let Some(pid) = i32::try_from(qemu.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::prlimit(Some(pid), Resource::Fsize, limit);
    }
}

/// Asks QEMU's monitor twice for the registers and the top of the stack of each CPU, and returns its answers. A guest whose CPUs all run
/// with interrupts off reports nothing by itself.
pub(super) fn inspect(monitor: &Path, cpus: u32) -> io::Result<String> {
    let mut monitor = UnixStream::connect(monitor)?;
    monitor.set_read_timeout(Some(ANSWER))?;
    let mut said = Vec::new();
    for _ in 0..2 {
        for cpu in 0..cpus {
            write!(monitor, "cpu {cpu}\ninfo registers\nx/96gx $rsp\n")?;
        }
        // The read fails when the monitor is silent.
        let _ = monitor.read_to_end(&mut said);
    }
    // The monitor echoes each command behind its prompt.
    let said = String::from_utf8_lossy(&said);
    let answers: Vec<_> = said.lines().filter(|line| !line.contains(PROMPT)).collect();
    Ok(answers.join("\n"))
}

/// The peak memory use of the process so far, in KiB.
pub(crate) fn peak_memory(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().split(' ').next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_messages_become_sentences() {
        let table = [
            ("qemu-system-x86_64: plugin interface not enabled", "--enable-plugins"),
            ("qemu-system-x86_64: Could not load plugin ./v.so: plugin requires API version 99, but this QEMU supports only up to version 7", "different plugin APIs"),
            ("qemu-system-x86_64: Could not load plugin ./z.so: plugin requires API version 4, but this QEMU supports only a minimum version of 7", "different plugin APIs"),
            ("qemu-system-x86_64: Could not load plugin ./w.so: ./w.so: undefined symbol: qemu_plugin_nonesuch", "lacks a function"),
            ("traceunit: this QEMU has no qemu_get_cpu: it is another version than 11.1", "lacks a function"),
            ("qemu-system-x86_64: -device {}: 'vfio-user-pci' is not a valid device model name", "no vfio-user-pci device"),
            ("qemu-system-x86_64: -device {}: UNIX socket path '/tmp/a' is too long\nPath must be less than 108 bytes", "too long: it must"),
            ("traceunit: cannot serve /tmp/a: No such file or directory", "cannot make its socket"),
            ("qemu-system-x86_64: invalid object type: memory-backend-memfd", "has no memfd_create()"),
            ("qemu-system-x86_64: unable to map backing store for guest RAM: Cannot allocate memory", "too little memory"),
        ];
        for (said, want) in table {
            assert!(ended(said).contains(want), "{said}: {}", ended(said));
            assert!(ended(&format!("warning: a\n{said}\n")).contains(want));
        }
    }

    #[test]
    fn unknown_messages_pass() {
        assert_eq!(ended("a\nb\n\nc\nd\n"), "b; c; d");
        assert_eq!(ended(""), "");
    }

    #[test]
    fn a_file_without_end_is_noticed() {
        let ended = |raw| too_long(Some(ExitStatus::from_raw(raw)));
        assert!(ended(25).is_some_and(|why| why.contains("8 GiB")));
        assert_eq!(
            (ended(9), ended(0), ended(25 << 8), too_long(None)),
            (None, None, None, None)
        );
    }

    #[test]
    fn a_dead_device_is_noticed() {
        let panic = "thread 'traceunit' panicked at traceunit/src/serve.rs:1:2:\nwhy\nnote: a\n";
        assert!(failed(panic).is_some_and(|said| said.ends_with(": why")));
        let lost = "traceunit: QEMU cannot be served any more: closed\n";
        assert!(failed(lost).is_some());
        assert_eq!(failed("traceunit: 261 instructions have changed\n"), None);
    }
}
