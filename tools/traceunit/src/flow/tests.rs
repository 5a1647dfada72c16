// SPDX-License-Identifier: GPL-2.0 OR MIT

#![allow(clippy::as_conversions)] // Widens a sign.

use super::*;
use intel_pt::insn::Insn;
use intel_pt::Config;

mod events;

const KERNEL: u64 = 0xffff_ffff_8100_0000;
const HANDLER: u64 = 0xffff_ffff_8100_9000;
const USER: u64 = 0x40_1000;

struct Ring(Vec<u8>);

impl Output for Ring {
    fn write(&mut self, bytes: &[u8], _keep: usize) -> Result<(), Full> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        0
    }
}

/// The packets of these bytes, decoded according to Intel's manual.
fn packets(mut bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut last = 0u64;
    while let [first, rest @ ..] = bytes {
        let len = match (first, rest) {
            // Up to `PSBEND`.
            (0x02, [0x82, ..]) => bytes.windows(2).position(|two| two == [2, 0x23]).unwrap() + 2,
            (0x02, [0x43, value @ ..]) => {
                let mut cr3 = [0; 8];
                cr3[..6].copy_from_slice(&value[..6]);
                found.push(format!("PIP {:x}", u64::from_le_bytes(cr3) >> 1 << 5));
                8
            }
            (0x02, [0x83, ..]) => {
                found.push("stop".to_owned());
                2
            }
            (0x02, [0x53, 0, address @ ..]) => {
                let address = address.first_chunk().copied().unwrap();
                found.push(format!("PFA {:x}", u64::from_le_bytes(address)));
                11
            }
            (0x02, [0x13, kind, vector, ..]) => {
                found.push(format!("CFE {kind:x} {vector:x}"));
                4
            }
            (0x99, [mode, ..]) => {
                // The flag is only shown if it is set, which it never is here without events.
                found.extend((mode & 4 != 0).then(|| "IF".to_owned()));
                2
            }
            (first, _) if first & 1 == 0 => {
                let count = 6 - first.leading_zeros();
                let bits = (0..count).rev().map(|bit| first >> (bit + 1) & 1);
                let bits: Vec<_> = bits.map(|bit| ["N", "T"][usize::from(bit)]).collect();
                found.push(bits.concat());
                1
            }
            _ => {
                let name = match first & 0x1f {
                    0x0d => "TIP",
                    0x11 => "PGE",
                    0x01 => "PGD",
                    0x1d => "FUP",
                    other => panic!("{other:x}"),
                };
                let len = [0, 2, 4, 6, 6, 0, 8][usize::from(first >> 5)];
                let mut address = last.to_le_bytes();
                address[..len].copy_from_slice(&rest[..len]);
                last = u64::from_le_bytes(address);
                if first >> 5 == 3 {
                    last = ((last as i64) << 16 >> 16) as u64;
                }
                found.push(match len {
                    0 => name.to_owned(),
                    _ => format!("{name} {last:x}"),
                });
                1 + len
            }
        };
        bytes = &bytes[len..];
    }
    found
}

struct Registers {
    pc: u64,
    cr3: u64,
    interrupts: Option<bool>,
}

impl State for Registers {
    fn pc(&self) -> Option<u64> {
        Some(self.pc)
    }

    fn cr3(&self) -> Option<u64> {
        Some(self.cr3)
    }

    fn interrupts(&self) -> Option<bool> {
        self.interrupts
    }

    fn event(&self, handler: u64) -> Option<intel_pt::Event> {
        (handler == HANDLER).then_some(intel_pt::Event {
            vector: 14,
            page_fault: Some(0x7000),
        })
    }
}

/// The address for which a page was translated that is executed at another address.
const SHARED: u64 = 0x7000_0000_0000;
const SHIFT: u64 = 0x12_3000;

fn shifted(first: u64) -> u64 {
    match first >> 40 {
        0x70 => first + SHIFT,
        _ => first,
    }
}

enum Event {
    Block(u64, &'static [u8]),
    /// The interrupt flag in the registers from now on.
    Enabled(bool),
    /// The CPU has reached the last instruction of the block.
    Whole,
    Interrupt(u64, u64),
    Exception(u64, u64),
}
use Event::{Block as B, Enabled, Exception, Interrupt, Whole};

fn trace(events: &[Event]) -> Vec<String> {
    let wanted = Wanted {
        kernel: true,
        ..Wanted::default()
    };
    trace_of(events, wanted)
}

fn trace_of(events: &[Event], wanted: Wanted) -> Vec<String> {
    trace_by(Config::default(), events, wanted)
}

fn trace_by(config: Config, events: &[Event], wanted: Wanted) -> Vec<String> {
    let mut flow = Flow::new(Encoder::new(config), wanted);
    let mut ring = Ring(Vec::new());
    let mut whole = false;
    let mut cr3 = 0x1234_5000;
    let mut interrupts = None;
    for event in events {
        match *event {
            Enabled(enabled) => interrupts = Some(enabled),
            // Two instructions of one byte precede the last one.
            B(first, text) => {
                let block = Box::leak(Box::new(Block {
                    first,
                    others: [1, 2].into(),
                    last: 2,
                    insn: Insn::decode(text, Mode::Bits64).unwrap(),
                    writes_cr3: text == MOV_CR3,
                    behind_cli: match text {
                        CLI => [2].into(),
                        _ => Box::default(),
                    },
                    may_enable: text == STI,
                }));
                cr3 += 0x1000;
                let state = Registers {
                    pc: shifted(first),
                    cr3,
                    interrupts,
                };
                flow.executes(block, || whole, &state, &mut ring).unwrap();
                whole = false;
            }
            Whole => whole = true,
            Interrupt(from, to) => {
                let kind = Discontinuity::Interrupt;
                flow.discontinuity(kind, from, to, whole, &mut ring)
                    .unwrap();
                whole = false;
            }
            Exception(from, to) => {
                let kind = Discontinuity::Exception;
                flow.discontinuity(kind, from, to, whole, &mut ring)
                    .unwrap();
                whole = false;
            }
        }
    }
    flow.ends(whole, &mut ring).unwrap();
    packets(&ring.0)
}

/// Instructions: `je` over 16 bytes, `ret`, `call *(%rax)`, `int3`, `int $0x80`, `sysretq`, `nop`, `jmp` over 16 bytes, `mov %rax,%cr3`.
const JE: &[u8] = &[0x74, 0x10];
const RET: &[u8] = &[0xc3];
const CALL: &[u8] = &[0xff, 0x10];
const INT3: &[u8] = &[0xcc];
const INT: &[u8] = &[0xcd, 0x80];
const SYSRET: &[u8] = &[0x48, 0x0f, 0x07];
const NOP: &[u8] = &[0x90];
const JMP: &[u8] = &[0xeb, 0x10];
const MOV_CR3: &[u8] = &[0x0f, 0x22, 0xd8];
/// Last instructions of blocks: one with a `cli` in front of it, `sti`, and `iretq`.
const CLI: &[u8] = &[0x66, 0x90];
const STI: &[u8] = &[0xfb];
const IRET: &[u8] = &[0x48, 0xcf];

#[test]
fn each_way_out_of_a_block_has_its_packets() {
    let at = |offset| KERNEL + offset;
    let begin = "PGE ffffffff81000000";
    let enter = "PGE ffffffff81009000";
    let handler = "TIP ffffffff81009000";
    let end = "FUP ffffffff81009000";
    let table: &[(&[Event], &[&str])] = &[
        (&[B(KERNEL, NOP)], &[begin, "FUP ffffffff81000000", "PGD"]),
        (
            &[B(KERNEL, NOP), Whole],
            &[begin, "FUP ffffffff81000002", "PGD"],
        ),
        // Branches.
        (
            &[
                B(KERNEL, JE),
                Whole,
                B(at(0x14), JE),
                Whole,
                B(at(0x18), RET),
                Whole,
                B(HANDLER, NOP),
            ],
            &[begin, "TN", handler, end, "PGD"],
        ),
        // QEMU executes an instruction of the block by itself, and continues behind it.
        (
            &[
                B(KERNEL, JE),
                B(at(1), NOP),
                B(at(2), JE),
                Whole,
                B(at(0x16), NOP),
            ],
            &[begin, "T", "FUP ffffffff81000016", "PGD"],
        ),
        // An interrupt behind a branch that was taken.
        (
            &[
                B(KERNEL, JE),
                Whole,
                Interrupt(at(0x14), HANDLER),
                B(HANDLER, NOP),
            ],
            &[begin, "T", "FUP ffffffff81000014", handler, end, "PGD"],
        ),
        // An interrupt before the branch.
        (
            &[B(KERNEL, JE), Interrupt(at(1), HANDLER), B(HANDLER, NOP)],
            &[begin, "FUP ffffffff81000001", handler, end, "PGD"],
        ),
        // Exceptions in the middle of a block, and at its last instruction, which was not executed.
        (
            &[B(KERNEL, CALL), Exception(at(1), HANDLER), B(HANDLER, NOP)],
            &[begin, "FUP ffffffff81000001", handler, end, "PGD"],
        ),
        (
            &[
                B(KERNEL, CALL),
                Whole,
                Exception(at(2), HANDLER),
                B(HANDLER, NOP),
            ],
            &[begin, "FUP ffffffff81000002", handler, end, "PGD"],
        ),
        // The target of a branch cannot be fetched.
        (
            &[
                B(KERNEL, RET),
                Whole,
                Exception(at(0x1000), HANDLER),
                B(HANDLER, NOP),
            ],
            &[
                begin,
                "TIP ffffffff81001000",
                "FUP ffffffff81001000",
                handler,
                end,
                "PGD",
            ],
        ),
        // A software interrupt is a branch.
        (
            &[
                B(KERNEL, INT),
                Whole,
                Exception(at(2), HANDLER),
                B(HANDLER, NOP),
            ],
            &[begin, handler, end, "PGD"],
        ),
        // A breakpoint is not a branch.
        (
            &[
                B(KERNEL, INT3),
                Whole,
                Exception(at(2), HANDLER),
                B(HANDLER, NOP),
            ],
            &[begin, "FUP ffffffff81000002", handler, end, "PGD"],
        ),
        // Two discontinuities in a row.
        (
            &[
                B(KERNEL, NOP),
                Whole,
                Interrupt(at(3), at(0x500)),
                Interrupt(at(0x500), HANDLER),
                B(HANDLER, NOP),
            ],
            &[
                begin,
                "FUP ffffffff81000003",
                "TIP ffffffff81000500",
                "FUP ffffffff81000500",
                handler,
                end,
                "PGD",
            ],
        ),
        // A change to a program, which is not traced, and back.
        (
            &[
                B(KERNEL, SYSRET),
                Whole,
                B(USER, JE),
                Whole,
                B(USER, RET),
                Whole,
                Interrupt(USER, HANDLER),
                B(HANDLER, NOP),
            ],
            &[begin, "PGD", enter, end, "PGD"],
        ),
        // The program's first instruction cannot be fetched.
        (
            &[
                B(KERNEL, SYSRET),
                Whole,
                Exception(USER, HANDLER),
                B(HANDLER, NOP),
            ],
            &[begin, "PGD", enter, end, "PGD"],
        ),
    ];
    for (n, (events, want)) in table.iter().enumerate() {
        assert_eq!(trace(events), *want, "{n}");
    }
}

#[test]
fn another_address_space_is_told() {
    let found = trace(&[
        B(KERNEL, MOV_CR3),
        Whole,
        B(KERNEL + 5, JE),
        Whole,
        B(KERNEL + 9, MOV_CR3),
        // The last instruction was not executed.
        Exception(KERNEL + 11, HANDLER),
        B(HANDLER, NOP),
    ]);
    assert_eq!(
        found,
        [
            "PGE ffffffff81000000",
            "PIP 12347000",
            "N",
            "FUP ffffffff8100000b",
            "TIP ffffffff81009000",
            "FUP ffffffff81009000",
            "PGD"
        ]
    );
}

#[test]
fn shared_pages_are_where_they_are_executed() {
    let events = [
        B(KERNEL, SYSRET),
        Whole,
        B(SHARED, JE),
        Whole,
        B(SHARED + 0x14, JMP),
        Whole,
        B(SHARED + 0x28, RET),
        Whole,
        // A page that is not shared.
        B(USER, JMP),
        Whole,
        B(USER + 0x14, RET),
        Whole,
        B(SHARED, NOP),
        Whole,
        Interrupt(SHARED + SHIFT + 3, HANDLER),
        B(HANDLER, NOP),
    ];
    let wanted = Wanted {
        kernel: true,
        user: true,
        ..Wanted::default()
    };
    let found = trace_of(&events, wanted);
    let at = |offset| format!("{:x}", SHARED + SHIFT + offset);
    assert_eq!(
        found,
        [
            "PGE ffffffff81000000".to_owned(),
            format!("TIP {}", at(0)),
            "T".to_owned(),
            format!("TIP {USER:x}"),
            format!("TIP {}", at(0)),
            format!("FUP {}", at(3)),
            format!("TIP {HANDLER:x}"),
            format!("FUP {HANDLER:x}"),
            "PGD".to_owned(),
        ]
    );
}

#[test]
fn ranges_begin_and_end_anywhere() {
    let at = |offset| KERNEL + offset;
    let range = |low, high, stops| {
        Some(Range {
            low: at(low),
            high: at(high),
            stops,
        })
    };
    type Row<'a> = (&'a [Option<Range>], &'a [Event], &'a [&'a str]);
    let table: &[Row<'_>] = &[
        // A range from the second instruction of a block to the first of the next.
        (
            &[range(1, 3, false)],
            &[B(KERNEL, NOP), Whole, B(at(3), NOP), Whole, B(at(6), NOP)],
            &["PGE ffffffff81000001", "FUP ffffffff81000004", "PGD"],
        ),
        // One branch leaves the range, another returns to it.
        (
            &[range(0, 8, false)],
            &[
                B(KERNEL, JMP),
                Whole,
                B(at(0x14), RET),
                Whole,
                B(at(5), NOP),
                Interrupt(at(6), HANDLER),
            ],
            &[
                "PGE ffffffff81000000",
                "PGD ffffffff81000014",
                "PGE ffffffff81000005",
                "FUP ffffffff81000006",
                "PGD",
            ],
        ),
        // An exception before the first instruction of the range.
        (
            &[range(2, 8, false)],
            &[B(KERNEL, NOP), Exception(at(1), HANDLER), B(HANDLER, NOP)],
            &[],
        ),
        // Two ranges.
        (
            &[range(0, 0, false), range(2, 2, false)],
            &[B(KERNEL, NOP), Whole, B(at(3), NOP)],
            &[
                "PGE ffffffff81000000",
                "FUP ffffffff81000001",
                "PGD",
                "PGE ffffffff81000002",
                "FUP ffffffff81000003",
                "PGD",
            ],
        ),
        // A stop range ends the trace for good.
        (
            &[range(0x14, 0x14, true)],
            &[
                B(KERNEL, JE),
                Whole,
                B(at(0x14), NOP),
                Whole,
                B(KERNEL, NOP),
                Whole,
                B(HANDLER, NOP),
            ],
            &["PGE ffffffff81000000", "PGD ffffffff81000014", "stop"],
        ),
    ];
    for (n, (ranges, events, want)) in table.iter().enumerate() {
        let mut wanted = Wanted {
            kernel: true,
            ..Wanted::default()
        };
        for (to, from) in wanted.ranges.iter_mut().zip(*ranges) {
            *to = *from;
        }
        assert_eq!(trace_of(events, wanted), *want, "{n}");
    }
}
