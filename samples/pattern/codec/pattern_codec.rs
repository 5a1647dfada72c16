// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The stream that the `pattern` trace unit writes.
//!
//! A stream is a sequence of packets. Each packet has its position in the stream: the number of
//! bytes that the unit generated before it, including those that were lost. So a reader can start
//! anywhere, and a gap between positions is the exact number of lost bytes. The payload is a
//! function of the position, so a reader can verify every byte.
//!
//! Fields are little endian, and the length of a packet is a multiple of [`PACKET_UNIT`]:
//!
//! | offset | type | field | meaning |
//! |---|---|---|---|
//! | 0 | `u32` | magic | [`MAGIC`] |
//! | 4 | `u16` | len | length of the packet, header included |
//! | 6 | `u8` | kind | [`Kind`] |
//! | 7 | `u8` | version | [`VERSION`] |
//! | 8 | `u64` | pos | position of the packet's first byte in its stream, in bytes |
//! | 16 | `u64` | time | time of generation: `CLOCK_MONOTONIC`, in ns |
//! | 24 | `u32` | stream | number of the stream, not 0; a ring can hold packets of several streams |
//! | 28 | `u16` | cpu | CPU that generated the packet |
//! | 30 | `u16` | seed | seed of the payload |
//! | 32 | `u32` | run | number of the AUX transaction among those of its event, from 0 |
//! | 36 | `u32` | check | checksum of the 36 bytes before |
//! | 40 | `u64`s | payload | data packets: [`payload_word`] of the position of each word |
//!
//! A barrier packet is [`PACKET_UNIT`] bytes long. Its `pos` is that of the packet behind it, and
//! the first word of its payload is the number of bytes that were lost before it. All other words
//! of its payload are 0, and so is the payload of padding.
//!
//! The crate is `no_std`, calls no kernel function, allocates nothing and has no `unsafe`. No
//! function panics. It is built by kbuild into `pattern.ko`, whose unit writes the stream, and by
//! cargo for `auxrec check`, which verifies it.

// Kbuild passes `no_std` itself and sets `MODULE`.
#![cfg_attr(not(any(MODULE, test)), no_std)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod read;

pub use read::{lost_before, Behind, Follow, Piece, Reader};

/// Length of a packet's header, in bytes.
pub const HEADER_LEN: usize = 40;

/// The length of every packet is a multiple of this, in bytes.
pub const PACKET_UNIT: u16 = 64;

/// [`HEADER_LEN`] in the type of packet lengths.
const HEADER_LEN_U16: u16 = 40;

/// Length of a [`Header::block`], in bytes: equal to [`PACKET_UNIT`].
pub const BLOCK_LEN: usize = 64;

/// The first four bytes of a packet: "PTRN".
pub const MAGIC: u32 = u32::from_le_bytes(*b"PTRN");

/// The version of the format.
pub const VERSION: u8 = 1;

/// The purpose of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// Trace.
    Data,
    /// Marks a loss before the packet that follows. It has no trace and advances no position.
    Barrier,
    /// Fills the ring up to an alignment. It has no trace and advances no position.
    Pad,
}

impl Kind {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Barrier => 2,
            Self::Pad => 3,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Data),
            2 => Some(Self::Barrier),
            3 => Some(Self::Pad),
            _ => None,
        }
    }
}

/// Why bytes are not a packet header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeError {
    /// Fewer bytes than [`HEADER_LEN`].
    Short,
    /// The first four bytes are not [`MAGIC`].
    Magic,
    /// The version is not [`VERSION`].
    Version(u8),
    /// This version of the format does not define the kind.
    Kind(u8),
    /// The length is 0 or not a multiple of [`PACKET_UNIT`].
    Len(u16),
    /// The checksum does not match the header.
    Check,
}

impl core::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Short => write!(f, "fewer than {HEADER_LEN} bytes"),
            Self::Magic => write!(f, "no packet starts here"),
            Self::Version(v) => write!(f, "format version {v}, only {VERSION} is known"),
            Self::Kind(k) => write!(f, "unknown packet kind {k}"),
            Self::Len(len) => write!(f, "packet length {len} is no multiple of {PACKET_UNIT}"),
            Self::Check => write!(f, "header checksum does not match"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// The header of a packet.
///
/// # Examples
///
/// ```
/// use pattern_codec::{Header, Kind};
///
/// let header = Header {
///     len: 64,
///     kind: Kind::Data,
///     pos: 4096,
///     time: 1_000_000,
///     stream: 1,
///     cpu: 0,
///     seed: 42,
///     run: 0,
/// };
///
/// assert_eq!(Header::decode(&header.encode()), Ok(header));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Length of the packet including its header, in bytes.
    pub len: u16,
    /// The purpose of the packet.
    pub kind: Kind,
    /// Position of the packet's first byte in its stream, in bytes.
    pub pos: u64,
    /// Time of generation: `CLOCK_MONOTONIC`, in ns.
    pub time: u64,
    /// Number of the stream that the packet belongs to.
    pub stream: u32,
    /// CPU that generated the packet.
    pub cpu: u16,
    /// Seed of the payload.
    pub seed: u16,
    /// The number of the AUX transaction among those of its event, from 0.
    pub run: u32,
}

impl Header {
    /// The bytes of the header, including the checksum.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];

        for (place, word) in bytes.chunks_exact_mut(8).zip(self.checked_words()) {
            place.copy_from_slice(&word.to_le_bytes());
        }

        bytes
    }

    /// Decodes the header at the beginning of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let magic = bytes.first_chunk().ok_or(DecodeError::Short)?;
        if u32::from_le_bytes(*magic) != MAGIC {
            return Err(DecodeError::Magic);
        }

        let bytes: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(DecodeError::Short)?;
        let mut words = [0; HEADER_LEN / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().map_err(|_| DecodeError::Short)?);
        }

        let [first, pos, time, fourth, last] = words;
        let [_, _, _, _, len_low, len_high, kind, version] = first.to_le_bytes();
        let [s0, s1, s2, s3, cpu_low, cpu_high, seed_low, seed_high] = fourth.to_le_bytes();
        let [r0, r1, r2, r3, c0, c1, c2, c3] = last.to_le_bytes();
        let len = u16::from_le_bytes([len_low, len_high]);
        let run = u32::from_le_bytes([r0, r1, r2, r3]);

        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let kind = Kind::from_byte(kind).ok_or(DecodeError::Kind(kind))?;
        if len == 0 || len % PACKET_UNIT != 0 {
            return Err(DecodeError::Len(len));
        }
        if u32::from_le_bytes([c0, c1, c2, c3])
            != check(&[first, pos, time, fourth, u64::from(run)])
        {
            return Err(DecodeError::Check);
        }

        Ok(Self {
            len,
            kind,
            pos,
            time,
            stream: u32::from_le_bytes([s0, s1, s2, s3]),
            cpu: u16::from_le_bytes([cpu_low, cpu_high]),
            seed: u16::from_le_bytes([seed_low, seed_high]),
            run,
        })
    }

    /// The header as words, including the checksum.
    #[inline]
    fn checked_words(&self) -> [u64; HEADER_LEN / 8] {
        let [a, b, c, d, run] = self.words();

        [a, b, c, d, run | u64::from(check(&[a, b, c, d, run])) << 32]
    }

    /// The header as words, with 0 for the checksum.
    #[inline]
    fn words(&self) -> [u64; HEADER_LEN / 8] {
        [
            u64::from(MAGIC)
                | u64::from(self.len) << 32
                | u64::from(self.kind.to_byte()) << 48
                | u64::from(VERSION) << 56,
            self.pos,
            self.time,
            u64::from(self.stream) | u64::from(self.cpu) << 32 | u64::from(self.seed) << 48,
            u64::from(self.run),
        ]
    }

    /// Block `index` of the packet, from 0: [`BLOCK_LEN`] bytes. Block 0 begins with the header.
    ///
    /// # Examples
    ///
    /// ```
    /// use pattern_codec::{verify_payload, Header, Kind, HEADER_LEN};
    ///
    /// let header = Header { len: 128, kind: Kind::Data, pos: 0, time: 0, stream: 1, cpu: 0, seed: 0, run: 0 };
    /// let packet = [header.block(0), header.block(1)].concat();
    ///
    /// assert_eq!(Header::decode(&packet), Ok(header));
    /// assert_eq!(verify_payload(&header, 40, &packet[HEADER_LEN..]), Ok(()));
    /// ```
    #[inline]
    pub fn block(&self, index: u16) -> [u8; BLOCK_LEN] {
        let mut block = [0; BLOCK_LEN];
        let header = match index {
            0 => &self.checked_words()[..],
            _ => &[],
        };
        let mut words = header.iter();

        for (place, within) in block.chunks_exact_mut(8).zip((0..).step_by(8)) {
            let offset = index.saturating_mul(PACKET_UNIT).saturating_add(within);
            let word = match words.next() {
                Some(word) => *word,
                None => self.payload_word(offset),
            };
            place.copy_from_slice(&word.to_le_bytes());
        }

        block
    }

    /// The packet of a [barrier](Kind::Barrier) with `lost` bytes lost before it.
    pub fn barrier(&self, lost: u64) -> [u8; BLOCK_LEN] {
        let mut block = self.block(0);

        if let Some(word) = block
            .get_mut(HEADER_LEN..)
            .and_then(<[u8]>::first_chunk_mut)
        {
            *word = lost.to_le_bytes();
        }
        block
    }

    /// The payload word at byte `offset` of the packet. 0 if it is not a data packet.
    #[inline]
    pub fn payload_word(&self, offset: u16) -> u64 {
        if self.kind != Kind::Data {
            return 0;
        }
        payload_word(
            self.seed,
            self.stream,
            self.pos.wrapping_add(u64::from(offset)),
        )
    }
}

/// The checksum of a header, computed with 0 in the field of the checksum.
#[inline]
fn check(words: &[u64; HEADER_LEN / 8]) -> u32 {
    let sum = words.iter().fold(0, |sum, word| mix(sum ^ word));
    let [a, b, c, d, ..] = sum.to_le_bytes();

    u32::from_le_bytes([a, b, c, d])
}

/// The payload word at position `pos` of a stream.
#[inline]
pub const fn payload_word(seed: u16, stream: u32, pos: u64) -> u64 {
    // CAST: Widening; `From` is not const.
    #[allow(clippy::as_conversions, clippy::cast_lossless)]
    let key = (seed as u64) << 48 ^ (stream as u64) << 16;

    mix(key ^ pos)
}

/// Verifies that `bytes` are the payload, from byte `offset` of the packet, of the packet with this
/// header. The number of lost bytes in a barrier is not checked.
///
/// The error is the offset in the packet of the first byte that differs, or that is behind the end
/// of the packet.
pub fn verify_payload(header: &Header, offset: u16, bytes: &[u8]) -> Result<(), u16> {
    let mut at = offset;

    for &byte in bytes {
        if at >= header.len {
            return Err(at);
        }

        let word = header.payload_word(at & !7).to_le_bytes();
        let any = header.kind == Kind::Barrier && at & !7 == HEADER_LEN_U16;
        if !any && word.get(usize::from(at & 7)) != Some(&byte) {
            return Err(at);
        }
        // Cannot overflow: below `header.len`.
        at += 1;
    }

    Ok(())
}

/// The offset in `bytes` of the first complete and valid packet header.
pub fn find_sync(bytes: &[u8]) -> Option<usize> {
    (0..bytes.len()).find(|&at| {
        bytes
            .get(at..)
            .is_some_and(|rest| Header::decode(rest).is_ok())
    })
}

/// The finaliser of splitmix64: every input bit reaches every output bit.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);

    word ^ word >> 31
}

#[cfg(test)]
mod tests;
