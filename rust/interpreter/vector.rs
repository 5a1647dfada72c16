// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Instructions on vector registers: moves, and those that string functions use.

use crate::{
    flags,
    op::{Float, How, Op, Vector, Width},
    task::{Done, Stop, Task},
    Machine, Observer,
};

/// Four words, the lowest first. Instructions on 128 bits have two of them.
type Value = [u64; 4];

impl How {
    /// In bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Legacy | Self::Low => 16,
            Self::Whole => 32,
        }
    }
}

impl<M: Machine, O: Observer> Task<'_, M, O> {
    pub(crate) fn vector(&mut self, op: &Op, what: Vector, how: How) -> Done {
        match what {
            Vector::Move(aligned) => self.move_vector(op, how, aligned)?,
            Vector::FromGeneral => {
                let value = self.source(op, op.width)?;
                self.set_vector(op.target.number(), [value, 0, 0, 0], how)?;
            }
            Vector::ToGeneral => {
                let [value, ..] = self.get_vector(op.source.number())?;
                self.write(op, op.width, value & op.width.mask())?;
            }
            Vector::MoveLow => self.move_low(op, how)?,
            Vector::Mask => {
                let value = self.get_vector(op.source.number())?;
                let used = if how == How::Whole { 4 } else { 2 };
                let masks = value.into_iter().take(used).enumerate();
                let mask = masks.fold(0, |mask, (at, word)| {
                    let shift = u32::try_from(at).unwrap_or(0).wrapping_mul(8);
                    mask | mask_of(word).wrapping_shl(shift)
                });
                self.put(op.target, Width::B8, mask);
            }
            Vector::ZeroUpper => self.machine.zero_upper().ok_or(Stop::Left)?,
            Vector::MoveScalar => self.move_scalar(op, how)?,
            Vector::LoadHalf(high) => {
                let value = self.source(op, Width::B8)?;
                let [low, old, ..] = self.get_vector(op.reg.number())?;
                let new = if high { [low, value] } else { [value, old] };
                self.set_vector(op.target.number(), [new[0], new[1], 0, 0], how)?;
            }
            Vector::StoreHalf(high) => {
                let [low, upper, ..] = self.get_vector(op.source.number())?;
                self.write(op, Width::B8, if high { upper } else { low })?;
            }
            Vector::Broadcast(width) => {
                let value = if op.source.is_memory() {
                    self.source(op, width)?
                } else {
                    let [value, ..] = self.get_vector(op.source.number())?;
                    value
                };
                let value = each(width, 0, value, |_, _| value);
                self.set_vector(op.target.number(), [value; 4], how)?;
            }
            Vector::Float(float, double) => self.float(op, how, float, double)?,
            Vector::Shuffle => {
                let b = self.vector_source(op, how)?;
                self.set_vector(op.target.number(), shuffled(b, op.imm), how)?;
            }
            Vector::ShiftRight(_)
            | Vector::ShiftLeft(_)
            | Vector::BytesRight
            | Vector::BytesLeft => {
                let value = self.get_vector(op.source.number())?;
                self.set_vector(op.target.number(), shifted(what, value, op.imm), how)?;
            }
            _ => {
                let a = self.get_vector(op.reg.number())?;
                let b = self.vector_source(op, how)?;
                self.set_vector(op.target.number(), computed(what, a, b), how)?;
            }
        }
        Ok(())
    }

    fn get_vector(&mut self, number: u8) -> Result<Value, Stop> {
        self.machine.vector(number).ok_or(Stop::Left)
    }

    fn set_vector(&mut self, number: u8, value: Value, how: How) -> Done {
        self.machine
            .set_vector(number, value, how)
            .ok_or(Stop::Left)
    }

    /// The address of an operand in memory. Fails if `aligned` and the address is not aligned.
    fn vector_address(&mut self, op: &Op, how: How, aligned: bool) -> Result<u64, Stop> {
        let address = self.address(op)?;

        if aligned && address & how.bytes().wrapping_sub(1) != 0 {
            return Err(Stop::Left);
        }
        Ok(address)
    }

    fn move_vector(&mut self, op: &Op, how: How, aligned: bool) -> Done {
        let (target, source) = (op.target, op.source);

        if source.is_memory() {
            let address = self.vector_address(op, how, aligned)?;
            self.machine
                .load_vector(target.number(), address, how)
                .ok_or(Stop::Left)
        } else if target.is_memory() {
            let address = self.vector_address(op, how, aligned)?;
            self.store_to(address)?;
            self.machine
                .store_vector(source.number(), address, how)
                .ok_or(Stop::Left)
        } else {
            let value = self.get_vector(source.number())?;
            self.set_vector(target.number(), value, how)
        }
    }

    fn move_low(&mut self, op: &Op, how: How) -> Done {
        let value = if op.source.is_memory() {
            self.source(op, Width::B8)?
        } else {
            let [value, ..] = self.get_vector(op.source.number())?;
            value
        };

        if op.target.is_memory() {
            self.write(op, Width::B8, value)
        } else {
            self.set_vector(op.target.number(), [value, 0, 0, 0], how)
        }
    }

    fn move_scalar(&mut self, op: &Op, how: How) -> Done {
        let mask = op.width.mask();

        if op.source.is_memory() {
            let value = self.source(op, op.width)?;

            return self.set_vector(op.target.number(), [value, 0, 0, 0], how);
        }
        let [value, ..] = self.get_vector(op.source.number())?;

        if op.target.is_memory() {
            return self.write(op, op.width, value & mask);
        }
        let [low, high, ..] = self.get_vector(op.reg.number())?;
        let low = low & !mask | value & mask;

        self.set_vector(op.target.number(), [low, high, 0, 0], how)
    }

    fn float(&mut self, op: &Op, how: How, float: Float, double: bool) -> Done {
        let element = if double { Width::B8 } else { Width::B4 };
        let [low, high, ..] = self.get_vector(op.reg.number())?;
        let b = if float == Float::FromInteger {
            self.source(op, op.width)?
        } else if op.source.is_memory() {
            self.source(op, element)?
        } else {
            let [value, ..] = self.get_vector(op.source.number())?;
            value
        };
        // The first operand of a comparison is `reg`, which a comparison does not write.
        let values = self
            .machine
            .float(float, double, op.width, low, b)
            .ok_or(Stop::Left)?;

        match float {
            Float::Truncate | Float::Round => {
                self.put(op.target, op.width, values.low & op.width.mask());
                Ok(())
            }
            Float::Compare | Float::CompareOrdered => {
                let flags = self.flags.get() & !flags::ARITHMETIC;
                self.flags.set(flags | values.flags & flags::ARITHMETIC);
                Ok(())
            }
            _ => self.set_vector(op.target.number(), [values.low, high, 0, 0], how),
        }
    }

    /// Reads the second source operand. An operand in memory is loaded by one access into the
    /// target register, whose old value is not needed any more.
    fn vector_source(&mut self, op: &Op, how: How) -> Result<Value, Stop> {
        if !op.source.is_memory() {
            return self.get_vector(op.source.number());
        }
        let reg = op.target.number();
        let address = self.vector_address(op, how, how == How::Legacy)?;

        self.machine
            .load_vector(reg, address, how)
            .ok_or(Stop::Left)?;
        self.get_vector(reg)
    }
}

/// The result of an operation on two registers. Words beyond the instruction's part are ignored.
fn computed(what: Vector, a: Value, b: Value) -> Value {
    match what {
        Vector::UnpackLow(width) => {
            let [low, above] = [unpacked(width, a[0], b[0]), unpacked(width, a[2], b[2])];
            return [low.0, low.1, above.0, above.1];
        }
        Vector::UnpackHigh(width) => {
            let [low, above] = [unpacked(width, a[1], b[1]), unpacked(width, a[3], b[3])];
            return [low.0, low.1, above.0, above.1];
        }
        Vector::HighToLow => return [b[1], a[1], 0, 0],
        _ => {}
    }
    let mut result = [0; 4];

    for ((to, a), b) in result.iter_mut().zip(a).zip(b) {
        *to = match what {
            Vector::And => a & b,
            Vector::AndNot => !a & b,
            Vector::Or => a | b,
            Vector::Xor => a ^ b,
            Vector::Equal(width) => equal(width, a, b),
            Vector::Greater(width) => each(width, a, b, |a, b| {
                let sign = width.sign();
                if a ^ sign > b ^ sign {
                    u64::MAX
                } else {
                    0
                }
            }),
            Vector::Add(width) => each(width, a, b, u64::wrapping_add),
            Vector::Sub(width) => each(width, a, b, u64::wrapping_sub),
            Vector::Min => each(Width::B1, a, b, u64::min),
            Vector::Max => each(Width::B1, a, b, u64::max),
            _ => 0,
        };
    }
    result
}

/// Interleaves the elements of two words.
fn unpacked(width: Width, a: u64, b: u64) -> (u64, u64) {
    if width == Width::B8 {
        return (a, b);
    }
    let half = |a: u64, b: u64| {
        let (mut result, mut from, mut to) = (0, 0_u32, 0_u32);

        while to < u64::BITS {
            let low = a.wrapping_shr(from) & width.mask();
            let high = b.wrapping_shr(from) & width.mask();

            result |= low.wrapping_shl(to) | high.wrapping_shl(to.wrapping_add(width.bits()));
            from = from.wrapping_add(width.bits());
            to = from.wrapping_mul(2);
        }
        result
    };

    (half(a, b), half(a >> 32, b >> 32))
}

/// Chooses 4-byte elements within each 128 bits. `order` has 2 bits for each element.
fn shuffled(value: Value, order: u64) -> Value {
    let half = |low: u64, high: u64| {
        let element = |at: u32| {
            let number = order.wrapping_shr(at.wrapping_mul(2));
            let word = if number & 2 == 0 { low } else { high };

            if number & 1 == 0 {
                word & 0xffff_ffff
            } else {
                word >> 32
            }
        };

        (element(0) | element(1) << 32, element(2) | element(3) << 32)
    };
    let [a, b, c, d] = value;
    let (low, above) = (half(a, b), half(c, d));

    [low.0, low.1, above.0, above.1]
}

/// Shifts elements by a number of bits, or each 128 bits by a number of bytes.
fn shifted(what: Vector, value: Value, by: u64) -> Value {
    let count = u32::try_from(by).unwrap_or(u32::MAX);
    let words = |width: Width, left: bool| {
        value.map(|word| {
            each(width, word, 0, |element, _| {
                if count >= width.bits() {
                    0
                } else if left {
                    element.wrapping_shl(count)
                } else {
                    element.wrapping_shr(count)
                }
            })
        })
    };
    let bytes = |left: bool| {
        let bits = count.min(16).wrapping_mul(8);
        let half = |low: u64, high: u64| {
            let whole = u128::from(high) << 64 | u128::from(low);
            let whole = match (bits, left) {
                (128.., _) => 0,
                (_, true) => whole.wrapping_shl(bits),
                (_, false) => whole.wrapping_shr(bits),
            };
            let low = u64::try_from(whole & u128::from(u64::MAX)).unwrap_or(0);

            (low, u64::try_from(whole >> 64).unwrap_or(0))
        };
        let [a, b, c, d] = value;
        let (low, above) = (half(a, b), half(c, d));

        [low.0, low.1, above.0, above.1]
    };

    match what {
        Vector::ShiftRight(width) => words(width, false),
        Vector::ShiftLeft(width) => words(width, true),
        Vector::BytesRight => bytes(false),
        _ => bytes(true),
    }
}

/// Applies `f` to each pair of elements of two words.
fn each(width: Width, a: u64, b: u64, f: impl Fn(u64, u64) -> u64) -> u64 {
    let mask = width.mask();
    let mut result = 0;

    let mut shift = 0_u32;

    while shift < u64::BITS {
        let (a, b) = (a.wrapping_shr(shift) & mask, b.wrapping_shr(shift) & mask);

        result |= (f(a, b) & mask).wrapping_shl(shift);
        shift = shift.wrapping_add(width.bits());
    }
    result
}

/// A word in which all bits of the elements are set that are equal in `a` and `b`.
fn equal(width: Width, a: u64, b: u64) -> u64 {
    let signs = each_sign(width);
    let differs = a ^ b;
    // The highest bit of each element whose lower bits are not 0. No carry leaves an element.
    let rest = (differs & !signs).wrapping_add(!signs);
    let equal = !(rest | differs) & signs;

    // Copies the highest bit of each element to its other bits.
    equal | equal.wrapping_sub(equal.wrapping_shr(width.bits().wrapping_sub(1)))
}

/// The highest bits of all elements.
const fn each_sign(width: Width) -> u64 {
    match width {
        Width::B1 => 0x8080_8080_8080_8080,
        Width::B2 => 0x8000_8000_8000_8000,
        Width::B4 => 0x8000_0000_8000_0000,
        Width::B8 => 1 << 63,
    }
}

/// The highest bits of the bytes of `word`.
fn mask_of(word: u64) -> u64 {
    // The multiplication moves each of them to a place of its own in the highest byte.
    (word & 0x8080_8080_8080_8080).wrapping_mul(0x0002_0408_1020_4081) >> 56
}
