// SPDX-License-Identifier: GPL-2.0

//! The unit: makes packets, and writes them where a table says.

use super::{
    broken,
    config::Plan,
    fault::{
        Fault,
        Line, //
    },
    stream::Stream, //
};
use auxcore::table::{
    Entry,
    Table,
    Walker, //
};
use kernel::prelude::*;
use pattern_codec::{
    Header,
    Kind,
    BLOCK_LEN,
    PACKET_UNIT, //
};
use perf::{
    aux::{
        Commit,
        Loss,
        Mode, //
    },
    clock, //
};

/// The table that the unit follows.
pub(crate) type Regions = Table<KVVec<Entry>, KVVec<u64>>;

/// Bytes lost, for each cause.
#[derive(Default)]
pub(crate) struct Lost {
    /// The unit had no room for them, or threw them away for another reason.
    pub(crate) gap: u64,
    /// The ring had no room for them.
    pub(crate) no_space: u64,
    /// They were in packets that collided.
    pub(crate) collision: u64,
}

impl Lost {
    /// Whether there are any.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.gap | self.no_space | self.collision != 0
    }

    /// A commit of `len` bytes that tells them.
    fn tell(&self, len: u64, mode: Mode) -> Commit {
        let loss = |bytes, cause: fn(Option<u64>) -> Loss| match bytes {
            0 => Loss::None,
            bytes => cause(Some(bytes)),
        };
        let no_space = loss(self.no_space, |bytes| Loss::NoSpace { bytes });

        Commit::new(len, broken::truncated(no_space, mode))
            .and_lost(loss(self.gap, |bytes| Loss::Gap { bytes }))
            .and_lost(loss(self.collision, |bytes| Loss::Collision { bytes }))
    }
}

/// What came of a tick.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Bytes generated.
    pub(crate) generated: u64,
    /// Bytes for which the unit had no room.
    pub(crate) dropped: u64,
    /// Whether it raised its interrupt.
    pub(crate) raised: bool,
    /// Whether something was lost on purpose.
    pub(crate) faulted: bool,
}

/// The unit at work, from start to stop.
pub(crate) struct Unit {
    /// That of the next packet; its position is what was generated so far.
    pub(crate) header: Header,
    /// Where it writes; [`None`] for nowhere.
    walker: Option<Walker>,
    /// Bytes written since it was [set](Self::seek) to write there.
    pub(crate) written: u64,
    /// The position in the stream behind the last packet that was written.
    pub(crate) end: u64,
    /// Whether it throws packets away until it is set again.
    full: bool,
    /// Whether it generates nothing for the time being.
    pub(crate) paused: bool,
    /// Ticks in which it had something to do.
    pub(crate) ticks: u64,
    /// Whether there was a tick in this session.
    used: bool,
    pub(crate) line: Line,
    pub(crate) lost: Lost,
}

impl Unit {
    /// A unit that has done nothing.
    pub(crate) fn new(stream: &Stream) -> Self {
        Self {
            header: Header {
                len: stream.plan.packet.get(),
                kind: Kind::Data,
                pos: 0,
                time: 0,
                stream: stream.number,
                cpu: 0,
                seed: stream.plan.seed,
                run: 0,
            },
            walker: None,
            written: 0,
            end: 0,
            full: false,
            paused: true,
            ticks: 0,
            used: false,
            line: Line::new(false),
            lost: Lost::default(),
        }
    }

    /// A session begins, where the one before has left the stream. The unit is paused.
    ///
    /// [`Stream::leave`] ends the session.
    #[inline]
    pub(crate) fn begin(&mut self, stream: &Stream, cpu: u32) -> Result {
        // Mostly it is this unit that has left the stream.
        if self.header.stream != stream.number || self.header.run != stream.runs() {
            self.join(stream);
        }
        self.header.cpu = cpu.try_into()?;
        self.paused = true;
        Ok(())
    }

    /// Takes over the stream from another unit.
    #[cold]
    fn join(&mut self, stream: &Stream) {
        let pos = stream.pos();

        self.header.len = stream.plan.packet.get();
        self.header.pos = pos;
        self.header.stream = stream.number;
        self.header.seed = stream.plan.seed;
        self.header.run = stream.runs();
        self.end = pos;
        self.ticks = stream.ticks();
        self.used = false;
        self.line = Line::new(stream.is_pending());
        self.lost = Lost::default();
    }

    /// Whether there was a tick in this session.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// A session that has lost something is over: the commit of its `len` bytes.
    #[cold]
    pub(crate) fn lose_and_leave(&mut self, stream: &Stream, len: u64, mode: Mode) -> Commit {
        let commit = self.lost.tell(len, mode);

        self.lost = Lost::default();
        stream.leave(self);
        commit
    }

    /// Makes it as it is before its next session, if it has lost nothing and nothing went wrong.
    #[inline]
    pub(crate) fn rest(&mut self) {
        self.end = self.header.pos;
        self.used = false;
    }

    /// Lets it write from there on.
    #[inline]
    pub(crate) fn seek(&mut self, walker: Option<Walker>) {
        self.walker = walker;
        self.written = 0;
        self.full = false;
    }

    /// Packets for this tick.
    fn packets(&self, plan: &Plan) -> u64 {
        let room = plan.limit.saturating_sub(self.header.pos);

        plan.burst
            .min(room.checked_div(plan.packet.get().into()).unwrap_or(0))
    }

    /// Generates what this many packets hold, and loses it.
    fn lose(&mut self, packets: u64) -> u64 {
        let bytes = packets.saturating_mul(self.header.len.into());

        self.header.pos = self.header.pos.wrapping_add(bytes);
        bytes
    }

    /// A tick without a ring; how many bytes it generates.
    pub(crate) fn count(&mut self, plan: &Plan) -> u64 {
        let packets = self.packets(plan);

        self.used = true;
        self.ticks = self.ticks.wrapping_add((packets != 0).into());
        self.lose(packets)
    }

    /// A tick: packets are written where `table` leads to. `store` is given, for each piece, how many
    /// bytes after the place that it was [set](Self::seek) to it lies, and its address.
    pub(crate) fn tick(
        &mut self,
        plan: &Plan,
        table: &Regions,
        mut store: impl FnMut(u64, u64, &[u8]) -> Result,
    ) -> Outcome {
        let mut packets = self.packets(plan);
        let mut outcome = Outcome::default();
        let start = self.header.pos;

        self.used = true;
        if packets == 0 {
            return outcome;
        }
        self.ticks = self.ticks.wrapping_add(1);
        self.header.time = clock::monotonic_fast();

        match plan.fault {
            Fault::Overflow(n) if self.ticks % n == 0 => {
                let lost = self.lose(packets);

                self.lost.gap = self.lost.gap.saturating_add(lost);
                outcome.faulted = true;
                packets = 0;
            }
            Fault::Collision(n) if self.ticks % n == 0 => {
                outcome.faulted = true;
                packets = packets.saturating_sub(1);
            }
            _ => (),
        }
        for _ in 0..packets {
            // Once full, it throws away to the end of the burst: its trace has one gap.
            self.full = self.full || !self.write(plan, table, &mut store, &mut outcome.raised);
            if self.full {
                outcome.dropped = outcome.dropped.saturating_add(self.header.len.into());
                outcome.raised = true;
            }
            self.header.pos = self.header.pos.wrapping_add(self.header.len.into());
        }
        if let (true, Fault::Collision(_)) = (outcome.faulted, plan.fault) {
            let lost = self.lose(1);

            self.lost.collision = self.lost.collision.saturating_add(lost);
        }

        outcome.generated = self.header.pos.wrapping_sub(start);
        outcome
    }

    /// Writes a packet; false if it cannot be finished, and is thrown away.
    fn write(
        &mut self,
        plan: &Plan,
        table: &Regions,
        mut store: impl FnMut(u64, u64, &[u8]) -> Result,
        raised: &mut bool,
    ) -> bool {
        let fetch = |address| table.fetch(address);
        let Some(mut walker) = self.walker else {
            return false;
        };
        let mut way = self.written;
        let mut step = |len, store: &mut dyn FnMut(u64, u64)| {
            let outcome = walker.write(len, fetch, store);

            *raised |= outcome.is_ok_and(|outcome| outcome.int);
            outcome.is_ok_and(|outcome| outcome.written == len)
        };

        let good = if plan.dry {
            step(self.header.len.into(), &mut |_, _| ())
        } else {
            (0..self.header.len / PACKET_UNIT).all(|index| {
                let block = self.header.block(index);
                let mut rest = &block[..];
                let mut stored = true;

                let whole = step(PACKET_UNIT.into(), &mut |address, len| {
                    let piece = usize::try_from(len).ok();
                    let piece = piece.and_then(|len| rest.split_at_checked(len));
                    let (now, later) = piece.unwrap_or((&[], &[]));

                    stored &= store(way, address, now).is_ok();
                    way = way.wrapping_add(len);
                    rest = later;
                });
                whole && stored
            })
        };

        if good {
            // The write pointer moves by whole packets.
            self.walker = Some(walker);
            self.written = self.written.wrapping_add(self.header.len.into());
            self.end = self.header.pos.wrapping_add(self.header.len.into());
        }
        good
    }

    /// The barrier in front of the packet at `pos`, with `lost` bytes lost before it.
    pub(crate) fn barrier(&self, pos: u64, lost: u64) -> [u8; BLOCK_LEN] {
        let barrier = Header {
            len: PACKET_UNIT,
            kind: Kind::Barrier,
            pos,
            ..self.header
        };

        barrier.barrier(lost)
    }
}

/// The packet like `header` that takes up `len` bytes and means nothing, for `put` to write block by
/// block; zeroes if there is none of that length.
pub(crate) fn pad<E>(
    header: Header,
    len: usize,
    mut put: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    match u16::try_from(len) {
        Ok(len) if len % PACKET_UNIT == 0 => {
            let pad = Header {
                len,
                kind: Kind::Pad,
                time: clock::monotonic_fast(),
                ..header
            };

            (0..len / PACKET_UNIT).try_for_each(|index| put(&pad.block(index)))
        }
        _ => (0..len).try_for_each(|_| put(&[0])),
    }
}
