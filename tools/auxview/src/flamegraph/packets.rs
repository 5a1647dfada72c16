// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the packets of a ring, in batches that can be put into order with those of other rings.

use std::ops::Range;
use std::sync::mpsc::SyncSender;

use intel_pt::insn::Mode;
use intel_pt::PSB;
use iptr_decoder::error::DecoderError;
use iptr_decoder::utils::reconstruct_ip_and_update_last;
use iptr_decoder::{
    decode, DecodeOptions, DecoderContext, HandlePacket, IpReconstructionPattern, PtwPayload,
};
use memchr::memmem;

use super::clock::{cycles, Clock, Ratios};
use crate::pieces::Pieces;
use crate::source::Source;
use crate::trace::Piece;

/// A packet, as far as it is needed to follow the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet {
    /// TNT bits of conditional branches and returns: the bits, and how many of the lowest are used. The oldest is the highest of these.
    Branches(u64, u32),
    /// The target of an indirect branch; after [`Packet::Stopped`], the target of an interrupt or another event.
    Target(u64),
    /// The event of the next packet happened before the instruction at this address.
    Stopped(u64),
    /// Tracing begins here.
    Begin(u64),
    /// Tracing ends, with a branch to this address if there is one.
    End(Option<u64>),
    /// A place where decoding can begin: at this address, if tracing is on.
    Sync(Option<u64>),
    /// The execution mode from the next address on.
    Mode(Mode),
    /// The offset in the trace of the packets that follow.
    At(u64),
    /// The time of the next packet, by the time stamp counter.
    Time(u64),
    /// Trace is missing here, for this reason.
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

/// A message to the thread that follows the trace. A message for each batch would wake that thread at each time stamp. This takes longer
/// than following the trace between two time stamps.
pub(super) type Batches = Vec<Batch>;

/// The thread that reads the packets has ended.
#[derive(Debug, thiserror::Error)]
#[error("the thread that reads the packets has ended")]
pub(super) struct Gone;

/// Why a ring was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stop {
    #[error(transparent)]
    Gone(#[from] Gone),
    #[error(transparent)]
    Failed(#[from] crate::Error),
}

/// Maximum distance of two `PSB`s in valid trace: twice the longest period.
const MAX_DISTANCE: usize = 128 << 20;

/// Why the trace after an event packet is not read.
const UNREAD: &str =
    "an event packet (CFE), and what follows up to the next PSB: record without the term `event`";

struct Reader<'a> {
    out: &'a SyncSender<Batches>,
    batch: Batch,
    /// Complete batches, and the number of their packets.
    full: Batches,
    count: usize,
    last_ip: u64,
    /// Whether it is between `PSB` and `PSBEND`; and the address there, if there is one.
    group: Option<Option<u64>>,
    overflow: bool,
    /// Whether the next `FUP` is the address of the packet before it, and not of an event.
    bound: bool,
    /// Whether there was a packet that cannot be read.
    unread: bool,
    /// The trace from the last `PSB` on; before the first `PSB`, the bytes that may be its beginning.
    part: Vec<u8>,
    /// Index in `part` where the next `PSB` may begin.
    look: usize,
    /// Offset of `part` in the trace.
    at: u64,
    /// Offset in the trace where the stretch after the last gap begins.
    stretch: u64,
    /// Whether `part` begins with a `PSB`.
    begun: bool,
    /// Whether there was a `PSB`, and whether there was anything but zeros, since the last gap.
    seen: bool,
    filled: bool,
    /// Computes the times between two time stamps, if they are needed.
    clock: Option<Clock>,
}

/// Reads the pieces of a ring's trace, and sends the packets in them. With ratios, also sends the times between two time stamps. Only the
/// trace between two `PSB`s is in memory.
pub(super) fn send<S: Source>(
    pieces: &[Piece],
    read: &mut Pieces<'_, S>,
    ratios: Option<Ratios>,
    out: &SyncSender<Batches>,
) -> Result<(), Stop> {
    let mut reader = Reader::new(out);
    reader.clock = ratios.map(Clock::new);
    let mut end = None;
    for (n, piece) in pieces.iter().enumerate() {
        let start = piece.offset;
        match end {
            Some(end) if end == start => {}
            None => reader.begin(start),
            Some(end) => {
                reader.end()?;
                reader.put(Packet::At(end))?;
                reader.put(Packet::Lost("trace that was not recorded"))?;
                reader.begin(start);
            }
        }
        // Padding of a piece to a multiple of 8 bytes is no trace.
        let next = pieces.get(n + 1).map(|next| next.offset);
        let len = next
            .and_then(|next| next.checked_sub(start))
            .map_or(piece.size, |len| len.min(piece.size));
        let mut sent = Ok(());
        read.read(piece, 0..len, |bytes| {
            if sent.is_ok() {
                sent = reader.feed(bytes);
            }
            Ok(())
        })?;
        sent?;
        end = start.checked_add(len);
    }
    reader.end()?;
    reader.flush()?;
    Ok(reader.send()?)
}

impl<'a> Reader<'a> {
    fn new(out: &'a SyncSender<Batches>) -> Self {
        Self {
            out,
            batch: Batch::default(),
            full: Batches::new(),
            count: 0,
            last_ip: 0,
            group: None,
            overflow: false,
            bound: false,
            unread: false,
            part: Vec::new(),
            look: 0,
            at: 0,
            stretch: 0,
            begun: false,
            seen: false,
            filled: false,
            clock: None,
        }
    }

    /// Takes the next bytes of the trace. Decodes the trace from each `PSB` on by itself, so that damage ends at the next `PSB`.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.part.extend_from_slice(bytes);
        self.filled |= bytes.iter().any(|&byte| byte != 0);
        self.scan(false)
    }

    /// Decodes up to the last `PSB`. If its byte pattern reaches the end of the bytes, it may continue in the next ones: then waits for
    /// these, unless `is_last`.
    fn scan(&mut self, is_last: bool) -> Result<(), Gone> {
        let part = std::mem::take(&mut self.part);
        let (mut start, mut from, mut waits) = (0, self.look, false);
        while let Some(at) = part.get(from..).and_then(|rest| memmem::find(rest, &PSB)) {
            let at = from + at;
            // No packet is longer: bytes after that belong to another packet.
            let run = part.get(at..).unwrap_or_default();
            let run = run.get(..2 * PSB.len()).unwrap_or(run);
            let pairs = run.chunks_exact(2);
            let end = at + 2 * pairs.take_while(|pair| PSB.starts_with(pair)).count();
            waits = !is_last && run.len() < 2 * PSB.len() && part.len() < end + 2;
            if waits {
                from = at;
                break;
            }
            // The `PSB` is the end of this run. Bytes before it are the end of a packet, or of a `PSB` that is cut.
            let at = end - PSB.len();
            if self.begun {
                self.decode(&part, start..at)?;
            }
            (self.begun, self.seen) = (true, true);
            (start, from) = (at, end);
        }
        if !waits {
            from = from.max(part.len().saturating_sub(PSB.len() - 1));
        }
        if self.begun && part.len() - start > MAX_DISTANCE {
            self.decode(&part, start..part.len())?;
            self.put(Packet::Lost(
                "more than 128 MiB without a place to begin (PSB)",
            ))?;
            self.begun = false;
        }
        if !self.begun {
            start = from;
        }
        self.part = part;
        self.part.drain(..start);
        self.look = from - start;
        self.at = self.at.saturating_add(bytes_in(start));
        Ok(())
    }

    /// Ends the trace, or the stretch of it before a gap.
    fn end(&mut self) -> Result<(), Gone> {
        self.scan(true)?;
        let part = std::mem::take(&mut self.part);
        if self.begun {
            self.decode(&part, 0..part.len())?;
        } else if self.filled && !self.seen {
            self.put(Packet::At(self.stretch))?;
            self.put(Packet::Lost("trace without a place to begin (PSB)"))?;
        }
        self.begin(self.at.saturating_add(bytes_in(part.len())));
        (self.begun, self.seen, self.filled, self.look) = (false, false, false, 0);
        Ok(())
    }

    /// The next bytes are at this offset in the trace.
    fn begin(&mut self, at: u64) {
        (self.at, self.stretch) = (at, at);
    }

    /// Decodes a range of `part`, which begins at a `PSB`.
    fn decode(&mut self, part: &[u8], range: Range<usize>) -> Result<(), Gone> {
        self.put(Packet::At(self.at.saturating_add(bytes_in(range.start))))?;
        let part = part.get(range).unwrap_or_default();
        let lost = match decode(part, DecodeOptions::default(), self) {
            Ok(()) => return Ok(()),
            Err(DecoderError::PacketHandler(_)) if std::mem::take(&mut self.unread) => UNREAD,
            Err(DecoderError::PacketHandler(gone)) => return Err(gone),
            Err(DecoderError::UnexpectedEOF) => "a packet that is cut",
            Err(_) => "bytes that are no packet",
        };
        self.put(Packet::Lost(lost))
    }

    fn time(&mut self, now: Option<u64>) -> Result<(), Gone> {
        now.map_or(Ok(()), |now| self.put(Packet::Time(now)))
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
        self.count += batch.packets.len();
        if !batch.packets.is_empty() {
            self.full.push(batch);
        }
        match self.count < Batch::MAX {
            true => Ok(()),
            false => self.send(),
        }
    }

    fn send(&mut self) -> Result<(), Gone> {
        self.count = 0;
        match std::mem::take(&mut self.full) {
            full if full.is_empty() => Ok(()),
            full => self.out.send(full).map_err(|_| Gone),
        }
    }

    fn ip(&mut self, pattern: IpReconstructionPattern) -> Option<u64> {
        reconstruct_ip_and_update_last(&mut self.last_ip, pattern).then_some(self.last_ip)
    }
}

fn bytes_in(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
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
        // `highest_bit` is u32::MAX if there is no bit.
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
        if std::mem::take(&mut self.bound) {
            return Ok(());
        }
        if std::mem::take(&mut self.overflow) {
            return self.put(Packet::Sync(Some(ip)));
        }
        self.put(Packet::Stopped(ip))
    }

    fn on_ptw_packet(
        &mut self,
        _: &DecoderContext,
        has_ip: bool,
        _: PtwPayload,
    ) -> Result<(), Gone> {
        self.bound = has_ip;
        Ok(())
    }

    fn on_exstop_packet(&mut self, _: &DecoderContext, has_ip: bool) -> Result<(), Gone> {
        self.bound = has_ip;
        Ok(())
    }

    fn on_bep_packet(&mut self, _: &DecoderContext, has_ip: bool) -> Result<(), Gone> {
        self.bound = has_ip;
        Ok(())
    }

    fn on_cfe_packet(&mut self, _: &DecoderContext, _: bool, _: u8, _: u8) -> Result<(), Gone> {
        // The crate takes the last two bytes of this packet, which has four, for packets.
        self.unread = true;
        Err(Gone)
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
        let now = self.clock.as_mut().map(|clock| clock.tsc(tsc));
        self.time(now)
    }

    fn on_tma_packet(
        &mut self,
        _: &DecoderContext,
        coarse: u16,
        fast: u8,
        fast_8: bool,
    ) -> Result<(), Gone> {
        if let Some(clock) = &mut self.clock {
            clock.tma(coarse, u16::from(fast) | u16::from(fast_8) << 8);
        }
        Ok(())
    }

    fn on_mtc_packet(&mut self, _: &DecoderContext, mtc: u8) -> Result<(), Gone> {
        let now = self.clock.as_mut().and_then(|clock| clock.mtc(mtc));
        self.time(now)
    }

    fn on_cbr_packet(&mut self, _: &DecoderContext, cbr: u8) -> Result<(), Gone> {
        if let Some(clock) = &mut self.clock {
            clock.cbr(cbr);
        }
        Ok(())
    }

    fn on_cyc_packet(&mut self, _: &DecoderContext, packet: &[u8]) -> Result<(), Gone> {
        let clock = self.clock.as_mut();
        let now = clock.and_then(|clock| clock.cyc(cycles(packet)));
        self.time(now)
    }

    fn on_ovf_packet(&mut self, _: &DecoderContext) -> Result<(), Gone> {
        self.group = None;
        (self.overflow, self.bound) = (true, false);
        if let Some(clock) = &mut self.clock {
            clock.forget();
        }
        self.put(Packet::Lost("what found no space (OVF)"))
    }

    fn on_psb_packet(&mut self, _: &DecoderContext) -> Result<(), Gone> {
        self.last_ip = 0;
        self.bound = false;
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

#[cfg(test)]
#[path = "packets/tests.rs"]
mod tests;
