// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The recordings: what is traced, on which CPUs, and which calls the trace must show.

use super::calls::Call;
use std::ffi::OsStr;
use std::path::Path;

/// A guest, and what stock perf records in it.
pub(super) struct Machine {
    /// The case's name.
    pub name: &'static str,
    /// The number of its CPUs.
    pub cpus: usize,
    /// More options for the kernel's command line.
    pub append: &'static str,
    /// The recordings, in their order.
    pub recordings: &'static [Recording],
}

impl Machine {
    /// Whether a recording runs the program.
    pub fn has(&self, program: &Path) -> bool {
        let name = program.file_name().and_then(OsStr::to_str);
        let in_work = |recording: &Recording| {
            let mut words = recording.work.split([' ', ';', '\n', '\t', '/']);
            words.any(|word| Some(word) == name)
        };
        self.recordings.iter().any(in_work)
    }
}

/// What `perf record` traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    /// All CPUs.
    All,
    /// CPU 1. perf runs on CPU 0.
    One,
}

/// A recording.
pub(super) struct Recording {
    /// The case's name.
    pub name: &'static str,
    which: Which,
    event: &'static str,
    /// Options of perf that restrict the trace.
    filter: &'static str,
    /// The work that is traced, as a shell script.
    pub work: &'static str,
    /// Whether perf copies the kernel's code again after the work. In each recording, it copies the code before the work.
    pub copied_after: bool,
    pub calls: &'static [Call],
    /// Whether libipt decodes it, too. Then the work must not change code.
    pub by_libipt: bool,
}

impl Recording {
    /// The name of the script and of the recording in `/out`.
    pub fn file(&self) -> String {
        self.name.replace(' ', "-")
    }

    /// The name of the file with the output of perf and of the work.
    pub fn said(&self) -> String {
        format!("{}-said", self.file())
    }

    /// The name of a second recording, which only has the later copy of the kernel's code.
    pub fn later(&self) -> Option<String> {
        let later = || format!("{}-later", self.file());
        self.copied_after.then(later)
    }

    /// The command that makes the recording in a guest.
    pub fn command(&self) -> String {
        let Self {
            name,
            event,
            filter,
            ..
        } = self;
        let (perf, which, work) = match self.which {
            Which::All => ("", "-a", ""),
            Which::One => ("taskset 1 ", "-C 1", "taskset 2 "),
        };
        let (file, said) = (self.file(), self.said());
        // By default, perf gives up reading the mappings of a process after half a second, and has only a part of them.
        let mut command = format!(
            "{perf}perf record -q --proc-map-timeout 60000 --kcore {which} -m 1M,16M -e {event} {filter} -o /out/{file} -- {work}{file} >/tmp/{said} 2>&1 || echo '# {name} ended badly'; mv /tmp/{said} /out\n"
        );
        if let Some(later) = self.later() {
            command += &format!("perf record -q --kcore -e dummy -o /out/{later} -- true\n");
        }
        command
    }

    /// Whether a CPU is traced.
    pub fn traces(&self, cpu: usize) -> bool {
        self.which == Which::All || cpu == 1
    }

    const fn calls(self, calls: &'static [Call]) -> Self {
        Self { calls, ..self }
    }

    const fn copied_after(self) -> Self {
        Self {
            copied_after: true,
            ..self
        }
    }
}

const fn all(name: &'static str, work: &'static str) -> Recording {
    Recording {
        name,
        which: Which::All,
        event: "intel_pt//",
        filter: "",
        work,
        copied_after: false,
        calls: &[],
        by_libipt: false,
    }
}

/// A recording of all CPUs with this event.
const fn with(event: &'static str, name: &'static str, work: &'static str) -> Recording {
    Recording {
        event,
        ..all(name, work)
    }
}

const fn by_libipt(filter: &'static str, name: &'static str, work: &'static str) -> Recording {
    Recording {
        filter,
        by_libipt: true,
        ..all(name, work)
    }
}

const fn one(name: &'static str, filter: &'static str, work: &'static str) -> Recording {
    Recording {
        which: Which::One,
        filter,
        ..all(name, work)
    }
}

const fn call(name: &'static str, chain: &'static [&'static str]) -> Call {
    Call { name, chain }
}

/// The guests. The order of the recordings matters: a module is loaded in one and unloaded in the next. Each recording's copy of the
/// kernel's code is in the guest's memory.
pub(super) const MACHINES: [Machine; 3] = [
    Machine {
        name: super::TWO_CPUS,
        cpus: 2,
        append: "",
        recordings: &[
            PROCESSES,
            SIGNALS,
            NETWORK,
            PROGRAMS,
            one(
                "two ranges",
                "--filter 'filter do_sys_openat2 filter vfs_read'",
                "cat /proc/version",
            ),
            one(
                "an end",
                "--filter 'tracestop do_sys_openat2'",
                "cat /proc/version",
            ),
        ],
    },
    // The kernel changes its own code, and reports the changes to perf.
    Machine {
        name: "two CPUs and code that changes",
        cpus: 2,
        append: "",
        recordings: &[
            all(
                "static keys",
                "cd /sys/kernel/tracing; for i in 1 0 1 0; do echo $i > events/sched/sched_wakeup/enable; usleep 100; done",
            ),
            all(
                "a probe",
                "cd /sys/kernel/tracing; echo 'p:here do_sys_openat2' > kprobe_events; echo 1 > events/kprobes/here/enable
		cat /proc/version /proc/uptime /proc/loadavg; echo 0 > events/kprobes/here/enable; echo > kprobe_events",
            )
            .calls(&[call(
                "a kprobe",
                &["do_sys_openat2", "kprobe_ftrace_handler", "kprobe_trace_func"],
            )]),
            // The probe is after the code that ftrace patches, and after `endbr64` if there is one.
            all(
                "a probe by int3",
                "cd /sys/kernel/tracing; echo 0 > /proc/sys/debug/kprobes-optimization
		echo 'p:here do_sys_openat2+9' > kprobe_events || echo 'p:here do_sys_openat2+5' > kprobe_events
		echo 1 > events/kprobes/here/enable; cat /proc/version /proc/uptime /proc/loadavg; echo 0 > events/kprobes/here/enable
		echo > kprobe_events; echo 1 > /proc/sys/debug/kprobes-optimization",
            )
            .calls(&[call(
                "a kprobe by int3",
                &[
                    "do_sys_openat2",
                    "asm_exc_int3",
                    "exc_int3",
                    "kprobe_int3_handler",
                    "kprobe_trace_func",
                ],
            )]),
            all("a BPF program", "filtered").calls(&[call(
                "a BPF program in a system call",
                &[
                    "do_syscall_64",
                    "x64_sys_call",
                    "sk_filter_trim_cap",
                    "bpf_prog_*_sees bpf_ktime_get_ns",
                ],
            )]),
            all("a module is loaded", "insmod /modules/traced.ko")
                .copied_after()
                .calls(&[call(
                    "the init function of a module",
                    &["do_one_initcall", "traced_fold"],
                )]),
            all(
                "a module is unloaded",
                "echo 5 > /sys/module/traced/parameters/rounds; rmmod traced",
            )
            .calls(&[
                call(
                    "a parameter of a module",
                    &["vfs_write", "traced_fold"],
                ),
                call(
                    "the exit function of a module",
                    &["traced_leave", "traced_fold"],
                ),
            ]),
            // The event of the CPU ends when the CPU goes offline.
            all(
                "a CPU goes and comes",
                "cd /sys/devices/system/cpu/cpu1; echo 0 > online; cat /proc/version; echo 1 > online",
            ),
        ],
    },
    Machine {
        name: "one CPU",
        cpus: 1,
        // pti=off: with page table isolation, there is a MOV CR3 before SYSRET. libipt takes a TIP.PGD after a PIP for that of the MOV CR3.
        // norandmaps: libipt gets only one address space.
        append: "pti=off norandmaps",
        recordings: &[
            PROCESSES,
            SIGNALS,
            NETWORK,
            PROGRAMS,
            by_libipt("--all-kernel", "kernel code alone", READS),
            by_libipt("", "kernel and busybox", READS),
            with("intel_pt/cyc/", "cycles", READS),
            with("intel_pt/cyc,mtc/", "cycles and the coarse clock", READS),
            all("a BPF program", "filtered"),
            all("a module is loaded", "insmod /modules/traced.ko").copied_after(),
            all("a module is unloaded", "rmmod traced"),
        ],
    },
];

/// All code that these programs execute is in files, and does not change. `strings` has a path, as the shell has a `strings` of its own.
const PROGRAMS: Recording = all(
    "programs",
    "again; calls; calls-32; calls-static; children; closures; dispatched; exceptions; faults; fibers; flags; goroutines; indirect; jumps
		sequences; signals; stepper; $PROGRAMS/strings; syscalls; twice; unreadable; vsyscalls",
);

const READS: &str = "cat /proc/version | md5sum";

const SIGNALS: Recording = all(
    "signals and timers",
    "trap : USR1; for i in 1 2 3 4 5; do kill -USR1 $$; usleep 1000; done; sh -c 'kill -SEGV $$'; true",
);

const NETWORK: Recording = all(
    "network and memory and futexes",
    "ping -c 2 -i 0.1 127.0.0.1; awk 'BEGIN { for (i = 0; i < 500; i++) a[i] = i }'; threads",
);

const PROCESSES: Recording = all(
    "processes and files",
    "for i in 1 2 3; do /bin/busybox true & done; wait; seq 200 | sort -rn | tail -1
		head -c 20000 /dev/urandom > /tmp/a; md5sum /tmp/a; rm /tmp/a; cat /proc/version",
)
.calls(&[
    call(
        "an interrupt",
        &[
            "asm_sysvec_apic_timer_interrupt",
            "sysvec_apic_timer_interrupt",
            "__sysvec_apic_timer_interrupt",
            "__hrtimer_run_queues",
            "update_process_times",
        ],
    ),
    call(
        "a page fault",
        &[
            "asm_exc_page_fault",
            "exc_page_fault",
            "handle_mm_fault",
            "__handle_mm_fault",
        ],
    ),
    call(
        "a context switch",
        &[
            "do_syscall_64",
            "schedule",
            "__schedule",
            "finish_task_switch*",
        ],
    ),
    call(
        "a system call that opens a file",
        &[
            "entry_SYSCALL_64",
            "do_syscall_64",
            "x64_sys_call",
            "do_sys_openat2",
            "path_openat",
            "link_path_walk",
        ],
    ),
    call(
        "a system call that reads a file",
        &[
            "entry_SYSCALL_64",
            "do_syscall_64",
            "x64_sys_call",
            "vfs_read",
            "seq_read_iter",
            "seq_printf",
            "vsnprintf",
        ],
    ),
]);
