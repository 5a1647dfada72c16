// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the warnings and crashes of the kernel in the log of its console.

/// Texts that the kernel prints when something is wrong, and the name of the kind of each.
const SPLATS: &[(&str, &str)] = &[
    ("Kernel panic", "panic"),
    ("WARNING:", "warning"),
    ("BUG:", "bug"),
    ("kernel BUG at", "bug"),
    ("Oops:", "oops"),
    ("general protection fault", "oops"),
    ("unable to handle", "oops"),
    ("Call Trace:", "stack trace"),
    ("possible circular locking", "lockdep"),
    ("INFO: possible recursive locking", "lockdep"),
    ("inconsistent lock state", "lockdep"),
    ("suspicious RCU usage", "lockdep"),
    ("detected stalls on CPUs", "RCU stall"),
    ("self-detected stall", "RCU stall"),
    ("rcu_preempt kthread starved", "RCU stall"),
    ("blocked for more than", "hung task"),
    ("soft lockup", "soft lockup"),
    ("refcount_t:", "refcount"),
    ("list_add corruption", "list corruption"),
    ("list_del corruption", "list corruption"),
    ("scheduling while atomic", "sleep in atomic context"),
    ("unreferenced object", "leak"),
    ("suspected memory leaks", "leak"),
    ("rust_kernel: panicked", "Rust panic"),
    ("panicked at", "Rust panic"),
    ("Out of memory:", "out of memory"),
    (
        "Initramfs unpacking failed:",
        "too little memory for the initramfs",
    ),
    ("UBSAN:", "UBSAN"),
];

/// Allowed kernel warnings: those that no driver can avoid. A report is ignored if it contains all texts of an entry.
const ALLOWED: &[Allowed] = &[
    Allowed {
        texts: &["refcount_t: addition on 0", "perf_mmap+"],
        reason: "perf_mmap_aux() counts a mapping of the event that is mapped with refcount_inc(). An event that was \
                 redirected has no mapping yet, its ring is another's: the count goes from 0 to 1. No driver is asked before.",
    },
    Allowed {
        texts: &["WARNING: kernel/events/core.c", "perf_cgroup_switch+"],
        reason: "perf_cgroup_switch() goes on with a control group whose last event was disabled when it was scheduled out, as one is \
                 whose AUX area is found full then. Documentation/upstream has a patch.",
    },
    Allowed {
        texts: &["warn_alloc+", " dup_task_struct+"],
        reason: "The end-to-end cases in which the kernel is made to fail its allocations: it tells of the stack of a task that \
                 cannot be made.",
    },
    Allowed {
        texts: &["warn_alloc+", " kernel_read_file+"],
        reason: "The same: it tells of the memory that a module's file is read into. No driver runs yet.",
    },
    Allowed {
        texts: &["WARNING: kernel/jump_label.c", "jump_label_module_notify+"],
        reason: "The same: a module that is loaded needs memory for the static keys that it shares with another one, such as \
                 tracepoints. Without it the kernel warns, undoes what it has not done, warns of that, and refuses the \
                 module. No driver runs yet.",
    },
];

/// The maximum number of lines in one report.
const REPORT_LINES: usize = 120;

struct Allowed {
    texts: &'static [&'static str],
    /// The cause of the warning, and why no driver can avoid it.
    #[expect(
        dead_code,
        reason = "for the reader, who must not add an entry without one"
    )]
    reason: &'static str,
}

/// A warning or crash of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splat {
    /// Its kind, in a word or two.
    pub kind: &'static str,
    /// The number of its first line in the console's log, from 1 on.
    pub line: usize,
    /// The text of that line.
    pub text: String,
}

/// All splats in a console's log that are not allowed. A report of many lines counts once, at its first line.
#[must_use]
pub fn scan(console: &str) -> Vec<Splat> {
    scan_with(console, ALLOWED)
}

fn scan_with(console: &str, allowed: &[Allowed]) -> Vec<Splat> {
    let lines: Vec<&str> = console.lines().collect();
    let mut found = Vec::new();
    let mut next = 0;
    for (at, line) in lines.iter().enumerate() {
        // Skips the kernel's command line, which may contain any text.
        if at < next || line.contains("ommand line:") {
            continue;
        }
        let Some((_, kind)) = SPLATS.iter().find(|(text, _)| line.contains(text)) else {
            continue;
        };
        let end = report_end(&lines, at);
        let report = lines[at..end].join("\n");
        next = end;
        if !allowed
            .iter()
            .any(|a| a.texts.iter().all(|t| report.contains(t)))
        {
            found.push(Splat {
                kind,
                line: at + 1,
                text: (*line).trim().to_owned(),
            });
        }
    }
    found
}

/// The end of the report that begins at `start`: after its end mark, else after its stack trace. It has at most [`REPORT_LINES`].
fn report_end(lines: &[&str], start: usize) -> usize {
    let limit = lines.len().min(start + REPORT_LINES);
    let mark = (start..limit).find(|&i| lines[i].contains("---[ end"));
    mark.map_or(limit.min(start + 1 + trace_len(lines, start + 1)), |i| {
        i + 1
    })
}

/// How many lines from `from` on belong to a report: all up to the end of its stack trace, or none if there is no stack trace.
fn trace_len(lines: &[&str], from: usize) -> usize {
    let window = &lines[from.min(lines.len())..lines.len().min(from + REPORT_LINES)];
    window
        .iter()
        .position(|l| l.contains("</TASK>") || l.contains("</IRQ>"))
        .map_or(0, |i| i + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARN: &str = "[ 1.0] ------------[ cut here ]------------\n[ 1.0] WARNING: kernel/x.c:1 at f+0x1/0x2\n[ 1.1] Call Trace:\n[ 1.2]  <TASK>\n[ 1.3]  g+0x1/0x2\n[ 1.4]  </TASK>\n[ 1.5] ---[ end trace 0000000000000000 ]---\n";

    #[test]
    fn table() {
        let cases: &[(&str, &[&str])] = &[
            ("[ 0.1] Linux version 7\n[ 1.0] reboot: Power down\n", &[]),
            (WARN, &["warning"]),
            ("[ 1] BUG: kernel NULL pointer dereference, address: 0\n[ 1] Oops: Oops: 0002 [#1]\n", &["bug", "oops"]),
            ("[ 1] Kernel panic - not syncing: Attempted to kill init!\n", &["panic"]),
            ("[ 1] WARNING: possible circular locking dependency detected\n", &["warning"]),
            ("[ 1] INFO: possible recursive locking detected\n", &["lockdep"]),
            ("[ 1] BUG: KASAN: slab-use-after-free in f+0x1/0x2\n", &["bug"]),
            ("[ 1] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n", &["RCU stall"]),
            ("[ 1] INFO: task x:1 blocked for more than 120 seconds.\n", &["hung task"]),
            ("[ 1] BUG: scheduling while atomic: insmod/1/0x2\n", &["bug"]),
            ("[ 1] kmemleak: 1 new suspected memory leaks\n", &["leak"]),
            ("[ 1] Kernel command line: foo=WARNING: x\n", &[]),
            ("[ 1] refcount_t: addition on 0; use-after-free.\n", &["refcount"]),
        ];
        for (text, want) in cases {
            let got: Vec<_> = scan(text).iter().map(|s| s.kind).collect();
            assert_eq!(&got, want, "{text}");
        }
    }

    #[test]
    fn what_follows_a_report_is_seen() {
        let found = scan(&format!("{WARN}{WARN}"));
        assert_eq!(found.iter().map(|s| s.line).collect::<Vec<_>>(), [2, 9]);
    }

    #[test]
    fn only_what_is_allowed_passes() {
        let allowed = [Allowed {
            texts: &["kernel/x.c:1", "g+0x"],
            reason: "test",
        }];
        assert!(scan_with(WARN, &allowed).is_empty());
        assert_eq!(
            scan_with(&WARN.replace("x.c:1", "y.c:1"), &allowed).len(),
            1
        );
        assert_eq!(
            scan_with(&WARN.replace("g+0x", "h+0x"), &allowed).len(),
            1,
            "one of two texts is not enough"
        );
        assert_eq!(
            scan_with(&format!("{WARN}{}", WARN.replace("x.c", "y.c")), &allowed).len(),
            1
        );
    }
}
