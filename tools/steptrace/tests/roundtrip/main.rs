// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Encodes random walks through random programs, and lets libipt follow the traces: it must find every instruction of the walk, and no
//! other.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use intel_pt::insn::{Far, Insn, Kind, Mode};
use intel_pt::{Cause, Config, Encoder, Event, Full, Mtc, Output, Payload, Step};

mod program;

use program::{Dice, Program};

/// A ring to which writes fail at times.
struct Ring<'a> {
    bytes: Vec<u8>,
    dice: &'a mut Dice,
    /// One write in this number finds no space.
    full: Option<usize>,
    time: u64,
}

impl Output for Ring<'_> {
    fn write(&mut self, bytes: &[u8], keep: usize) -> Result<(), Full> {
        // Space is kept for the packets that end a trace.
        if keep > 0 && self.full.is_some_and(|n| self.dice.one_in(n)) {
            return Err(Full);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        self.time += 1000;
        self.time
    }
}

#[derive(Default, Debug)]
struct Counts {
    overflows: usize,
    full: usize,
    /// Payloads of PTWRITE, and addresses.
    writes: Vec<(u64, u64)>,
}

/// Walks through a random program. Returns the program, the trace, and the executed instructions.
fn walk(
    seed: u64,
    mode: Mode,
    config: Config,
    full: Option<usize>,
) -> (Program, Vec<u8>, Vec<u64>, Counts) {
    let mut dice = Dice(seed);
    let base = match (mode, dice.below(3)) {
        (Mode::Bits64, 0) => 0x7fff_f7dd_1000,
        (Mode::Bits64, 1) => 0x5555_5555_4000,
        _ => 0x40_1000,
    };
    let program = Program::random(&mut dice, mode, base);
    let mut ring_dice = Dice(seed ^ 1);
    let mut ring = Ring {
        bytes: Vec::new(),
        dice: &mut ring_dice,
        full,
        time: 1 << 40,
    };
    let mut pt = Encoder::new(config);
    let mut walked = Vec::new();
    let mut counts = Counts::default();
    let mut stack = Vec::new();
    let mut lost = false;
    let mut ip = program.blocks[0];
    let mut began = false;

    for _ in 0..2000 {
        let somewhere = program.blocks[dice.below(program.blocks.len())];
        if !pt.is_on() {
            // A trace always begins with this. A trace that was disabled may begin again or continue.
            if !began || lost || dice.one_in(4) {
                if pt.begin(lost, &mut ring).is_err() {
                    continue;
                }
                counts.overflows += usize::from(lost);
                lost = false;
                began = true;
            }
            if pt.enable(ip, mode, &mut ring).is_err() {
                counts.full += 1;
                ip = somewhere;
                continue;
            }
        }
        // At times something asynchronous happens.
        match dice.below(400) {
            0..=3 => {
                pt.disable(ip, &mut ring).unwrap();
                if dice.one_in(2) {
                    ip = somewhere;
                }
                continue;
            }
            4..=6 => {
                let event = dice.one_in(2).then(|| Event {
                    vector: 14,
                    page_fault: Some(dice.word()),
                });
                let done = pt.interrupt_by(event, ip, somewhere, mode, &mut ring);
                if done.is_ok() {
                    ip = somewhere;
                }
                continue;
            }
            7 if full.is_some() => {
                pt.disable(ip, &mut ring).unwrap();
                lost = true;
                ip = somewhere;
                continue;
            }
            8..=15 => {
                // The instructions that a decoder finds next do not depend on this.
                let _ = pt.interrupts_change(dice.one_in(2), ip, &mut ring);
            }
            _ => {}
        }

        let insn = program.insn(ip);
        let next = insn.next(ip);
        let to = match insn.kind {
            Kind::Conditional { .. } if dice.one_in(2) => insn.target(ip).unwrap(),
            Kind::Jump { .. } => insn.target(ip).unwrap(),
            Kind::Call { .. } => {
                stack.push(next);
                insn.target(ip).unwrap()
            }
            Kind::IndirectCall => {
                stack.push(next);
                somewhere
            }
            Kind::IndirectJump => somewhere,
            Kind::Return => match stack.pop() {
                Some(to) if !dice.one_in(10) => to,
                _ => somewhere,
            },
            Kind::String if dice.one_in(2) => ip,
            _ => next,
        };
        if let Kind::Far(far) = insn.kind {
            assert!(matches!(far, Far::Syscall | Far::Interrupt(0x80)));
            // There may be no space for the packet before it.
            if pt.far_by(far, ip, &mut ring).is_err() {
                pt.far(&mut ring).unwrap();
            }
            walked.push(ip);
            ip = if dice.one_in(4) { somewhere } else { next };
            continue;
        }
        if insn.kind == Kind::PtWrite {
            let wide = dice.one_in(2);
            let value = dice.word() >> if wide { 0 } else { 32 };
            let payload = match u32::try_from(value) {
                Ok(value) => Payload::Bits32(value),
                Err(_) => Payload::Bits64(value),
            };
            if pt.ptwrite(ip, payload, &mut ring).is_err() {
                counts.full += 1;
                pt.disable(ip, &mut ring).unwrap();
                lost = dice.one_in(2);
                ip = next;
                continue;
            }
            if config.ptw {
                counts.writes.push((value, ip));
            }
        }
        match pt.step(
            &Step {
                insn,
                from: ip,
                to,
                mode,
            },
            &mut ring,
        ) {
            Ok(cause) => {
                assert_eq!(cause, Cause::Instruction);
                if to != ip || insn.kind != Kind::String {
                    walked.push(ip);
                }
            }
            Err(Full) => {
                counts.full += 1;
                // The rest is lost, until there is space.
                pt.disable(ip, &mut ring).unwrap();
                lost = dice.one_in(2);
            }
        }
        ip = to;
    }
    pt.disable(ip, &mut ring).unwrap();
    let bytes = ring.bytes;
    (program, bytes, walked, counts)
}

/// libipt's walker, built once.
fn ptwalk() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("ptwalk.c");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ptwalk");
        let status = Command::new("gcc")
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&out, &source])
            .arg("-lipt")
            .status()
            .expect("gcc");
        assert!(status.success(), "{} does not compile", source.display());
        out
    })
}

struct Followed {
    walked: Vec<u64>,
    times: Vec<u64>,
    writes: Vec<(u64, u64)>,
    events: HashMap<String, usize>,
    errors: Vec<String>,
}

/// Lets libipt follow the trace of a text at an address. With `mtc` it also prints times.
fn follow(directory: &Path, text: (&[u8], u64), trace: &[u8], mtc: Option<Mtc>) -> Followed {
    let ((bytes, base), text, file) = (text, directory.join("text"), directory.join("trace"));
    fs::write(&text, bytes).unwrap();
    fs::write(&file, trace).unwrap();
    let output = Command::new(ptwalk())
        .arg(&file)
        .args(mtc.map(|Mtc { ratio, shift }| format!("mtc={ratio}:{shift}")))
        .arg(format!("{}:0:{:x}:{base:x}", text.display(), bytes.len()))
        .output()
        .unwrap();
    let mut followed = Followed {
        walked: Vec::new(),
        times: Vec::new(),
        writes: Vec::new(),
        events: HashMap::new(),
        errors: Vec::new(),
    };
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        if let Some(write) = line.strip_prefix("event ptwrite ") {
            let mut words = write.split(' ').map(|word| {
                let word = word.strip_prefix("0x").unwrap_or(word);
                u64::from_str_radix(word, 16).unwrap()
            });
            let payload = words.next().unwrap();
            followed.writes.push((payload, words.next().unwrap()));
        } else if let Some(event) = line.strip_prefix("event ") {
            *followed.events.entry(event.to_owned()).or_default() += 1;
        } else if let Some(time) = line.strip_prefix("time ") {
            followed.times.push(time.parse().unwrap());
        } else if line.starts_with("error") {
            followed.errors.push(line.to_owned());
        } else {
            followed.walked.push(u64::from_str_radix(line, 16).unwrap());
        }
    }
    followed
}

fn configs(seed: u64) -> Config {
    let mut dice = Dice(seed);
    Config {
        tsc: !dice.one_in(4),
        ret_compression: dice.one_in(2),
        psb_period: [0, 64, 300, 2048][dice.below(4)],
        tsc_period: [0, 1, 3][dice.below(3)],
        cbr: dice.one_in(2).then_some(20),
        cyc: dice.one_in(2),
        cyc_threshold: [0, 1, 2000][dice.below(3)],
        tnt_disable: false,
        branch_disable: false,
        ptw: dice.one_in(2),
        fup_on_ptw: dice.one_in(2),
        mtc: dice.one_in(2).then(|| Mtc {
            ratio: [1, 7, 512][dice.below(3)],
            shift: [0, 3, 8, 15][dice.below(4)],
        }),
        event: dice.one_in(2),
    }
}

/// Compares one walk. Returns the number of its instructions.
fn compare(directory: &Path, seed: u64, mode: Mode, full: Option<usize>) -> usize {
    let config = configs(seed);
    let (program, trace, walked, counts) = walk(seed, mode, config, full);
    let followed = follow(directory, (&program.text, program.base), &trace, None);
    let name = format!("seed {seed}, {mode:?}, {config:?}, {counts:?}");

    if let Some(at) = (0..walked.len().max(followed.walked.len()))
        .find(|&i| walked.get(i) != followed.walked.get(i))
    {
        let mut text = String::new();
        for i in at.saturating_sub(5)..at + 5 {
            writeln!(
                text,
                "{i}: {:x?} {:x?}",
                walked.get(i),
                followed.walked.get(i)
            )
            .unwrap();
        }
        panic!("{name}: differs\n{text}{:?}", followed.errors);
    }
    assert_eq!(followed.errors, Vec::<String>::new(), "{name}");
    assert_eq!(followed.writes, counts.writes, "{name}");
    let overflows = followed.events.get("overflow").copied().unwrap_or(0);
    assert_eq!(overflows, counts.overflows, "{name}");
    walked.len()
}

fn many(mode: Mode, full: Option<usize>, first: u64) {
    let directory = tempfile::tempdir().unwrap();
    let mut steps = 0;

    for seed in first..first + 150 {
        steps += compare(directory.path(), seed, mode, full);
    }
    assert!(steps > 10_000, "{steps}");
}

#[test]
fn walks_64() {
    many(Mode::Bits64, None, 0);
}

#[test]
fn walks_32() {
    many(Mode::Bits32, None, 1000);
}

#[test]
fn walks_with_losses() {
    many(Mode::Bits64, Some(30), 2000);
    many(Mode::Bits32, Some(200), 3000);
}

/// A trace of one jump that is executed again and again. Before each jump `next` advances the clock.
struct Times<N>(Vec<u8>, u64, N);

impl<N: FnMut(u64) -> u64> Output for Times<N> {
    fn write(&mut self, bytes: &[u8], _keep: usize) -> Result<(), Full> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        self.1 = self.2(self.1);
        self.1
    }
}

/// The packets of a trace, as libipt reads them, without their offsets.
fn packets(directory: &Path, trace: &[u8]) -> Vec<String> {
    let file = directory.join("trace");
    fs::write(&file, trace).unwrap();
    let output = Command::new(ptwalk())
        .arg("--packets")
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let packets = lines.lines().filter_map(|line| line.split_once(' '));
    packets.map(|(_, packet)| packet.to_owned()).collect()
}

/// Without `TNT` packets the other packets of a trace stay the same.
#[test]
fn a_trace_without_tnt() {
    let directory = tempfile::tempdir().unwrap();
    let mut left_out = 0;

    for seed in 0..20 {
        let config = Config {
            // The positions of these packets depend on the number of bytes and branches.
            psb_period: 0,
            tsc_period: 0,
            cyc: false,
            mtc: None,
            ..configs(seed)
        };
        let [with, without] = [false, true].map(|tnt_disable| {
            let config = Config {
                tnt_disable,
                ..config
            };
            let (_, trace, _, _) = walk(seed, Mode::Bits64, config, None);
            packets(directory.path(), &trace)
        });
        let others = with.iter().filter(|packet| !packet.starts_with("TNT"));
        let others: Vec<_> = others.cloned().collect();

        left_out += with.len() - others.len();
        assert_eq!(without, others, "seed {seed}, {config:?}");
    }
    assert!(left_out > 100, "{left_out}");
}

/// Seven conditional branches to the next instruction, and a jump to the first.
const LOOP: (&[u8], u64) = (
    &[
        0x74, 0, 0x74, 0, 0x74, 0, 0x74, 0, 0x74, 0, 0x74, 0, 0x74, 0, 0xff, 0xe0,
    ],
    0x40_1000,
);

/// Traces the loop this many times. Before each packet with a time, fewer than `max` ticks pass. Returns the trace, and its times.
fn traced_loop(config: Config, times: usize, max: usize) -> (Vec<u8>, Vec<u64>) {
    let (mut dice, mut passed) = (Dice(max.try_into().unwrap()), Vec::new());
    let mut pt = Encoder::new(config);
    let next = |now: u64| {
        let now = now + u64::try_from(dice.below(max)).unwrap();
        passed.push(now);
        now
    };
    let mut clock = Times(Vec::new(), 1 << 40, next);
    let (text, base) = LOOP;
    pt.begin(false, &mut clock).unwrap();
    pt.enable(base, Mode::Bits64, &mut clock).unwrap();
    for _ in 0..times {
        for (text, from) in text.chunks(2).zip((base..).step_by(2)) {
            let insn = Insn::decode(text, Mode::Bits64).unwrap();
            let to = match insn.kind {
                Kind::IndirectJump => base,
                _ => from + 2,
            };
            let mode = Mode::Bits64;
            pt.step(
                &Step {
                    insn,
                    from,
                    to,
                    mode,
                },
                &mut clock,
            )
            .unwrap();
        }
    }
    pt.disable(base, &mut clock).unwrap();
    (clock.0, passed)
}

/// The times that libipt shows for a trace of the loop.
fn followed_loop(trace: &[u8], mtc: Mtc, times: usize) -> Vec<u64> {
    let directory = tempfile::tempdir().unwrap();
    let followed = follow(directory.path(), LOOP, trace, Some(mtc));
    assert_eq!(followed.errors, Vec::<String>::new(), "{mtc:?}");
    assert_eq!(followed.walked.len(), times * 8, "{mtc:?}");
    followed.times
}

/// libipt identifies an `MTC` by the `TMA` before it, which has 16 bits of the coarse clock. With shifts above 8 these do not include all
/// eight bits of an `MTC`.
#[test]
fn times_are_exact_to_the_coarse_clock() {
    for (ratio, shift, max) in [
        (512, 0, 3000),
        (512, 3, 30_000),
        // At times more ticks have passed than an `MTC` can show.
        (7, 1, 30_000),
        (1, 0, 3),
        (512, 8, 1 << 21),
    ] {
        let mtc = Mtc { ratio, shift };
        let config = Config {
            tsc: true,
            mtc: Some(mtc),
            ..Config::default()
        };
        let (trace, passed) = traced_loop(config, 2000, max);
        let times = followed_loop(&trace, mtc, 2000);
        // After the time at the beginning of the trace, a time is that of the coarse clock, or that of a `TSC` if the coarse clock was too
        // far ahead.
        let tick = u64::from(ratio) << shift;
        let mut last = passed[1];
        let mut want = vec![last];
        for now in &passed[2..] {
            if now / tick - last / tick > 255 {
                want.push(*now);
                last = *now;
            } else if now / tick > last / tick {
                last = now / tick * tick;
                want.push(last);
            }
        }
        let differ = (0..want.len().max(times.len()))
            .find(|&n| want.get(n) != times.get(n))
            .map(|n| (n, want.get(n), times.get(n)));
        assert_eq!(differ, None, "{mtc:?}");
    }
}

/// libipt measures the length of a cycle between two `MTC`s, and assumes that the `CYC`s in front of an `MTC` count up to its tick. From the
/// second `MTC` on it knows the time of each packet.
#[test]
fn times_are_exact_to_the_cycle() {
    for (shift, max) in [(0, 300), (3, 3000), (3, 30_000)] {
        let mtc = Mtc { ratio: 512, shift };
        let config = Config {
            tsc: true,
            cyc: true,
            mtc: Some(mtc),
            ..Config::default()
        };
        let (trace, passed) = traced_loop(config, 2000, max);
        let times = followed_loop(&trace, mtc, 2000);
        // The earlier ones may be in front of the second `MTC`.
        let measured = &times[20..];
        let wrong = measured.iter().find(|time| !passed.contains(time));
        assert_eq!(wrong, None, "{mtc:?}");
        assert!(measured.len() > 3900, "{mtc:?}");
    }
}
