// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the unit, the driver and perf must do, as arithmetic: which AUX records come, for how many bytes, with which flags.
//!
//! The unit of `pattern` writes a fixed number of packets at each tick and skips ticks it is too late for, so what comes
//! depends on how many ticks there were and not on when. Where the reader acts only while the event is off, the whole
//! sequence of records is known beforehand: [`Model`] gives it. Where the reader or the scheduler acts at times of its own,
//! only what is possible is known: [`Follower`] says of each record whether it is.

use anyhow::{ensure, Context, Result};
use perfdata::{Aux, AuxFlags};

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

    /// Whether more can come than the bounce memory holds, before somebody looks.
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

/// Whether records are possible, when it is not known when the reader reads and when the event is scheduled.
#[derive(Debug, Clone)]
pub struct Follower {
    setup: Setup,
    /// Whether a session may end at any time, as those of a task do.
    switches: bool,
    head: u64,
    woken: u64,
}

impl Follower {
    /// For records from the first one on.
    pub fn new(setup: Setup, switches: bool) -> Self {
        Self {
            setup,
            switches,
            head: 0,
            woken: 0,
        }
    }

    /// Takes all records, in their order. The last may be the one of a disable.
    ///
    /// # Errors
    /// Says which is wrong, and what is.
    pub fn follow(&mut self, records: &[Aux]) -> Result<()> {
        for (n, record) in records.iter().enumerate() {
            let last = n + 1 == records.len();
            self.record(record, last)
                .with_context(|| format!("record {n}: {}", say(record)))?;
        }
        Ok(())
    }

    fn record(&mut self, record: &Aux, last: bool) -> Result<()> {
        let setup = self.setup;
        let truncated = record.flags.contains(AuxFlags::TRUNCATED);
        let cut = AuxFlags::TRUNCATED | AuxFlags::PARTIAL;
        let end = record.offset + if setup.overwrite { 0 } else { record.size };
        let begin = end.checked_sub(record.size).context("it is too long")?;

        ensure!(
            record.flags - cut == setup.flags(),
            "flags that nothing has asked for"
        );
        // In overwrite mode, and with a buffer that laps, more may have been generated than is kept.
        let laps = setup.fills();
        ensure!(
            laps || !record.flags.contains(AuxFlags::PARTIAL),
            "PARTIAL where the bounce memory cannot have been full"
        );
        ensure!(
            begin == self.head.next_multiple_of(setup.align)
                || (setup.overwrite && begin == self.head),
            "it must begin at {:#x}",
            self.head
        );
        let trace = if setup.overwrite && setup.align > 1 {
            0
        } else {
            record.size
        };
        ensure!(
            trace % setup.packet == 0
                || setup.sink == Sink::Flat && trace % setup.packet == BARRIER % setup.packet,
            "no whole packets of {}",
            setup.packet
        );
        ensure!(
            record.size > 0 || record.flags.intersects(cut),
            "it is empty"
        );
        self.head = end;
        if setup.overwrite {
            ensure!(!truncated, "TRUNCATED where the oldest is overwritten");
            return Ok(());
        }

        ensure!(record.size < setup.ring, "longer than the ring");
        let wakeup = self.woken + setup.watermark();
        // Where the unit can say so at the earliest.
        let point = wakeup
            .max(begin + 1)
            .next_multiple_of(if setup.sink == Sink::Direct {
                setup.region
            } else {
                1
            });
        ensure!(
            end < point + setup.tick() + BARRIER,
            "more than a tick after the wakeup point {wakeup:#x}: the reader was not woken"
        );
        let early = match setup.sink {
            // The last end of a region but one within the room that the reader has left.
            Sink::Direct => (begin + 1).next_multiple_of(setup.region).min(wakeup),
            Sink::Sg => wakeup.min(begin + setup.interrupt()),
            Sink::Flat => wakeup.saturating_sub(BARRIER),
        };
        ensure!(
            end >= early || truncated || self.switches || last,
            "before the wakeup point {wakeup:#x}, and nothing has stopped the event"
        );
        if end - self.woken >= setup.watermark() {
            self.woken = end - end % setup.watermark();
        }
        Ok(())
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
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const SETUP: Setup = Setup {
        sink: Sink::Direct,
        region: 4096,
        ring: 16384,
        bounce: 16384,
        watermark: 0,
        overwrite: false,
        packet: 192,
        burst: 5,
        limit: 40_000,
        align: 1,
        fault: Fault::None,
    };

    fn ends(model: &Model) -> Vec<(u64, u64, u64)> {
        model
            .records()
            .iter()
            .map(|r| (r.offset, r.size, r.flags.bits()))
            .collect()
    }

    fn stopped(setup: Setup) -> Model {
        let mut model = Model::new(setup);
        model.enable();
        model.run();
        model
    }

    /// By hand: ticks of 960 bytes. The interrupt is at the end of the page of the wakeup point, 8192, which the 9th tick
    /// passes: 8640. Then it is at the last end of a page but one, 8192, which is past, so at the next: 12288, which is also
    /// where the unit stops: 19 packets fit, and the 20th is the last of the 4th tick.
    #[test]
    fn direct_stops_at_the_end_of_a_page() {
        let model = stopped(SETUP);
        assert_eq!(ends(&model), [(0, 8640, 0), (8640, 3648, 1)]);
        assert_eq!((model.generated(), model.lost()), (13 * 960, 192));
        assert!(!model.is_on());
        // 16383 - 12288 = 4095 bytes: no end of a page.
        let mut model = model;
        model.enable();
        model.run();
        assert_eq!(ends(&model)[2..], [(12288, 0, 1)]);
        assert_eq!(model.lost(), 192 + 960);
        // With all given back there are three ends, up to 24576. The interrupt is at the wakeup point, 16384; then it would be
        // at 24576, and is at the end before; then that is past.
        model.drain(u64::MAX);
        model.enable();
        model.run();
        assert_eq!(
            ends(&model)[3..],
            [(12288, 4800, 0), (17088, 3840, 0), (20928, 3648, 1)]
        );
    }

    /// 17 ticks are 16320; half the memory is passed by the 9th, and the wakeup point with it. Of 16383 - 8640 bytes 40
    /// packets fit.
    #[test]
    fn sg_keeps_the_oldest() {
        let model = stopped(Setup {
            sink: Sink::Sg,
            ..SETUP
        });
        assert_eq!(ends(&model), [(0, 8640, 0), (8640, 7680, 1)]);
        assert_eq!((model.generated(), model.lost()), (18 * 960, 960));
    }

    /// As for sg, but 64 bytes of what is left are a barrier's, and 39 packets fit behind it.
    #[test]
    fn flat_keeps_the_newest_behind_a_barrier() {
        let model = stopped(Setup {
            sink: Sink::Flat,
            ..SETUP
        });
        assert_eq!(
            ends(&model),
            [(0, 8640, 0x100), (8640, 64 + 39 * 192, 0x101)]
        );
        assert_eq!((model.lost(), model.overhead()), (960 + 192, 64));
    }

    #[test]
    fn a_reader_that_keeps_up_loses_nothing() {
        for sink in [Sink::Direct, Sink::Sg, Sink::Flat] {
            for watermark in [4096, 8192, 16_384] {
                let setup = Setup {
                    sink,
                    watermark,
                    ring: 65_536,
                    bounce: 65_536,
                    limit: 200_000,
                    ..SETUP
                };
                let mut model = Model::new(setup);
                model.enable();
                model.run_kept_up();
                model.disable();
                assert_eq!(
                    (model.generated(), model.lost()),
                    (1041 * 192, 0),
                    "{setup:?}"
                );
                assert_eq!(model.head(), 1041 * 192);
                Follower::new(setup, false).follow(model.records()).unwrap();
            }
        }
    }

    #[test]
    fn overwriting_has_no_end() {
        for sink in [Sink::Direct, Sink::Sg] {
            let mut model = stopped(Setup {
                sink,
                overwrite: true,
                ..SETUP
            });
            model.disable();
            assert_eq!(ends(&model), [(39_936, 39_936, 2)]);
            assert_eq!(model.lost(), 0);
        }
        // The buffer holds 85 packets, the newest of 208.
        let mut flat = stopped(Setup {
            sink: Sink::Flat,
            overwrite: true,
            ..SETUP
        });
        flat.disable();
        assert_eq!(ends(&flat), [(64 + 85 * 192, 64 + 85 * 192, 0x106)]);
        assert_eq!(flat.lost(), (208 - 85) * 192);
    }

    /// Each fault's effect on a ring that has room for all, by hand: 40 ticks of 960 bytes.
    #[test]
    fn faults_have_their_flags() {
        let setup = |fault| Setup {
            ring: 65_536,
            bounce: 65_536,
            watermark: 16_384,
            limit: 38_400,
            fault,
            ..SETUP
        };
        let run = |sink, fault| {
            let mut model = stopped(Setup {
                sink,
                ..setup(fault)
            });
            model.disable();
            ends(&model)
        };
        for sink in [Sink::Direct, Sink::Sg] {
            // 18 ticks are 17280; the next point is 32768, passed by 35.
            assert_eq!(
                run(sink, Fault::None),
                [(0, 17_280, 0), (17_280, 16_320, 0), (33_600, 4800, 0)]
            );
            assert_eq!(
                run(sink, Fault::Late(2)),
                [(0, 19_200, 0), (19_200, 16_320, 0), (35_520, 2880, 0)]
            );
            assert_eq!(run(sink, Fault::Pending), [(0, 38_400, 0)]);
            assert_eq!(run(sink, Fault::Lost), [(0, 38_400, 0)]);
            // The 16th and the 32nd tick.
            assert_eq!(
                run(sink, Fault::Overflow(16)),
                [
                    (0, 14_400, 4),
                    (14_400, 2880, 0),
                    (17_280, 11_520, 4),
                    (28_800, 4800, 0),
                    (33_600, 2880, 0)
                ]
            );
            assert_eq!(run(sink, Fault::Collision(40))[2..], [(33_600, 4608, 8)]);
        }
        // The last packets are generated when nobody listens any more; then the interrupt comes at once.
        let mut model = Model::new(setup(Fault::Pending));
        model.enable();
        for _ in 0..20 {
            model.tick();
        }
        model.disable();
        model.enable();
        model.run();
        model.disable();
        assert_eq!(
            ends(&model),
            [(0, 19_200, 0), (19_200, 960, 0), (20_160, 18_240, 0)]
        );
    }

    /// What a follower must not let through.
    #[test]
    fn a_follower_refuses() {
        let aux = |offset, size, flags| Aux {
            offset,
            size,
            flags: AuxFlags::from_bits_retain(flags),
        };
        let table = [
            (aux(192, 8640, 0), "must begin at"),
            (aux(0, 8641, 0), "no whole packets"),
            (aux(0, 3840, 0), "nothing has stopped"),
            (aux(0, 9600, 0), "was not woken"),
            (aux(0, 0, 0), "it is empty"),
            (aux(0, 8640, 4), "PARTIAL"),
            (aux(8640, 8640, 2), "flags"),
            (aux(0, 8640, 0x100), "flags"),
        ];
        for (record, says) in table {
            let after = aux(8640, 192, 0);
            let error = Follower::new(SETUP, false)
                .follow(&[record, after])
                .unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(says), "{error}");
        }
        let good = [aux(0, 192, 0), aux(192, 0, 1)];
        Follower::new(SETUP, true).follow(&good).unwrap();
    }
}
