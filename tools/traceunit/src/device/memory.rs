// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the device sees of the guest's memory.

/// Why the device may not reach an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It is not mapped for the device.
    Unmapped,
    /// Bus mastering is off.
    Master,
}

/// The memory that a device sees.
pub trait Memory {
    /// Reads all of `to` from an address of the device.
    ///
    /// # Errors
    ///
    /// A byte of it is out of reach. Then nothing was read.
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Refused>;

    /// Writes all of `from` to an address of the device.
    ///
    /// # Errors
    ///
    /// A byte of it is out of reach. Then nothing was written.
    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Refused>;
}
