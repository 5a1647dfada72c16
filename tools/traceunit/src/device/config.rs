// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The configuration space of the PCI function.

use super::fault::Fault;

/// Size of the configuration space, in bytes.
pub const SIZE: usize = 256;
/// Size of BAR 2, which holds the MSI-X table, in bytes.
pub const MSIX_SIZE: u64 = 4096;

const COMMAND: usize = 0x04;
const COMMAND_MASTER: u8 = 1 << 2;
const MSIX: usize = 0x40;
const POWER: usize = 0x50;
const POWER_STATE: usize = POWER + 4;
/// Faults on demand: a vendor-specific capability.
const FAULTS: usize = 0x60;
const FAULTS_LEN: u8 = 16;
const FAULT: usize = FAULTS + 4;
const ARGUMENT: usize = FAULTS + 8;
const HAPPENED: usize = FAULTS + 12;
const PENDING: u32 = 0x800;

/// The configuration space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    bytes: [u8; SIZE],
    /// The bits that can be written.
    mask: [u8; SIZE],
}

impl Config {
    /// The configuration space of a function with this number of vectors.
    #[must_use]
    pub fn new(vectors: u16) -> Self {
        let mut this = Self {
            bytes: [0; SIZE],
            mask: [0; SIZE],
        };
        this.put(0x00, &0x1234u16.to_le_bytes());
        this.put(0x02, &0x7472u16.to_le_bytes());
        // Status: there is a list of capabilities.
        this.put(0x06, &[0x10]);
        // The revision, and the class.
        this.put(0x08, &[1, 0, 0, 0x13]);
        // BAR 0, of 64 bits, and BAR 2.
        this.put(0x10, &[4]);
        let size = u32::try_from(super::SIZE).unwrap_or(0);
        this.may(0x10, &size.wrapping_neg().to_le_bytes());
        this.may(0x14, &[0xff; 4]);
        let size = u32::try_from(MSIX_SIZE).unwrap_or(0);
        this.may(0x18, &size.wrapping_neg().to_le_bytes());
        this.put(0x34, &[0x40]);
        // The interrupt line, which only software uses.
        this.may(0x3c, &[0xff]);
        // Memory space, bus master, INTx disable.
        this.may(COMMAND, &[0x06, 0x04]);

        this.put(MSIX, &[0x11, 0x50]);
        this.put(MSIX + 2, &vectors.saturating_sub(1).to_le_bytes());
        // MSI-X enable, and function mask.
        this.may(MSIX + 3, &[0xc0]);
        // The table and the pending bits are in BAR 2.
        this.put(MSIX + 4, &2u32.to_le_bytes());
        this.put(MSIX + 8, &(PENDING | 2).to_le_bytes());
        // Version 3 of power management.
        this.put(POWER, &[0x01, 0x60, 3]);
        this.may(POWER_STATE, &[0x03]);
        this.put(FAULTS, &[0x09, 0, FAULTS_LEN]);
        this.may(FAULT, &[0xff; 8]);
        this
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        copy(&mut self.bytes, at, bytes);
    }

    fn may(&mut self, at: usize, mask: &[u8]) {
        copy(&mut self.mask, at, mask);
    }

    /// Reads from the configuration space. Bytes behind the end read as 0.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        to.fill(0);
        let from = usize::try_from(offset).unwrap_or(SIZE);
        for (to, from) in to.iter_mut().zip(self.bytes.iter().skip(from)) {
            *to = *from;
        }
    }

    /// Writes the bits that can be written.
    pub fn write(&mut self, offset: u64, from: &[u8]) {
        let at = usize::try_from(offset).unwrap_or(SIZE);
        let places = self.bytes.iter_mut().zip(&self.mask).skip(at);
        for ((place, mask), from) in places.zip(from) {
            *place = *place & !mask | from & mask;
        }
    }

    /// The fault that a write at this offset asks for.
    #[must_use]
    pub fn fault(&self, offset: u64) -> Option<Fault> {
        if usize::try_from(offset) != Ok(FAULT) {
            return None;
        }
        Fault::new(self.word(FAULT), self.word(ARGUMENT))
    }

    /// Sets the number of faults that have happened.
    pub fn happened(&mut self, faults: u32) {
        self.put(HAPPENED, &faults.to_le_bytes());
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.byte(at + byte)))
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// Whether the function is in D0.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.byte(POWER_STATE) & 3 == 0
    }

    /// Whether the device may access memory by DMA.
    #[must_use]
    pub fn is_master(&self) -> bool {
        self.byte(COMMAND) & COMMAND_MASTER != 0 && self.is_on()
    }

    /// Clears all bits that can be written.
    pub fn reset(&mut self) {
        for (byte, mask) in self.bytes.iter_mut().zip(&self.mask) {
            *byte &= !mask;
        }
    }
}

fn copy(to: &mut [u8; SIZE], at: usize, from: &[u8]) {
    for (to, from) in to.iter_mut().skip(at).zip(from) {
        *to = *from;
    }
}
