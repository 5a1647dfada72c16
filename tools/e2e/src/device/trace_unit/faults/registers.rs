// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device's registers that cause faults, in its configuration space.

use std::fs;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

use super::super::DRIVER;
use super::{Kind, CPU};
use crate::device::kernel::of_driver;

/// The registers, which are behind a vendor-specific capability.
pub(super) struct Registers {
    config: fs::File,
    at: u64,
}

impl Registers {
    pub(super) fn open() -> Result<Self> {
        const VENDOR: u8 = 9;
        let path = of_driver(DRIVER)?.0.join("config");
        let config = fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let mut this = Self { config, at: 0x34 };
        let mut at = this.byte(0)?;
        while at != 0 {
            this.at = at.into();
            if this.byte(0)? == VENDOR {
                return Ok(this);
            }
            at = this.byte(1)?;
        }
        anyhow::bail!("the device has no registers for faults")
    }

    fn byte(&self, at: u64) -> Result<u8> {
        let mut byte = [0];
        self.config
            .read_exact_at(&mut byte, self.at + at)
            .context("cannot read the configuration space")?;
        Ok(byte[0])
    }

    fn write(&self, at: u64, value: u32) -> Result<()> {
        self.config
            .write_all_at(&value.to_le_bytes(), self.at + at)
            .context("cannot write to the configuration space")
    }

    /// Requests a fault of the unit of [`CPU`].
    pub(super) fn ask(&self, kind: Kind, argument: u32) -> Result<()> {
        self.write(8, argument)?;
        self.write(4, kind.0 | CPU << 8)
    }

    /// How many faults have occurred.
    pub(super) fn happened(&self) -> Result<u32> {
        let mut bytes = [0; 4];
        self.config
            .read_exact_at(&mut bytes, self.at + 12)
            .context("cannot read the configuration space")?;
        Ok(u32::from_le_bytes(bytes))
    }
}
