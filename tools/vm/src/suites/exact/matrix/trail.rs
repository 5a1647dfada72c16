// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares the packets of a dump with the log. Each bit, each address, each beginning and each end must match the instructions that were
//! executed next. So it is known what perf must decode from the packets, instruction by instruction.
//!
//! The log does not have interrupts and ends of the trace between two instructions. For these, a `FUP` has the address, and the trace must
//! continue with the instruction that was executed next.

use super::executed::{Executed, Kind, Printed, Step, Verdict};
use super::packets::{of_clock, packets, Packet};

/// An event in the decoding of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The decoder passes an instruction: its address, and whether it is a branch.
    Walks(u64, bool),
    /// The decoder reads a packet with an address, or several packets with one address.
    Address(Place, u64),
    /// The decoder reads a `TSC`.
    Time(u64),
    /// The decoder reads a packet after which it determines again how many instructions to pass.
    Stops,
    /// The trace ends.
    Ends,
}

/// The packet that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `TIP.PGE`.
    Begin,
    /// `TIP`.
    Branch,
    /// The `FUP` of an interrupt, or of an end of the trace.
    Event,
    /// The `FUP` of a `PSB`.
    Psb,
    /// The `FUP` of a `MODE.Exec`, or of the `CFE` of an instruction (`IP:1`).
    Bound,
}

/// All events in the decoding of this dump.
pub(super) fn follow(dump: &str, executed: &Executed) -> Result<Vec<Event>, String> {
    let mut trail = Trail {
        executed,
        at: 0,
        here: None,
        calls: Vec::new(),
        events: Vec::new(),
    };
    let packets = packets(dump);
    let (mut last_ip, mut in_psb, mut event) = (0, false, false);
    for (number, packet) in packets.iter().enumerate() {
        let ip = address(packet, &mut last_ip);
        let behind = packets.get(number + 1..).unwrap_or_default();
        let before = number.checked_sub(1).and_then(|before| packets.get(before));
        let is_bound = before.is_some_and(|before| match before.name {
            "MODE.Exec" => true,
            "CFE" => before.payload.contains("IP:1"),
            _ => false,
        });
        let went = match (packet.name, ip) {
            ("PSB", _) => {
                (in_psb, last_ip) = (true, 0);
                Ok(())
            }
            ("PSBEND", _) => {
                in_psb = false;
                trail.events.push(Event::Stops);
                Ok(())
            }
            ("FUP", Some(ip)) if in_psb => trail.is_at(ip, Place::Psb),
            // The program continues at this address: there is no interrupt and no end of the trace.
            ("FUP", Some(ip)) if is_bound => trail.is_at(ip, Place::Bound),
            ("FUP", Some(ip)) => {
                event = true;
                trail.walks_to(ip, next_address(behind, last_ip))
            }
            ("TNT", _) => trail.takes(packet.payload),
            ("TIP", Some(to)) if event => trail.goes_to(to),
            ("TIP", Some(to)) => trail.branches_to(to),
            ("TIP.PGE", Some(ip)) => trail.begins(ip),
            ("TIP.PGD", _) if event => trail.ends(),
            ("TIP.PGD", None) => trail.leaves(),
            ("TSC", _) => {
                let time = u64::from_str_radix(packet.payload.trim_start_matches("0x"), 16);
                let push = |time| trail.events.push(Event::Time(time));
                time.map(push).map_err(|error| error.to_string())
            }
            ("OVF" | "TIP.PGD" | "TIP" | "FUP", _) => Err("it is not to be there".to_owned()),
            _ => Ok(()),
        };
        went.map_err(|why| {
            format!(
                "after {} instructions: {} {} at {:#x} of the dump: {why}",
                trail.at, packet.name, packet.payload, packet.offset
            )
        })?;
        event &= !matches!(packet.name, "TIP" | "TIP.PGD");
    }
    trail.is_whole()?;
    Ok(trail.events)
}

/// The address of a packet, if it has one. The first byte determines which bits are those of the previous address.
fn address(packet: &Packet<'_>, last: &mut u64) -> Option<u64> {
    if !matches!(packet.name, "TIP" | "TIP.PGE" | "TIP.PGD" | "FUP") || packet.payload == "no ip" {
        return None;
    }
    let payload = u64::from_str_radix(packet.payload.trim_start_matches("0x"), 16).ok()?;
    let kept = match packet.first >> 5 {
        1 => u64::MAX << 16,
        2 => u64::MAX << 32,
        4 => u64::MAX << 48,
        // The address is sign-extended.
        3 if payload >> 47 & 1 == 1 => {
            *last = u64::MAX;
            u64::MAX << 48
        }
        _ => 0,
    };
    *last = *last & kept | payload;
    Some(*last)
}

/// The address of the `TIP` after a `FUP`. `None` if the trace ends.
fn next_address(behind: &[Packet<'_>], mut last: u64) -> Option<u64> {
    let next = behind
        .iter()
        .find(|packet| matches!(packet.name, "TIP" | "TIP.PGD"))?;
    address(next, &mut last).filter(|_| next.name == "TIP")
}

struct Trail<'a> {
    executed: &'a Executed,
    /// The number of the instruction that is executed next.
    at: usize,
    /// The address at which the trace is. `None` before its first beginning.
    here: Option<u64>,
    /// The return addresses of the calls that have not returned.
    calls: Vec<u64>,
    events: Vec<Event>,
}

impl Trail<'_> {
    fn next(&self) -> Result<Step, String> {
        let next = self.executed.first().get(self.at);
        next.copied()
            .ok_or("nothing is executed any more".to_owned())
    }

    /// Passes the next instruction. Returns where it leads, or `None` if a packet determines that.
    fn walks(&mut self) -> Result<Option<u64>, String> {
        let step = self.next()?;
        if self.here != Some(step.ip) {
            return Err(format!(
                "{:x} is executed, and the trace is at {:x?}",
                step.ip, self.here
            ));
        }
        self.at += 1;
        let repeats = || step.next == Some(step.ip) && self.executed.code.repeats(step.ip);
        let to = match step.kind {
            Kind::Plain if repeats() => return Ok(self.here),
            Kind::Plain => Some(step.behind()),
            Kind::Jump | Kind::Call => self.executed.code.target(step.ip),
            _ => None,
        };
        self.events
            .push(Event::Walks(step.ip, step.kind != Kind::Plain));
        // A call of the next instruction only reads the instruction pointer, and does not return.
        if step.is_call() && to != Some(step.behind()) {
            self.calls.push(step.behind());
        }
        self.here = to.or(self.here);
        Ok(to)
    }

    /// Passes all instructions up to and including the next one that needs a packet.
    fn decides(&mut self) -> Result<Step, String> {
        loop {
            let step = self.next()?;
            if self.walks()?.is_none() {
                return Ok(step);
            }
        }
    }

    /// Passes instructions up to this address, at which there is an interrupt or the end of the trace. `to` is where the interrupt leads.
    fn walks_to(&mut self, ip: u64, to: Option<u64>) -> Result<(), String> {
        while to.is_some() || self.here != Some(ip) {
            let step = self.next()?;
            if self.here == Some(ip) {
                match to {
                    Some(to) if step.ip == to => break,
                    // The instruction has begun, but is not complete.
                    Some(to) if step.ip == ip && step.next == Some(to) => {
                        self.at += 1;
                        break;
                    }
                    _ => {}
                }
            }
            if self.walks()?.is_none() {
                return Err(format!("{step:x?} is executed before {ip:x}"));
            }
        }
        self.events.push(Event::Address(Place::Event, ip));
        Ok(())
    }

    /// The interrupt leads to this address.
    fn goes_to(&mut self, to: u64) -> Result<(), String> {
        let step = self.next()?;
        if step.ip != to {
            return Err(format!("{:x} is executed", step.ip));
        }
        self.here = Some(to);
        self.events.push(Event::Address(Place::Branch, to));
        Ok(())
    }

    fn begins(&mut self, ip: u64) -> Result<(), String> {
        let mut step = self.next()?;
        // The instruction began before the trace ended, and is not complete.
        if step.ip != ip && step.next == Some(ip) && self.here.is_some() {
            self.at += 1;
            step = self.next()?;
        }
        if step.ip != ip {
            return Err(format!("{:x} is executed", step.ip));
        }
        self.here = Some(ip);
        self.events.push(Event::Address(Place::Begin, ip));
        Ok(())
    }

    /// Passes instructions up to this address, which a packet has that is not for a branch.
    fn is_at(&mut self, ip: u64, place: Place) -> Result<(), String> {
        while self.here != Some(ip) {
            let step = self.next()?;
            if self.walks()?.is_none() {
                return Err(format!("{step:x?} is executed before {ip:x}"));
            }
        }
        self.events.push(Event::Address(place, ip));
        Ok(())
    }

    /// Follows the bits of a `TNT` such as `TTN (3)`.
    fn takes(&mut self, bits: &str) -> Result<(), String> {
        for bit in bits.chars().filter(|bit| matches!(bit, 'T' | 'N')) {
            let step = self.decides()?;
            let expected = self.is_expected(step);
            let target = self.executed.code.target(step.ip);
            let to = match (step.kind, bit) {
                (Kind::Conditional, 'T') => target,
                (Kind::Conditional, _) => Some(step.behind()),
                // Not `step.next`, which may be the first instruction of an interrupt handler.
                (Kind::Return, 'T') => expected,
                _ => return Err(format!("{step:x?} is executed, and the bit is {bit}")),
            };
            // If the next instruction is neither of both targets, it is that of an interrupt handler.
            let next = step
                .next
                .filter(|next| target == Some(*next) || step.behind() == *next);
            if step.kind == Kind::Conditional && next.is_some() && next != to {
                return Err(format!("{step:x?} is executed, and the bit is {bit}"));
            }
            self.here = to;
        }
        Ok(())
    }

    /// If the instruction is a return: the return address of its call.
    fn is_expected(&mut self, step: Step) -> Option<u64> {
        match step.kind {
            Kind::Return => self.calls.pop(),
            _ => None,
        }
    }

    fn branches_to(&mut self, to: u64) -> Result<(), String> {
        let step = self.decides()?;
        self.is_expected(step);
        if matches!(step.kind, Kind::Conditional) {
            return Err(format!("{step:x?} is executed, which needs a bit"));
        }
        // If another instruction is executed next, there must be an interrupt at `to`.
        self.here = Some(to);
        self.events.push(Event::Address(Place::Branch, to));
        Ok(())
    }

    /// The trace ends with a branch out of the traced code.
    fn leaves(&mut self) -> Result<(), String> {
        let step = self.decides()?;
        match step.kind {
            Kind::Syscall | Kind::FarReturn => self.ends(),
            _ => Err(format!("{step:x?} is executed")),
        }
    }

    fn ends(&mut self) -> Result<(), String> {
        self.events.push(Event::Ends);
        Ok(())
    }

    fn is_whole(&self) -> Result<(), String> {
        match self.executed.first().len().saturating_sub(self.at) {
            0 => Ok(()),
            left => Err(format!(
                "the dump does not have the last {left} instructions"
            )),
        }
    }
}

/// The dump must lead to each executed instruction, and to no other.
pub(super) fn each_packet(said: &Printed<'_>) -> Verdict {
    let events = follow(said.out, said.executed)?;
    let of = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
    Ok(format!(
        "{} instructions, {} addresses and {} ends, as the log has them",
        of(|event| matches!(event, Event::Walks(..))),
        of(|event| matches!(event, Event::Address(..))),
        of(|event| matches!(event, Event::Ends)),
    ))
}

/// The output has the dump, a line `quick`, and lines of `-F ip`: the addresses in packets, or with `LEAPS`, only those in `PSB`s.
pub(super) fn quick<const LEAPS: bool>(said: &Printed<'_>) -> Verdict {
    let (dump, shown) = said
        .out
        .split_once("\nquick\n")
        .ok_or("there is no line `quick`")?;
    let events = follow(dump, said.executed)?;
    let right = events.iter().filter_map(|event| match event {
        Event::Address(place, ip) if !LEAPS || *place == Place::Psb => Some(*ip),
        _ => None,
    });
    same(shown, &right.collect::<Vec<_>>())
}

/// The output has the dump, a line `timed`, and lines of `-F ip`: the instructions that perf samples with a period of `NS` nanoseconds.
/// perf rounds the period down to a power of two of ticks. Between two `TSC`s, it counts a tick for each instruction.
pub(super) fn periodic<const NS: u64>(said: &Printed<'_>) -> Verdict {
    let (dump, shown) = said
        .out
        .split_once("\ntimed\n")
        .ok_or("there is no line `timed`")?;
    let number = |name| of_clock(dump, name).ok_or("there is no clock");
    let (shift, mult) = (number("Time Shift")?, number("Time Multiplier")?);
    let ticks = (NS << shift)
        .checked_div(mult)
        .and_then(u64::checked_ilog2)
        .ok_or("the period is 0")?;
    let mut period = Period {
        ticks: 1 << ticks,
        time: 0,
        walked: 0,
        sampled: 0,
        goes_on: false,
    };
    let (mut right, mut left) = (Vec::new(), None);
    for event in follow(dump, said.executed)? {
        let Event::Walks(ip, is_branch) = event else {
            left = None;
            match event {
                Event::Time(time) => (period.time, period.walked) = (time.max(period.time), 0),
                Event::Ends => period.goes_on = false,
                _ => {}
            }
            continue;
        };
        let more = left.unwrap_or_else(|| period.next()) - 1;
        period.walked += 1;
        left = (more > 0 && !is_branch).then_some(more);
        if more == 0 {
            period.takes();
            right.push(ip);
        }
    }
    same(shown, &right)
}

/// The state by which perf determines which instruction it samples next.
struct Period {
    ticks: u64,
    /// The newest `TSC`. `walked` is the number of instructions that perf has passed since then.
    time: u64,
    walked: u64,
    /// The period of the last sample, as its first tick.
    sampled: u64,
    /// Whether the trace has not ended since then.
    goes_on: bool,
}

impl Period {
    fn of(&self, time: u64) -> u64 {
        time & !(self.ticks - 1)
    }

    /// How many instructions perf passes up to the next one that it samples.
    fn next(&mut self) -> u64 {
        let mut now = self.time + self.walked;
        if self.goes_on {
            if self.of(now) > self.sampled {
                return 1;
            }
        } else {
            now += 1;
            if self.of(now) > self.sampled {
                self.sampled = self.of(now);
                self.goes_on = true;
            }
        }
        match self.of(now) < self.sampled {
            true => self.ticks,
            false => self.ticks - (now - self.of(now)),
        }
    }

    fn takes(&mut self) {
        let now = self.of(self.time + self.walked);
        self.sampled = match now > self.sampled {
            true => now,
            false => self.sampled + self.ticks,
        };
    }
}

/// Checks that the lines have exactly these addresses.
fn same(shown: &str, right: &[u64]) -> Verdict {
    let hex = |word| u64::from_str_radix(word, 16).ok();
    let shown: Vec<_> = shown.split_whitespace().map(hex).collect();
    let pairs = shown.iter().zip(right);
    let at = pairs
        .take_while(|(shown, right)| **shown == Some(**right))
        .count();
    match (shown.get(at), right.get(at)) {
        (None, None) if at > 0 => Ok(format!("{at} addresses, each of them")),
        (shown, right) => Err(format!(
            "after {at} that are right perf shows {shown:x?} for {right:x?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::executed::Code;
    use super::*;

    /// A call, a branch that is taken, an interrupt in front of the return, and an indirect jump.
    fn executed() -> Executed {
        logged("1000 1010 3000 1014 1005 1030 1031", 7)
    }

    /// The executed instructions of this log, which has `count` of them.
    fn logged(log: &str, count: usize) -> Executed {
        let mut image = vec![0x90; 0x3000];
        let mut put = |at: usize, bytes: &[u8]| {
            image[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, &[0xe8, 0x0b, 0, 0, 0, 0xff, 0xe0]);
        put(0x10, &[0x74, 0x02]);
        put(0x14, &[0xc3]);
        put(0x2000, &[0x48, 0xcf]);
        let code = Code::of_kernel(&image, "0 3000 1000\n", "");
        let executed = Executed::by_cpu(log.split(' '), code).unwrap();
        assert_eq!(executed.first().len(), count);
        executed
    }

    const DUMP: [&str; 13] = [
        "02 PSB",
        "19 TSC 0x1000",
        "02 PSBEND",
        "d1 TIP.PGE 0x1000",
        "06 TNT T (1)",
        "3d FUP 0x1014",
        "2d TIP 0x3000",
        "2d TIP 0x1014",
        "2d TIP 0x1005",
        "2d TIP 0x1030",
        "02 PSB",
        "7d FUP 0x1030",
        "02 PSBEND",
    ];

    fn events(lines: &[&str]) -> Result<Vec<Event>, String> {
        events_of(lines, &executed())
    }

    fn events_of(lines: &[&str], executed: &Executed) -> Result<Vec<Event>, String> {
        let lines = lines.iter().enumerate();
        let lines: Vec<_> = lines
            .map(|(offset, line)| format!(".  {offset:08x}:  {line}"))
            .collect();
        follow(&lines.join("\n"), executed)
    }

    #[test]
    fn each_packet_is_needed() {
        let end = ["3d FUP 0x1032", "01 TIP.PGD no ip"];
        let all = [&DUMP[..], &end].concat();
        let addresses: Vec<_> = events(&all)
            .unwrap()
            .into_iter()
            .filter_map(|event| match event {
                Event::Address(_, ip) => Some(ip),
                _ => None,
            })
            .collect();
        let want = [
            0x1000, 0x1014, 0x3000, 0x1014, 0x1005, 0x1030, 0x1030, 0x1032,
        ];
        assert_eq!(addresses, want);
        for missing in [3, 4, 5, 6, 7, 8, 9] {
            let mut less = all.clone();
            let line = less.remove(missing);
            events(&less).expect_err(line);
            for other in ["2d TIP 0x1031", "04 TNT N (1)", "d1 TIP.PGE 0x1010"] {
                let mut others = all.clone();
                others[missing] = other;
                events(&others).expect_err(&format!("{other} for {line}"));
            }
        }
        let mut elsewhere = all.clone();
        elsewhere[11] = "7d FUP 0x1010";
        events(&elsewhere).expect_err("a PSB is elsewhere");
        events(&all[..10]).expect_err("the last instructions are missing");
    }

    #[test]
    fn a_trace_may_end_behind_a_return() {
        let executed = logged("1000 1010 1014", 3);
        let ends_at = |fup| {
            let begins = ["02 PSB", "02 PSBEND", "d1 TIP.PGE 0x1000"];
            let rest = ["06 TNT TT (2)", fup, "01 TIP.PGD no ip"];
            events_of(&[begins, rest].concat(), &executed)
        };
        let events = ends_at("3d FUP 0x1005").unwrap();
        assert_eq!(events.last(), Some(&Event::Ends));
        ends_at("3d FUP 0x1006").unwrap_err();
    }

    #[test]
    fn an_interrupt_may_be_behind_a_return() {
        let executed = logged("1000 1010 1014 3000 1005 1030 1031", 7);
        let interrupted_at = |fup| {
            let begins = ["02 PSB", "02 PSBEND", "d1 TIP.PGE 0x1000"];
            let rest = ["06 TNT TT (2)", fup, "2d TIP 0x3000", "2d TIP 0x1005"];
            let end = ["2d TIP 0x1030", "3d FUP 0x1032", "01 TIP.PGD no ip"];
            events_of(&[&begins[..], &rest, &end].concat(), &executed)
        };
        let events = interrupted_at("3d FUP 0x1005").unwrap();
        let interrupt = Event::Address(Place::Event, 0x1005);
        assert!(events.contains(&interrupt), "{events:x?}");
        interrupted_at("3d FUP 0x3000").unwrap_err();
    }

    #[test]
    fn addresses_are_parts_of_the_one_before() {
        let mut last = 0;
        let table = [
            (0xd1, "0x7fff12345678", 0x7fff_1234_5678),
            (0x2d, "0x9abc", 0x7fff_1234_9abc),
            (0x4d, "0xdeadbeef", 0x7fff_dead_beef),
            (0x6d, "0xffff81000000", 0xffff_ffff_8100_0000),
            (0x8d, "0x800000000010", 0xffff_8000_0000_0010),
        ];
        for (first, payload, want) in table {
            let line = format!(".  00000000:  {first:02x} TIP {payload}");
            let packets = packets(&line);
            assert_eq!(address(&packets[0], &mut last), Some(want), "{line}");
        }
    }

    #[test]
    fn a_period_is_a_power_of_two() {
        let mut period = Period {
            ticks: 4,
            time: 0x10,
            walked: 0,
            sampled: 0,
            goes_on: false,
        };
        // The first sample is nearer. Later samples are a period apart.
        assert_eq!(period.next(), 3);
        period.walked = 3;
        period.takes();
        assert_eq!((period.sampled, period.next()), (0x14, 4));
        period.walked = 7;
        period.takes();
        assert_eq!((period.sampled, period.next()), (0x18, 4));
        (period.time, period.walked) = (0x30, 0);
        assert_eq!(period.next(), 1);
    }
}
