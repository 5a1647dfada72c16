// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The guest's memory, as the device can access it.

/// The reason why the device cannot access an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The address is not mapped for the device.
    Unmapped,
    /// Bus mastering is off.
    Master,
}

/// The memory that a device can access.
pub trait Memory {
    /// Reads all of `to` from an address of the device.
    ///
    /// # Errors
    ///
    /// A byte cannot be accessed. Then nothing was read.
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Refused>;

    /// Writes all of `from` to an address of the device.
    ///
    /// # Errors
    ///
    /// A byte cannot be accessed. Then nothing was written.
    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Refused>;
}
