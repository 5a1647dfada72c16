// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table: uses of stock perf, each with the check of its output.

use super::branches::{branches, ALL, CALLS, RETURNS};
use super::calls::{
    by_script, call_and_return_trace, call_trace, chains, histogram, inclusive, last_branches,
};
use super::events::{events, events_of_kernel, events_of_program};
use super::executed::{Printed, Verdict};
use super::instructions::{
    annotated, between_branches, bytes, each, every, lines, nothing, one_in, one_in_of_each,
    one_thread, skips, windows,
};
use super::kernel::{branches_of_kernel, every_of_cpu, some_of_kernel, times};
use super::packets::{
    cycles, cycles_by_clock, cycles_of_calls, dumped, dumped_of_kernel, dumped_without_branches,
    dumped_without_compression, one_cycle_each, payloads, psb_events, psb_every,
};
use super::recordings::{
    Recording, CYCLES, EVENTS, EVENTS_OF_KERNEL, KERNEL, NORETCOMP, PERF, PIPE, PLAIN, PSB,
    REGISTERS, REGISTERS_OF_THIRD, SAMPLED, SAMPLED_THREADS, SAMPLES, THREADS, UNIT_EVENTS,
    UNIT_PIPE, WHOLE, WRITES, WRITES_ALONE,
};
use super::sampled::{numbered, registers};
use super::spans::{spans, spans_of_cpu};
use super::trail::{each_packet, periodic, quick};

/// A use of perf.
#[derive(Clone, Copy)]
struct Use {
    name: &'static str,
    recording: &'static Recording,
    command: &'static str,
    right: fn(&Printed<'_>) -> Verdict,
}

/// A use of perf on a recording, as a case.
pub(super) struct Row {
    pub name: String,
    pub recording: &'static Recording,
    /// The command as shell text. It runs in its own folder. `$DATA` is the recording.
    pub command: &'static str,
    /// The check of the output.
    pub right: fn(&Printed<'_>) -> Verdict,
}

const fn row(
    name: &'static str,
    recording: &'static Recording,
    command: &'static str,
    right: fn(&Printed<'_>) -> Verdict,
) -> Use {
    Use {
        name,
        recording,
        command,
        right,
    }
}

/// Rows that do not run on recordings by the trace unit. Most of them do not fit a machine with one CPU.
const NOT_BY_UNIT: [&str; 4] = [
    // Recordings by the trace unit have their own rows for it.
    "I",
    "-C of the program",
    "-C of another CPU",
    // `perf inject` of perf 7.3 does not pass on the description of a machine with one CPU that `perf record` writes.
    "a pipe from perf inject",
];

/// All rows. If the trace unit has recorded the same program as `soft_pt`, the row also runs on that recording, with the same check.
pub(super) fn all() -> Vec<Row> {
    let row = |one: &Use, name: String, recording| Row {
        name,
        recording,
        command: one.command,
        right: one.right,
    };
    let mut rows: Vec<_> = ROWS
        .iter()
        .map(|one| row(one, one.name.to_owned(), one.recording))
        .collect();
    let of_both = ROWS.iter().filter(|one| !NOT_BY_UNIT.contains(&one.name));
    rows.extend(of_both.filter_map(|one| {
        let twin = one.recording.twin()?;
        Some(row(one, format!("unit, {}", one.name), twin))
    }));
    rows
}

/// Prints the conversion of the clock, and then the output of a command.
macro_rules! with_clock {
    ($command:literal) => {
        concat!(
            "perf script -i $DATA -D | sed -n '/Time Shift/p; /Time Mult/{ p; q }' && ",
            $command
        )
    };
}

/// Prints QEMU's log of interrupts and exceptions, and then the output of a command.
macro_rules! with_interrupts {
    ($command:literal) => {
        concat!(
            "sed -n '/ v=/p; /^RIP=/p' $INTERRUPTS && echo && echo shown && ",
            $command
        )
    };
}

/// The same with perf's script, converted to the form of `perf script`. Addresses of page faults are removed: the script of perf 7.3 shows
/// others, see Documentation/upstream.
const EVENTS_BY_SCRIPT: &str = "sed -n 's/ CR2=.*//; / v=/p; /^RIP=/p' $INTERRUPTS && echo && echo shown && perf script -i $DATA --itrace=Ie -s intel-pt-events.py | sed -n 's/PFA: [^ ]*//; s/.*\\(cfe: [A-Z]* IP: [01] vector: [0-9]*\\) *\\([0-9a-f]*\\) .*/evt: \\1 \\2/p; s/.*\\(IFLAG: .* branch\\) *\\([0-9a-f]*\\) .*/iflag: \\1 \\2/p'";

/// Prints all instructions, the bounds of two windows of time, and the instructions in these windows.
const WINDOWS: &str = "perf script -i $DATA --itrace=pe --ns -F time,event >events; perf script -i $DATA --itrace=i1ie --ns -F time,ip >all && cat all && set -- $(awk -f $PYTHONPATH/windows.awk events all) && echo windows $* && perf script -i $DATA --itrace=i1ie --ns -F time,ip --time \"$1,$2 $3,$4\"";

const ROWS: &[Use] = &[
    row("export to Perfetto", &PLAIN, "$AUXREC export --no-lines -o spans $DATA >summary && python3 $PYTHONPATH/perfetto.py spans", spans::<false>),
    row("export in instructions", &PLAIN, "$AUXREC export --no-lines --clock instructions -o spans $DATA >summary && python3 $PYTHONPATH/perfetto.py spans", spans::<true>),
    row("export of threads", &THREADS, "$AUXREC export --no-lines -o spans $DATA >summary && python3 $PYTHONPATH/perfetto.py spans", spans::<false>),
    row("export to Firefox", &PLAIN, "$AUXREC export --no-lines --clock instructions --format firefox -o spans $DATA >summary && python3 $PYTHONPATH/firefox.py spans", spans::<true>),
    row("export to speedscope", &PLAIN, "$AUXREC export --no-lines --clock instructions --format firefox -o spans $DATA >summary && python3 $PYTHONPATH/firefox.py spans old", spans::<true>),
    row("i1i", &PLAIN, "perf script -i $DATA --itrace=i1ie -F tid,ip", each),
    row("i1i of threads", &THREADS, "perf script -i $DATA --itrace=i1ie -F tid,ip", each),
    row("i100i", &PLAIN, "perf script -i $DATA --itrace=i100ie -F tid,ip", every::<100>),
    row("i100i of threads", &THREADS, "perf script -i $DATA --itrace=i100ie -F tid,ip", one_in::<100>),
    row("i0ns", &PLAIN, "perf script -i $DATA --itrace=i0nse -F tid,ip", each),
    row("i1t", &PLAIN, "perf script -i $DATA --itrace=i1te -F tid,ip", each),
    row("i1us", &PLAIN, "perf script -i $DATA -D && echo && echo timed && perf script -i $DATA --itrace=i1use -F ip", periodic::<1000>),
    row("s", &PLAIN, "perf script -i $DATA --itrace=i1ies1000 -F tid,ip", skips::<1000>),
    row("b", &PLAIN, "perf script -i $DATA --itrace=be -F tid,ip,addr,flags", branches::<ALL>),
    row("b of threads", &THREADS, "perf script -i $DATA --itrace=be -F tid,ip,addr,flags", branches::<ALL>),
    row("c", &PLAIN, "perf script -i $DATA --itrace=ce -F tid,ip,addr,flags", branches::<CALLS>),
    row("r", &PLAIN, "perf script -i $DATA --itrace=re -F tid,ip,addr,flags", branches::<RETURNS>),
    row("cr", &PLAIN, "perf script -i $DATA --itrace=cre -F tid,ip,addr,flags", branches::<{ CALLS | RETURNS }>),
    row("e", &PLAIN, "perf script -i $DATA --itrace=e -F tid,ip", nothing),
    row("o of a sibling", &SAMPLED, "perf script -i $DATA --itrace=oe -F tid,ip", every::<97>),
    row("o of a sibling, of threads", &SAMPLED_THREADS, "perf script -i $DATA --itrace=oe -F tid,ip", one_in_of_each::<97>),
    row("o of a sibling, with branch=0", &SAMPLES, "perf script -i $DATA --itrace=oe -F tid,ip", every::<97>),
    row("i1i beside a sibling", &SAMPLED, "perf script -i $DATA --itrace=i1ie -F tid,ip", each),
    row("b beside a sibling", &SAMPLED, "perf script -i $DATA --itrace=be -F tid,ip,addr,flags", branches::<ALL>),
    row("-D of a sibling", &SAMPLED, "perf script -i $DATA -D", numbered),
    row("o, each register", &REGISTERS, "perf script -i $DATA --itrace=oe -F ip,iregs", registers::<1>),
    row("o, each register of each third", &REGISTERS_OF_THIRD, "perf script -i $DATA --itrace=oe -F ip,iregs", registers::<3>),
    row("x", &PLAIN, "perf script -i $DATA --itrace=xe -F tid,ip", nothing),
    row("o", &PLAIN, "perf script -i $DATA --itrace=oe -F tid,ip", nothing),
    row("I", &PLAIN, "perf script -i $DATA --itrace=Ie -F tid,ip", nothing),
    row("f", &PLAIN, "perf script -i $DATA --itrace=fe -F tid,ip", nothing),
    row("G", &PLAIN, "perf script -i $DATA --itrace=Ge -F tid,ip", nothing),
    row("L", &PLAIN, "perf script -i $DATA --itrace=Le -F tid,ip", nothing),
    row("no-itrace", &PLAIN, "perf script -i $DATA --no-itrace -F tid,ip", nothing),
    row("g", &PLAIN, "perf script -i $DATA --itrace=i50ige --no-inline -F ip", chains::<50, 16>),
    row("g64", &PLAIN, "perf script -i $DATA --itrace=i50ig64e --no-inline -F ip", chains::<50, 64>),
    row("l", &PLAIN, "perf script -i $DATA --itrace=i100ile -F ip,brstack", last_branches::<100, 64>),
    row("l10", &PLAIN, "perf script -i $DATA --itrace=i100il10e -F ip,brstack", last_branches::<100, 10>),
    row("q", &PLAIN, "perf script -i $DATA -D && echo && echo quick && perf script -i $DATA --itrace=qi1ie -F ip", quick::<false>),
    row("q with noretcomp", &NORETCOMP, "perf script -i $DATA -D && echo && echo quick && perf script -i $DATA --itrace=qi1ie -F ip", quick::<false>),
    row("qq", &PSB, "perf script -i $DATA -D && echo && echo quick && perf script -i $DATA --itrace=qqie -F ip", quick::<true>),
    row("-D, each packet", &PLAIN, "perf script -i $DATA -D", each_packet),
    row("-D with psb_period, each packet", &PSB, "perf script -i $DATA -D", each_packet),
    row("p", &PSB, "perf script -i $DATA -D && echo && echo events && perf script -i $DATA --itrace=pe -F ip,synth", psb_events),
    row("-D", &PLAIN, "perf script -i $DATA -D", dumped),
    row("-D of threads", &THREADS, "perf script -i $DATA -D", dumped),
    row("-D with noretcomp", &NORETCOMP, "perf script -i $DATA -D", dumped_without_compression),
    row("-D with psb_period", &PSB, "perf script -i $DATA -D", psb_every::<2048>),
    row("w", &WRITES, "perf script -i $DATA --itrace=we -F ip,synth && echo && echo printed && cat ${DATA%.data}.out", payloads),
    row("w with branch=0", &WRITES_ALONE, "perf script -i $DATA --itrace=we -F ip,synth && echo && echo printed && grep -v ' 0$' ${DATA%.data}.out", payloads),
    row("-D with branch=0", &WRITES_ALONE, "perf script -i $DATA -D", dumped_without_branches),
    row("d", &PLAIN, "perf script -i $DATA --itrace=i1ide -F tid,ip && test -s intel_pt.log", each),
    row("Z", &PLAIN, "perf script -i $DATA --itrace=i1iZe -F tid,ip", each),
    row("y", &CYCLES, "perf script -i $DATA --itrace=i1iye -F event,period", cycles),
    row("-F +ipc", &CYCLES, "perf script -i $DATA --itrace=be -F ip,ipc", one_cycle_each::<false>),
    row("A", &CYCLES, "perf script -i $DATA --itrace=beA -F ip,ipc", one_cycle_each::<true>),
    row("--insn-trace", &PLAIN, "perf script -i $DATA --insn-trace -F tid,ip,insn", bytes),
    row("-F +insn,+insnlen", &PLAIN, "perf script -i $DATA --itrace=i1ie -F tid,ip,insnlen,insn", bytes),
    row("--call-trace", &PLAIN, "perf script -i $DATA --call-trace -F +flags,-comm,-cpu,-time", call_trace),
    row("--call-ret-trace", &PLAIN, "perf script -i $DATA --call-ret-trace -F -comm,-cpu,-time", call_and_return_trace),
    row("-C of the program", &PLAIN, "perf script -i $DATA --itrace=i1ie -F tid,ip -C 1", each),
    row("-C of another CPU", &PLAIN, "perf script -i $DATA --itrace=i1ie -F tid,ip -C 0", nothing),
    row("--time of all", &THREADS, "perf script -i $DATA --itrace=i1ie -F tid,ip --time 0,$(perf script -i $DATA --no-itrace --show-task-events --ns | sed -n 's/.* \\([0-9.]*\\): PERF_RECORD_EXIT.*/\\1/p' | tail -n1)", each),
    row("--time behind the end", &THREADS, "perf script -i $DATA --itrace=i1ie -F tid,ip --time $(perf script -i $DATA --no-itrace --show-task-events --ns | sed -n 's/.* \\([0-9.]*\\): PERF_RECORD_EXIT.*/\\1/p' | tail -n1),", nothing),
    row("--time of a thread", &THREADS, "perf script -i $DATA --itrace=i1ie -F tid,ip --time $(perf script -i $DATA --no-itrace --show-task-events --ns | sed -n 's/.* \\([0-9.]*\\): PERF_RECORD_FORK.*/\\1/p' | head -n1),$(perf script -i $DATA --no-itrace --show-task-events --ns | sed -n 's/.* \\([0-9.]*\\): PERF_RECORD_EXIT.*/\\1/p' | head -n1)", one_thread),
    row("--time of two windows", &PLAIN, WINDOWS, windows),
    row("iybxwpe", &PLAIN, "perf script -i $DATA --itrace=iybxwpe -F event,tid,flags,ip,addr | sed -n 's/branches:u://p'", branches::<ALL>),
    row("-F +srcline", &PLAIN, "perf script -i $DATA --itrace=i100ie --no-inline -F ip,srcline >shown; cat shown; echo; echo lines; grep -o '^ *[0-9a-f]*$' shown | addr2line -s -e $PROGRAM", lines),
    row("-F +brstackinsn", &PLAIN, "perf script -i $DATA --itrace=i100il4e -F ip,brstackinsn", between_branches::<100>),
    row("perf report", &PLAIN, "perf report -i $DATA --itrace=i1ie --stdio -q -F sample,sym", histogram),
    row("perf report --children", &PLAIN, "perf report -i $DATA --itrace=i1ig64e --no-inline --stdio -q --children -g caller,100 -F overhead_children,sample,sym", inclusive),
    row("perf annotate", &PLAIN, "perf annotate -i $DATA --itrace=i1ie --stdio -q -n work", annotated),
    row("perf inject", &PLAIN, "perf inject -i $DATA --itrace=i100ie --strip -o new && perf script -i new -F tid,ip", every::<100>),
    row("perf inject for AutoFDO", &PLAIN, "perf inject -i $DATA --itrace=i100ile --strip -o new && perf script -i new -F ip,brstack", last_branches::<100, 64>),
    row("dlfilter-show-cycles.so", &CYCLES, "perf script -i $DATA --itrace=A --call-trace -F +flags --dlfilter dlfilter-show-cycles.so", call_trace),
    row("intel-pt-events.py", &PLAIN, "perf script -i $DATA -s intel-pt-events.py", by_script),
    row("export-to-sqlite.py, branches", &PLAIN, "perf script -i $DATA --itrace=be -s export-to-sqlite.py db branches calls && python3 $PYTHONPATH/database.py branches db", by_script),
    row("export-to-sqlite.py, calls", &PLAIN, "perf script -i $DATA --itrace=be -s export-to-sqlite.py db branches calls && python3 $PYTHONPATH/database.py calls db", call_trace),
    row("perf record", &PERF, "perf script -i $DATA --itrace=i1ie -F tid,ip", each),
    row("a pipe from perf record", &PIPE, "perf script -i - --itrace=i1ie -F tid,ip <$DATA", each),
    row("a pipe from perf inject", &PLAIN, "perf inject -i $DATA -o - | perf script -i - --itrace=i1ie -F tid,ip", each),
    row("perf inject of perf record", &PERF, "perf inject -i $DATA --itrace=i100ie --strip -o new && perf script -i new -F tid,ip", every::<100>),
    row("unit, a pipe from perf inject", &UNIT_PIPE, "perf inject -i - -o - <$DATA | perf script -i - --itrace=i1ie -F tid,ip", each),
    row("calls of the kernel", &KERNEL, "$AUXREC script --no-lines --clock instructions $DATA", spans_of_cpu),
    row("calls of kernel and programs", &WHOLE, "$AUXREC script --no-lines --clock instructions $DATA", spans_of_cpu),
    row("the kernel, i1i", &KERNEL, "perf script -i $DATA --itrace=i1ie -F ip", every_of_cpu::<1>),
    row("the kernel, i1000i", &KERNEL, "perf script -i $DATA --itrace=i1000ie -F ip", every_of_cpu::<1000>),
    row("the kernel, b", &KERNEL, "perf script -i $DATA --itrace=be -F tid,flags,ip,addr", branches_of_kernel),
    row("the kernel, c", &KERNEL, "perf script -i $DATA --itrace=be -F tid,flags,ip,addr && echo && echo some && perf script -i $DATA --itrace=ce -F tid,flags,ip,addr", some_of_kernel::<CALLS>),
    row("the kernel, r", &KERNEL, "perf script -i $DATA --itrace=be -F tid,flags,ip,addr && echo && echo some && perf script -i $DATA --itrace=re -F tid,flags,ip,addr", some_of_kernel::<RETURNS>),
    row("the kernel, cr", &KERNEL, "perf script -i $DATA --itrace=be -F tid,flags,ip,addr && echo && echo some && perf script -i $DATA --itrace=cre -F tid,flags,ip,addr", some_of_kernel::<{ CALLS | RETURNS }>),
    row("the kernel, A", &KERNEL, with_clock!("perf script -i $DATA --itrace=beA --ns -F time,flags,ip,ipc"), cycles_by_clock),
    row("the kernel, dlfilter-show-cycles.so", &KERNEL, with_clock!("perf script -i $DATA --itrace=A --call-trace -F +flags --dlfilter dlfilter-show-cycles.so"), cycles_of_calls),
    row("the kernel, --time of two windows", &KERNEL, WINDOWS, windows),
    row("the kernel, -D", &KERNEL, "perf script -i $DATA -D", dumped_of_kernel),
    row("the kernel, -D, each packet", &KERNEL, "perf script -i $DATA -D", each_packet),
    row("the kernel, q", &KERNEL, "perf script -i $DATA -D && echo && echo quick && perf script -i $DATA --itrace=qi1ie -F ip", quick::<false>),
    // Not `qq`: if a `CYC` and a `TNT` before a `PSB` are the bytes 02 82, perf finds the `PSB` two bytes early, and skips it.
    row("the kernel, perf report", &KERNEL, "perf report -i $DATA --itrace=i1ie --stdio -q -F sample,sym", histogram),
    row("kernel and programs, i1i", &WHOLE, "perf script -i $DATA --itrace=i1ie -F ip", every_of_cpu::<1>),
    row("events, i1i", &EVENTS, "perf script -i $DATA --itrace=i1ie -F ip", every_of_cpu::<1>),
    row("events, -D, each packet", &EVENTS_OF_KERNEL, "perf script -i $DATA -D", each_packet),
    row("events", &EVENTS, with_interrupts!("perf script -i $DATA --itrace=Ie -F event,synth,ip"), events),
    row("events, intel-pt-events.py", &EVENTS, EVENTS_BY_SCRIPT, events),
    row("events of the kernel, i1i", &EVENTS_OF_KERNEL, "perf script -i $DATA --itrace=i1ie -F ip", every_of_cpu::<1>),
    row("events of the kernel", &EVENTS_OF_KERNEL, with_interrupts!("perf script -i $DATA --itrace=Ie -F event,synth,ip"), events_of_kernel),
    row("events of a program, i1i", &UNIT_EVENTS, "perf script -i $DATA --itrace=i1ie -F tid,ip", each),
    row("events of a program", &UNIT_EVENTS, with_interrupts!("perf script -i $DATA --itrace=Ie -F event,synth,ip"), events_of_program),
    row("times", &WHOLE, with_clock!("perf script -i $DATA --itrace=be --ns -F time,flags,ip,addr"), times),
];
