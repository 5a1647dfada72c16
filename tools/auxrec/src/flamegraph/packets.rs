// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The packets of a ring, in batches that can be put into order with those of other rings.

use std::sync::mpsc::SyncSender;

use intel_pt::insn::Mode;
use intel_pt::PSB;
use iptr_decoder::error::DecoderError;
use iptr_decoder::utils::reconstruct_ip_and_update_last;
use iptr_decoder::{decode, DecodeOptions, DecoderContext, HandlePacket, IpReconstructionPattern};
use memchr::memmem;

use crate::trace::Piece;

/// A packet, as far as it says where a program went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet {
    /// Conditional branches and returns: so many of the lowest bits, the oldest in the highest of them.
    Branches(u64, u32),
    /// The target of an indirect branch, or of what came in between (after [`Packet::Stopped`]).
    Target(u64),
    /// What follows happened before the instruction at this address.
    Stopped(u64),
    /// Tracing begins here.
    Begin(u64),
    /// Tracing ends, with a branch to this address if there is one.
    End(Option<u64>),
    /// A point where a decoder may begin: here, if tracing is on.
    Sync(Option<u64>),
    /// How the processor reads code from now on.
    Mode(Mode),
    /// Something is missing here.
    Lost(&'static str),
}

/// Packets of a ring, in their order.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The last time stamp before them.
    pub(super) tsc: Option<u64>,
    pub(super) packets: Vec<Packet>,
}

impl Batch {
    const MAX: usize = 4096;
}

/// Nobody wants more.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the packets")]
pub(super) struct Gone;

struct Reader<'a> {
    out: &'a SyncSender<Batch>,
    batch: Batch,
    last_ip: u64,
    /// Between `PSB` and `PSBEND`; and the address that stands there.
    group: Option<Option<u64>>,
    overflow: bool,
}

/// Sends what is in the pieces of a ring's trace.
pub(super) fn send(pieces: &[Piece<'_>], out: &SyncSender<Batch>) -> Result<(), Gone> {
    let mut reader = Reader {
        out,
        batch: Batch::default(),
        last_ip: 0,
        group: None,
        overflow: false,
    };
    let mut joined = Vec::new();
    let mut end = None;
    for (n, piece) in pieces.iter().enumerate() {
        let start = piece.aux.offset;
        if end.is_some_and(|end| end != start) {
            reader.decode(&joined)?;
            reader.put(Packet::Lost("trace that was not recorded"))?;
            joined.clear();
        }
        // What brings a piece to a multiple of 8 bytes is no trace.
        let next = pieces.get(n + 1).map(|next| next.aux.offset);
        let len = next
            .and_then(|next| usize::try_from(next.checked_sub(start)?).ok())
            .map_or(piece.bytes.len(), |len| len.min(piece.bytes.len()));
        joined.extend_from_slice(piece.bytes.get(..len).unwrap_or_default());
        end = u64::try_from(len)
            .ok()
            .and_then(|len| start.checked_add(len));
    }
    reader.decode(&joined)?;
    reader.flush()
}

impl Reader<'_> {
    /// Decodes what begins at each `PSB`, so that what is wrong ends with the next.
    fn decode(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        let mut starts = memmem::find_iter(bytes, &PSB).peekable();
        if starts.peek().is_none() && bytes.iter().any(|&byte| byte != 0) {
            self.put(Packet::Lost("trace without a place to begin (PSB)"))?;
        }
        while let Some(start) = starts.next() {
            let end = starts.peek().copied().unwrap_or(bytes.len());
            let part = bytes.get(start..end).unwrap_or_default();
            let lost = match decode(part, DecodeOptions::default(), self) {
                Ok(()) => continue,
                Err(DecoderError::PacketHandler(gone)) => return Err(gone),
                Err(DecoderError::UnexpectedEOF) => "a packet that is cut",
                Err(_) => "bytes that are no packet",
            };
            self.put(Packet::Lost(lost))?;
        }
        Ok(())
    }

    fn put(&mut self, packet: Packet) -> Result<(), Gone> {
        self.batch.packets.push(packet);
        if self.batch.packets.len() < Batch::MAX {
            return Ok(());
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Gone> {
        let next = Batch {
            tsc: self.batch.tsc,
            packets: Vec::new(),
        };
        let batch = std::mem::replace(&mut self.batch, next);
        if batch.packets.is_empty() {
            return Ok(());
        }
        self.out.send(batch).map_err(|_| Gone)
    }

    fn ip(&mut self, pattern: IpReconstructionPattern) -> Option<u64> {
        reconstruct_ip_and_update_last(&mut self.last_ip, pattern).then_some(self.last_ip)
    }
}

impl HandlePacket for Reader<'_> {
    type Error = Gone;

    fn at_decode_begin(&mut self) -> Result<(), Gone> {
        Ok(())
    }

    fn on_short_tnt_packet(
        &mut self,
        _: &DecoderContext,
        byte: std::num::NonZero<u8>,
        highest_bit: u32,
    ) -> Result<(), Gone> {
        self.put(Packet::Branches(u64::from(byte.get()) >> 1, highest_bit))
    }

    fn on_long_tnt_packet(
        &mut self,
        _: &DecoderContext,
        bytes: std::num::NonZero<u64>,
        highest_bit: u32,
    ) -> Result<(), Gone> {
        // It is u32::MAX where there is none.
        self.put(Packet::Branches(bytes.get(), highest_bit.wrapping_add(1)))
    }

    fn on_tip_packet(
        &mut self,
        _: &DecoderContext,
        pattern: IpReconstructionPattern,
    ) -> Result<(), Gone> {
        let packet = self.ip(pattern).map_or(Packet::End(None), Packet::Target);
        self.put(packet)
    }

    fn on_tip_pgd_packet(
        &mut self,
        _: &DecoderContext,
        pattern: IpReconstructionPattern,
    ) -> Result<(), Gone> {
        let to = self.ip(pattern);
        self.put(Packet::End(to))
    }

    fn on_tip_pge_packet(
        &mut self,
        _: &DecoderContext,
        pattern: IpReconstructionPattern,
    ) -> Result<(), Gone> {
        self.overflow = false;
        match self.ip(pattern) {
            Some(ip) => self.put(Packet::Begin(ip)),
            None => self.put(Packet::Lost("a beginning without an address")),
        }
    }

    fn on_fup_packet(
        &mut self,
        _: &DecoderContext,
        pattern: IpReconstructionPattern,
    ) -> Result<(), Gone> {
        let Some(ip) = self.ip(pattern) else {
            return Ok(());
        };
        if let Some(at) = &mut self.group {
            *at = Some(ip);
            return Ok(());
        }
        if std::mem::take(&mut self.overflow) {
            return self.put(Packet::Sync(Some(ip)));
        }
        self.put(Packet::Stopped(ip))
    }

    fn on_mode_packet(&mut self, _: &DecoderContext, leaf: u8, mode: u8) -> Result<(), Gone> {
        match (leaf, mode & 3) {
            (0, 1) => self.put(Packet::Mode(Mode::Bits64)),
            (0, 2) => self.put(Packet::Mode(Mode::Bits32)),
            _ => Ok(()),
        }
    }

    fn on_tsc_packet(&mut self, _: &DecoderContext, tsc: u64) -> Result<(), Gone> {
        self.flush()?;
        self.batch.tsc = Some(tsc);
        Ok(())
    }

    fn on_ovf_packet(&mut self, _: &DecoderContext) -> Result<(), Gone> {
        self.group = None;
        self.overflow = true;
        self.put(Packet::Lost("what found no room (OVF)"))
    }

    fn on_psb_packet(&mut self, _: &DecoderContext) -> Result<(), Gone> {
        self.last_ip = 0;
        self.group = Some(None);
        Ok(())
    }

    fn on_psbend_packet(&mut self, _: &DecoderContext) -> Result<(), Gone> {
        match self.group.take() {
            Some(at) => self.put(Packet::Sync(at)),
            None => Ok(()),
        }
    }
}
