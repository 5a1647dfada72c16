// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets and their bytes.

use crate::insn::Mode;

/// `PSB`: the packet at which a decoder synchronises.
pub const PSB: [u8; 16] = [
    0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82,
];

/// The maximum length of a [`Group`], in bytes.
pub const GROUP_MAX: usize = 144;

/// A packet that carries an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// The target of an indirect branch.
    Tip,
    /// The address at which tracing begins.
    Pge,
    /// The address at which tracing ends.
    Pgd,
    /// The address of an asynchronous event.
    Fup,
}

impl Address {
    const fn opcode(self) -> u8 {
        match self {
            Self::Tip => 0x0d,
            Self::Pge => 0x11,
            Self::Pgd => 0x01,
            Self::Fup => 0x1d,
        }
    }
}

/// The type of a `CFE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cfe {
    /// An interrupt or an exception.
    Interrupt,
    /// IRET.
    InterruptReturn,
}

/// The value in a `PTW`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// A 32-bit operand.
    Bits32(u32),
    /// A 64-bit operand.
    Bits64(u64),
}

/// Branches that take one bit each in the trace: whether they were taken.
///
/// # Invariants
///
/// The highest bit that is set marks the end. The bits below it are at most [`Tnt::MAX`] branches,
/// the newest in bit 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tnt(u64);

impl Tnt {
    /// No branches.
    pub const EMPTY: Self = Self(1);

    /// The number of branches in a long packet.
    pub const MAX: u32 = 47;

    /// The number of branches in a short packet.
    const SHORT: u32 = 6;

    /// Whether it holds as many branches as a long packet.
    #[inline]
    pub const fn is_full(self) -> bool {
        self.0 >= bit(Self::MAX)
    }

    /// Whether it holds as many branches as a short packet.
    #[inline]
    pub const fn fills_short(self) -> bool {
        self.0 >= bit(Self::SHORT)
    }

    /// Whether it holds one branch.
    #[inline]
    pub const fn is_one(self) -> bool {
        self.0 >> 1 == 1
    }

    /// Adds a branch. Drops the oldest one if it is full.
    #[inline]
    pub const fn push(&mut self, taken: bool) {
        // CAST: Widening; `From` is not const.
        #[allow(clippy::as_conversions, clippy::cast_lossless)]
        let newest = taken as u64;

        // INVARIANT: The end is below the `MAX`th bit, and moves up by one, or it is put there
        // again.
        self.0 = self.0 << 1 | newest;
        if self.0 > mask(Self::MAX + 1) {
            self.drop_oldest();
        }
    }

    #[cold]
    const fn drop_oldest(&mut self) {
        self.0 = self.0 & mask(Self::MAX) | bit(Self::MAX);
    }

    /// The number of branches.
    const fn len(self) -> u32 {
        63_u32.wrapping_sub(self.0.leading_zeros())
    }
}

impl Default for Tnt {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// The type of a block of items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Block {
    /// General registers.
    Registers,
    /// The basic items, which each sample has.
    Basic,
}

/// Packets that are written all together, or not at all.
#[derive(Clone, Copy, Debug)]
pub struct Group<const MAX: usize = GROUP_MAX> {
    bytes: [u8; MAX],
    len: usize,
}

impl<const MAX: usize> Group<MAX> {
    /// An empty group.
    pub const fn new() -> Self {
        Self {
            bytes: [0; MAX],
            len: 0,
        }
    }

    /// The bytes of the packets.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Whether there is no packet.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds `bytes`, or drops them if they do not fit. No group of the encoder is too long.
    fn push(&mut self, bytes: &[u8]) {
        let end = self.len.saturating_add(bytes.len());

        if let Some(place) = self.bytes.get_mut(self.len..end) {
            // Both have the same length. `copy_from_slice()` would check that, and could panic.
            for (to, from) in place.iter_mut().zip(bytes) {
                *to = *from;
            }
            self.len = end;
        } else {
            // Not a debug assertion: a kernel can be built with those.
            assert!(!cfg!(test), "a group is longer than its maximum");
        }
    }

    /// Adds all packets of another group.
    pub fn add<const OTHER: usize>(&mut self, other: &Group<OTHER>) {
        self.push(other.as_bytes());
    }

    /// `PSB`.
    pub fn psb(&mut self) {
        self.push(&PSB);
    }

    /// `PSBEND`.
    pub fn psbend(&mut self) {
        self.push(&[0x02, 0x23]);
    }

    /// `OVF`.
    pub fn ovf(&mut self) {
        self.push(&[0x02, 0xf3]);
    }

    /// `TSC`: the low 56 bits.
    pub fn tsc(&mut self, tsc: u64) {
        let [a, b, c, d, e, f, g, _] = tsc.to_le_bytes();

        self.push(&[0x19, a, b, c, d, e, f, g]);
    }

    /// `TMA`: the low 16 bits of the coarse clock at the `TSC` before it, and the low nine bits of
    /// the ticks since the coarse clock's last tick.
    pub fn tma(&mut self, coarse: u64, fast: u64) {
        let [a, b, ..] = coarse.to_le_bytes();
        let [c, d, ..] = (fast & mask(9)).to_le_bytes();

        self.push(&[0x02, 0x73, a, b, 0, c, d]);
    }

    /// `MTC`: the low eight bits of the number of `MTC`s that were due.
    pub fn mtc(&mut self, count: u64) {
        let [low, ..] = count.to_le_bytes();

        self.push(&[0x59, low]);
    }

    /// `CYC`: the cycles since the last `CYC`.
    pub fn cyc(&mut self, cycles: u64) {
        // The number has five bits in the first byte, and seven in each further byte, lowest bits
        // first. A flag says that another byte follows. It is bit 2 of the first byte, and bit 0 of
        // the others.
        let more = |rest: u64| u8::from(rest != 0);
        let [low, ..] = cycles.to_le_bytes();
        let mut rest = cycles >> 5;

        self.push(&[low << 3 | more(rest) << 2 | 0b11]);
        while rest != 0 {
            let [low, ..] = rest.to_le_bytes();

            rest >>= 7;
            self.push(&[low << 1 | more(rest)]);
        }
    }

    /// `CBR`: core to bus ratio.
    pub fn cbr(&mut self, ratio: u8) {
        self.push(&[0x02, 0x03, ratio, 0]);
    }

    /// `PIP`: the address space of a CPU, by the value of `CR3`. Not of a virtual machine.
    pub fn pip(&mut self, cr3: u64) {
        let [a, b, c, d, e, f, ..] = (cr3.wrapping_shr(5) & mask(47))
            .wrapping_shl(1)
            .to_le_bytes();

        self.push(&[0x02, 0x43, a, b, c, d, e, f]);
    }

    /// `PTW`. `address`: a `FUP` with the address of its instruction follows.
    pub fn ptw(&mut self, payload: Payload, address: bool) {
        let header = |size: u8| size << 5 | u8::from(address) << 7 | 0x12;

        match payload {
            Payload::Bits32(value) => {
                let [a, b, c, d] = value.to_le_bytes();

                self.push(&[0x02, header(0), a, b, c, d]);
            }
            Payload::Bits64(value) => {
                let [a, b, c, d, e, f, g, h] = value.to_le_bytes();

                self.push(&[0x02, header(1), a, b, c, d, e, f, g, h]);
            }
        }
    }

    /// `TraceStop`: an address that ends the trace was reached.
    pub fn trace_stop(&mut self) {
        self.push(&[0x02, 0x83]);
    }

    /// `CFE`: a control-flow event, which is an interrupt, an exception or IRET. `address`: a `FUP`
    /// with the address of its instruction follows.
    pub fn cfe(&mut self, kind: Cfe, vector: u8, address: bool) {
        let kind = match kind {
            Cfe::Interrupt => 1,
            Cfe::InterruptReturn => 2,
        };

        self.push(&[0x02, 0x13, kind | u8::from(address) << 7, vector]);
    }

    /// `EVD`: the address of a page fault. Stands in front of its `CFE`.
    pub fn evd_page_fault(&mut self, cr2: u64) {
        let [a, b, c, d, e, f, g, h] = cr2.to_le_bytes();

        self.push(&[0x02, 0x53, 0, a, b, c, d, e, f, g, h]);
    }

    /// `BBP`: a block begins. Its items have the width of this mode.
    pub fn bbp(&mut self, block: Block, width: Mode) {
        let kind = match block {
            Block::Registers => 1,
            Block::Basic => 4,
        };
        let short = match width {
            Mode::Bits64 => 0,
            Mode::Bits32 => 1,
        };

        self.push(&[0x02, 0x63, kind | short << 7]);
    }

    /// `BIP`: an item of the block, by its number, up to 31.
    pub fn bip(&mut self, item: u8, value: u64, width: Mode) {
        let header = item << 3 | 0b100;
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();

        match width {
            Mode::Bits64 => self.push(&[header, a, b, c, d, e, f, g, h]),
            Mode::Bits32 => self.push(&[header, a, b, c, d]),
        }
    }

    /// `BEP`: the blocks end. `address`: a `FUP` with the address that they belong to follows.
    pub fn bep(&mut self, address: bool) {
        self.push(&[0x02, 0x33 | u8::from(address) << 7]);
    }

    /// `MODE.Exec`. `interrupts`: whether interrupts are enabled.
    pub fn mode_exec(&mut self, mode: Mode, interrupts: bool) {
        let bits = match mode {
            // CS.L and IA32_EFER.LMA.
            Mode::Bits64 => 0b01,
            // CS.D.
            Mode::Bits32 => 0b10,
        };

        self.push(&[0x99, bits | u8::from(interrupts) << 2]);
    }

    /// Moves the branches of `tnt` to packets. Short packets have more branches a byte, but more
    /// branches than seven short packets hold go to a long one.
    pub fn tnt(&mut self, tnt: &mut Tnt) {
        let taken = core::mem::take(tnt);
        let (bits, mut len) = (taken.0, taken.len());

        if len > 7 * Tnt::SHORT {
            let [a, b, c, d, e, f, ..] = bits.to_le_bytes();

            self.push(&[0x02, 0xa3, a, b, c, d, e, f]);
            return;
        }

        while len > 0 {
            // The oldest branches come first.
            let now = if len % Tnt::SHORT == 0 {
                Tnt::SHORT
            } else {
                len % Tnt::SHORT
            };
            // Cannot wrap: `now` is no more than `len`.
            len = len.wrapping_sub(now);

            let [byte, ..] = (bit(now) | bits.wrapping_shr(len) & mask(now)).to_le_bytes();
            self.push(&[byte << 1]);
        }
    }

    /// A packet whose address is compressed relative to `last`, the address in the packet before.
    pub fn address(&mut self, packet: Address, ip: u64, last: &mut u64) {
        let changed = ip ^ *last;
        let [a, b, c, d, e, f, ..] = ip.to_le_bytes();
        let header = |ip_bytes: u8| ip_bytes << 5 | packet.opcode();

        if changed >> 16 == 0 {
            self.push(&[header(1), a, b]);
        } else if changed >> 32 == 0 {
            self.push(&[header(2), a, b, c, d]);
        } else if changed >> 48 == 0 {
            self.push(&[header(4), a, b, c, d, e, f]);
        } else {
            self.full_address(packet, ip);
        }
        *last = ip;
    }

    /// A packet with a full address.
    pub fn full_address(&mut self, packet: Address, ip: u64) {
        let [a, b, c, d, e, f, g, h] = ip.to_le_bytes();
        let header = |ip_bytes: u8| ip_bytes << 5 | packet.opcode();

        if is_canonical(ip) {
            self.push(&[header(3), a, b, c, d, e, f]);
        } else {
            self.push(&[header(6), a, b, c, d, e, f, g, h]);
        }
    }

    /// A packet with its address suppressed.
    pub fn no_address(&mut self, packet: Address) {
        self.push(&[packet.opcode()]);
    }
}

impl<const MAX: usize> Default for Group<MAX> {
    fn default() -> Self {
        Self::new()
    }
}

/// A word with bit `n` set; `n` is below 64.
const fn bit(n: u32) -> u64 {
    1u64.wrapping_shl(n)
}

/// A word with the low `n` bits set; `n` is below 64.
const fn mask(n: u32) -> u64 {
    bit(n).wrapping_sub(1)
}

/// Whether all bits above bit 47 are equal to bit 47.
const fn is_canonical(ip: u64) -> bool {
    matches!(ip >> 47, 0 | 0x1_ffff)
}
