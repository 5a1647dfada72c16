// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that perf dumps as many packets, and makes as many events of them, as the executed instructions need.

use super::executed::{Kind, Printed, Step, Verdict};

/// A dumped packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    pub offset: u64,
    len: u64,
    /// Its first byte.
    pub first: u8,
    pub name: &'a str,
    pub payload: &'a str,
}

/// The packets of a dump by `perf script -D`, in lines such as `.  00000010:  2d 40 11   TIP 0x401140`. There the offsets restart at 0 with
/// each piece of trace. Here they continue, as in perf's events.
pub(super) fn packets(out: &str) -> Vec<Packet<'_>> {
    let (mut before, mut end) = (0, 0);
    let packets = out.lines().filter_map(packet);
    packets
        .map(|packet| {
            if packet.offset == 0 {
                before = end;
            }
            let offset = before + packet.offset;
            end = offset + packet.len;
            Packet { offset, ..packet }
        })
        .collect()
}

fn packet(line: &str) -> Option<Packet<'_>> {
    let (offset, rest) = line.strip_prefix(".  ")?.split_once(':')?;
    // The offsets in dumps of other bytes have fewer digits.
    if offset.len() != 8 {
        return None;
    }
    let offset = u64::from_str_radix(offset, 16).ok()?;
    // A byte is a word of two hexadecimal digits. No name is such a word.
    let byte = |word: &str| {
        u8::from_str_radix(word, 16)
            .ok()
            .filter(|_| word.len() == 2)
    };
    let mut rest = rest.trim_start();
    let (mut first, mut len) = (None, 0);
    while let Some((word, more)) = rest.split_once(' ') {
        let Some(byte) = byte(word) else { break };
        first.get_or_insert(byte);
        len += 1;
        rest = more.trim_start();
    }
    let (name, payload) = rest.split_once(' ').unwrap_or((rest, ""));
    Some(Packet {
        offset,
        len,
        first: first?,
        name,
        payload: payload.trim(),
    })
}

/// The number of bits in a `TNT` such as `TNT TTN (3)`.
fn bits(packet: &Packet<'_>) -> usize {
    let taken = packet.payload.split(' ').next().unwrap_or_default();
    taken.chars().filter(|bit| matches!(bit, 'T' | 'N')).count()
}

/// How many bits and packets a dump has.
struct Counts {
    bits: usize,
    tips: usize,
    begins: usize,
    ends: usize,
    /// `TIP.PGD` packets without an address, and without a `FUP` before them.
    syscalls: usize,
}

fn counts(packets: &[Packet<'_>]) -> Counts {
    let (mut syscalls, mut event) = (0, false);
    for packet in packets {
        match packet.name {
            "FUP" => event = true,
            "TIP.PGD" => {
                syscalls += usize::from(!event && packet.payload == "no ip");
                event = false;
            }
            "TIP" | "PSBEND" => event = false,
            _ => {}
        }
    }
    let named = |name: &'static str| packets.iter().filter(move |packet| packet.name == name);
    Counts {
        bits: named("TNT").map(bits).sum(),
        tips: named("TIP").count(),
        begins: named("TIP.PGE").count(),
        ends: named("TIP.PGD").count(),
        syscalls,
    }
}

fn equal(what: &str, shown: usize, right: usize) -> Result<(), String> {
    if shown == right {
        return Ok(());
    }
    Err(format!("{what}: {shown} are dumped, and {right} are right"))
}

/// There must be a bit for each conditional branch, a `TIP` for each indirect branch, and either of them for each return.
pub(super) fn dumped(said: &Printed<'_>) -> Verdict {
    let counts = counts(&packets(said.out));
    let of = |kind| said.executed.count(kind);
    let (conditional, returns) = (of(Kind::Conditional), of(Kind::Return));
    let indirect = of(Kind::IndirectJump) + of(Kind::IndirectCall);
    equal(
        "bits and TIP packets",
        counts.bits + counts.tips,
        conditional + returns + indirect,
    )?;
    if counts.tips < indirect || counts.bits < conditional {
        return Err(format!(
            "{} bits and {} TIP packets are too few",
            counts.bits, counts.tips
        ));
    }
    switched(&counts, of(Kind::Syscall))?;
    Ok(format!(
        "{conditional} conditional branches, {returns} returns and {indirect} indirect branches in {} bits and {} TIP packets",
        counts.bits, counts.tips
    ))
}

/// The same, but each return must have a `TIP`.
pub(super) fn dumped_without_compression(said: &Printed<'_>) -> Verdict {
    let counts = counts(&packets(said.out));
    let of = |kind| said.executed.count(kind);
    equal("bits", counts.bits, of(Kind::Conditional))?;
    let addresses = of(Kind::Return) + of(Kind::IndirectJump) + of(Kind::IndirectCall);
    equal("TIP packets", counts.tips, addresses)?;
    switched(&counts, of(Kind::Syscall))?;
    Ok(format!(
        "{} bits and {} TIP packets, as many as branches",
        counts.bits, counts.tips
    ))
}

/// The trace must end at each system call. It may also end where the kernel had the CPU. It must begin as often as it ends.
fn switched(counts: &Counts, syscalls: usize) -> Result<(), String> {
    equal(
        "TIP.PGD packets without an address",
        counts.syscalls,
        syscalls,
    )?;
    equal("TIP.PGE packets", counts.begins, counts.ends)
}

/// There must be no packets for branches, and one `FUP` for each `PTW`.
pub(super) fn dumped_without_branches(said: &Printed<'_>) -> Verdict {
    let all = packets(said.out);
    let named = |name: &str| all.iter().filter(|packet| packet.name == name).count();
    let of_branches = ["TNT", "TIP", "TIP.PGE", "TIP.PGD", "MODE.Exec"];
    let of_branches: usize = of_branches.map(named).iter().sum();
    equal("packets of branches", of_branches, 0)?;
    equal("FUP packets", named("FUP"), named("PTWRITE"))?;
    match named("PTWRITE") {
        0 => Err("no PTW is dumped".to_owned()),
        count => Ok(format!(
            "{count} PTW packets with their addresses, and no branch"
        )),
    }
}

/// If only the kernel's code is traced, each branch that needs a packet must have a bit or an address. An interrupt must have a `FUP` and
/// an address. Each `MOV` that changes `CR3` must have a `PIP`.
pub(super) fn dumped_of_kernel(said: &Printed<'_>) -> Verdict {
    let all = packets(said.out);
    let counts = counts(&all);
    let (mut in_psb, mut addresses, mut spaces) = (false, 0, 0);
    for packet in &all {
        match packet.name {
            "PSB" => in_psb = true,
            "PSBEND" => in_psb = false,
            "FUP" if !in_psb => addresses += 1,
            "PIP" if !in_psb => spaces += 1,
            _ => {}
        }
    }
    let executed = said.executed;
    let branches = [
        Kind::Conditional,
        Kind::Return,
        Kind::IndirectJump,
        Kind::IndirectCall,
        Kind::FarReturn,
    ];
    let branches: usize = branches.map(|kind| executed.count(kind)).iter().sum();
    equal(
        "bits, TIP and TIP.PGD packets",
        counts.bits + counts.tips + counts.ends,
        branches + addresses,
    )?;
    equal("TIP.PGE packets", counts.begins, counts.ends)?;
    let steps = executed.first().iter();
    // To flush the TLB, the kernel writes the same value to CR3.
    let changes = |step: &&Step| {
        executed.code.sets_cr3(step.ip) && !executed.code.has_name(step.ip, "native_flush_tlb")
    };
    let moves = steps.filter(changes).count();
    equal("PIP packets", spaces, moves)?;
    Ok(format!(
        "{branches} branches and {addresses} interrupts in {} bits, {} TIP and {} TIP.PGD packets; {spaces} PIP packets",
        counts.bits, counts.tips, counts.ends
    ))
}

/// The `PSB` packets of a dump.
fn psbs(out: &str) -> Vec<Packet<'_>> {
    let all = packets(out).into_iter();
    all.filter(|packet| packet.name == "PSB").collect()
}

/// The `PSB` packets of a dump must be `PERIOD` bytes apart, or a little more. A `PSB` without an address may be nearer to the one before,
/// as a trace begins with it.
pub(super) fn psb_every<const PERIOD: u64>(said: &Printed<'_>) -> Verdict {
    /// In bytes. Each packet is shorter, and so is each PSB+.
    const MORE: u64 = 128;
    let all = packets(said.out);
    let mut psbs: Vec<(u64, bool)> = Vec::new();
    let mut within = false;
    for packet in &all {
        match (packet.name, psbs.last_mut()) {
            ("PSB", _) => {
                within = true;
                psbs.push((packet.offset, false));
            }
            ("PSBEND", _) => within = false,
            ("FUP", Some((_, has_address))) if within => *has_address = true,
            _ => {}
        }
    }
    let mut exact = 0;
    for pair in psbs.windows(2) {
        let &[(one, _), (other, has_address)] = pair else {
            continue;
        };
        let apart = other.saturating_sub(one);
        if apart >= PERIOD + MORE || has_address && apart < PERIOD {
            return Err(format!(
                "a PSB is at {one:#x} and the next at {other:#x}, and {PERIOD} bytes are right"
            ));
        }
        exact += usize::from(apart >= PERIOD);
    }
    match exact {
        0 => Err(format!("perf dumps {} PSB packets", psbs.len())),
        _ => Ok(format!("{} PSB packets, {PERIOD} bytes apart", psbs.len())),
    }
}

/// The output has the dump, a line `events`, and PSB events. These must have the offsets of the `PSB` packets.
pub(super) fn psb_events(said: &Printed<'_>) -> Verdict {
    let (dump, events) = said
        .out
        .split_once("\nevents\n")
        .ok_or("there is no line `events`")?;
    let right: Vec<_> = psbs(dump).iter().map(|psb| psb.offset).collect();
    let shown: Vec<_> = events
        .lines()
        .filter_map(|line| line.split_once("psb offs: ")?.1.split_whitespace().next())
        .filter_map(|offset| u64::from_str_radix(offset.trim_start_matches("0x"), 16).ok())
        .collect();
    if shown != right || right.is_empty() {
        return Err(format!(
            "perf shows PSB events at {shown:x?}, and {right:x?} are right"
        ));
    }
    Ok(format!(
        "{} PSB events, each at the offset of its packet",
        shown.len()
    ))
}

/// The output has PTWRITE events, a line `printed`, and the program's output. For each PTWRITE, the program prints the payload and the
/// address, or 0 for the function that perf takes for a PTWRITE.
pub(super) fn payloads(said: &Printed<'_>) -> Verdict {
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    let (events, printed) = said
        .out
        .split_once("\nprinted\n")
        .ok_or("there is no line `printed`")?;
    let event = |line: &str| {
        let mut words = line
            .split_whitespace()
            .skip_while(|word| *word != "IP:")
            .skip(1);
        let has_address = words.next()? == "1";
        let payload = hex(words.nth(1)?)?;
        let address = hex(words.last()?)?;
        Some((payload, if has_address { address } else { 0 }))
    };
    let pair = |line: &str| {
        let (payload, address) = line.split_once(' ')?;
        Some((hex(payload)?, hex(address)?))
    };
    let events = events.lines().filter(|line| !line.trim().is_empty());
    let shown: Vec<_> = events.map(event).collect();
    let right: Vec<_> = printed.lines().map(pair).collect();
    if shown != right || right.is_empty() || right.contains(&None) {
        return Err(format!("perf shows {shown:x?}, and {right:x?} is right"));
    }
    Ok(format!("{} payloads, each with its address", right.len()))
}

/// In all counts such as ` IPC: 1.00 (12/12)` together, there must be as many instructions and as many cycles as instructions were
/// executed. Unless the counts are `APPROXIMATE`, both numbers must be the same in each of them, too.
pub(super) fn one_cycle_each<const APPROXIMATE: bool>(said: &Printed<'_>) -> Verdict {
    let number = |text: &str| text.parse::<usize>().map_err(|error| error.to_string());
    let (mut sum, mut all_cycles) = (0, 0);
    let mut places = 0;
    for line in said.out.lines() {
        let Some((_, counts)) = line.split_once("IPC:") else {
            continue;
        };
        let counts = counts
            .split_once('(')
            .and_then(|(_, counts)| counts.split_once(')'));
        let counts = counts.and_then(|(counts, _)| counts.split_once('/'));
        let (instructions, cycles) = counts.ok_or_else(|| format!("perf shows `{line}`"))?;
        if instructions != cycles && !APPROXIMATE {
            return Err(format!("perf shows `{line}`, and 1.00 is right"));
        }
        sum += number(instructions)?;
        all_cycles += number(cycles)?;
        places += 1;
    }
    equal("instructions with cycles", sum, said.executed.total())?;
    equal("cycles", all_cycles, said.executed.total())?;
    Ok(format!("{sum} instructions and cycles, in {places} places"))
}

/// Lines of `--ns -F time,flags,ip,ipc`, with a clock that advances by 1 ns a cycle. In total, there must be as many instructions as were
/// executed. The cycles in a line must match the time since the count before. If the trace has ended in between, more time may have passed.
pub(super) fn cycles_by_clock(said: &Printed<'_>) -> Verdict {
    let (mut sum, mut before, mut ended) = (0, None, false);
    let (mut places, mut ends) = (0, 0);
    let error = error_of_clock(said.out);
    for line in said.out.lines() {
        ended |= line.contains(" tr ");
        if !line.contains("IPC:") {
            continue;
        }
        let read = || {
            let (time, rest) = line.split_once(':')?;
            let (_, counts) = rest.split_once("IPC:")?.1.split_once('(')?;
            let (instructions, cycles) = counts.split_once(')')?.0.split_once('/')?;
            Some((
                time.trim().replace('.', "").parse::<u64>().ok()?,
                instructions.parse::<usize>().ok()?,
                cycles.parse::<u64>().ok()?,
            ))
        };
        let (time, instructions, cycles) = read().ok_or_else(|| format!("perf shows `{line}`"))?;
        let passed = before.replace(time).map(|before| time - before);
        if passed.is_some_and(|passed| !is_passed(cycles, passed, error, ended)) {
            return Err(format!("{passed:?} ns have passed up to `{line}`"));
        }
        sum += instructions;
        places += 1;
        ends += usize::from(ended);
        ended = false;
    }
    equal("instructions with cycles", sum, said.executed.total())?;
    match places {
        _ if places > 2 * ends => Ok(format!(
            "{sum} instructions, and the clock's cycles in {places} places; the trace ends before {ends} of them"
        )),
        _ => Err(format!("{places} places, and the trace ends before {ends} of them")),
    }
}

/// Whether this number of cycles matches the time that has passed.
fn is_passed(cycles: u64, passed: u64, error: u64, ended: bool) -> bool {
    cycles.abs_diff(passed) <= error || ended && cycles < passed
}

/// A parameter of the clock's conversion, from a dump.
pub(super) fn of_clock(out: &str, name: &str) -> Option<u64> {
    let mut numbers = out.lines().filter_map(|line| {
        let (_, number) = line.split_once(name)?;
        number.trim().parse().ok()
    });
    numbers.next()
}

/// By how many nanoseconds the time between two places may differ from the ticks. By 0 if a tick is exactly 1 ns by the guest's conversion.
/// But the guest measures the frequency: with 999.999 MHz, for instance, perf rounds the times.
pub(super) fn error_of_clock(out: &str) -> u64 {
    let shift = of_clock(out, "Time Shift");
    let mult = of_clock(out, "Time Multiplier");
    match shift.zip(mult) {
        Some((shift, mult)) if mult != 1 << shift => 1,
        _ => 0,
    }
}

/// Lines of a call trace by `dlfilter-show-cycles.so`: the cycles of a CPU up to there, and those since the line before. The clock is the
/// same as for [`cycles_by_clock`].
pub(super) fn cycles_of_calls(said: &Printed<'_>) -> Verdict {
    let (mut before, mut ended, mut calls) = (None, false, 0);
    // Lines of packets have no cycles.
    let others = ["psb offs:", "cbr:", "Time "];
    let is_branch = |line: &&str| !others.iter().any(|other| line.contains(other));
    let error = error_of_clock(said.out);
    for line in said.out.lines().filter(is_branch) {
        let read = || {
            let (head, rest) = line.split_once('[')?;
            let mut numbers = head
                .split_whitespace()
                .map_while(|word| word.parse::<u64>().ok());
            let time = rest.split_whitespace().nth(1)?.strip_suffix(':')?;
            let time = time.replace('.', "").parse::<u64>().ok()?;
            Some((time, numbers.next()?, numbers.next()))
        };
        let (time, cycles, since) = read().ok_or_else(|| format!("perf shows `{line}`"))?;
        if let Some((time_before, cycles_before)) = before.replace((time, cycles)) {
            let more = cycles.checked_sub(cycles_before);
            let passed = time - time_before;
            let right = more.is_some_and(|more| {
                is_passed(more, passed, error, ended) && since.is_none_or(|since| since == more)
            });
            if !right {
                return Err(format!("{passed} ns have passed up to `{line}`"));
            }
        }
        calls += usize::from(line.contains(" call "));
        ended = line.contains(" tr end");
    }
    let executed = said.executed;
    let right = executed.count(Kind::Call) + executed.count(Kind::IndirectCall);
    equal("calls", calls, right)?;
    Ok(format!("{calls} calls with the cycles of the clock"))
}

/// Lines of `-F event,period`. The sum of the periods of the cycles events must be the number of executed instructions.
pub(super) fn cycles(said: &Printed<'_>) -> Verdict {
    let periods = said.out.lines().filter(|line| line.contains("cycles"));
    let periods = periods.filter_map(|line| {
        line.split_whitespace()
            .find_map(|word| word.parse::<usize>().ok())
    });
    let (events, sum) = periods.fold((0, 0), |(events, sum), period| (events + 1, sum + period));
    equal("cycles", sum, said.executed.total())?;
    Ok(format!("{sum} cycles in {events} events"))
}

#[cfg(test)]
mod tests {
    use super::super::executed::{Code, Executed};
    use super::*;

    #[test]
    fn packets_are_read() {
        let table = [
            (
                ".  00000000:  02 82 02 82 02 82 02 82 02 82 02 82 02 82 02 82 PSB",
                Some((0, "PSB", "")),
            ),
            (
                ".  0000001a:  2d 40 11                                        TIP 0x401140 (1)",
                Some((0x1a, "TIP", "0x401140 (1)")),
            ),
            (
                ".  0000001d:  1c                                              TNT TTN (3)",
                Some((0x1d, "TNT", "TTN (3)")),
            ),
            (
                ".  0000001d:  01                                              TIP.PGD no ip",
                Some((0x1d, "TIP.PGD", "no ip")),
            ),
            ("0 0 0x1234 [0x8]: PERF_RECORD_FINISHED_ROUND", None),
        ];
        for (line, want) in table {
            let found = packet(line).map(|p| (p.offset, p.name, p.payload));
            assert_eq!(found, want, "{line}");
        }
        let tnt = packet(".  00000010:  1c   TNT TTN (3)").unwrap();
        assert_eq!(bits(&tnt), 3);
    }

    /// A call, and a return.
    fn executed() -> Executed {
        let mut image = vec![0x90; 0x20];
        image[..5].copy_from_slice(&[0xe8, 0x0b, 0, 0, 0]);
        image[0x11] = 0xc3;
        let code = Code::of_kernel(&image, "0 20 1000\n", "");
        Executed::by_cpu("1000 1010 1011 1005".split(' '), code).unwrap()
    }

    #[test]
    fn cycles_are_those_of_the_clock() {
        let executed = executed();
        let table = [
            ("1.001: a IPC: 1.00 (1/1)\n1.004: b IPC: 1.00 (3/3)\n", true),
            ("1.001: a IPC: 1.00 (1/1)\n1.004: b IPC: 1.50 (3/2)\n", false),
            ("1.001: a IPC: 1.00 (1/1)\n1.004: b IPC: 0.67 (2/3)\n", false),
            (
                "1.001: a IPC: 1.00 (1/1)\n1.002: b\n1.003: c IPC: 1.00 (1/2)\n1.003: tr end\n1.008: d IPC: 1.00 (2/4)\n",
                true,
            ),
            (
                "1.001: a IPC: 1.00 (1/1)\n1.002: b\n1.003: c IPC: 1.00 (1/2)\n1.003: tr end\n1.008: d IPC: 1.00 (2/6)\n",
                false,
            ),
        ];
        for (out, right) in table {
            let said = Printed {
                out,
                executed: &executed,
            };
            assert_eq!(cycles_by_clock(&said).is_ok(), right, "{out}");
        }
        let first = "0 perf 1 [0] 1.001: psb offs: 0\n5 perf 1 [0] 1.005: syscall e\n";
        let table = [
            ("9 4 perf 1 [0] 1.009: call f\n", true),
            ("9 3 perf 1 [0] 1.009: call f\n", false),
            ("8 3 perf 1 [0] 1.009: call f\n", false),
            ("4 perf 1 [0] 1.009: call f\n", false),
            (
                "6 1 perf 1 [0] 1.006: tr end f\n8 2 perf 1 [0] 1.009: call f\n",
                true,
            ),
            (
                "6 1 perf 1 [0] 1.006: tr end f\n9 3 perf 1 [0] 1.008: call f\n",
                false,
            ),
            ("", false),
        ];
        for (more, right) in table {
            let out = format!("{first}{more}");
            let said = Printed {
                out: &out,
                executed: &executed,
            };
            assert_eq!(cycles_of_calls(&said).is_ok(), right, "{out}");
        }
    }

    #[test]
    fn periods_of_psbs_begin_with_an_address() {
        let executed = executed();
        let psb = |offset: u64, has_address: bool| {
            let fup = match has_address {
                true => ".  00000000:  7d FUP 0x1000\n",
                false => "",
            };
            let line = |name| format!(".  {offset:08x}:  02 {name}\n");
            line("PSB") + &fup.replace("00000000", &format!("{:08x}", offset + 1)) + &line("PSBEND")
        };
        let table = [
            (&[(1, false), (0x801, true), (0x1010, true)][..], true),
            (&[(1, false), (0x30, false), (0x830, true)], true),
            (&[(1, false), (0x30, true), (0x830, true)], false),
            (&[(1, false), (0x900, true)], false),
            (&[(1, false)], false),
        ];
        for (psbs, right) in table {
            let out: String = psbs.iter().map(|(at, has)| psb(*at, *has)).collect();
            let said = Printed {
                out: &out,
                executed: &executed,
            };
            assert_eq!(psb_every::<2048>(&said).is_ok(), right, "{out}");
        }
    }
}
