// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The stream of the pattern source, in the format of the PMU `pattern`.

use pattern_codec::{Header, Kind, BLOCK_LEN};

/// Length of a packet, in bytes. It divides a page, so no packet is cut where a unit stops.
pub const PACKET: usize = 256;
const SEED: u16 = 0x7472;

/// The stream of a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    cpu: u16,
    /// Bytes generated so far.
    pos: u64,
    /// Time up to which packets were generated, in nanoseconds.
    done: u64,
}

impl Pattern {
    /// The stream of a CPU.
    #[must_use]
    pub const fn new(cpu: u16) -> Self {
        Self {
            cpu,
            pos: 0,
            done: 0,
        }
    }

    /// The unit is started at `now`.
    pub const fn start(&mut self, now: u64) {
        self.done = now;
    }

    /// The next packet, if it is due at `now`; `rate` is in microseconds for 1024 bytes. The times are
    /// in nanoseconds.
    pub fn next(&mut self, now: u64, rate: u64) -> Option<[u8; PACKET]> {
        let each = rate.max(1).saturating_mul(1000) / 4;
        let due = self.done.checked_add(each).filter(|due| *due <= now)?;
        self.done = due;
        let header = Header {
            len: u16::try_from(PACKET).unwrap_or(0),
            kind: Kind::Data,
            pos: self.pos,
            time: due,
            stream: u32::from(self.cpu).wrapping_add(1),
            cpu: self.cpu,
            seed: SEED,
            run: 0,
        };
        let mut packet = [0; PACKET];
        for (index, block) in (0..).zip(packet.chunks_mut(BLOCK_LEN)) {
            block.copy_from_slice(&header.block(index));
        }
        self.pos = self.pos.wrapping_add(u64::try_from(PACKET).unwrap_or(0));
        Some(packet)
    }
}
