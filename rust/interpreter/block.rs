// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decoded instructions, kept by their address and compared with the text each time.

use crate::{decode::LEN_MAX, execute::Task, op::Op, Machine, Observer};
use core::ops::ControlFlow;

/// Instructions in a block, at most.
const OPS: usize = 12;

/// Words of text that a block can lie in.
const WORDS: usize = 9;

/// Instructions that follow each other in memory: the last one can be a branch.
///
/// # Invariants
///
/// Its text is `words`, from the word that `first` is in, and `ops` are what was decoded from it.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub(crate) first: u64,
    /// In bytes.
    pub(crate) len: u64,
    /// 0: the first instruction is not interpreted.
    count: usize,
    /// The words that hold it; 0 if it is at no address.
    used: usize,
    /// What belongs to it of the first word, and of the last.
    masks: [u64; 2],
    /// Whether an observer has its text.
    told: bool,
    words: [u64; WORDS],
    ops: [Op; OPS],
}

impl Block {
    /// One that is at no address.
    pub const EMPTY: Self = Self {
        // User code is in the lower half.
        first: u64::MAX,
        len: 0,
        count: 0,
        used: 0,
        masks: [0; 2],
        told: false,
        words: [0; WORDS],
        ops: [Op::EMPTY; OPS],
    };

    pub(crate) fn ops(&self) -> &[Op] {
        self.ops.get(..self.count).unwrap_or(&[])
    }

    /// The first `limit` instructions, or all, and their length in bytes.
    #[inline]
    pub(crate) fn first_ops(&self, limit: u64) -> (&[Op], u64) {
        let all = self.ops();
        let some = usize::try_from(limit).ok().and_then(|n| all.get(..n));

        match some {
            Some(some) => (some, some.last().map_or(0, |op| op.end.into())),
            None => (all, self.len),
        }
    }

    /// Whether it is what the memory has at `ip` now.
    #[inline]
    pub(crate) fn is_at(&self, ip: u64, machine: &mut impl Machine) -> bool {
        match self.words.get(..self.used) {
            Some([]) | None => false,
            Some(words) => self.first == ip && machine.has_text(ip & !7, words, self.masks),
        }
    }

    /// Forgets the block if an observer has its text, so that the observer gets it again. Needed when another
    /// address space is next: it may have the same text at the same address.
    pub fn forget_told(&mut self) {
        if self.told {
            *self = Self::EMPTY;
        }
    }

    /// Gives its text to the observer if it is generated code.
    #[cold]
    pub(crate) fn tell<M: Machine, O: Observer>(
        &mut self,
        task: &mut Task<'_, M, O>,
    ) -> ControlFlow<()> {
        let last = self.first.wrapping_add(self.len).wrapping_sub(1);

        if !task.machine.is_generated(self.first, last) {
            return ControlFlow::Continue(());
        }
        let bytes = bytes_of(&self.words);
        let start = usize::try_from(self.first & 7).unwrap_or(0);
        let len = usize::try_from(self.len).unwrap_or(0);
        let text = bytes.get(start..).and_then(|rest| rest.get(..len));
        task.executes(0);
        let told = task.observer.code(self.first, text.unwrap_or(&[]));

        if told.is_break() {
            // The observer gets it the next time.
            *self = Self::EMPTY;
        } else {
            self.told = true;
        }
        told
    }

    /// Becomes what the memory has at `ip`.
    #[cold]
    pub(crate) fn fill(&mut self, ip: u64, machine: &mut impl Machine) {
        let mut words = [0; WORDS];
        let read = read(ip & !7, &mut words, machine);
        let bytes = bytes_of(&words);
        let start = usize::try_from(ip & 7).unwrap_or(0);
        let text = bytes.get(start..read.wrapping_mul(8)).unwrap_or(&[]);
        let mut len = 0_usize;
        let distrusts = machine.distrusts();

        self.count = 0;
        for place in &mut self.ops {
            let at = u64::try_from(len).unwrap_or(0);
            let rest = text.get(len..).unwrap_or(&[]);

            if place.decode(rest, ip.wrapping_add(at)).is_none() {
                break;
            }
            if distrusts && machine.is_distrusted(place.what.form()) {
                break;
            }
            self.count = self.count.wrapping_add(1);
            len = len.wrapping_add(usize::from(place.len));
            // No more than the words have.
            place.end = u8::try_from(len).unwrap_or(u8::MAX);
            place.count = u8::try_from(self.count).unwrap_or(u8::MAX);
            if place.what.ends() {
                break;
            }
        }
        if self.count == 0 {
            // As long as these bytes are there.
            len = text.len().min(LEN_MAX);
        }
        let end = start.wrapping_add(len);
        let used = end.div_ceil(8);
        let (before, behind) = (
            whole_bytes(start),
            whole_bytes(used.wrapping_mul(8).wrapping_sub(end)),
        );
        // INVARIANT: The instructions were decoded from these words.
        self.first = ip;
        self.len = u64::try_from(len).unwrap_or(0);
        self.used = used;
        self.masks = [u64::MAX.wrapping_shl(before), u64::MAX.wrapping_shr(behind)];
        self.words = words;
        self.told = false;
    }
}

fn bytes_of(words: &[u64; WORDS]) -> [u8; WORDS * 8] {
    let mut bytes = [0; WORDS * 8];

    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Reads text, as far as that is possible: it may end with its page. How many words.
fn read(first: u64, words: &mut [u64; WORDS], machine: &mut impl Machine) -> usize {
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

/// The bits of so many bytes, fewer than 8.
fn whole_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes.wrapping_mul(8)).unwrap_or(0)
}
