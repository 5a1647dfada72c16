// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reading a stream, from anywhere.

use super::{find_sync, DecodeError, Header, Kind, HEADER_LEN};

/// What a [`Reader`] comes upon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece<'a> {
    /// A packet, whole; its payload is not looked at.
    Packet(Header, &'a [u8]),
    /// The front of a packet, at the end of the bytes.
    Cut(Header, &'a [u8]),
    /// Bytes that are none, up to the next header or to the end, and why the first of them are none.
    Stray(DecodeError, &'a [u8]),
}

impl Piece<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Packet(_, bytes) | Self::Cut(_, bytes) | Self::Stray(_, bytes) => bytes,
        }
    }
}

/// Takes bytes apart into packets. After bytes that are none it goes on at the next header: every
/// header is a synchronisation point.
///
/// # Examples
///
/// ```
/// use pattern_codec::{Header, Kind, Piece, Reader};
///
/// let header = Header { len: 64, kind: Kind::Data, pos: 64, time: 0, stream: 1, cpu: 0, seed: 0, run: 0 };
/// let packet = header.block(0);
/// // From the middle of a packet on.
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

/// A packet that is at a position its stream had passed already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behind {
    /// The position that the stream had come to.
    pub reached: u64,
}

/// Follows the positions of one stream, and tells how many bytes are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Follow {
    next: u64,
}

impl Follow {
    /// From position `next` on.
    pub const fn from(next: u64) -> Self {
        Self { next }
    }

    /// The position that the stream has come to.
    pub const fn reached(&self) -> u64 {
        self.next
    }

    /// The stream's next packet: how many of its bytes are missing in front of it.
    ///
    /// After an error the stream goes on behind that packet.
    pub fn packet(&mut self, header: &Header) -> Result<u64, Behind> {
        let len = match header.kind {
            Kind::Data => header.len.into(),
            Kind::Barrier => 0,
            // Takes up no position, and tells of none.
            Kind::Pad => return Ok(0),
        };
        let reached = self.next;

        self.next = header.pos.saturating_add(len);
        header.pos.checked_sub(reached).ok_or(Behind { reached })
    }
}

/// The bytes lost that a barrier tells of; [`None`] if `packet` is no whole barrier.
pub fn lost_before(header: &Header, packet: &[u8]) -> Option<u64> {
    if header.kind != Kind::Barrier {
        return None;
    }

    let word = packet.get(HEADER_LEN..)?.first_chunk()?;
    Some(u64::from_le_bytes(*word))
}
