// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From the blocks that a virtual CPU executes to the packets of its trace.
//!
//! QEMU tells when a block begins, and where a discontinuity leads. It does not tell when a block
//! ends. So what a block did is known when the next thing happens:
//!
//! | next | the block | packets |
//! |---|---|---|
//! | a block | has reached its last instruction | of that instruction |
//! | a block | has not: QEMU goes on elsewhere in the middle, to execute an instruction by itself | none |
//! | an interrupt | as for a block at the next instruction | and `FUP`, `TIP` |
//! | an exception at an instruction of it | that instruction was not executed | `FUP`, `TIP` |
//! | an exception behind its last instruction | as for a block there | and `FUP`, `TIP` |
//! | an exception at a software interrupt, its last instruction | was executed | `TIP` |
//!
//! The instructions before a block's last are no branches, so they have no packets.
//!
//! Code that is not [traced](Traced) is left with `TIP.PGD`, and entered with `TIP.PGE`.

use intel_pt::insn::{Far, Insn, Kind, Mode};
use intel_pt::{Encoder, Full, Output, Step};
use qemuplugin::Discontinuity;

/// A block of guest code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The address of its first instruction.
    pub first: u64,
    /// The address of its last one.
    pub last: u64,
    /// The last instruction.
    pub insn: Insn,
}

/// Which code is traced, by its addresses: the kernel's are negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traced {
    /// That of the kernel.
    pub kernel: bool,
    /// That of programs.
    pub user: bool,
}

impl Traced {
    const fn has(self, address: u64) -> bool {
        match address >> 63 {
            0 => self.user,
            _ => self.kernel,
        }
    }
}

/// Where a virtual CPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing was executed yet.
    Nowhere,
    /// In a block.
    In(Block),
    /// A discontinuity has led to this address.
    At(u64),
}

/// The trace of a virtual CPU.
#[derive(Debug)]
pub struct Flow {
    encoder: Encoder,
    place: Place,
    traced: Traced,
}

impl Flow {
    /// That of a CPU that has executed nothing.
    #[must_use]
    pub const fn new(encoder: Encoder, traced: Traced) -> Self {
        Self {
            encoder,
            place: Place::Nowhere,
            traced,
        }
    }

    /// Whether a block was executed.
    #[must_use]
    pub const fn is_begun(&self) -> bool {
        !matches!(self.place, Place::Nowhere)
    }

    /// The CPU is about to execute a block. `whole`: it has reached the last instruction of the one
    /// before.
    ///
    /// # Errors
    ///
    /// There is no space for the packets.
    pub fn executes(
        &mut self,
        block: &Block,
        whole: bool,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        match self.place {
            Place::Nowhere => self.encoder.begin(false, output)?,
            Place::In(before) if whole => self.leaves(&before, block.first, output)?,
            Place::In(_) => {}
            // What QEMU does not report as a discontinuity, such as a reset.
            Place::At(to) if to != block.first => self.goes(to, block.first, output)?,
            Place::At(_) => {}
        }
        if self.traced.has(block.first) {
            self.encoder.enable(block.first, Mode::Bits64, output)?;
        }
        self.place = Place::In(*block);
        Ok(())
    }

    /// A discontinuity takes the CPU from `from` to `to`. `whole` is as for [`Self::executes`].
    ///
    /// # Errors
    ///
    /// There is no space for the packets.
    pub fn discontinuity(
        &mut self,
        kind: Discontinuity,
        from: u64,
        to: u64,
        whole: bool,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        match (self.place, kind) {
            (Place::Nowhere, _) => return Ok(()),
            (Place::In(block), Discontinuity::Exception)
                if from == block.last && is_software_interrupt(block.insn.kind) =>
            {
                self.leaves(&block, to, output)?;
            }
            // An exception at another instruction than the last is at the one behind it, which could
            // not be fetched.
            (Place::In(block), _)
                if whole && (kind == Discontinuity::Interrupt || from != block.last) =>
            {
                self.leaves(&block, from, output)?;
                self.goes(from, to, output)?;
            }
            _ => self.goes(from, to, output)?,
        }
        if self.traced.has(to) {
            self.encoder.enable(to, Mode::Bits64, output)?;
        }
        self.place = Place::At(to);
        Ok(())
    }

    /// The last instruction of a block was executed, and `to` is next.
    fn leaves(&mut self, block: &Block, to: u64, output: &mut impl Output) -> Result<(), Full> {
        if !self.traced.has(to) {
            return match block.insn.kind {
                Kind::Far(_) => self.encoder.far(output),
                _ => self.encoder.leave(to, output),
            };
        }
        let step = Step {
            insn: block.insn,
            from: block.last,
            to,
            mode: Mode::Bits64,
        };
        self.encoder.step(&step, output)?;
        Ok(())
    }

    /// The CPU was to execute `from`, and executes `to`.
    fn goes(&mut self, from: u64, to: u64, output: &mut impl Output) -> Result<(), Full> {
        if self.traced.has(to) {
            self.encoder.interrupt(from, to, Mode::Bits64, output)
        } else {
            self.encoder.disable(from, output)
        }
    }

    /// The trace ends. `whole` is as for [`Self::executes`]: then all of the block but its last
    /// instruction was executed.
    ///
    /// # Errors
    ///
    /// There is no space for the packets.
    pub fn ends(&mut self, whole: bool, output: &mut impl Output) -> Result<(), Full> {
        match self.place {
            Place::Nowhere => Ok(()),
            Place::In(block) if whole => self.encoder.disable(block.last, output),
            Place::In(block) => self.encoder.disable(block.first, output),
            Place::At(at) => self.encoder.disable(at, output),
        }
    }
}

fn is_software_interrupt(kind: Kind) -> bool {
    matches!(kind, Kind::Far(Far::Interrupt(_)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::as_conversions)] // Widens a sign.

    use super::*;
    use intel_pt::Config;

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

    /// What the manual says that these bytes are.
    fn packets(mut bytes: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        let mut last = 0u64;
        while let [first, rest @ ..] = bytes {
            let len = match (first, rest) {
                (0x02, [0x82, ..]) => 16,
                (0x02, [0x23, ..]) => 2,
                (0x99, _) => 2,
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

    enum Event {
        Block(u64, &'static [u8]),
        /// The last instruction is reached.
        Whole,
        Interrupt(u64, u64),
        Exception(u64, u64),
    }
    use Event::{Block as B, Exception, Interrupt, Whole};

    fn trace(events: &[Event]) -> Vec<String> {
        let mut flow = Flow::new(
            Encoder::new(Config::default()),
            Traced {
                kernel: true,
                user: false,
            },
        );
        let mut ring = Ring(Vec::new());
        let mut whole = false;
        for event in events {
            match *event {
                // Two bytes of others before the last instruction.
                B(first, text) => {
                    let block = Block {
                        first,
                        last: first + 2,
                        insn: Insn::decode(text, Mode::Bits64).unwrap(),
                    };
                    flow.executes(&block, whole, &mut ring).unwrap();
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

    /// A conditional branch 16 bytes on, a return, `call *(%rax)`, `int3`, `sysretq`, `nop`.
    const JE: &[u8] = &[0x74, 0x10];
    const RET: &[u8] = &[0xc3];
    const CALL: &[u8] = &[0xff, 0x10];
    const INT3: &[u8] = &[0xcc];
    const SYSRET: &[u8] = &[0x48, 0x0f, 0x07];
    const NOP: &[u8] = &[0x90];

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
            // QEMU executes an instruction of the block by itself, and goes on behind it.
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
            // Behind a branch; the branch was taken.
            (
                &[
                    B(KERNEL, JE),
                    Whole,
                    Interrupt(at(0x14), HANDLER),
                    B(HANDLER, NOP),
                ],
                &[begin, "T", "FUP ffffffff81000014", handler, end, "PGD"],
            ),
            // Before the branch.
            (
                &[B(KERNEL, JE), Interrupt(at(1), HANDLER), B(HANDLER, NOP)],
                &[begin, "FUP ffffffff81000001", handler, end, "PGD"],
            ),
            // In the middle of a block, and at its last instruction, which was not executed.
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
            // What a branch leads to cannot be fetched.
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
                    B(KERNEL, INT3),
                    Whole,
                    Exception(at(2), HANDLER),
                    B(HANDLER, NOP),
                ],
                &[begin, handler, end, "PGD"],
            ),
            // One discontinuity after the other.
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
            // To a program, of which nothing is traced, and back.
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
}
