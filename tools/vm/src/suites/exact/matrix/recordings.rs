// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The recordings for the rows: programs, recorded by `auxrec` and by stock perf with `soft_pt` under the name `intel_pt`; and programs
//! and kernel code, recorded by stock perf with `trace_unit` under that name.

/// A recording of a program.
#[derive(Debug)]
pub(super) struct Recording {
    /// The name of its file.
    pub name: &'static str,
    /// The event for the option `-e`, perhaps with more options.
    event: &'static str,
    pub program: &'static str,
    by: Recorder,
}

#[derive(Debug, PartialEq, Eq)]
enum Recorder {
    Auxrec,
    Perf,
    /// perf writes to a pipe.
    PerfToPipe,
    /// perf records a CPU by the trace unit, with a copy of the kernel's code.
    PerfOfCpu,
    /// perf records a program by the trace unit.
    PerfByUnit,
    /// The same, and perf writes to a pipe.
    PerfByUnitToPipe,
}

const fn by_auxrec(name: &'static str, event: &'static str, program: &'static str) -> Recording {
    Recording {
        name,
        event,
        program,
        by: Recorder::Auxrec,
    }
}

pub(super) const PLAIN: Recording = by_auxrec("plain", "intel_pt//u", "branches");
pub(super) const THREADS: Recording = by_auxrec("threads", "intel_pt//u", "branches-threads");
pub(super) const NORETCOMP: Recording = by_auxrec("noretcomp", "intel_pt/noretcomp/u", "branches");
pub(super) const CYCLES: Recording = by_auxrec("cycles", "intel_pt/cyc/u", "branches");
pub(super) const PSB: Recording = by_auxrec("psb", "intel_pt/psb_period=0/u", "branches");
pub(super) const WRITES: Recording = by_auxrec("writes", "intel_pt/ptw,fup_on_ptw,cyc/u", "writes");
pub(super) const WRITES_ALONE: Recording = by_auxrec(
    "writes-alone",
    "intel_pt/branch=0,ptw,fup_on_ptw/u",
    "writes",
);
pub(super) const PERF: Recording = Recording {
    by: Recorder::Perf,
    ..by_auxrec("perf", "intel_pt//u", "branches")
};
pub(super) const PIPE: Recording = Recording {
    by: Recorder::PerfToPipe,
    ..by_auxrec("pipe", "intel_pt//u", "branches")
};

/// Adds an option with the registers that each record has.
macro_rules! with_registers {
    ($event:literal) => {
        concat!(
            $event,
            " --intr-regs=AX,BX,CX,DX,SI,DI,BP,SP,IP,FLAGS,R8,R9,R10,R11,R12,R13,R14,R15"
        )
    };
}

/// With a sibling event that writes a record of each 97th instruction into the trace.
pub(super) const SAMPLED: Recording = Recording {
    by: Recorder::Perf,
    ..by_auxrec(
        "sampled",
        "{intel_pt//u,soft_pebs/instructions,period=97,aux-output/u}",
        "branches",
    )
};

/// Like [`SAMPLED`], for a program with threads.
pub(super) const SAMPLED_THREADS: Recording = Recording {
    by: Recorder::Perf,
    ..by_auxrec(
        "sampled-threads",
        "{intel_pt//u,soft_pebs/instructions,period=97,aux-output/u}",
        "branches-threads",
    )
};

/// Only the records, without branches.
pub(super) const SAMPLES: Recording = Recording {
    by: Recorder::Perf,
    ..by_auxrec(
        "samples",
        "{intel_pt/branch=0/u,soft_pebs/instructions,period=97,aux-output/uppp}",
        "branches",
    )
};

/// A record of each instruction, with its registers.
pub(super) const REGISTERS: Recording = Recording {
    by: Recorder::Perf,
    ..by_auxrec(
        "registers",
        with_registers!("{intel_pt//u,soft_pebs/instructions,period=1,aux-output/u}"),
        "registers",
    )
};

/// A record of each third instruction, with its registers.
pub(super) const REGISTERS_OF_THIRD: Recording = Recording {
    by: Recorder::Perf,
    ..by_auxrec(
        "registers-of-third",
        with_registers!("{intel_pt/cyc/u,soft_pebs/instructions,period=3,aux-output/u}"),
        "registers",
    )
};

/// All recordings with `soft_pt`.
pub(super) const ALL: [&Recording; 14] = [
    &PLAIN,
    &PERF,
    &THREADS,
    &NORETCOMP,
    &CYCLES,
    &PSB,
    &WRITES,
    &WRITES_ALONE,
    &PIPE,
    &SAMPLED,
    &SAMPLED_THREADS,
    &SAMPLES,
    &REGISTERS,
    &REGISTERS_OF_THIRD,
];

/// The programs that are stepped outside: they execute the same instructions on each machine. A processor that lacks `PTWRITE` cannot
/// execute `writes`; but this program prints what it writes.
pub(super) const STEPPED: [&str; 3] = ["branches", "branches-threads", "registers"];

/// A short variant of `branches`, which other modules record in many ways.
pub(super) const SHORT: &str = "branches-short";

/// Starts a program with the same environment in all runs.
const ALIKE: &str = "env -i PATH=/bin";

impl Recording {
    /// The name of its file.
    pub fn file(&self) -> String {
        format!("{}.data", self.name)
    }

    /// Whether the trace unit traces, not `soft_pt`.
    pub fn is_by_unit(&self) -> bool {
        matches!(
            self.by,
            Recorder::PerfOfCpu | Recorder::PerfByUnit | Recorder::PerfByUnitToPipe
        )
    }

    /// Whether only a program is traced.
    pub fn is_of_program(&self) -> bool {
        self.by != Recorder::PerfOfCpu
    }

    /// The recording of the same program by the trace unit, if there is one.
    pub fn twin(&self) -> Option<&'static Self> {
        TWINS
            .iter()
            .find(|(one, _)| *one == self.name)
            .map(|(_, twin)| *twin)
    }

    /// The command that makes the recording in a guest. With `soft_pt`, neither the recorder nor a task of the kernel runs on the program's
    /// CPU meanwhile.
    fn command(&self) -> String {
        let Self {
            name,
            event,
            program,
            by,
        } = self;
        let (file, said) = (self.file(), format!("/out/{name}.said"));
        let first = format!("{ALIKE} taskset 2 /usr/bin/chrt --fifo 99");
        let recorder = match by {
            Recorder::Auxrec => format!(
                "auxrec record -q -r98 -e {event} -m64,512 --aux-watermark=2M -o /out/{file} -- $PROGRAMS/{program} >/out/{name}.out 2>{said}"
            ),
            Recorder::Perf => format!(
                "/usr/bin/perf record -q -B -N -e {event} -m64,512 -o /out/{file} -- $PROGRAMS/{program} >/out/{name}.out 2>{said}"
            ),
            Recorder::PerfToPipe => format!(
                "/usr/bin/perf record -q -B -N -e {event} -m64,512 -o - -- $PROGRAMS/{program} >/out/{file} 2>{said}"
            ),
            Recorder::PerfOfCpu => {
                return format!(
                    "perf record -q -B -N --kcore -C 0 -e {event} -m1M,64M -o /out/{file} -- {program} >/out/{name}.out 2>{said} || echo '# {name} ended badly'\n"
                )
            }
            Recorder::PerfByUnit => {
                return format!(
                    "{ALIKE} /usr/bin/perf record -q -B -N -e {event} -m1M,16M -o /out/{file} -- $PROGRAMS/{program} >/out/{name}.out 2>{said} || echo '# {name} ended badly'\n"
                )
            }
            Recorder::PerfByUnitToPipe => {
                return format!(
                    "{ALIKE} /usr/bin/perf record -q -B -N -e {event} -m1M,16M -o - -- $PROGRAMS/{program} >/out/{file} 2>{said} || echo '# {name} ended badly'\n"
                )
            }
        };
        format!("{first} {recorder} || echo '# {name} ended badly'\n")
    }
}

/// The kernel code that a CPU executed, recorded by the trace unit.
pub(super) const KERNEL: Recording = Recording {
    by: Recorder::PerfOfCpu,
    ..by_auxrec("kernel", "intel_pt/cyc,mtc/k", "cat /proc/version")
};

/// All code that a CPU executed.
pub(super) const WHOLE: Recording = Recording {
    by: Recorder::PerfOfCpu,
    ..by_auxrec("whole", "intel_pt/cyc/", "cat /proc/uptime")
};

/// All code that a CPU executed, with interrupts and exceptions.
pub(super) const EVENTS: Recording = Recording {
    by: Recorder::PerfOfCpu,
    ..by_auxrec("events", "intel_pt/event,cyc/", "cat /proc/loadavg")
};

/// The kernel code that a CPU executed, with interrupts and exceptions.
pub(super) const EVENTS_OF_KERNEL: Recording = Recording {
    by: Recorder::PerfOfCpu,
    ..by_auxrec("events-of-kernel", "intel_pt/event/k", "cat /proc/stat")
};

const fn by_unit(name: &'static str, event: &'static str, program: &'static str) -> Recording {
    Recording {
        by: Recorder::PerfByUnit,
        ..by_auxrec(name, event, program)
    }
}

pub(super) const UNIT: Recording = by_unit("unit", "intel_pt//u", "branches");
pub(super) const UNIT_NORETCOMP: Recording =
    by_unit("unit-noretcomp", "intel_pt/noretcomp/u", "branches");
pub(super) const UNIT_PSB: Recording = by_unit("unit-psb", "intel_pt/psb_period=0/u", "branches");
pub(super) const UNIT_THREADS: Recording =
    by_unit("unit-threads", "intel_pt//u", "branches-threads");
pub(super) const UNIT_PIPE: Recording = Recording {
    by: Recorder::PerfByUnitToPipe,
    ..by_auxrec("unit-pipe", "intel_pt//u", "branches")
};

/// A program, with the interrupts and exceptions that interrupt it.
pub(super) const UNIT_EVENTS: Recording = by_unit("unit-events", "intel_pt/event/u", "branches");

/// The recordings by the trace unit, in their order.
pub(super) const BY_UNIT: [&Recording; 10] = [
    &KERNEL,
    &WHOLE,
    &EVENTS,
    &EVENTS_OF_KERNEL,
    &UNIT_EVENTS,
    &UNIT,
    &UNIT_NORETCOMP,
    &UNIT_PSB,
    &UNIT_THREADS,
    &UNIT_PIPE,
];

/// Recordings by `soft_pt`, each with the recording of the same program by the trace unit.
const TWINS: [(&str, &Recording); 6] = [
    (PLAIN.name, &UNIT),
    (PERF.name, &UNIT),
    (NORETCOMP.name, &UNIT_NORETCOMP),
    (PSB.name, &UNIT_PSB),
    (THREADS.name, &UNIT_THREADS),
    (PIPE.name, &UNIT_PIPE),
];

/// The commands that make the recordings by the trace unit in a guest with one CPU. `$PROGRAMS` is the folder of the programs.
pub(super) fn command_of_unit() -> String {
    let loads = "insmod /modules/rust_perf.ko && insmod /modules/trace_unit.ko intel_pt=1 || exit 1
echo 0 >/proc/sys/kernel/kptr_restrict; echo 0 >/proc/sys/kernel/randomize_va_space
";
    BY_UNIT
        .iter()
        .fold(loads.to_owned(), |command, one| command + &one.command())
}

/// The commands that make recordings by `soft_pt` in a guest. `$PROGRAMS` is the folder of the programs.
pub(super) fn command(all: &[&Recording]) -> String {
    let mut command = "insmod /modules/rust_perf.ko && insmod /modules/rust_stepping.ko && insmod /modules/soft_pt.ko intel_pt=1 || exit 1
echo 0 >/proc/sys/kernel/randomize_va_space; echo 0 >/proc/sys/kernel/watchdog
for file in /sys/kernel/debug/sched/fair_server/cpu*/runtime; do echo 0 >$file; done
".to_owned();
    for recording in all {
        command += &recording.command();
    }
    command
}
