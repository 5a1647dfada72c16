// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The registers of a virtual CPU.

use crate::inside::ThisCpu;
use crate::raw;
use std::cell::RefCell;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The registers of the virtual CPU whose callback this is.
#[derive(Debug)]
pub struct Registers<'a>(PhantomData<&'a *mut ()>);

/// QEMU's handle of a register.
#[derive(Debug, Clone, Copy)]
pub struct Register(*mut raw::Register);

// SAFETY: It is only a handle. QEMU reads the register on the CPU whose callback passes the handle.
unsafe impl Send for Register {}
// SAFETY: A handle has no state.
unsafe impl Sync for Register {}

impl Registers<'_> {
    /// # Safety
    ///
    /// The value must be used only in a callback that was registered to read registers.
    pub(crate) unsafe fn new() -> Self {
        Self(PhantomData)
    }

    /// Finds the register of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Register> {
        // SAFETY: In a callback of a virtual CPU, by the type.
        let list = unsafe { raw::qemu_plugin_get_registers() };
        if list.is_null() {
            return None;
        }
        // SAFETY: A GLib array, not null, and owned by this function until the `g_array_unref()` below.
        let array = unsafe { &*list };
        let len = usize::try_from(array.len).unwrap_or(0);
        let mut found = None;
        for index in 0..len {
            // SAFETY: The array has `len` elements.
            let descriptor = unsafe { array.data.add(index) };
            // SAFETY: `descriptor` points to an element of the array, which does not change meanwhile.
            let descriptor = unsafe { &*descriptor };
            if descriptor.name.is_null() {
                continue;
            }
            // SAFETY: A string that lives as long as QEMU.
            let text = unsafe { CStr::from_ptr(descriptor.name) };
            if text.to_bytes() == name.as_bytes() {
                found = Some(Register(descriptor.handle));
            }
        }
        // SAFETY: This function owns the array, and does not use it any more.
        unsafe { raw::g_array_unref(list) };
        found
    }

    /// The value of a register of 32 or 64 bits.
    #[must_use]
    pub fn read(&self, register: Register) -> Option<u64> {
        TO.with_borrow_mut(|to| {
            to.clear();
            // SAFETY: The register is a handle of QEMU. The array belongs to this thread and is never freed. By the type, this is a
            // callback that may read registers.
            unsafe { raw::qemu_plugin_read_register(register.0, to.0) };
            match *to.bytes() {
                [a, b, c, d] => Some(u32::from_le_bytes([a, b, c, d]).into()),
                [a, b, c, d, e, f, g, h] => Some(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
                _ => None,
            }
        })
    }

    /// Reads `len` bytes at a virtual address of the CPU.
    #[must_use]
    pub fn memory(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        TO.with_borrow_mut(|to| {
            to.clear();
            // SAFETY: The array belongs to this thread and is never freed. By the type, this is a callback of a virtual CPU.
            let read = unsafe { raw::qemu_plugin_read_memory_vaddr(address, to.0, len) };
            Some(to.bytes().to_vec()).filter(|bytes| read && bytes.len() == len)
        })
    }
}

/// A register that is read at each block. QEMU's interface for registers is slow: it copies the value through a description and a buffer.
/// But most registers are words of QEMU's CPU object. Comparing the values of both often enough shows which word the register is.
#[derive(Debug)]
pub struct Kept {
    name: &'static str,
    found: OnceLock<Option<Register>>,
    /// The index of the register's word in the CPU object, or [`UNKNOWN`].
    ///
    /// # Invariants
    ///
    /// Each CPU object has that word: all have the same type.
    word: AtomicUsize,
    search: Mutex<Search>,
}

const UNKNOWN: usize = usize::MAX;

impl Kept {
    /// A register with this name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            found: OnceLock::new(),
            word: AtomicUsize::new(UNKNOWN),
            search: Mutex::new(Search::new()),
        }
    }

    /// The value of the register.
    #[inline]
    pub fn read(&self, registers: &Registers<'_>) -> Option<u64> {
        match self.word.load(Ordering::Relaxed) {
            UNKNOWN => self.search(registers),
            word => {
                // SAFETY: In a callback of a virtual CPU, as there are `registers`; not kept.
                let cpu = unsafe { ThisCpu::get() };
                // SAFETY: The CPU has this word, by the type invariant.
                Some(unsafe { cpu?.word(word) })
            }
        }
    }

    #[cold]
    fn search(&self, registers: &Registers<'_>) -> Option<u64> {
        let register = *self.found.get_or_init(|| registers.find(self.name));
        let value = registers.read(register?)?;
        // SAFETY: In a callback of a virtual CPU, as there are `registers`; not kept.
        if let Some(cpu) = unsafe { ThisCpu::get() } {
            let mut search = self.search.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: The search only reads words below the length that it gets.
            let word = |index| unsafe { cpu.word(index) };
            if let Some(found) = search.learn(value, cpu.len(), word) {
                // INVARIANT: `found` is below the length.
                self.word.store(found, Ordering::Relaxed);
            }
        }
        Some(value)
    }
}

/// The search for the word that always equals a register.
#[derive(Debug)]
struct Search {
    /// The words that have equalled the register so far. [`None`]: the search has not begun.
    words: Option<Vec<usize>>,
    /// The last value of the register.
    last: u64,
    /// Number of different values that are still to be compared.
    left: u32,
}

impl Search {
    /// Number of different values in a row that a word must equal. This cannot be a coincidence.
    const VALUES: u32 = 1000;

    const fn new() -> Self {
        Self {
            words: None,
            last: 0,
            left: Self::VALUES,
        }
    }

    /// The register is `value` now, and the CPU object has `len` words. Returns the index of the register's word if it is certain.
    fn learn(&mut self, value: u64, len: usize, word: impl Fn(usize) -> u64) -> Option<usize> {
        if self.left == 0 || value == self.last {
            return None;
        }
        self.last = value;
        let is_it = |index: &usize| word(*index) == value;
        match &mut self.words {
            None => self.words = Some((0..len).filter(is_it).collect()),
            Some(words) => words.retain(is_it),
        }
        self.left = self.left.saturating_sub(1);
        match self.words.as_deref() {
            Some([found]) if self.left == 0 && *found < len => Some(*found),
            _ => None,
        }
    }
}

/// A buffer to which QEMU copies the value of a register, or memory: a GLib array that is never freed.
struct To(*mut raw::Array<u8>);

impl To {
    fn clear(&mut self) {
        // SAFETY: The array belongs to this thread and is never freed. It may be shortened to any length.
        unsafe { raw::g_byte_array_set_size(self.0, 0) };
    }

    /// The bytes that QEMU has written.
    fn bytes(&self) -> &[u8] {
        // SAFETY: By the type, this is a GLib array that is never freed. Only a mutable borrow of `TO` changes it, and there is none while
        // this borrow of `self` lasts.
        let array = unsafe { &*self.0 };
        match usize::try_from(array.len) {
            // SAFETY: The array has `len` bytes from `data` on, by GLib. Only a mutable borrow of `TO` changes them,
            // and there is none while this borrow of `self` lasts.
            Ok(len) if len > 0 => unsafe { std::slice::from_raw_parts(array.data, len) },
            _ => &[],
        }
    }
}

thread_local! {
    /// Created once per thread, since registers and memory are read often.
    // SAFETY: Creates a new array; there are no requirements.
    static TO: RefCell<To> = RefCell::new(To(unsafe { raw::g_byte_array_new() }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a search. `words` returns the words of the CPU for the `n`th value.
    fn search(words: impl Fn(u64) -> [u64; 4]) -> Option<usize> {
        let mut search = Search::new();
        (1..=u64::from(Search::VALUES) + 1).find_map(|n| search.learn(n, 4, |i| words(n)[i]))
    }

    #[test]
    fn a_word_that_always_is_the_register_is_found() {
        assert_eq!(search(|n| [0, 7, n, n + 1]), Some(2));
        // Another word equals the register for a long time.
        assert_eq!(search(|n| [n.min(900), 7, n, n + 1]), Some(2));
        // Two words equal the register, or none does: no word is found.
        assert_eq!(search(|n| [n, 7, n, n + 1]), None);
        assert_eq!(search(|n| [n.min(900), 7, 1, n + 1]), None);

        // A register that does not change shows nothing.
        let mut still = Search::new();
        for _ in 0..2 * Search::VALUES {
            assert_eq!(still.learn(5, 4, |_| 5), None);
        }
    }
}
