// SPDX-License-Identifier: GPL-2.0

//! The unit: generates packets, and writes them through a table of regions.

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

/// Bytes lost, by cause.
#[derive(Default)]
pub(crate) struct Lost {
    /// Bounce memory was full or overwritten, or [`Fault::Overflow`] lost them.
    pub(crate) gap: u64,
    /// The AUX area had no space for them.
    pub(crate) no_space: u64,
    /// [`Fault::Collision`] lost them.
    pub(crate) collision: u64,
}

impl Lost {
    /// Whether any bytes were lost.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.gap | self.no_space | self.collision != 0
    }

    /// A commit of `len` bytes that reports these losses.
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

/// Result of a tick.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Bytes generated.
    pub(crate) generated: u64,
    /// Bytes dropped because the unit had no space for them.
    pub(crate) dropped: u64,
    /// Whether the unit raised its interrupt.
    pub(crate) raised: bool,
    /// Whether a simulated fault lost packets.
    pub(crate) faulted: bool,
}

/// State of the unit.
pub(crate) struct Unit {
    /// Header of the next packet. Its position is the number of bytes generated so far.
    pub(crate) header: Header,
    /// Place in the table; [`None`] if the unit cannot write.
    walker: Option<Walker>,
    /// Bytes written since the last [`seek`](Self::seek).
    pub(crate) written: u64,
    /// End of the last packet written, as a position in the stream.
    pub(crate) end: u64,
    /// Whether the unit drops packets until the next [`seek`](Self::seek).
    full: bool,
    /// Whether the unit is paused and generates nothing.
    pub(crate) paused: bool,
    /// Ticks in which the unit generated packets.
    pub(crate) ticks: u64,
    /// Whether there was a tick since the last [`begin`](Self::begin).
    used: bool,
    pub(crate) line: Line,
    pub(crate) lost: Lost,
}

impl Unit {
    /// A unit that has not generated anything.
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

    /// Starts a transaction, or counting, at the current end of the stream. The unit is paused.
    ///
    /// [`leave`](Self::leave) is the counterpart at stop.
    #[inline]
    pub(crate) fn begin(&mut self, stream: &Stream, cpu: u32) -> Result {
        // Usually this unit was the last to continue the stream, and its state is current.
        if self.header.stream != stream.number || self.header.run != stream.runs() {
            self.join(stream);
        }
        self.header.cpu = cpu.try_into()?;
        self.paused = true;
        Ok(())
    }

    /// Takes over a stream that another unit has continued.
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

    /// Ends a transaction or a counting period, and saves the unit's place in the stream.
    #[inline]
    pub(crate) fn leave(&mut self, stream: &Stream) {
        self.header.run = self.header.run.wrapping_add(1);
        stream.complete(self.header.run);
        if self.used {
            // All but the losses and the state of faults is as at the beginning.
            self.end = self.header.pos;
            self.used = false;
            stream.reach(self.header.pos);
            if stream.plan.fault != Fault::None {
                self.carry(stream);
            }
        }
    }

    /// Saves the state that faults use in the next transaction.
    #[cold]
    fn carry(&mut self, stream: &Stream) {
        let pending = self.line.is_pending(stream.plan.fault);

        self.line = Line::new(pending);
        stream.carry(self.ticks, pending);
    }

    /// Ends a transaction with losses. Returns the commit of its `len` bytes.
    #[cold]
    pub(crate) fn lose_and_leave(&mut self, stream: &Stream, len: u64, mode: Mode) -> Commit {
        let commit = self.lost.tell(len, mode);

        self.lost = Lost::default();
        self.leave(stream);
        commit
    }

    /// Sets the place in the table where the unit continues to write.
    #[inline]
    pub(crate) fn seek(&mut self, walker: Option<Walker>) {
        self.walker = walker;
        self.written = 0;
        self.full = false;
    }

    /// Number of packets in this tick.
    fn packets(&self, plan: &Plan) -> u64 {
        let space = plan.limit.saturating_sub(self.header.pos);

        plan.burst
            .min(space.checked_div(plan.packet.get().into()).unwrap_or(0))
    }

    /// Generates and loses this many packets. Returns their length in bytes.
    fn lose(&mut self, packets: u64) -> u64 {
        let bytes = packets.saturating_mul(self.header.len.into());

        self.header.pos = self.header.pos.wrapping_add(bytes);
        bytes
    }

    /// A tick without an AUX area. Returns the number of bytes that the unit generates.
    pub(crate) fn count(&mut self, plan: &Plan) -> u64 {
        let packets = self.packets(plan);

        self.used = true;
        self.ticks = self.ticks.wrapping_add((packets != 0).into());
        self.lose(packets)
    }

    /// A tick: the unit writes packets through `table`. `store` writes one contiguous piece. It
    /// gets the offset from the place of the last [`seek`](Self::seek), the address, and the bytes.
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
            // A full unit drops the rest of the burst, so that the trace has one gap.
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

    /// Writes a packet. Returns false if it does not fit: the unit then discards it.
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
        let mut offset = self.written;
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

                    stored &= store(offset, address, now).is_ok();
                    offset = offset.wrapping_add(len);
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

    /// The barrier in front of the packet at `pos`, which reports `lost` bytes as lost.
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

/// Writes a padding packet of `len` bytes, block by block, with `put`. `header` has its stream, CPU
/// and position. Writes zeroes if no packet can have that length.
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
