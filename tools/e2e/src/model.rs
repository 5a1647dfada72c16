// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A model of the unit, the driver and perf: which AUX records come, with how many bytes and with which flags.
//!
//! The unit of `pattern` writes a fixed number of packets at each tick, and skips the ticks that are in the past. So the records depend on
//! the number of ticks, not on their times. If the reader acts only while the event is disabled, [`Model`] predicts the whole sequence of
//! records. If the reader or the scheduler acts at unknown times, [`Follower`] checks of each record whether it is possible.

mod follower;

use perfdata::{Aux, AuxFlags};

pub use follower::Follower;

/// Where a unit writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sink {
    /// The AUX pages.
    Direct,
    /// Scattered pages, which are copied.
    Sg,
    /// One buffer, which is copied.
    Flat,
}

/// The length of a page. Regions at whose ends a unit can stop or raise an interrupt are as long, also in scattered memory.
const PAGE: u64 = 4096;
/// The length of a barrier packet.
pub const BARRIER: u64 = 64;

/// A fault of the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// Interrupts are taken this many ticks late.
    Late(u64),
    /// Interrupts are never taken.
    Lost,
    /// In each tick whose number is a multiple of this, the unit loses all packets.
    Overflow(u64),
    /// In each tick whose number is a multiple of this, the unit loses the last packet by a collision.
    Collision(u64),
    /// Interrupts are taken only in the next transaction.
    Pending,
    /// The unit does not start.
    Start,
}

/// The settings of a unit and its ring.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Where the unit writes.
    pub sink: Sink,
    /// Bytes of a region, for a unit that writes into the ring.
    pub region: u64,
    /// Bytes of the ring, a power of two.
    pub ring: u64,
    /// Bytes of bounce memory.
    pub bounce: u64,
    /// `attr.aux_watermark`, in bytes; 0 stands for half the ring.
    pub watermark: u64,
    /// Whether the AUX area is in overwrite mode.
    pub overwrite: bool,
    /// Bytes of a packet.
    pub packet: u64,
    /// Packets of a tick.
    pub burst: u64,
    /// Bytes after which the unit generates nothing more.
    pub limit: u64,
    /// Each transaction begins at a multiple of this; 1 for no alignment.
    pub align: u64,
    /// The fault that the unit has.
    pub fault: Fault,
}

impl Setup {
    /// Bytes of a tick.
    pub fn tick(&self) -> u64 {
        self.packet * self.burst
    }

    /// The distance between two points at which perf wants a commit.
    fn watermark(&self) -> u64 {
        match self.watermark {
            0 => self.ring / 2,
            bytes => bytes,
        }
    }

    /// The flags that each record has.
    fn flags(&self) -> AuxFlags {
        let mut flags = AuxFlags::empty();
        flags.set(AuxFlags::OVERWRITE, self.overwrite);
        if self.sink == Sink::Flat {
            // Format 1.
            flags |= AuxFlags::from_bits_retain(1 << 8);
        }
        flags
    }

    /// Whether the unit may generate more bytes than the bounce memory holds before the next interrupt.
    fn fills(&self) -> bool {
        match self.sink {
            Sink::Direct => false,
            Sink::Sg => self.interrupt() + self.tick() > self.bounce,
            Sink::Flat => self.overwrite || self.watermark() + self.tick() > self.bounce,
        }
    }

    /// The fill level of scattered memory at which the unit raises its interrupt: its middle, but at least one page.
    fn interrupt(&self) -> u64 {
        (self.bounce / 2).max(PAGE)
    }

    /// `bytes`, rounded down to whole packets.
    fn whole(&self, bytes: u64) -> u64 {
        bytes - bytes % self.packet
    }
}

/// Models the unit and its ring, alone on its CPU.
#[derive(Debug, Clone)]
pub struct Model {
    setup: Setup,
    /// `rb->aux_head`.
    head: u64,
    tail: u64,
    /// `rb->aux_wakeup`.
    woken: u64,
    /// Bytes generated.
    generated: u64,
    lost: u64,
    /// Bytes of packets that carry no trace.
    overhead: u64,
    /// Whether a loss has happened that the ring does not mark yet: a barrier must come before the next copied bytes.
    owed: bool,
    /// Ticks so far.
    ticks: u64,
    /// Whether an interrupt of the last transaction is still pending.
    pending: bool,
    session: Option<Session>,
    records: Vec<Aux>,
}

/// A transaction, from `perf_aux_output_begin()` to `perf_aux_output_end()`.
#[derive(Debug, Clone, Copy, Default)]
struct Session {
    space: u64,
    wakeup: u64,
    /// The position where the unit stops, if it writes into the ring. If it is not above the head, the unit was not started.
    stop: u64,
    /// The position at which the unit raises its interrupt.
    int: u64,
    /// Bytes in the ring, or in the bounce memory.
    written: u64,
    /// Bytes that were copied into the ring before the commit, or skipped there as padding.
    copied: u64,
    /// Bytes that are lost because the ring had no space.
    no_space: u64,
    /// Bytes that are lost because the bounce memory had no space, or because the unit lost them.
    gap: u64,
    /// Bytes of packets that are lost by a collision.
    collision: u64,
    /// Whether the unit drops packets.
    full: bool,
    /// How many ticks ago the pending interrupt was raised.
    raised: Option<u64>,
    /// Whether an interrupt of the previous transaction is still pending.
    stale: bool,
}

impl Session {
    /// Whether an interrupt is taken at the end of a tick. `raise` says whether the unit has raised one in this tick.
    fn take(&mut self, fault: Fault, raise: bool) -> bool {
        if raise && self.raised.is_none() {
            self.raised = Some(0);
        }
        let taken = match (fault, &mut self.raised) {
            _ if std::mem::take(&mut self.stale) => true,
            (_, None) | (Fault::Lost | Fault::Pending, _) => false,
            (Fault::Late(late), Some(ticks)) if *ticks < late => {
                *ticks += 1;
                false
            }
            _ => true,
        };
        if taken {
            self.raised = None;
        }
        taken
    }
}

impl Model {
    /// An empty ring, and an event that is disabled.
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            head: 0,
            tail: 0,
            woken: 0,
            generated: 0,
            lost: 0,
            overhead: 0,
            owed: false,
            ticks: 0,
            pending: false,
            session: None,
            records: Vec::new(),
        }
    }

    /// Enables the event. It stays disabled if the ring has no space.
    pub fn enable(&mut self) {
        if self.session.is_some() || self.setup.fault == Fault::Start {
            return;
        }
        let Setup {
            ring,
            overwrite,
            align,
            sink,
            ..
        } = self.setup;
        // perf keeps one byte free.
        let mut space = (ring - 1).saturating_sub(self.head - self.tail);
        let pad = self.head.next_multiple_of(align) - self.head;
        if overwrite {
            self.overhead += pad;
            self.session = Some(Session {
                copied: pad,
                space: u64::MAX,
                wakeup: u64::MAX,
                stop: u64::MAX,
                int: u64::MAX,
                stale: self.pending,
                ..Session::default()
            });
            return;
        }
        if space == 0 {
            return;
        }
        let aligned = pad <= space;
        if aligned {
            self.head += pad;
            self.overhead += pad;
            space -= pad;
            if pad > 0 {
                // Like perf_aux_output_end(), perf_aux_output_skip() checks the watermark.
                self.wake();
            }
        } else {
            space = 0;
        }
        let wakeup = self.woken + self.setup.watermark();
        let (stop, int) = match sink {
            Sink::Direct if aligned => self.marks(space, wakeup),
            Sink::Direct => (0, 0),
            // These units do not know the ring.
            Sink::Sg | Sink::Flat => (u64::MAX, u64::MAX),
        };
        self.session = Some(Session {
            space,
            wakeup,
            stop,
            int,
            stale: self.pending,
            ..Session::default()
        });
    }

    /// Where a unit that writes into the ring stops, and where it raises its interrupt. Both are ends of regions.
    fn marks(&self, space: u64, wakeup: u64) -> (u64, u64) {
        let limit = self.head + space;
        let region = self.setup.region;
        let stop = limit - limit % region;
        let first = (self.head + 1).next_multiple_of(region);
        let mut int = wakeup.next_multiple_of(region).max(first);
        if int >= stop {
            int = if stop > first { stop - region } else { stop };
        }
        (stop, int)
    }

    /// Disables the event.
    pub fn disable(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        self.pending =
            self.setup.fault == Fault::Pending && (session.stale || session.raised.is_some());
        let (bytes, overhead, no_space, gap) = self.commit(&session);
        let mut flags = self.setup.flags();
        flags.set(AuxFlags::TRUNCATED, no_space != 0 && !self.setup.overwrite);
        flags.set(AuxFlags::PARTIAL, gap != 0);
        flags.set(AuxFlags::COLLISION, session.collision != 0);
        let offset = self.head;
        self.head += bytes;
        self.lost += no_space + gap + session.collision;
        self.overhead += overhead;
        let telling = AuxFlags::TRUNCATED | AuxFlags::PARTIAL | AuxFlags::COLLISION;
        if bytes != 0 || flags.intersects(telling) {
            self.records.push(Aux {
                offset: if self.setup.overwrite {
                    self.head
                } else {
                    offset
                },
                size: bytes,
                flags,
            });
        }
        if !self.setup.overwrite {
            self.wake();
        }
    }

    /// Models perf's wakeup of the reader: only if the watermark is reached.
    fn wake(&mut self) {
        let watermark = self.setup.watermark();
        if self.head - self.woken >= watermark {
            self.woken = self.head - self.head % watermark;
        }
    }

    /// Commits a transaction. Returns the bytes that come into the ring, how many of them carry no trace, the bytes that are lost because
    /// the ring has no space, and the bytes that were lost before.
    fn commit(&mut self, session: &Session) -> (u64, u64, u64, u64) {
        let Session {
            space,
            written,
            copied,
            no_space,
            gap,
            ..
        } = *session;
        match self.setup.sink {
            Sink::Direct => (copied + written, 0, no_space, gap),
            Sink::Sg => {
                let now = written.min(self.setup.whole(space));
                (copied + now, 0, no_space + written - now, gap)
            }
            Sink::Flat => {
                let there = written.min(self.setup.whole(self.setup.bounce));
                let lapped = written - there;
                let gap = gap + lapped;
                let marked = self.owed || lapped != 0 || there > self.setup.whole(space);
                let barrier = if marked { BARRIER } else { 0 };
                let now = there.min(self.setup.whole(space.saturating_sub(barrier)));
                if now == 0 {
                    self.owed = marked;
                    return (copied, 0, no_space + there, gap);
                }
                self.owed = false;
                (copied + barrier + now, barrier, no_space + there - now, gap)
            }
        }
    }

    /// Models a tick of the unit's clock.
    pub fn tick(&mut self) {
        if self.tock() {
            let full = self.cut();
            self.disable();
            if !full {
                self.enable();
            }
        }
    }

    /// Whether a commit now would report TRUNCATED, so that the event would be disabled.
    fn cut(&self) -> bool {
        let mut copy = self.clone();
        copy.disable();
        let truncated = |r: &Aux| r.flags.contains(AuxFlags::TRUNCATED);
        copy.records.len() > self.records.len() && copy.records.last().is_some_and(truncated)
    }

    /// The unit writes a burst. Returns whether the driver commits afterwards.
    fn tock(&mut self) -> bool {
        let Setup {
            sink,
            packet,
            burst,
            limit,
            bounce,
            overwrite,
            fault,
            ..
        } = self.setup;
        let Some(session) = &mut self.session else {
            return false;
        };
        let mut packets = burst.min((limit - self.generated) / packet);
        if packets == 0 {
            return false;
        }
        self.ticks += 1;
        self.generated += packets * packet;
        let mut faulted = true;
        match fault {
            Fault::Overflow(n) if self.ticks % n == 0 => {
                session.gap += packets * packet;
                packets = 0;
            }
            Fault::Collision(n) if self.ticks % n == 0 => {
                session.collision += packet;
                packets -= 1;
            }
            _ => faulted = false,
        }
        let mut dropped = false;
        for _ in 0..packets {
            let place = session.written + packet;
            let lost = match sink {
                Sink::Direct if session.full || self.head + place > session.stop => {
                    &mut session.no_space
                }
                Sink::Sg if session.full || place > bounce => &mut session.gap,
                _ => {
                    session.written = place;
                    continue;
                }
            };
            *lost += packet;
            session.full = true;
            dropped = true;
        }
        let interrupt = self.setup.interrupt();
        let raise = match sink {
            Sink::Direct => session.written > 0 && self.head + session.written >= session.int,
            Sink::Sg => session.written >= interrupt,
            Sink::Flat => false,
        };
        let copies = sink != Sink::Direct && !overwrite && session.written > 0;
        let due = copies && self.head + session.written >= session.wakeup;
        let taken = session.take(fault, raise || dropped || due);
        if overwrite && taken && !faulted && sink == Sink::Sg {
            session.copied += session.written;
            session.written = 0;
            session.full = false;
        }
        faulted || taken && !overwrite
    }

    /// The reader releases `bytes` bytes, or all if there are fewer.
    pub fn drain(&mut self, bytes: u64) {
        self.tail += bytes.min(self.head - self.tail);
    }

    /// Ticks until the event is disabled or the unit has reached its limit.
    pub fn run(&mut self) {
        while self.session.is_some() && !self.is_silent() {
            self.tick();
        }
    }

    /// Does the same with a reader that, at each commit, has read all that was committed before.
    pub fn run_kept_up(&mut self) {
        while self.session.is_some() && !self.is_silent() {
            let before = self.head;
            if self.tock() {
                let full = self.cut();
                self.disable();
                self.tail = before;
                if !full {
                    self.enable();
                }
            }
        }
    }

    /// Whether less than a packet is left until the limit.
    pub fn is_silent(&self) -> bool {
        self.setup.limit - self.generated < self.setup.packet
    }

    /// Whether the event is enabled.
    #[cfg(test)]
    pub fn is_on(&self) -> bool {
        self.session.is_some()
    }

    /// Bytes generated.
    pub fn generated(&self) -> u64 {
        self.generated
    }

    /// Bytes lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes of packets that carry no trace.
    pub fn overhead(&self) -> u64 {
        self.overhead
    }

    /// `aux_head`.
    #[cfg(test)]
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The records.
    pub fn records(&self) -> &[Aux] {
        &self.records
    }
}

/// Formats a record for messages.
pub fn say(record: &Aux) -> String {
    format!(
        "{:#x}+{} {}",
        record.offset,
        record.size,
        record.flags.names()
    )
}

#[cfg(test)]
mod tests;
