// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the unit, the driver and perf must do, as arithmetic: which AUX records come, for how many bytes, with which flags.
//!
//! The unit of `pattern` writes a fixed number of packets at each tick and skips ticks it is too late for, so what comes
//! depends on how many ticks there were and not on when. Where the reader acts only while the event is off, the whole
//! sequence of records is known beforehand: [`Model`] gives it. Where the reader or the scheduler acts at times of its own,
//! only what is possible is known: [`Follower`] says of each record whether it is.

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

/// The length of a page, and so of a region with marks.
const PAGE: u64 = 4096;
/// The length of a barrier packet.
pub const BARRIER: u64 = 64;

/// What goes wrong in the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Interrupts are taken so many ticks late.
    Late(u64),
    /// Interrupts are never taken.
    Lost,
    /// The packets of each tick of a number that this divides are lost in the unit.
    Overflow(u64),
    /// The last packet of each such tick is lost.
    Collision(u64),
    /// Interrupts are taken in the session after.
    Pending,
    /// It does not start.
    Start,
}

/// How a unit and its ring are set.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Where the unit writes.
    pub sink: Sink,
    /// Bytes of a region, of a unit that writes into the ring.
    pub region: u64,
    /// Bytes of the ring, a power of two.
    pub ring: u64,
    /// Bytes of bounce memory.
    pub bounce: u64,
    /// `attr.aux_watermark`, in bytes; 0 stands for half the ring.
    pub watermark: u64,
    /// Whether the ring is written over and over.
    pub overwrite: bool,
    /// Bytes of a packet.
    pub packet: u64,
    /// Packets of a tick.
    pub burst: u64,
    /// Bytes after which the unit is silent.
    pub limit: u64,
    /// Each session begins at a multiple of this; 1 if it does not matter.
    pub align: u64,
    /// What goes wrong.
    pub fault: Fault,
}

impl Setup {
    /// Bytes of a tick.
    pub fn tick(&self) -> u64 {
        self.packet * self.burst
    }

    /// How far apart the points are at which perf wants a commit.
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

    /// Whether more bytes than the bounce memory holds can come before the next interrupt.
    fn fills(&self) -> bool {
        match self.sink {
            Sink::Direct => false,
            Sink::Sg => self.interrupt() + self.tick() > self.bounce,
            Sink::Flat => self.overwrite || self.watermark() + self.tick() > self.bounce,
        }
    }

    /// At how much of scattered memory the unit raises its interrupt: the middle, if a page ends there.
    fn interrupt(&self) -> u64 {
        (self.bounce / 2).max(PAGE)
    }

    /// So many whole packets of those bytes.
    fn whole(&self, bytes: u64) -> u64 {
        bytes - bytes % self.packet
    }
}

/// The unit at work on its ring, alone on its CPU.
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
    /// Whether what is copied next follows a loss that nothing in the ring tells of.
    owed: bool,
    /// Ticks so far.
    ticks: u64,
    /// Whether an interrupt of the last session is still to be taken.
    pending: bool,
    session: Option<Session>,
    records: Vec<Aux>,
}

/// From begin to end.
#[derive(Debug, Clone, Copy, Default)]
struct Session {
    room: u64,
    wakeup: u64,
    /// Where the unit stops; of a unit that writes into the ring. Not above the head: it was not started.
    stop: u64,
    /// Where it raises an interrupt.
    int: u64,
    /// Bytes in the ring, or in the bounce memory.
    written: u64,
    /// Bytes that were put into the ring before, and are not committed.
    copied: u64,
    /// Bytes for which the ring had no room.
    no_room: u64,
    /// Bytes for which the bounce memory had none, or that the unit lost.
    gap: u64,
    /// Bytes of packets that collided.
    collision: u64,
    /// Whether the unit throws packets away.
    full: bool,
    /// How many ticks ago the interrupt was raised that was not taken.
    raised: Option<u64>,
    /// Whether one of the session before is still to be taken.
    stale: bool,
}

impl Session {
    /// Whether an interrupt is taken at the end of a tick in which it was raised or not.
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
    /// A ring that nothing was written to, and an event that is off.
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

    /// The event is enabled. Stays off if there is no room.
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
        // perf leaves one byte free.
        let mut room = (ring - 1).saturating_sub(self.head - self.tail);
        let pad = self.head.next_multiple_of(align) - self.head;
        if overwrite {
            self.overhead += pad;
            self.session = Some(Session {
                copied: pad,
                room: u64::MAX,
                wakeup: u64::MAX,
                stop: u64::MAX,
                int: u64::MAX,
                stale: self.pending,
                ..Session::default()
            });
            return;
        }
        if room == 0 {
            return;
        }
        let aligned = pad <= room;
        if aligned {
            self.head += pad;
            self.overhead += pad;
            room -= pad;
            if pad > 0 {
                // perf_aux_output_skip() looks as an end does.
                self.wake();
            }
        } else {
            room = 0;
        }
        let wakeup = self.woken + self.setup.watermark();
        let (stop, int) = match sink {
            Sink::Direct if aligned => self.marks(room, wakeup),
            Sink::Direct => (0, 0),
            // They know nothing of the ring.
            Sink::Sg | Sink::Flat => (u64::MAX, u64::MAX),
        };
        self.session = Some(Session {
            room,
            wakeup,
            stop,
            int,
            stale: self.pending,
            ..Session::default()
        });
    }

    /// Where a unit that writes into the ring stops, and where it raises its interrupt: ends of pages.
    fn marks(&self, room: u64, wakeup: u64) -> (u64, u64) {
        let limit = self.head + room;
        let region = self.setup.region;
        let stop = limit - limit % region;
        let first = (self.head + 1).next_multiple_of(region);
        let mut int = wakeup.next_multiple_of(region).max(first);
        if int >= stop {
            int = if stop > first { stop - region } else { stop };
        }
        (stop, int)
    }

    /// The event is disabled.
    pub fn disable(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        self.pending =
            self.setup.fault == Fault::Pending && (session.stale || session.raised.is_some());
        let (bytes, overhead, no_room, gap) = self.commit(&session);
        let mut flags = self.setup.flags();
        flags.set(AuxFlags::TRUNCATED, no_room != 0 && !self.setup.overwrite);
        flags.set(AuxFlags::PARTIAL, gap != 0);
        flags.set(AuxFlags::COLLISION, session.collision != 0);
        let offset = self.head;
        self.head += bytes;
        self.lost += no_room + gap + session.collision;
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

    /// perf wakes the reader, if it is time.
    fn wake(&mut self) {
        let watermark = self.setup.watermark();
        if self.head - self.woken >= watermark {
            self.woken = self.head - self.head % watermark;
        }
    }

    /// What a session puts into the ring: bytes, those of them that carry no trace, those lost for want of room there, and
    /// those lost before.
    fn commit(&mut self, session: &Session) -> (u64, u64, u64, u64) {
        let Session {
            room,
            written,
            copied,
            no_room,
            gap,
            ..
        } = *session;
        match self.setup.sink {
            Sink::Direct => (copied + written, 0, no_room, gap),
            Sink::Sg => {
                let now = written.min(self.setup.whole(room));
                (copied + now, 0, no_room + written - now, gap)
            }
            Sink::Flat => {
                let there = written.min(self.setup.whole(self.setup.bounce));
                let lapped = written - there;
                let gap = gap + lapped;
                let marked = self.owed || lapped != 0 || there > self.setup.whole(room);
                let barrier = if marked { BARRIER } else { 0 };
                let now = there.min(self.setup.whole(room.saturating_sub(barrier)));
                if now == 0 {
                    self.owed = marked;
                    return (copied, 0, no_room + there, gap);
                }
                self.owed = false;
                (copied + barrier + now, barrier, no_room + there - now, gap)
            }
        }
    }

    /// The unit's clock ticks.
    pub fn tick(&mut self) {
        if self.tock() {
            let full = self.cut();
            self.disable();
            if !full {
                self.enable();
            }
        }
    }

    /// Whether the session lost trace for want of room, so that the event will be off.
    fn cut(&self) -> bool {
        let mut copy = self.clone();
        copy.disable();
        let truncated = |r: &Aux| r.flags.contains(AuxFlags::TRUNCATED);
        copy.records.len() > self.records.len() && copy.records.last().is_some_and(truncated)
    }

    /// The unit writes a burst; whether it is looked after then, with a commit.
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
                    &mut session.no_room
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

    /// The reader gives back so many bytes, or all there are.
    pub fn drain(&mut self, bytes: u64) {
        self.tail += bytes.min(self.head - self.tail);
    }

    /// Ticks until the event is off or the unit silent.
    pub fn run(&mut self) {
        while self.session.is_some() && !self.is_silent() {
            self.tick();
        }
    }

    /// The same with a reader who has read, at each commit, all that there was before it.
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

    /// Whether the limit leaves no room for a packet.
    pub fn is_silent(&self) -> bool {
        self.setup.limit - self.generated < self.setup.packet
    }

    /// Whether the event is on.
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

/// A record, for people.
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
