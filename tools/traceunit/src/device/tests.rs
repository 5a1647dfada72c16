// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::memory::{Memory, Refused};
use super::{Device, Raise};
use std::collections::BTreeMap;

mod faults;
mod registers;
mod table;

/// Memory with some pages, by address.
#[derive(Clone, Default)]
struct Ram {
    pages: BTreeMap<u64, Vec<u8>>,
    master: bool,
}

impl Ram {
    fn with(pages: &[u64]) -> Self {
        Self {
            pages: pages.iter().map(|page| (*page, vec![0; 4096])).collect(),
            master: true,
        }
    }

    fn byte(&mut self, address: u64) -> Option<&mut u8> {
        let page = self.pages.get_mut(&(address & !0xfff))?;
        page.get_mut(usize::try_from(address & 0xfff).unwrap())
    }

    fn check(&mut self, address: u64, len: usize) -> Result<(), Refused> {
        if !self.master {
            return Err(Refused::Master);
        }
        // An access of length 0 also needs an address in memory.
        for offset in 0..u64::try_from(len.max(1)).unwrap() {
            let at = address.checked_add(offset).ok_or(Refused::Unmapped)?;
            self.byte(at).ok_or(Refused::Unmapped)?;
        }
        Ok(())
    }

    fn entry(&mut self, address: u64, bits: u64) {
        self.write(address, &bits.to_le_bytes()).unwrap();
    }
}

impl Memory for Ram {
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        self.check(address, to.len())?;
        for (at, to) in (address..).zip(to) {
            *to = *self.byte(at).unwrap();
        }
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.check(address, from.len())?;
        for (at, from) in (address..).zip(from) {
            *self.byte(at).unwrap() = *from;
        }
        Ok(())
    }
}

/// The vectors that were raised.
#[derive(Default)]
struct Raised(Vec<usize>);

impl Raise for Raised {
    fn raise(&mut self, vector: usize) {
        self.0.push(vector);
    }
}

struct Bench {
    device: Device,
    ram: Ram,
    raised: Raised,
}

impl Bench {
    fn new(pages: &[u64]) -> Self {
        Self {
            device: Device::new(2),
            ram: Ram::with(pages),
            raised: Raised::default(),
        }
    }

    fn read(&mut self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.device
            .read(offset, &mut bytes, &mut self.ram, &mut self.raised);
        u64::from_le_bytes(bytes)
    }

    fn write(&mut self, offset: u64, value: u64) {
        self.device
            .write(offset, &value.to_le_bytes(), &mut self.raised);
    }

    fn put(&mut self, cpu: usize, bytes: &[u8]) {
        self.device.put(cpu, bytes, &mut self.ram, &mut self.raised);
    }

    fn raised(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.raised.0)
    }
}

const ERROR: u64 = 0x28;
const ERROR_ADDRESS: u64 = 0x30;
const ERROR_COUNT: u64 = 0x38;
/// The registers of CPU 1.
const CPU: u64 = 0x2000;
const CTRL: u64 = CPU;
const STATUS: u64 = CPU + 0x08;
const TABLE: u64 = CPU + 0x10;
const POSITION: u64 = CPU + 0x18;
const IRQ_STATUS: u64 = CPU + 0x20;
const IRQ_MASK: u64 = CPU + 0x28;
const GENERATED: u64 = CPU + 0x30;
const WRITTEN: u64 = CPU + 0x38;
const DROPPED: u64 = CPU + 0x40;
const RANGES: u64 = CPU + 0x50;
const PATTERN: u64 = 0x11;
/// `CTRL` for instructions of the kernel and of programs, with `TSC`, `CYC`, an `MTC` every 8 ticks, and a `PSB` every 8 KiB.
const INSTRUCTIONS: u64 = 0x32_7701;
const END: u64 = 1;
const INT: u64 = 4;
const STOP: u64 = 16;

/// A circular table at 0x1000 with two regions: at 0x4000, and from 0x8000 to 0xa000.
fn round(first: u64, second: u64) -> Bench {
    let mut bench = Bench::new(&[0x1000, 0x2000, 0x4000, 0x8000, 0x9000]);
    bench.ram.entry(0x1000, 0x4000 | first);
    bench.ram.entry(0x1008, 0x2000 | END);
    bench.ram.entry(0x2000, 0x8000 | 1 << 6 | second);
    bench.ram.entry(0x2008, 0x1000 | END);
    bench.write(TABLE, 0x1000);
    bench.write(IRQ_MASK, 0);
    bench
}
