// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes the instructions of a block.

use crate::{
    block::Block,
    frequent,
    op::Op,
    task::{Stop, Task},
    Machine, Observer,
};

impl<M: Machine, O: Observer> Task<'_, M, O> {
    /// Executes at most `left` instructions of a block, until execution leaves the block or stops.
    /// Subtracts their number from `left`.
    ///
    /// Returns the reason, and the address of the last instruction. For [`Stop::Branched`] the
    /// address is the target instead.
    #[inline]
    pub(crate) fn execute(&mut self, block: &Block, left: &mut u64) -> (Stop, u64) {
        let (last, stop) = match block.limited(0, *left) {
            None => self.run(&block.ops),
            Some(count) => self.run_some(block, 0, count),
        };

        self.stopped(block, last, stop, left)
    }

    /// As [`execute`](Self::execute), for a block that has grown. Its first `start` instructions
    /// were executed already.
    pub(crate) fn resume(&mut self, block: &Block, start: usize, left: &mut u64) -> (Stop, u64) {
        let before = u64::try_from(start).unwrap_or(0);

        self.ip = block.first;
        self.executed = self.executed.wrapping_sub(before);
        *left = left.wrapping_add(before);
        let (last, stop) = match block.limited(start, *left) {
            None => {
                let (last, stop) = self.run(block.ops.get(start..).unwrap_or(&[]));
                (last.wrapping_add(start), stop)
            }
            Some(count) => self.run_some(block, start, count),
        };

        self.stopped(block, last, stop, left)
    }

    /// Counts the executed instructions. The last one is at index `last` of the block. Returns as
    /// [`execute`](Self::execute) does.
    #[inline(always)]
    fn stopped(&mut self, block: &Block, last: usize, stop: Stop, left: &mut u64) -> (Stop, u64) {
        if stop != Stop::Branched {
            return self.stopped_otherwise(block, last, stop, left);
        }
        // A block has at most 16 instructions.
        let done = u64::try_from(last).unwrap_or(0).wrapping_add(1);

        self.executed = self.executed.wrapping_add(done);
        *left = left.wrapping_sub(done);
        (stop, self.ip)
    }

    /// As [`stopped`](Self::stopped), for the other reasons than [`Stop::Branched`].
    #[inline(never)]
    fn stopped_otherwise(
        &mut self,
        block: &Block,
        last: usize,
        stop: Stop,
        left: &mut u64,
    ) -> (Stop, u64) {
        let op = block.ops.get(last).unwrap_or(&Op::EMPTY);
        let mut done = u64::from(op.count);
        let next = || block.first.wrapping_add(op.end.into());
        let from = || next().wrapping_sub(op.len.into());

        match stop {
            Stop::Branched | Stop::Enough => {}
            Stop::Left | Stop::Again => {
                self.ip = from();
                done = done.wrapping_sub(1);
            }
            _ => self.ip = next(),
        }
        self.executed = self.executed.wrapping_add(done);
        *left = left.saturating_sub(done);
        (stop, from())
    }

    /// Executes instructions until one of them stops. Returns its index, and the reason.
    #[inline]
    fn run(&mut self, ops: &[Op]) -> (usize, Stop) {
        let mut at = 0_usize;

        // The compiler unrolls the loop over four, as it knows the length.
        let (fours, rest) = ops.split_at(ops.len() & !3);

        for four in fours.chunks_exact(4) {
            for op in four {
                if let Err(stop) = frequent::run(self, op) {
                    return (at, stop);
                }
                at = at.wrapping_add(1);
            }
        }
        for op in rest {
            if let Err(stop) = frequent::run(self, op) {
                return (at, stop);
            }
            at = at.wrapping_add(1);
        }
        (at.saturating_sub(1), Stop::End)
    }

    /// As [`run`](Self::run), for the instructions `start..end`.
    #[cold]
    fn run_some(&mut self, block: &Block, start: usize, end: usize) -> (usize, Stop) {
        let ops = block.ops.get(start..end).unwrap_or(&[]);

        match self.run(ops) {
            // If `end` is 0, no instruction has this index, so none is counted.
            (_, Stop::End) => (end.wrapping_sub(1), Stop::Limit),
            (last, stop) => (last.wrapping_add(start), stop),
        }
    }
}
