// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the bytes of packets.

use super::*;
use crate::insn::{Insn, Mode};

#[derive(Default)]
struct Ring {
    bytes: Vec<u8>,
    space: Option<usize>,
}

impl Output for Ring {
    fn write(&mut self, bytes: &[u8], keep: usize) -> Result<(), Full> {
        if let Some(space) = &mut self.space {
            if bytes.len() + keep > *space {
                return Err(Full);
            }
            *space -= bytes.len();
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        0x1122_3344_5566
    }
}

#[test]
fn smoke() {
    let mut ring = Ring::default();
    let mut pt = Encoder::new(Config {
        tsc: true,
        ..Config::default()
    });
    let step = |text: &[u8], from, to| Step {
        insn: Insn::decode(text, Mode::Bits64).unwrap(),
        from,
        to,
        mode: Mode::Bits64,
    };

    pt.begin(false, &mut ring).unwrap();
    pt.enable(0x401000, Mode::Bits64, &mut ring).unwrap();
    pt.step(&step(&[0x74, 0x10], 0x401000, 0x401012), &mut ring)
        .unwrap();
    pt.step(&step(&[0x74, 0x10], 0x401012, 0x401014), &mut ring)
        .unwrap();
    pt.step(&step(&[0xc3], 0x401014, 0x401020), &mut ring)
        .unwrap();
    pt.disable(0x401020, &mut ring).unwrap();

    let mut want = PSB.to_vec();
    want.extend([0x19, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0x02, 0x23]);
    want.extend([
        0x19, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0x99, 1, 0x51, 0x00, 0x10, 0x40, 0,
    ]);
    want.extend([0b1100, 0x2d, 0x20, 0x10, 0x3d, 0x20, 0x10, 0x01]);
    assert_eq!(ring.bytes, want);
}

/// A taken Jcc at this address, with a displacement of 16.
fn taken(from: u64) -> Step {
    Step {
        insn: Insn::decode(&[0x74, 0x10], Mode::Bits64).unwrap(),
        from,
        to: from + 0x12,
        mode: Mode::Bits64,
    }
}

/// Packets, and a clock that advances by 16 at each read.
struct Clock(Vec<u8>, u64);

impl Output for Clock {
    fn write(&mut self, bytes: &[u8], _keep: usize) -> Result<(), Full> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        self.1 += 0x10;
        self.1
    }

    fn ratio(&mut self) -> Option<u8> {
        Some(10)
    }
}

#[test]
fn cycles_are_counted_in_front_of_packets() {
    let mut clock = Clock(Vec::new(), 0);
    let mut pt = Encoder::new(Config {
        tsc: true,
        tsc_period: 0x2000,
        cyc: true,
        ..Config::default()
    });
    let jump = taken(0x403000);
    pt.begin(false, &mut clock).unwrap();
    pt.enable(0x401000, Mode::Bits64, &mut clock).unwrap();
    // The packets of `begin()`: `TSC`, `CBR`.
    let mut want = PSB.to_vec();
    want.extend([0x19, 0x10, 0, 0, 0, 0, 0, 0, 2, 3, 10, 0, 2, 0x23]);
    // The packets of `enable()`: `CYC`, `TSC`, `MODE.Exec`, `TIP.PGE`.
    want.extend([0x83, 0x19, 0x20, 0, 0, 0, 0, 0, 0, 0x99, 1]);
    want.extend([0x51, 0, 0x10, 0x40, 0]);
    for (pass, cyc) in [
        (0, &[0x83][..]),
        (0x40, &[0x87, 4]),
        (0x1000, &[0x87, 1, 2]),
    ] {
        clock.1 += pass;
        pt.interrupt(0x401000, 0x401000, Mode::Bits64, &mut clock)
            .unwrap();
        want.extend(cyc);
        want.extend([0x3d, 0, 0x10, 0x2d, 0, 0x10]);
    }
    // Six branches in a `TNT`, and one that is flushed with the `PIP`.
    for _ in 0..7 {
        pt.step(&jump, &mut clock).unwrap();
    }
    pt.address_space(0x7000, &mut clock).unwrap();
    clock.1 += 0x2000;
    pt.interrupt(0x401000, 0x401000, Mode::Bits64, &mut clock)
        .unwrap();
    pt.disable(0x401000, &mut clock).unwrap();
    want.extend([0x83, 0b1111_1110, 0b110, 0x83, 2, 0x43, 0, 7, 0, 0, 0, 0]);
    want.extend([0x87, 1, 4, 0x19, 0xc0, 0x30, 0, 0, 0, 0, 0]);
    want.extend([0x3d, 0, 0x10, 0x2d, 0, 0x10, 0x83, 0x3d, 0, 0x10, 1]);
    assert_eq!(clock.0, want);
}

#[test]
fn the_coarse_clock_is_told_where_it_is_further() {
    let mut clock = Clock(Vec::new(), 0x1_0203);
    let mut pt = Encoder::new(Config {
        tsc: true,
        mtc: Some(Mtc {
            ratio: 16,
            shift: 4,
        }),
        ..Config::default()
    });
    let jump = taken(0x403000);
    pt.begin(false, &mut clock).unwrap();
    pt.enable(0x401000, Mode::Bits64, &mut clock).unwrap();
    let mut want = PSB.to_vec();
    // `TSC`, `TMA`: each call reads the clock, which advances by 16.
    want.extend([0x19, 0x13, 2, 1, 0, 0, 0, 0, 2, 0x73, 0x21, 0x10, 0, 3, 0]);
    want.extend([2, 0x23]);
    want.extend([0x19, 0x23, 2, 1, 0, 0, 0, 0, 2, 0x73, 0x22, 0x10, 0, 3, 0]);
    want.extend([0x99, 1, 0x51, 0, 0x10, 0x40, 0]);
    // The number of `MTC`s that are due: 0, 1, the maximum of the packet, and one more.
    for (pass, reported) in [
        (0, &[][..]),
        (0xf0, &[0x59, 3]),
        (0xfef0, &[0x59, 2]),
        (
            0xfff0,
            &[0x19, 0x33, 2, 3, 0, 0, 0, 0, 2, 0x73, 0x23, 0x30, 0, 3, 0],
        ),
    ] {
        clock.1 += pass;
        pt.interrupt(0x401000, 0x401000, Mode::Bits64, &mut clock)
            .unwrap();
        want.extend(reported);
        want.extend([0x3d, 0, 0x10, 0x2d, 0, 0x10]);
    }
    // The `MTC` follows the branches.
    clock.1 += 0x100;
    for _ in 0..47 {
        pt.step(&jump, &mut clock).unwrap();
    }
    want.extend([2, 0xa3, 255, 255, 255, 255, 255, 255, 0x59, 3]);
    pt.disable(0x401000, &mut clock).unwrap();
    want.extend([0x3d, 0, 0x10, 1]);
    assert_eq!(clock.0, want);
}

#[test]
fn times_and_address_spaces_stand_between_addresses() {
    let mut clock = Clock(Vec::new(), 0);
    let mut pt = Encoder::new(Config {
        tsc: true,
        tsc_period: 0x20,
        ..Config::default()
    });
    // The first `PSB` reports the address space.
    pt.address_space(0x1_2345_6000, &mut clock).unwrap();
    pt.begin(false, &mut clock).unwrap();
    pt.enable(0x401000, Mode::Bits64, &mut clock).unwrap();
    clock.0.clear();
    for to in [0x402000, 0x403000] {
        pt.interrupt(0x401000, to, Mode::Bits64, &mut clock)
            .unwrap();
    }
    pt.address_space(0x1_2345_6000, &mut clock).unwrap();
    pt.address_space(0x7000, &mut clock).unwrap();
    pt.message(0x1122, &mut clock).unwrap();
    pt.disable(0x403000, &mut clock).unwrap();
    // Tracing is off.
    pt.message(0x1122, &mut clock).unwrap();
    pt.stopped(&mut clock).unwrap();
    pt.begin(false, &mut clock).unwrap();

    let mut want = vec![0x3d, 0, 0x10, 0x2d, 0, 0x20];
    want.extend([0x19, 0x40, 0, 0, 0, 0, 0, 0, 0x3d, 0, 0x10, 0x2d, 0, 0x30]);
    want.extend([2, 0x43, 0, 7, 0, 0, 0, 0]);
    want.extend([0x19, 0x50, 0, 0, 0, 0, 0, 0, 2, 0x32, 0x22, 0x11]);
    want.extend([0, 0, 0, 0, 0, 0, 0x3d, 0, 0x30, 1, 2, 0x83]);
    want.extend(PSB);
    want.extend([0x19, 0x60, 0, 0, 0, 0, 0, 0, 2, 0x43, 0, 7, 0, 0, 0, 0]);
    want.extend([2, 0x23]);
    assert_eq!(clock.0, want);
}

/// An interrupt of code that is not traced, IRET, CLI, a page fault, INT, and an IRET with which
/// the trace ends.
fn with_events(event: bool) -> Vec<u8> {
    let mut ring = Ring::default();
    let mut pt = Encoder::new(Config {
        event,
        ..Config::default()
    });
    let far = |text: &[u8], from, to| Step {
        insn: Insn::decode(text, Mode::Bits64).unwrap(),
        from,
        to,
        mode: Mode::Bits64,
    };
    let interrupt = |vector, page_fault| Some(Event { vector, page_fault });

    pt.interrupt_by(interrupt(1, None), 0, 0x401000, Mode::Bits64, &mut ring)
        .unwrap();
    assert!(ring.bytes.is_empty(), "nothing has begun");
    pt.begin(false, &mut ring).unwrap();
    ring.bytes.clear();
    pt.interrupt_by(interrupt(0xec, None), 0, 0x401000, Mode::Bits64, &mut ring)
        .unwrap();
    pt.enable(0x401000, Mode::Bits64, &mut ring).unwrap();
    pt.set_interrupts(true);
    pt.step(&far(&[0x48, 0xcf], 0x401010, 0x402000), &mut ring)
        .unwrap();
    for enabled in [true, false, false] {
        pt.interrupts_change(enabled, 0x402001, &mut ring).unwrap();
    }
    pt.interrupt_by(
        interrupt(14, Some(0x1122_3344_5566_7788)),
        0x402002,
        0x403000,
        Mode::Bits64,
        &mut ring,
    )
    .unwrap();
    pt.step(&far(&[0xcd, 0x80], 0x403010, 0x404000), &mut ring)
        .unwrap();
    pt.far_by(insn::Far::InterruptReturn, 0x404010, &mut ring)
        .unwrap();
    ring.bytes
}

#[test]
fn events_stand_in_front_of_their_addresses() {
    let without = [
        &[0x99, 1, 0x51, 0, 0x10, 0x40, 0][..],
        &[0x2d, 0, 0x20, 0x3d, 2, 0x20, 0x2d, 0, 0x30],
        &[0x2d, 0, 0x40, 1],
    ];
    assert_eq!(with_events(false), without.concat());
    let with = [
        // CFE; MODE.Exec, TIP.PGE.
        &[2, 0x13, 1, 0xec, 0x99, 1, 0x51, 0, 0x10, 0x40, 0][..],
        // CFE, FUP; MODE.Exec, TIP.
        &[2, 0x13, 0x82, 0, 0x3d, 0x10, 0x10, 0x99, 5, 0x2d, 0, 0x20],
        // MODE.Exec, FUP.
        &[0x99, 1, 0x3d, 1, 0x20],
        // EVD, CFE; FUP, TIP.
        &[2, 0x53, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
        &[2, 0x13, 1, 14, 0x3d, 2, 0x20, 0x2d, 0, 0x30],
        // CFE, FUP; TIP.
        &[2, 0x13, 0x81, 0x80, 0x3d, 0x10, 0x30, 0x2d, 0, 0x40],
        // CFE, FUP; TIP.PGD.
        &[2, 0x13, 0x82, 0, 0x3d, 0x10, 0x40, 1],
    ];
    assert_eq!(with_events(true), with.concat());
}

/// An output that knows that interrupts are enabled.
struct Enabled(Vec<u8>);

impl Output for Enabled {
    fn write(&mut self, bytes: &[u8], _keep: usize) -> Result<(), Full> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        0
    }

    fn interrupts(&mut self) -> Option<bool> {
        Some(true)
    }
}

#[test]
fn without_events_the_output_knows_whether_interrupts_are_enabled() {
    let mut output = Enabled(Vec::new());
    let mut pt = Encoder::new(Config {
        psb_period: 37,
        ..Config::default()
    });

    pt.begin(false, &mut output).unwrap();
    pt.enable(0x401000, Mode::Bits64, &mut output).unwrap();
    let mut want = PSB.to_vec();
    want.extend([2, 0x23, 0x99, 5, 0x51, 0, 0x10, 0x40, 0]);
    // The mode does not change. Only a `PSB` repeats it.
    for _ in 0..3 {
        pt.interrupt(0x401000, 0x401000, Mode::Bits64, &mut output)
            .unwrap();
        want.extend([0x3d, 0, 0x10, 0x2d, 0, 0x10]);
    }
    want.extend(PSB);
    want.extend([0x99, 5, 0x7d, 0, 0x10, 0x40, 0, 0, 0, 2, 0x23]);
    assert_eq!(output.0, want);
}

/// perf's decoder forgets all calls at a `PSB`. So no bit may stand for a return to a call in front
/// of one.
#[test]
fn calls_in_front_of_a_psb_are_forgotten() {
    let insn = |text: &[u8]| Insn::decode(text, Mode::Bits64).unwrap();
    let calls = [insn(&[0xff, 0xd0]), insn(&[0xe8, 0xfb, 0x0f, 0x00, 0x00])];

    for (call, psb) in calls.iter().flat_map(|call| [(call, false), (call, true)]) {
        let mut ring = Ring::default();
        let mut pt = Encoder::new(Config {
            ret_compression: true,
            // A `PSB` is due with each packet, or never.
            psb_period: u64::from(psb),
            ..Config::default()
        });
        let step = |insn: Insn, from, to| Step {
            insn,
            from,
            to,
            mode: Mode::Bits64,
        };

        pt.begin(false, &mut ring).unwrap();
        pt.enable(0x401000, Mode::Bits64, &mut ring).unwrap();
        pt.step(&step(*call, 0x401000, 0x402000), &mut ring)
            .unwrap();
        // A packet, with a `PSB` if one is due.
        let jump = insn(&[0xff, 0xe0]);
        if call.len == 5 {
            pt.step(&step(jump, 0x402000, 0x402000), &mut ring).unwrap();
        }
        let before = ring.bytes.len();
        let back = call.next(0x401000);
        pt.step(&step(insn(&[0xc3]), 0x402000, back), &mut ring)
            .unwrap();

        assert_eq!(ring.bytes.len() > before, psb, "{call:?}");
    }
}

#[test]
fn ptwrites_have_their_operands_and_addresses() {
    for (ptw, fup_on_ptw) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut clock = Clock(Vec::new(), 0);
        let mut pt = Encoder::new(Config {
            ptw,
            fup_on_ptw,
            ..Config::default()
        });
        let jump = taken(0x401000);
        let (narrow, wide) = (
            Payload::Bits32(0x1234_5678),
            Payload::Bits64(0x1122_3344_5566_7788),
        );

        pt.begin(false, &mut clock).unwrap();
        // Tracing is off.
        pt.ptwrite(0x400000, wide, &mut clock).unwrap();
        pt.enable(0x401000, Mode::Bits64, &mut clock).unwrap();
        clock.0.clear();
        pt.step(&jump, &mut clock).unwrap();
        pt.ptwrite(0x401012, narrow, &mut clock).unwrap();
        pt.ptwrite(0x401017, wide, &mut clock).unwrap();
        pt.disable(0x401020, &mut clock).unwrap();

        // The branch before it; then IP bit, size and `FUP`.
        let bits = |size: u8| size << 5 | u8::from(fup_on_ptw) << 7 | 0x12;
        let fup = |low| fup_on_ptw.then_some([0x3d, low, 0x10]);
        let mut want = vec![0b110];
        if ptw {
            want.extend([2, bits(0), 0x78, 0x56, 0x34, 0x12]);
            want.extend(fup(0x12).into_iter().flatten());
            want.extend([2, bits(1)]);
            want.extend([0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
            want.extend(fup(0x17).into_iter().flatten());
        }
        want.extend([0x3d, 0x20, 0x10, 1]);
        assert_eq!(clock.0, want);
    }
}

#[test]
fn without_branches_there_are_clocks_and_ptwrites() {
    let config = Config {
        branch_disable: true,
        ptw: true,
        fup_on_ptw: true,
        psb_period: 28,
        ..Config::default()
    };
    let mut clock = Clock(Vec::new(), 0);
    let mut pt = Encoder::new(config);

    pt.begin(false, &mut clock).unwrap();
    let psb = clock.0.clone();
    pt.enable(0x401000, Mode::Bits64, &mut clock).unwrap();
    assert!(pt.is_on());
    pt.step(&taken(0x401000), &mut clock).unwrap();
    pt.branch(
        Branch::IndirectCall,
        0x401002,
        0x402000,
        Mode::Bits64,
        &mut clock,
    )
    .unwrap();
    pt.branch(Branch::Return, 0x402001, 0x401002, Mode::Bits64, &mut clock)
        .unwrap();
    pt.interrupt(0x401002, 0x403000, Mode::Bits64, &mut clock)
        .unwrap();
    assert_eq!(clock.0, psb);
    let mut want = psb.clone();
    for number in 0..3 {
        pt.ptwrite(0x401012, Payload::Bits32(number), &mut clock)
            .unwrap();
        want.extend([2, 0x92, number.to_le_bytes()[0], 0, 0, 0]);
        // The first address is not compressed, nor is the one behind a `PSB`.
        match number {
            1 => want.extend([&[0x3d, 0x12, 0x10], &psb[..]].concat()),
            _ => want.extend([0x5d, 0x12, 0x10, 0x40, 0]),
        }
    }
    pt.disable(0x401020, &mut clock).unwrap();
    assert!(!pt.is_on());
    assert_eq!(clock.0, want);
}

/// Packets, and a counter of instructions.
#[derive(Default)]
struct Counter(Vec<u8>, u64);

impl Output for Counter {
    fn write(&mut self, bytes: &[u8], _keep: usize) -> Result<(), Full> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        0x1122
    }

    fn cycles(&mut self) -> Option<u64> {
        Some(self.1)
    }
}

#[test]
fn cycles_are_those_of_the_output() {
    for (cyc_threshold, jumps, interrupts) in [
        (0, Some(0x43), &[Some(&[0x07, 2][..]), Some(&[0x13][..])]),
        // The cycles of the six jumps are too few, and so are those of the second interrupt.
        (32, None, &[Some(&[0x47, 2][..]), None]),
    ] {
        let mut counter = Counter::default();
        let mut pt = Encoder::new(Config {
            cyc: true,
            cyc_threshold,
            ..Config::default()
        });
        let jump = taken(0x401000);

        counter.1 = 100;
        pt.begin(false, &mut counter).unwrap();
        pt.enable(0x401000, Mode::Bits64, &mut counter).unwrap();
        counter.0.clear();
        // The first jump is the eighth instruction.
        for cycles in 108..114 {
            counter.1 = cycles;
            pt.step(&jump, &mut counter).unwrap();
        }
        let mut want = Vec::from_iter(jumps);
        want.push(0b1111_1110);
        for (cycles, cyc) in [140, 142].into_iter().zip(interrupts) {
            counter.1 = cycles;
            pt.interrupt(0x401000, 0x401000, Mode::Bits64, &mut counter)
                .unwrap();
            want.extend(cyc.unwrap_or_default());
            want.extend([0x3d, 0, 0x10, 0x2d, 0, 0x10]);
        }
        // The `CYC` at the end counts all cycles.
        counter.1 = 145;
        pt.disable(0x401000, &mut counter).unwrap();
        want.push(if cyc_threshold == 0 { 0x1b } else { 0x2b });
        want.extend([0x3d, 0, 0x10, 1]);
        assert_eq!(counter.0, want);
    }
}

#[test]
fn sample() {
    let sample = Sample {
        ip: 0x401000,
        counters: 1,
        next: 0x401012,
        flags: 0x246,
        general: core::array::from_fn(|i| 0x0101_0101_0101_0101 * u64::try_from(i).unwrap()),
    };
    let follows = [0x02, 0xb3, 0x3d, 0x12, 0x10].as_slice();
    let stays = [0x02, 0x33].as_slice();

    for (mode, general, header, end) in [
        (Mode::Bits64, 16, 0x01, follows),
        (Mode::Bits64, 16, 0x01, stays),
        (Mode::Bits32, 8, 0x81, follows),
    ] {
        let mut ring = Ring::default();
        let mut pt = Encoder::new(Config {
            tsc: true,
            ..Config::default()
        });
        let follows = end == follows;

        pt.sample(&sample, mode, follows, &mut ring).unwrap();
        assert!(ring.bytes.is_empty(), "tracing is off");

        pt.begin(false, &mut ring).unwrap();
        pt.enable(0x401000, mode, &mut ring).unwrap();
        pt.step(&taken(0x401000), &mut ring).unwrap();
        ring.bytes.clear();

        let mut want = vec![0b110];
        want.extend([0x02, 0x63, 4]);
        want.extend([0x04, 0, 0x10, 0x40, 0, 0, 0, 0, 0]);
        want.extend([0x0c, 1, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([0x14, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0]);
        want.extend([0x02, 0x63, header]);
        let width = if mode == Mode::Bits64 { 8 } else { 4 };
        let registers = [0x246, 0x401012].into_iter().chain(sample.general);
        for (value, item) in registers.take(2 + general).zip(0u8..) {
            want.push(item * 8 + 4);
            want.extend(&value.to_le_bytes()[..width]);
        }
        want.extend(end);

        // The sample is written completely, or not at all.
        let len = want.len();
        ring.space = Some(len + CLOSE_MAX - 1);
        assert_eq!(pt.sample(&sample, mode, follows, &mut ring), Err(Full));
        ring.space = Some(len + CLOSE_MAX);
        pt.sample(&sample, mode, follows, &mut ring).unwrap();
        assert_eq!(ring.bytes, want, "{mode:?}, {follows}");
    }
}
