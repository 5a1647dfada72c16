// SPDX-License-Identifier: GPL-2.0

//! The machine of the tests: the interpreter's copy of the memory, and the processor.

use super::{index, processor, DATA, DATA_LEN, INSN};
use interpreter::{Float, Form, How, Machine, Native, Values, Width};

/// The interpreter's copy of the data pages, the text and the vector registers.
pub(super) struct Memory {
    /// The address of the pages.
    pub(super) base: u64,
    pub(super) data: Vec<u8>,
    pub(super) text: Vec<u8>,
    pub(super) vectors: [[u64; 4]; 16],
    /// A random number. It decides when another CPU writes.
    pub(super) writes: u64,
    pub(super) distrusted: Vec<Form>,
}

impl Memory {
    fn place(&self, address: u64, width: Width) -> Option<std::ops::Range<usize>> {
        let offset = address.wrapping_sub(self.base + DATA);
        let end = offset.checked_add(width.bytes())?;
        (end <= DATA_LEN).then(|| index(offset)..index(end))
    }
}

/// Whether the processor has the instruction.
pub(super) fn knows(native: Native) -> bool {
    match native {
        Native::Popcnt => std::is_x86_feature_detected!("popcnt"),
        Native::Andn | Native::Blsr | Native::Blsmsk | Native::Blsi => {
            std::is_x86_feature_detected!("bmi1")
        }
        Native::Movbe => std::is_x86_feature_detected!("movbe"),
        Native::Bzhi | Native::Shlx | Native::Shrx | Native::Sarx => {
            std::is_x86_feature_detected!("bmi2")
        }
        _ => true,
    }
}

impl Machine for Memory {
    fn load_vector(&mut self, number: u8, address: u64, how: How) -> Option<()> {
        let mut value = [0; 4];
        for (at, word) in (0..how.bytes()).step_by(8).zip(&mut value) {
            *word = self.load(address.wrapping_add(at), Width::B8)?;
        }
        self.set_vector(number, value, how)
    }

    fn store_vector(&mut self, number: u8, address: u64, how: How) -> Option<()> {
        self.place(address.wrapping_add(how.bytes() - 8), Width::B8)?;
        for (at, word) in (0..how.bytes())
            .step_by(8)
            .zip(self.vectors[usize::from(number)])
        {
            self.store(address.wrapping_add(at), Width::B8, word)?;
        }
        Some(())
    }

    fn vector(&mut self, number: u8) -> Option<[u64; 4]> {
        Some(self.vectors[usize::from(number)])
    }

    fn set_vector(&mut self, number: u8, value: [u64; 4], how: How) -> Option<()> {
        let vector = &mut self.vectors[usize::from(number)];
        *vector = match how {
            How::Legacy => [value[0], value[1], vector[2], vector[3]],
            How::Low => [value[0], value[1], 0, 0],
            How::Whole => value,
        };
        Some(())
    }

    fn zero_upper(&mut self) -> Option<()> {
        for vector in &mut self.vectors {
            vector[2..].fill(0);
        }
        Some(())
    }

    fn load(&mut self, address: u64, width: Width) -> Option<u64> {
        let place = self.place(address, width)?;
        let mut bytes = [0; 8];
        bytes[..place.len()].copy_from_slice(&self.data[place]);
        Some(u64::from_le_bytes(bytes))
    }

    fn store(&mut self, address: u64, width: Width, value: u64) -> Option<()> {
        let place = self.place(address, width)?;
        let bytes = value.to_le_bytes();
        let len = place.len();
        self.data[place].copy_from_slice(&bytes[..len]);
        Some(())
    }

    fn replace(&mut self, address: u64, width: Width, old: u64, new: u64) -> Option<bool> {
        assert_eq!(address % width.bytes(), 0);
        let is_there = self.load(address, width)? == old;
        // Sometimes another CPU has written in between.
        self.writes = self.writes.wrapping_mul(5).wrapping_add(1);
        if is_there && self.writes % 7 == 0 {
            return Some(false);
        }
        if is_there {
            self.store(address, width, new)?;
        }
        Some(is_there)
    }

    fn text(&mut self, address: u64, words: &mut [u64]) -> bool {
        assert_eq!(address % 8, 0);
        for (at, word) in (0..).step_by(8).zip(words) {
            let offset = index(address + at - self.base - INSN);
            let Some(bytes) = self.text.get(offset..offset + 8) else {
                return false;
            };
            *word = u64::from_le_bytes(bytes.try_into().unwrap());
        }
        true
    }

    fn has_text(&mut self, address: u64, words: &[u64], masks: [u64; 2]) -> bool {
        let mut now = vec![0; words.len()];
        let last = words.len() - 1;
        let differs = |(at, (now, word)): (usize, (&u64, &u64))| {
            let first = if at == 0 { masks[0] } else { u64::MAX };
            let last = if at == last { masks[1] } else { u64::MAX };
            (now ^ word) & first & last != 0
        };
        self.text(address, &mut now) && !now.iter().zip(words).enumerate().any(differs)
    }

    fn is_generated(&mut self, _first: u64, _last: u64) -> bool {
        true
    }

    fn distrusts(&self) -> bool {
        !self.distrusted.is_empty()
    }

    fn is_distrusted(&self, form: Form) -> bool {
        self.distrusted.contains(&form)
    }

    fn compute(
        &mut self,
        native: Native,
        width: Width,
        a: u64,
        b: u64,
        c: u64,
        flags: u64,
    ) -> Option<Values> {
        if !knows(native) {
            return None;
        }
        // SAFETY: The interpreter asks for no quotient that does not fit; the instruction is known.
        unsafe { processor::compute(native, width, a, b, c, flags) }
    }

    fn float(
        &mut self,
        float: Float,
        double: bool,
        width: Width,
        a: u64,
        b: u64,
    ) -> Option<Values> {
        // SAFETY: The registers are this thread's, and are as before afterwards.
        unsafe { processor::float(float, double, width, a, b) }
    }
}
