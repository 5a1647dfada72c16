// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads a stream from any point.

use super::{find_sync, DecodeError, Header, Kind, HEADER_LEN};

/// A part of the bytes that a [`Reader`] reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece<'a> {
    /// A complete packet. Its payload is not verified.
    Packet(Header, &'a [u8]),
    /// The beginning of a packet. The bytes end before the packet does.
    Cut(Header, &'a [u8]),
    /// Bytes that are no packet, up to the next header or the end. The error is that of the first
    /// of them: why no header begins there.
    Stray(DecodeError, &'a [u8]),
}

impl Piece<'_> {
    /// The bytes of the piece.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Packet(_, bytes) | Self::Cut(_, bytes) | Self::Stray(_, bytes) => bytes,
        }
    }
}

/// Splits bytes into packets. Each header is a synchronisation point: after bytes that are no
/// packet, the reader continues at the next header.
///
/// # Examples
///
/// ```
/// use pattern_codec::{Header, Kind, Piece, Reader};
///
/// let header = Header { len: 64, kind: Kind::Data, pos: 64, time: 0, stream: 1, cpu: 0, seed: 0, run: 0 };
/// let packet = header.block(0);
/// // From the middle of a packet.
/// let bytes = [&packet[10..], &packet[..]].concat();
/// let pieces: Vec<_> = Reader::new(&bytes).collect();
///
/// assert!(matches!(pieces[0], Piece::Stray(_, bytes) if bytes.len() == 54));
/// assert_eq!(pieces[1], Piece::Packet(header, &packet));
/// assert_eq!(pieces.len(), 2);
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        if self.rest.is_empty() {
            return None;
        }

        let (piece, rest) = match Header::decode(self.rest) {
            Ok(header) => match self.rest.split_at_checked(header.len.into()) {
                Some((bytes, rest)) => (Piece::Packet(header, bytes), rest),
                None => (Piece::Cut(header, self.rest), &[][..]),
            },
            Err(error) => {
                let skip = self
                    .rest
                    .get(1..)
                    .and_then(find_sync)
                    .map_or(self.rest.len(), |more| more.saturating_add(1));
                let (bytes, rest) = self.rest.split_at_checked(skip)?;

                (Piece::Stray(error, bytes), rest)
            }
        };
        self.rest = rest;
        Some(piece)
    }
}

/// The position of a packet is less than the end of the previous packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behind {
    /// The end of the previous packet.
    pub reached: u64,
}

/// Follows the positions of one stream, and counts the bytes that are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Follow {
    next: u64,
}

impl Follow {
    /// Follows a stream from position `next`.
    pub const fn from(next: u64) -> Self {
        Self { next }
    }

    /// The end of the last packet.
    pub const fn reached(&self) -> u64 {
        self.next
    }

    /// Adds the next packet of the stream. Returns the number of bytes that are missing before it.
    ///
    /// After an error, the next packet is expected at the end of this one.
    pub fn packet(&mut self, header: &Header) -> Result<u64, Behind> {
        let len = match header.kind {
            Kind::Data => header.len.into(),
            Kind::Barrier => 0,
            // Neither advances the position nor shows a gap.
            Kind::Pad => return Ok(0),
        };
        let reached = self.next;

        self.next = header.pos.saturating_add(len);
        header.pos.checked_sub(reached).ok_or(Behind { reached })
    }
}

/// The number of lost bytes in a barrier. [`None`] if `packet` is not a complete barrier.
pub fn lost_before(header: &Header, packet: &[u8]) -> Option<u64> {
    if header.kind != Kind::Barrier {
        return None;
    }

    let word = packet.get(HEADER_LEN..)?.first_chunk()?;
    Some(u64::from_le_bytes(*word))
}
