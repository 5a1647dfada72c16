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
//! | an exception at `int` with a number, its last instruction | was executed | `TIP` |
//!
//! The instructions before a block's last are no branches, so they have no packets.
//!
//! QEMU translates a page of a program once for all addresses where processes have it: a block has the address
//! that it was translated for, and the CPU may execute it elsewhere. What a direct branch leads to is
//! known from where it is; else the CPU's register is read. The kernel's code is at one address.
//!
//! Code that is not [`Wanted`] is left with `TIP.PGD`, and entered with `TIP.PGE`. The bounds of a range
//! may be in the middle of a block.

use intel_pt::insn::{Far, Insn, Kind, Mode};
use intel_pt::{Encoder, Full, Output, Step};
use qemuplugin::Discontinuity;

/// A block of guest code, by the address that it was translated for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Block {
    /// The address of its first instruction.
    pub first: u64,
    /// From there to each other instruction.
    pub others: Box<[u16]>,
    /// From there to its last instruction.
    pub last: u16,
    /// The last instruction.
    pub insn: Insn,
    /// Whether that writes `CR3`.
    pub writes_cr3: bool,
}

/// A block that a CPU executes.
#[derive(Debug, Clone, Copy)]
struct Here {
    block: &'static Block,
    /// The address of its first instruction.
    first: u64,
}

impl Here {
    /// The address of its last instruction.
    #[inline]
    fn last(&self) -> u64 {
        self.first.wrapping_add(u64::from(self.block.last))
    }

    /// Whether `at` is in it, so that QEMU can go on there in the middle of the block.
    #[inline]
    fn has(&self, at: u64) -> bool {
        at.wrapping_sub(self.first) <= u64::from(self.block.last)
    }

    /// The addresses of its instructions, without the first.
    fn others(&self) -> impl Iterator<Item = u64> + '_ {
        let at = |offset: &u16| self.first.wrapping_add(u64::from(*offset));
        self.block.others.iter().map(at)
    }

    /// Whether its last instruction leads to `to` by itself.
    fn leads_to(&self, to: u64) -> bool {
        let Block { insn, .. } = self.block;
        let direct = match insn.kind {
            Kind::Conditional { .. } => [Some(insn.next(self.last())), insn.target(self.last())],
            Kind::Jump { .. } | Kind::Call { .. } => [insn.target(self.last()), None],
            kind if !kind.is_branch() => [Some(insn.next(self.last())), None],
            _ => [None, None],
        };
        direct.contains(&Some(to))
    }
}

/// What the CPU has in its registers.
pub trait State {
    /// The address that it executes.
    fn pc(&self) -> Option<u64>;

    /// `CR3`.
    fn cr3(&self) -> Option<u64>;
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Its first address.
    pub low: u64,
    /// Its last address.
    pub high: u64,
    /// Whether it ends the trace. Else only such ranges are traced.
    pub stops: bool,
}

/// The most ranges.
pub const RANGES: usize = 4;

/// Which code is traced, by its addresses. The kernel's are negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// That of the kernel.
    pub kernel: bool,
    /// That of programs.
    pub user: bool,
    /// Ranges.
    pub ranges: [Option<Range>; RANGES],
}

/// What is done with an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Trace,
    Nothing,
    /// Nothing, and with all that follow.
    Stop,
}

impl Wanted {
    fn at(&self, address: u64) -> Does {
        match self.is_privileged(address) {
            true if self.has_ranges() => self.in_ranges(address),
            true => Does::Trace,
            false => Does::Nothing,
        }
    }

    /// Whether code there is traced, apart from ranges.
    #[inline]
    fn is_privileged(&self, address: u64) -> bool {
        match address >> 63 {
            0 => self.user,
            _ => self.kernel,
        }
    }

    fn has_ranges(&self) -> bool {
        self.ranges.iter().any(Option::is_some)
    }

    fn in_ranges(&self, address: u64) -> Does {
        let (mut inside, mut filtered) = (false, false);
        for range in self.ranges.iter().flatten() {
            let has = (range.low..=range.high).contains(&address);
            if range.stops && has {
                return Does::Stop;
            }
            filtered |= !range.stops;
            inside |= !range.stops && has;
        }
        match inside || !filtered {
            true => Does::Trace,
            false => Does::Nothing,
        }
    }
}

/// Where a virtual CPU is.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Nothing was executed yet.
    Nowhere,
    /// In a block.
    In(Here),
    /// A discontinuity has led to this address.
    At(u64),
}

/// The trace of a virtual CPU.
#[derive(Debug)]
pub struct Flow {
    encoder: Encoder,
    place: Place,
    wanted: Wanted,
    ranged: bool,
    /// A range has ended the trace.
    stopped: bool,
}

impl Flow {
    /// That of a CPU that has executed nothing.
    #[must_use]
    pub fn new(encoder: Encoder, wanted: Wanted) -> Self {
        Self {
            encoder,
            place: Place::Nowhere,
            wanted,
            ranged: wanted.has_ranges(),
            stopped: false,
        }
    }

    /// Whether a block was executed.
    #[must_use]
    pub const fn is_begun(&self) -> bool {
        !matches!(self.place, Place::Nowhere)
    }

    /// Whether an instruction at this address is traced now.
    #[must_use]
    pub fn traces(&self, address: u64) -> bool {
        self.is_begun() && !self.stopped && self.wanted.at(address) == Does::Trace
    }

    /// Where the CPU executes the block that it is about to execute.
    #[inline]
    fn finds(&self, block: &Block, state: &impl State) -> u64 {
        match block.first >> 63 {
            0 => self.finds_in_program(block, state),
            _ => block.first,
        }
    }

    fn finds_in_program(&self, block: &Block, state: &impl State) -> u64 {
        if let Place::In(before) = self.place {
            // Most often the code around was translated for the same process.
            let shift = before.first.wrapping_sub(before.block.first);
            let guess = block.first.wrapping_add(shift);
            if before.leads_to(guess) {
                return guess;
            }
        }
        state.pc().unwrap_or(block.first)
    }

    /// The CPU is about to execute a block. `whole` tells whether it has reached the last instruction of
    /// the one before.
    ///
    /// # Errors
    ///
    /// There is no space for the packets.
    #[inline]
    pub fn executes(
        &mut self,
        block: &'static Block,
        whole: impl FnOnce() -> bool,
        state: &impl State,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        let first = self.finds(block, state);
        let here = Here { block, first };
        if let Place::In(before) = self.place {
            // Where QEMU goes on in the middle of a block is in it.
            let whole = !before.has(first) || whole();
            // As most are: traced before and after.
            if whole
                && !before.block.writes_cr3
                && !self.ranged
                && self.encoder.is_on()
                && self.wanted.is_privileged(first)
            {
                self.place = Place::In(here);
                return self.steps(before, first, output);
            }
            self.follows(before, first, whole, state, output)?;
        } else {
            self.begins(first, state, output)?;
        }
        self.place = Place::In(here);
        self.arrives(first, output)
    }

    /// `to` is executed after a block, all of which was executed if it is `whole`.
    #[cold]
    fn follows(
        &mut self,
        before: Here,
        to: u64,
        whole: bool,
        state: &impl State,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        if !whole {
            return self.passes(before, Some(to), output);
        }
        self.leaves(before, to, output)?;
        match before.block.writes_cr3 {
            true => self.address_space(state.cr3(), output),
            false => Ok(()),
        }
    }

    /// `first` is executed after no block.
    #[cold]
    fn begins(
        &mut self,
        first: u64,
        state: &impl State,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        match self.place {
            // What QEMU does not report as a discontinuity, such as a reset.
            Place::At(to) if to != first => self.goes(to, first, output),
            Place::At(_) | Place::In(_) => Ok(()),
            Place::Nowhere => {
                self.address_space(state.cr3(), output)?;
                self.encoder.begin(false, output)
            }
        }
    }

    /// From the address that the block was translated for to where it is executed.
    #[must_use]
    pub fn shift(&self) -> u64 {
        match self.place {
            Place::In(here) => here.first.wrapping_sub(here.block.first),
            _ => 0,
        }
    }

    /// A discontinuity takes the CPU from `from` to `to`. `whole`: it has reached the last instruction of
    /// the block.
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
                if from == block.last() && is_software_interrupt(block.block.insn) =>
            {
                self.leaves(block, to, output)?;
            }
            // An exception at another instruction than the last is at the one behind it, which could
            // not be fetched.
            (Place::In(block), _)
                if whole && (kind == Discontinuity::Interrupt || from != block.last()) =>
            {
                self.leaves(block, from, output)?;
                self.arrives(from, output)?;
                self.goes(from, to, output)?;
            }
            (Place::In(block), _) => {
                self.passes(block, Some(from), output)?;
                self.goes(from, to, output)?;
            }
            (Place::At(_), _) => self.goes(from, to, output)?,
        }
        self.place = Place::At(to);
        self.arrives(to, output)
    }

    /// `at` is next: the trace begins or ends there if it is to.
    fn arrives(&mut self, at: u64, output: &mut impl Output) -> Result<(), Full> {
        match self.wanted.at(at) {
            Does::Trace if self.encoder.is_on() || self.stopped => Ok(()),
            Does::Trace => self.encoder.enable(at, Mode::Bits64, output),
            Does::Nothing => self.encoder.disable(at, output),
            Does::Stop if self.stopped => Ok(()),
            Does::Stop => {
                self.encoder.disable(at, output)?;
                self.stopped = true;
                self.encoder.stopped(output)
            }
        }
    }

    /// The instructions of a block were executed, without its first: up to that at `end`, or all.
    fn passes(
        &mut self,
        block: Here,
        end: Option<u64>,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        if self.ranged {
            for at in block.others().take_while(|at| Some(*at) != end) {
                self.arrives(at, output)?;
            }
        }
        Ok(())
    }

    /// The last instruction of a block has led to `to`, which is traced.
    #[inline]
    fn steps(&mut self, block: Here, to: u64, output: &mut impl Output) -> Result<(), Full> {
        let step = Step {
            insn: block.block.insn,
            from: block.last(),
            to,
            mode: Mode::Bits64,
        };
        self.encoder.step(&step, output)?;
        Ok(())
    }

    /// All of a block was executed, and `to` is next.
    fn leaves(&mut self, block: Here, to: u64, output: &mut impl Output) -> Result<(), Full> {
        self.passes(block, None, output)?;
        if self.wanted.at(to) == Does::Trace {
            return self.steps(block, to, output);
        }
        match block.block.insn.kind {
            Kind::Far(_) => self.encoder.far(output),
            kind if kind.is_branch() => self.encoder.leave(to, output),
            _ => self.encoder.disable(to, output),
        }
    }

    /// The CPU was to execute `from`, and executes `to`.
    fn goes(&mut self, from: u64, to: u64, output: &mut impl Output) -> Result<(), Full> {
        match self.wanted.at(to) {
            Does::Trace => self.encoder.interrupt(from, to, Mode::Bits64, output),
            Does::Nothing | Does::Stop => self.encoder.disable(from, output),
        }
    }

    fn address_space(&mut self, cr3: Option<u64>, output: &mut impl Output) -> Result<(), Full> {
        match cr3 {
            Some(cr3) if self.wanted.kernel => self.encoder.address_space(cr3, output),
            _ => Ok(()),
        }
    }

    /// The trace ends. `whole` is as for [`Self::discontinuity`]: then all of the block but its last
    /// instruction was executed.
    ///
    /// # Errors
    ///
    /// There is no space for the packets.
    pub fn ends(&mut self, whole: bool, output: &mut impl Output) -> Result<(), Full> {
        let at = match self.place {
            Place::Nowhere => return Ok(()),
            Place::In(block) if whole => {
                self.passes(block, None, output)?;
                block.last()
            }
            Place::In(block) => block.first,
            Place::At(at) => at,
        };
        self.place = Place::Nowhere;
        self.encoder.disable(at, output)
    }
}

/// Whether it is `int` with a number. A breakpoint is none, as a decoder may not know of it: the kernel
/// puts it where it patches code.
fn is_software_interrupt(insn: Insn) -> bool {
    matches!(insn.kind, Kind::Far(Far::Interrupt(_))) && insn.len > 1
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
                // Up to `PSBEND`.
                (0x02, [0x82, ..]) => {
                    bytes.windows(2).position(|two| two == [2, 0x23]).unwrap() + 2
                }
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

    struct Registers {
        pc: u64,
        cr3: u64,
    }

    impl State for Registers {
        fn pc(&self) -> Option<u64> {
            Some(self.pc)
        }

        fn cr3(&self) -> Option<u64> {
            Some(self.cr3)
        }
    }

    /// A page that was translated for this address is executed elsewhere.
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
        /// The last instruction is reached.
        Whole,
        Interrupt(u64, u64),
        Exception(u64, u64),
    }
    use Event::{Block as B, Exception, Interrupt, Whole};

    fn trace(events: &[Event]) -> Vec<String> {
        let wanted = Wanted {
            kernel: true,
            ..Wanted::default()
        };
        trace_of(events, wanted)
    }

    fn trace_of(events: &[Event], wanted: Wanted) -> Vec<String> {
        let mut flow = Flow::new(Encoder::new(Config::default()), wanted);
        let mut ring = Ring(Vec::new());
        let mut whole = false;
        let mut cr3 = 0x1234_5000;
        for event in events {
            match *event {
                // Two bytes of others before the last instruction.
                B(first, text) => {
                    let block = Box::leak(Box::new(Block {
                        first,
                        others: [1, 2].into(),
                        last: 2,
                        insn: Insn::decode(text, Mode::Bits64).unwrap(),
                        writes_cr3: text == MOV_CR3,
                    }));
                    cr3 += 0x1000;
                    let state = Registers {
                        pc: shifted(first),
                        cr3,
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

    /// A conditional branch 16 bytes on, a return, `call *(%rax)`, `int3`, `int $0x80`, `sysretq`, `nop`, a jump 16
    /// bytes on, `mov %rax,%cr3`.
    const JE: &[u8] = &[0x74, 0x10];
    const RET: &[u8] = &[0xc3];
    const CALL: &[u8] = &[0xff, 0x10];
    const INT3: &[u8] = &[0xcc];
    const INT: &[u8] = &[0xcd, 0x80];
    const SYSRET: &[u8] = &[0x48, 0x0f, 0x07];
    const NOP: &[u8] = &[0x90];
    const JMP: &[u8] = &[0xeb, 0x10];
    const MOV_CR3: &[u8] = &[0x0f, 0x22, 0xd8];

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
                    B(KERNEL, INT),
                    Whole,
                    Exception(at(2), HANDLER),
                    B(HANDLER, NOP),
                ],
                &[begin, handler, end, "PGD"],
            ),
            // A breakpoint is none.
            (
                &[
                    B(KERNEL, INT3),
                    Whole,
                    Exception(at(2), HANDLER),
                    B(HANDLER, NOP),
                ],
                &[begin, "FUP ffffffff81000002", handler, end, "PGD"],
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

    #[test]
    fn another_address_space_is_told() {
        let found = trace(&[
            B(KERNEL, MOV_CR3),
            Whole,
            B(KERNEL + 5, JE),
            Whole,
            B(KERNEL + 9, MOV_CR3),
            // It was not executed.
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
            // Not shared.
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
            // From the second instruction of a block to the first of the next.
            (
                &[range(1, 3, false)],
                &[B(KERNEL, NOP), Whole, B(at(3), NOP), Whole, B(at(6), NOP)],
                &["PGE ffffffff81000001", "FUP ffffffff81000004", "PGD"],
            ),
            // A branch leaves it, one comes back.
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
            // An exception before its first instruction.
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
            // The end, for good.
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
}
