// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Blocks of decoded instructions, by address. The text of a block is compared with memory before
//! the block is executed.

use crate::{
    decode::{Next, Text, LEN_MAX, PLACES, WORDS},
    op::Op,
    task::Task,
    Machine, Observer,
};
use core::ops::ControlFlow;

/// The pass of a block whose text was never read.
const NEVER: u64 = u64::MAX;

/// The maximum number of instructions in a block.
const OPS: usize = 16;

/// An upper bound of the distance from the first to the last byte of a block.
// CAST: Widening; `From` is not const.
#[allow(clippy::as_conversions)]
const TEXT_MAX: u64 = 8 * WORDS as u64 - 1;

/// Instructions that follow each other in memory. An unconditional branch can only be the last one.
///
/// Decoding stops at a conditional branch, and continues when the branch was not taken. So code
/// that is never executed is mostly not decoded. Generated code is decoded up to the end of the
/// block at once.
///
/// # Invariants
///
/// - `words` begins with the word that holds the byte at `first`, and holds the block's text.
/// - The first `count` elements of `ops` are decoded from that text.
/// - If `count` is less than the length of `ops`, the next element ends the block.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub(crate) first: u64,
    /// In bytes.
    pub(crate) len: u64,
    /// The number of instructions; 0 if the first instruction is not interpreted.
    pub(crate) count: usize,
    /// The number of words that hold the text; 0 if the block has no address.
    used: usize,
    /// Masks of the bits that belong to the text, in the first and in the last of these words.
    masks: [u64; 2],
    /// The [pass](Machine::pass) in which the text was read or compared last.
    compared: u64,
    /// The pass in which the text was read.
    filled: u64,
    /// The number of the report; [`None`] if no text is generated code. The largest number if the
    /// observer has not wanted it.
    reported: Option<u64>,
    /// The number of words that were read from memory.
    read: usize,
    words: [u64; PLACES],
    pub(crate) ops: [Op; OPS],
}

impl Block {
    /// A block that has no address.
    pub const EMPTY: Self = Self {
        // User code is in the lower half.
        first: u64::MAX,
        len: 0,
        count: 0,
        used: 0,
        masks: [0; 2],
        compared: NEVER,
        filled: NEVER,
        reported: None,
        read: 0,
        words: [0; PLACES],
        ops: [Op::EMPTY; OPS],
    };

    /// The number of instructions to execute with this limit; [`None`] if the limit does not end
    /// the block early. The first `start` instructions were executed already.
    ///
    /// The instruction behind that number is single-stepped, and the instruction after it begins a
    /// block. If possible, the single-stepped instruction is a branch: its target is mostly a block
    /// that exists already.
    #[inline]
    pub(crate) fn limited(&self, start: usize, limit: u64) -> Option<usize> {
        let limit = usize::try_from(limit).unwrap_or(OPS);

        (limit < self.count).then(|| self.in_front_of_branch(start, limit))
    }

    #[cold]
    fn in_front_of_branch(&self, start: usize, limit: usize) -> usize {
        let ops = self.ops.get(start..=limit).unwrap_or(&[]);
        let branches = (start..=limit)
            .zip(ops)
            .filter(|(_, op)| op.what.is_branch());

        match branches.last() {
            // At least one instruction must be executed.
            None | Some((0, _)) => limit,
            Some((branch, _)) => branch,
        }
    }

    /// Whether the block is at `ip` and its text, which was compared in this pass, cannot have
    /// changed since. Does not read the text.
    #[inline]
    pub(crate) fn is_still_at(&self, ip: u64, pass: u64, machine: &mut impl Machine) -> bool {
        let last = ip.wrapping_add(self.len).wrapping_sub(1);

        self.first == ip && self.compared == pass && machine.is_settled(ip, last)
    }

    /// Whether the block is at `ip`, memory holds its text, and the text need not be reported
    /// again. Compares the text.
    #[inline]
    pub(crate) fn is_at(&mut self, ip: u64, pass: u64, machine: &mut impl Machine) -> bool {
        self.first == ip && self.compare(pass, machine) && !self.is_replaced(machine)
    }

    #[inline]
    fn is_replaced(&self, machine: &mut impl Machine) -> bool {
        let last = self.first.wrapping_add(self.len).wrapping_sub(1);

        self.reported
            .is_some_and(|report| machine.is_replaced(self.first, last, report))
    }

    #[inline]
    fn compare(&mut self, pass: u64, machine: &mut impl Machine) -> bool {
        let is_there = match self.words.get(..self.used) {
            Some([]) | None => false,
            Some(words) => machine.has_text(self.first & !7, words, self.masks),
        };

        if is_there {
            self.compared = pass;
        }
        is_there
    }

    /// Drops the block if its text is generated code, so that it is reported again.
    /// Needed before another address space is used, which may have the same text at the same
    /// address.
    pub fn forget_reported(&mut self) {
        if self.reported.is_some() {
            *self = Self::EMPTY;
        }
    }

    /// Reports the text from byte `from` on, if it is generated code that the observer wants.
    #[cold]
    pub(crate) fn report<M: Machine, O: Observer>(
        &mut self,
        from: u64,
        task: &mut Task<'_, M, O>,
    ) -> ControlFlow<()> {
        let first = self.first.wrapping_add(from);
        let last = self.first.wrapping_add(self.len).wrapping_sub(1);

        if !task.machine.is_generated(first, last) {
            return ControlFlow::Continue(());
        }
        if !task.observer.wants_code() {
            self.reported = Some(u64::MAX);
            return ControlFlow::Continue(());
        }
        let bytes = bytes_of(&self.words);
        let start = (self.first & 7).wrapping_add(from);
        let start = usize::try_from(start).unwrap_or(0);
        let len = usize::try_from(self.len.wrapping_sub(from)).unwrap_or(0);
        let text = bytes.get(start..).and_then(|rest| rest.get(..len));
        let text = text.unwrap_or(&[]);
        let report = task.machine.report(first, text);
        let outcome = task.observer.code(first, text, task.executed);

        if outcome.is_break() {
            // The text is reported when the block is decoded again.
            *self = Self::EMPTY;
        } else {
            // The text in front of `from` has an older report.
            self.reported = Some(self.reported.map_or(report, |older| older.min(report)));
        }
        outcome
    }

    /// Reads and decodes the text at `ip`. Returns whether it may be generated code.
    #[cold]
    pub(crate) fn fill(&mut self, ip: u64, pass: u64, machine: &mut impl Machine) -> bool {
        // INVARIANT: Nothing was decoded from the words.
        self.first = ip;
        self.len = 0;
        self.count = 0;
        self.reported = None;
        self.compared = pass;
        self.filled = pass;
        self.read = read(ip & !7, &mut self.words, machine);
        self.decode(machine)
    }

    /// Decodes more of the block. Returns whether it may be generated code; [`None`] if memory no
    /// longer holds the text.
    #[cold]
    pub(crate) fn grow(&mut self, pass: u64, machine: &mut impl Machine) -> Option<bool> {
        let is_generated = self.decode(machine);
        let end = self.first.wrapping_add(self.len);

        // `compared` covers only the text that was decoded before.
        if self.filled == pass && machine.is_settled(self.first, end.wrapping_sub(1))
            || self.compare(pass, machine)
        {
            return Some(is_generated);
        }
        *self = Self::EMPTY;
        None
    }

    /// Decodes the next instructions: all if the text may be generated code, else up to a
    /// conditional branch. Returns whether the text may be generated code.
    fn decode(&mut self, machine: &mut impl Machine) -> bool {
        // A decoder keeps only the newest text of each address, so blocks that overlap must report
        // all of their text.
        let reach = self.first.wrapping_add(TEXT_MAX);
        let at_once = machine.is_generated(self.first, reach);
        let start = self.count;

        self.decode_ops(at_once);
        if machine.distrusts() {
            let new = self.ops.get(start..self.count).unwrap_or(&[]);

            for op in new {
                if machine.is_distrusted(op.what.form()) {
                    let (count, len) = (op.count.wrapping_sub(1), op.end.wrapping_sub(op.len));

                    self.end_at(count.into(), len.into(), Op::EMPTY);
                    break;
                }
            }
        }
        at_once
    }

    /// Decodes the next instructions. With `at_once` it does not stop at a conditional branch.
    fn decode_ops(&mut self, at_once: bool) {
        let start = usize::try_from(self.first & 7).unwrap_or(0);
        let text = Text {
            words: &self.words,
            ip: self.first & !7,
            end: self.read.wrapping_mul(8),
        };
        // Cannot overflow: the block is within the words.
        let mut at = usize::try_from(self.len).unwrap_or(0).wrapping_add(start);
        let mut count = small(self.count);
        let mut end = Op::EMPTY;

        for place in self.ops.get_mut(self.count..).unwrap_or(&mut []) {
            let Some(next) = place.decode_at(text, at) else {
                break;
            };

            count = count.wrapping_add(1);
            at = at.wrapping_add(place.len.into());
            place.end = small(at.wrapping_sub(start));
            place.count = count;
            match next {
                Next::Behind => {}
                Next::Branch if at_once => {}
                Next::Branch => {
                    end = Op::MORE;
                    break;
                }
                Next::End => break,
            }
        }
        self.end_at(count.into(), at.wrapping_sub(start), end);
    }

    /// Ends the block behind `count` instructions of `len` bytes in total. `end` becomes the next
    /// element, if `ops` has space for it.
    fn end_at(&mut self, count: usize, len: usize, end: Op) {
        let start = usize::try_from(self.first & 7).unwrap_or(0);
        let mut len = len;

        self.count = count;
        if let Some(place) = self.ops.get_mut(count) {
            *place = Op {
                end: small(len),
                count: small(count),
                ..end
            };
        }
        if count == 0 {
            // The instruction is not interpreted, so its length is unknown. All bytes that it can
            // have are compared.
            let all = self.read.wrapping_mul(8);

            len = all.saturating_sub(start).min(LEN_MAX);
        }
        let end = start.wrapping_add(len);
        let used = end.div_ceil(8);
        let (before, behind) = (
            whole_bytes(start),
            whole_bytes(used.wrapping_mul(8).wrapping_sub(end)),
        );
        // INVARIANT: The instructions were decoded from these words.
        self.len = u64::try_from(len).unwrap_or(0);
        self.used = used;
        self.masks = [u64::MAX.wrapping_shl(before), u64::MAX.wrapping_shr(behind)];
    }
}

/// Converts a number or an offset within a block, which is short.
#[inline]
fn small(number: usize) -> u8 {
    u8::try_from(number & 0xff).unwrap_or(u8::MAX)
}

fn bytes_of(words: &[u64; PLACES]) -> [u8; PLACES * 8] {
    let mut bytes = [0; PLACES * 8];

    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Reads text and returns the number of words that were read. It may be less than all: the text may
/// end with its page.
fn read(first: u64, words: &mut [u64; PLACES], machine: &mut impl Machine) -> usize {
    let words = words.get_mut(..WORDS).unwrap_or(&mut []);

    if machine.text(first, words) {
        return WORDS;
    }
    let mut address = first;
    let mut read = 0_usize;

    for word in words {
        let mut one = [0];

        if !machine.text(address, &mut one) {
            break;
        }
        [*word] = one;
        address = address.wrapping_add(8);
        read = read.wrapping_add(1);
    }
    read
}

/// The number of bits in `bytes`, which is less than 8.
fn whole_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes.wrapping_mul(8)).unwrap_or(0)
}
