// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The packets of a ring, in batches that can be put into order with those of other rings.

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
    /// What follows is in the trace from this byte on.
    At(u64),
    /// What comes next was then, by the time stamp counter.
    Time(u64),
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

/// Why a ring was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stop {
    #[error(transparent)]
    Gone(#[from] Gone),
    #[error(transparent)]
    Failed(#[from] crate::Error),
}

/// Two places to begin are at most this far from each other, if the trace is in order: the longest period is half of it.
const MOST: usize = 128 << 20;

struct Reader<'a> {
    out: &'a SyncSender<Batch>,
    batch: Batch,
    last_ip: u64,
    /// Between `PSB` and `PSBEND`; and the address that stands there.
    group: Option<Option<u64>>,
    overflow: bool,
    /// Whether the next `FUP` has the address of the packet before it, and stops nothing.
    bound: bool,
    /// The trace from the last `PSB` on; before the first one, what may be the beginning of it.
    part: Vec<u8>,
    /// Where that begins in the trace.
    at: u64,
    /// Where the trace begins that is without a gap up to there.
    stretch: u64,
    /// Whether the part begins with a `PSB`.
    begun: bool,
    /// Whether there was a `PSB`, or anything but zeros, since the last gap.
    seen: bool,
    filled: bool,
    /// The time between two time stamps, where it is wanted.
    clock: Option<Clock>,
}

/// Sends what is in the pieces of a ring's trace; with the times between two time stamps, if there are ratios. No more of it is in memory than what is between two places to begin.
pub(super) fn send<S: Source>(
    pieces: &[Piece],
    read: &mut Pieces<'_, S>,
    ratios: Option<Ratios>,
    out: &SyncSender<Batch>,
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
        // What brings a piece to a multiple of 8 bytes is no trace.
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
    Ok(reader.flush()?)
}

impl<'a> Reader<'a> {
    fn new(out: &'a SyncSender<Batch>) -> Self {
        Self {
            out,
            batch: Batch::default(),
            last_ip: 0,
            group: None,
            overflow: false,
            bound: false,
            part: Vec::new(),
            at: 0,
            stretch: 0,
            begun: false,
            seen: false,
            filled: false,
            clock: None,
        }
    }

    /// Takes some more trace, and decodes what begins at each `PSB`, so that what is wrong ends with the next.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        // A `PSB` may be in both; the one at the beginning is known.
        let known = if self.begun { PSB.len() } else { 0 };
        let mut from = self.part.len().saturating_sub(PSB.len() - 1).max(known);
        let mut part = std::mem::take(&mut self.part);
        part.extend_from_slice(bytes);
        self.filled |= bytes.iter().any(|&byte| byte != 0);
        let mut start = 0;
        while let Some(at) = part.get(from..).and_then(|rest| memmem::find(rest, &PSB)) {
            let at = from + at;
            if self.begun {
                self.decode(&part, start..at)?;
            }
            (self.begun, self.seen) = (true, true);
            (start, from) = (at, at + PSB.len());
        }
        if self.begun && part.len() - start > MOST {
            self.decode(&part, start..part.len())?;
            self.put(Packet::Lost(
                "more than 128 MiB without a place to begin (PSB)",
            ))?;
            self.begun = false;
        }
        if !self.begun {
            start = part.len().saturating_sub(PSB.len() - 1);
        }
        part.drain(..start);
        self.part = part;
        self.at = self.at.saturating_add(bytes_in(start));
        Ok(())
    }

    /// Ends the trace, or what of it is without a gap.
    fn end(&mut self) -> Result<(), Gone> {
        let part = std::mem::take(&mut self.part);
        if self.begun {
            self.decode(&part, 0..part.len())?;
        } else if self.filled && !self.seen {
            self.put(Packet::At(self.stretch))?;
            self.put(Packet::Lost("trace without a place to begin (PSB)"))?;
        }
        self.begin(self.at.saturating_add(bytes_in(part.len())));
        (self.begun, self.seen, self.filled) = (false, false, false);
        Ok(())
    }

    /// What comes next is at this byte of the trace.
    fn begin(&mut self, at: u64) {
        (self.at, self.stretch) = (at, at);
    }

    /// Decodes what begins at a `PSB`, in such a place of the part.
    fn decode(&mut self, part: &[u8], range: Range<usize>) -> Result<(), Gone> {
        let mut at = self.at.saturating_add(bytes_in(range.start));
        let mut part = part.get(range).unwrap_or_default();
        // Of a `PSB` that is cut, the rest looks like the beginning of the next: that is the last one of them.
        let pairs = part.chunks_exact(2);
        let pairs = pairs.take_while(|pair| PSB.starts_with(pair)).count();
        let cut = 2 * pairs.saturating_sub(PSB.len() / 2);
        if cut != 0 {
            self.put(Packet::At(at))?;
            self.put(Packet::Lost("a packet that is cut"))?;
            at = at.saturating_add(bytes_in(cut));
            part = part.get(cut..).unwrap_or_default();
        }
        self.put(Packet::At(at))?;
        let lost = match decode(part, DecodeOptions::default(), self) {
            Ok(()) => return Ok(()),
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
        if batch.packets.is_empty() {
            return Ok(());
        }
        self.out.send(batch).map_err(|_| Gone)
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
        self.put(Packet::Lost("what found no room (OVF)"))
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
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const PSBEND: [u8; 2] = [0x02, 0x23];
    /// A branch that was taken, behind the bit that says how many there are.
    const TNT: [u8; 1] = [0b110];

    /// The packets of trace that comes in portions of this length, in two stretches with a gap between them.
    fn packets(stretches: &[Vec<u8>], portion: usize) -> Vec<Packet> {
        let (out, batches) = std::sync::mpsc::sync_channel(1000);
        let mut reader = Reader::new(&out);
        for bytes in stretches {
            for bytes in bytes.chunks(portion) {
                reader.feed(bytes).unwrap();
            }
            reader.end().unwrap();
        }
        reader.flush().unwrap();
        drop(reader);
        drop(out);
        batches.iter().flat_map(|batch| batch.packets).collect()
    }

    /// The same, without the places.
    fn told(stretches: &[Vec<u8>], portion: usize) -> Vec<Packet> {
        let mut packets = packets(stretches, portion);
        packets.retain(|packet| !matches!(packet, Packet::At(_)));
        packets
    }

    #[test]
    fn portions_are_put_together() {
        let begin = [&PSB[..], &PSBEND].concat();
        let taken = Packet::Branches(0b11, 1);
        let lost = Packet::Lost;
        for (stretches, want) in [
            (vec![vec![0; 100]], vec![]),
            (
                vec![vec![1; 100], begin.clone()],
                vec![
                    lost("trace without a place to begin (PSB)"),
                    Packet::Sync(None),
                ],
            ),
            // What stands before the first place to begin is of no use.
            (
                vec![[&[0x99; 40], &begin[..], &TNT, &begin, &TNT, &TNT].concat()],
                vec![Packet::Sync(None), taken, Packet::Sync(None), taken, taken],
            ),
            (
                vec![[&begin[..], &[0x02, 0xff], &begin, &TNT].concat()],
                vec![
                    Packet::Sync(None),
                    lost("bytes that are no packet"),
                    Packet::Sync(None),
                    taken,
                ],
            ),
            // A PTWRITE with its address, without, and an instruction before which the program was stopped.
            (
                vec![[
                    &begin[..],
                    &[0x02, 0x92, 1, 2, 3, 4, 0x3d, 0x34, 0x12],
                    &TNT,
                    &[0x02, 0x12, 1, 2, 3, 4, 0x3d, 0x35, 0x12],
                ]
                .concat()],
                vec![Packet::Sync(None), taken, Packet::Stopped(0x1235)],
            ),
            // Half a `PSB` and a whole one.
            (
                vec![[&begin[..], &PSB[..8], &begin, &TNT].concat()],
                vec![
                    Packet::Sync(None),
                    lost("a packet that is cut"),
                    Packet::Sync(None),
                    taken,
                ],
            ),
            (
                vec![[&begin[..], &[0x19]].concat(), begin.clone()],
                vec![
                    Packet::Sync(None),
                    lost("a packet that is cut"),
                    Packet::Sync(None),
                ],
            ),
        ] {
            for portion in 1..200 {
                assert_eq!(told(&stretches, portion), want, "{portion}");
            }
        }
    }

    #[test]
    fn trace_without_a_place_to_begin_is_reported_at_its_beginning() {
        for portion in [1, 7, 100] {
            let packets = packets(&[vec![1; 100], vec![1; 50]], portion);
            let lost = Packet::Lost("trace without a place to begin (PSB)");
            assert_eq!(packets, [Packet::At(0), lost, Packet::At(100), lost]);
        }
    }

    /// The packets of each part of the trace that begins with a `PSB`, by the part's first byte.
    fn parts(trace: &[u8]) -> BTreeMap<u64, Vec<Packet>> {
        let mut parts = BTreeMap::new();
        let mut at = 0;
        for packet in packets(&[trace.to_vec()], trace.len().max(1)) {
            match packet {
                Packet::At(place) => at = place,
                packet => parts.entry(at).or_insert_with(Vec::new).push(packet),
            }
        }
        parts
    }

    proptest! {
        /// Bits that are flipped, and bytes that are missing or too many, damage the part that they are in, and the one in front if there
        /// is no place to begin any more. All others are decoded as without.
        #[test]
        fn damage_ends_at_the_next_place_to_begin(
            lens in vec(1_usize..40, 3..8),
            damaged in 0_usize..8,
            place in 0_usize..60,
            how in 0..3,
            bytes in vec(any::<u8>(), 1..20),
        ) {
            let part = |len: &usize| [&PSB[..], &PSBEND, &vec![TNT[0]; *len]].concat();
            let mut each: Vec<_> = lens.iter().map(part).collect();
            let begins = |each: &[Vec<u8>]| -> Vec<u64> {
                let ends = each.iter().scan(0, |end, part| Some(std::mem::replace(end, *end + part.len())));
                ends.map(bytes_in).collect()
            };
            let (good, whole) = (begins(&each), parts(&each.concat()));
            let damaged = damaged % each.len();
            let part = &mut each[damaged];
            let place = place % part.len();
            match how {
                0 => part.iter_mut().skip(place).zip(&bytes).for_each(|(old, flip)| *old ^= flip),
                1 => drop(part.splice(place..(place + bytes.len()).min(part.len()), [])),
                _ => drop(part.splice(place..place, bytes)),
            }
            let (now, seen) = (begins(&each), parts(&each.concat()));
            for (n, (before, after)) in good.iter().zip(&now).enumerate() {
                if n != damaged && n + 1 != damaged {
                    prop_assert_eq!(seen.get(after), whole.get(before), "part {}", n);
                }
            }
            let is_lost = |packets: &Vec<Packet>| packets.iter().any(|p| matches!(p, Packet::Lost(_)));
            let (first, end) = (now[damaged.saturating_sub(1)], now.get(damaged + 1).copied().unwrap_or(u64::MAX));
            for (at, _) in seen.iter().filter(|(_, packets)| is_lost(packets)) {
                prop_assert!((first..end).contains(at), "something is said to be lost at {}", at);
            }
        }
    }
}
