// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Instructions that read and write memory as one atomic access: those with LOCK, and exchanges.
//!
//! The interpreter repeats a compare-and-exchange until no other CPU has written in between. To
//! other CPUs this looks like the instruction itself.

use crate::{
    flags::{Flags, Source},
    op::{Locked, Op, Place, Two, Width},
    task::{Done, Stop, Task},
    Machine, Observer,
};

/// The number of attempts before the instruction is left to the processor.
const TRIES: u32 = 16;

/// The new values of memory, of a register if one is written, and of the flags.
struct After {
    memory: u64,
    register: Option<(Place, u64)>,
    flags: Flags,
}

impl<M: Machine, O: Observer> Task<'_, M, O> {
    pub(crate) fn locked(&mut self, op: &Op, locked: Locked) -> Done {
        let width = op.width;
        let address = self.address(op)?;

        // The operand may cross a cache line or a page.
        if address & width.bytes().wrapping_sub(1) != 0 {
            return Err(Stop::Left);
        }
        self.store_to(address)?;
        for _ in 0..TRIES {
            let old = self.load(address, width)?;
            let after = self.after(op, locked, old);
            let new = after.memory & width.mask();

            match self.machine.replace(address, width, old, new) {
                None => break,
                Some(false) => continue,
                Some(true) => {}
            }
            if let Some((place, value)) = after.register {
                self.put(place, width, value);
            }
            self.flags = after.flags;
            return Ok(());
        }
        Err(Stop::Left)
    }

    /// Computes the instruction for `old`, the value in memory.
    fn after(&mut self, op: &Op, locked: Locked, old: u64) -> After {
        let width = op.width;
        let operand = self.get(op.source, width);
        let mut flags = self.flags;
        let mut register = None;

        let memory = match locked {
            Locked::Two(two) => computed(&mut flags, two, width, old, operand),
            Locked::Not => !old,
            Locked::Neg => flags.neg(width, old),
            Locked::Inc => flags.inc(width, old),
            Locked::Dec => flags.dec(width, old),
            Locked::Exchange => {
                register = Some((op.source, old));
                operand
            }
            Locked::Add => {
                register = Some((op.source, old));
                computed(&mut flags, Two::Add, width, old, operand)
            }
            Locked::Compare => {
                let accumulator = Place::Ax;
                let expected = self.get(accumulator, width);

                flags.lazy(Source::Sub, width, expected, old);
                if expected == old {
                    operand
                } else {
                    register = Some((accumulator, old));
                    old
                }
            }
        };
        After {
            memory,
            register,
            flags,
        }
    }
}

fn computed(flags: &mut Flags, two: Two, width: Width, a: u64, b: u64) -> u64 {
    match two {
        Two::Add => {
            flags.lazy(Source::Add, width, a, b);
            a.wrapping_add(b)
        }
        Two::Sub => {
            flags.lazy(Source::Sub, width, a, b);
            a.wrapping_sub(b)
        }
        Two::Adc => flags.adc(width, a, b),
        Two::Sbb => flags.sbb(width, a, b),
        _ => {
            let result = match two {
                Two::Or => a | b,
                Two::And => a & b,
                _ => a ^ b,
            };
            flags.logic(width, result);
            result
        }
    }
}
