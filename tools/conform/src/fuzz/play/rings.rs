// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads records and trace from the rings, and checks that a ring does not change while no event may write into it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use auxrec::sys::{Event, Field};

use super::Play;
use crate::fuzz::model::{Area, Outcome};
use crate::fuzz::op::{Op, CHILDREN, SLOTS};
use crate::records;
use crate::rig::{self, bytes, patience, pin, work};

impl Play<'_> {
    /// Reads the records of a ring. Returns the number of AUX records.
    pub(super) fn drain(&mut self, buffer: usize) -> Result<u64> {
        let data = self.model.data(buffer);
        let Some(base) = self.base(buffer).filter(|_| data > 0) else {
            return Ok(0);
        };
        let found = rig::drain(base, data)?;
        let hostile = self.model.is_hostile(buffer);
        let Some(ring) = self.rings.get_mut(&buffer) else {
            return Ok(0);
        };
        let mut count = 0;
        for record in found {
            let Some(aux) = record.aux()? else {
                let known = [
                    records::LOST,
                    records::THROTTLE,
                    records::ITRACE_START,
                    records::THROTTLE + 1,
                ];
                ensure!(
                    known.contains(&record.kind),
                    "a record of type {}",
                    record.kind
                );
                ring.silent |= record.kind == records::LOST;
                continue;
            };
            count += 1;
            let cpu = ring.ids.get(&record.id.id);
            let cpu = cpu.with_context(|| {
                format!("{aux:x?} of event {}, which never wrote here", record.id.id)
            })?;
            let right = cpu.is_none_or(|cpu| u32::try_from(cpu) == Ok(record.id.cpu));
            ensure!(
                right,
                "{aux:x?} of CPU {}, of an event of CPU {cpu:?}",
                record.id.cpu
            );
            let tail = ring.tail;
            if let Some(ledger) = ring.ledger.as_mut().filter(|_| !hostile) {
                ledger.add(aux, tail)?;
            }
        }
        if let Some(ledger) = &mut ring.ledger {
            ledger.ends_batch(ring.tail);
        }
        Ok(count)
    }

    /// Reads the records and the trace of a ring.
    pub(super) fn follow(&mut self, slot: usize) -> Result<()> {
        match self.model.buffer(slot) {
            Some(buffer) => self.read(buffer),
            None => Ok(()),
        }
    }

    pub(super) fn read(&mut self, buffer: usize) -> Result<()> {
        let Some(base) = self.base(buffer) else {
            return Ok(());
        };
        let head = base.load(Field::AuxHead, Ordering::Acquire);
        self.drain(buffer)?;
        let data = self.model.data(buffer);
        let hostile = self.model.is_hostile(buffer);
        let Some(ring) = self.rings.get_mut(&buffer) else {
            return Ok(());
        };
        let Some(ledger) = ring.ledger.as_mut().filter(|_| !hostile) else {
            return Ok(());
        };
        if self.model.area(buffer).is_none_or(|area| area.overwrite) {
            return Ok(());
        }
        // The kernel writes records before it moves the head.
        if ring.silent || data == 0 {
            ledger.goes_to(head);
        }
        let (from, end) = (ring.tail, ledger.end.unwrap_or(ring.tail).max(ring.tail));
        let truncated = ledger.truncated > 0 || ring.silent || data == 0;
        let trace = match self.view(buffer, |slot| &slot.areas) {
            Some(area) => Some(rig::copy(area, from, end)?),
            None => None,
        };
        let Some(ring) = self.rings.get_mut(&buffer) else {
            return Ok(());
        };
        match (&mut ring.stream, trace) {
            (Some(stream), Some(trace)) => {
                stream.feed(from, &trace)?;
                if truncated {
                    stream.may_begin_anew();
                }
            }
            // The area is not mapped: its bytes are not read, and the stream cannot be followed from here on.
            (stream, _) => *stream = None,
        }
        ring.tail = end;
        if let Some(base) = self.base(buffer) {
            base.store(Field::AuxTail, end, Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn trace(&mut self, slot: usize) -> Result<()> {
        let buffer = self.model.buffer(slot).context("it has no ring")?;
        if self.base(buffer).is_none() || self.model.is_hostile(buffer) {
            self.with(slot, Event::enable)??;
            return Ok(());
        }
        let unit = self.slots.get(slot).and_then(|slot| slot.unit);
        let commits = unit
            .and_then(|unit| self.pmus.get(unit))
            .is_some_and(|pmu| pmu.commits);
        // In non-overwrite mode a driver makes trace visible at the watermark, which is half of the area.
        let waits = |area: Area| commits && !area.overwrite && area.pages <= 16;
        let waits = self.model.area(buffer).is_some_and(waits);
        if let Some(cpu) = self.model.cpu(slot) {
            pin(u32::try_from(cpu)?)?;
        }
        self.with(slot, Event::disable)??;
        self.read(buffer)?;
        let head = |play: &Self| {
            play.base(buffer)
                .map(|base| base.load(Field::AuxHead, Ordering::Acquire))
        };
        let before = head(self);
        self.with(slot, Event::enable)??;
        let end = Instant::now() + patience();
        while head(self) == before {
            work();
            if !waits {
                self.with(slot, Event::disable)??;
                self.with(slot, Event::enable)??;
            }
            ensure!(
                Instant::now() < end,
                "no trace in {} s of work: aux_head is {before:x?}",
                patience().as_secs()
            );
        }
        self.read(buffer)
    }

    pub(super) fn fill(&mut self, slot: usize) -> Result<()> {
        let buffer = self.model.buffer(slot).context("it has no ring")?;
        let cpu = self.model.cpu(slot).map(u32::try_from).transpose()?;
        if let Some(cpu) = cpu {
            pin(cpu)?;
        }
        self.with(slot, Event::disable)??;
        self.read(buffer)?;
        let shared =
            (0..SLOTS).any(|other| other != slot && self.model.buffer(other) == Some(buffer));
        if let Some(ring) = self.rings.get_mut(&buffer).filter(|_| !shared) {
            let tail = ring.tail;
            if let Some(ledger) = &mut ring.ledger {
                ledger.begins(tail);
            }
        }
        let unit = self.slots.get(slot).and_then(|slot| slot.unit);
        let commits = unit
            .and_then(|unit| self.pmus.get(unit))
            .is_some_and(|pmu| pmu.commits);
        let truncated = |play: &Self| {
            let ledger = play.rings.get(&buffer)?.ledger.as_ref()?;
            Some((ledger.truncated, ledger.space))
        };
        let (before, _) = truncated(self).context("the area is not followed")?;
        self.with(slot, Event::enable)??;
        let end = Instant::now() + patience();
        let (mut stretches, mut off) = (0, false);
        let space = loop {
            self.drain(buffer)?;
            let (now, space) = truncated(self).context("the area is not followed")?;
            if now > before {
                break space;
            }
            if off {
                self.with(slot, Event::enable)??;
            }
            work();
            stretches += 1;
            // The trace that becomes visible then may fill the area. So the event stays disabled until that is checked.
            off = !commits && stretches % 20 == 0;
            if off {
                self.with(slot, Event::disable)??;
            }
            ensure!(
                Instant::now() < end,
                "no TRUNCATED in {} s of work without a reader",
                patience().as_secs()
            );
        };
        let len = self.model.area(buffer).map_or(0, |area| bytes(area.pages));
        // A unit that stops at the end of a page or a block leaves the rest of the space unused.
        ensure!(
            space <= len / 4,
            "TRUNCATED with space for {space} of {len} bytes"
        );
        // This thread is on the CPU of the event, so the interrupt that disables the event has been taken.
        Ok(())
    }

    /// Checks that rings that no event may write into have not changed.
    pub(super) fn still(&mut self) -> Result<()> {
        let buffers: BTreeSet<_> = (0..SLOTS)
            .filter_map(|slot| self.model.buffer(slot))
            .collect();
        for slot in 0..SLOTS {
            if !self.model.is_still(slot) {
                if let Some(slot) = self.slots.get_mut(slot) {
                    slot.counted = None;
                }
            }
        }
        for buffer in buffers {
            let Some(base) = self.base(buffer) else {
                if let Some(ring) = self.rings.get_mut(&buffer) {
                    ring.head = None;
                }
                continue;
            };
            if !self.model.is_quiet(buffer) {
                self.rings.entry(buffer).or_default().head = None;
                continue;
            }
            let head = base.load(Field::AuxHead, Ordering::Acquire);
            let records = self.drain(buffer)?;
            let is_writer = |slot: &usize| self.model.buffer(*slot) == Some(buffer);
            let writers: Vec<_> = (0..SLOTS).filter(is_writer).collect();
            let ring = self.rings.entry(buffer).or_default();
            if let Some(before) = ring.head {
                ensure!(
                    head == before && records == 0,
                    "no event may write into the ring of slot {writers:?}, and there are {} bytes and {records} records more",
                    head.wrapping_sub(before)
                );
            }
            ring.head = Some(head);
        }
        Ok(())
    }

    /// Disables all events, and compares the trace with their counts.
    pub(super) fn ends(&mut self) -> Result<()> {
        for slot in 0..SLOTS {
            if self.model.step(&Op::Disable(slot)) == Outcome::Done {
                self.with(slot, Event::disable)??;
            }
        }
        for child in &mut self.children {
            drop(child.take());
        }
        for child in 0..CHILDREN {
            self.model.step(&Op::Kill(child));
        }
        self.still()?;
        let buffers: Vec<_> = self.rings.keys().copied().collect();
        for buffer in buffers {
            self.read(buffer)?;
            let Some(ring) = self.rings.get(&buffer) else {
                continue;
            };
            let (Some(slot), Some(ledger), Some(stream)) = (ring.alone, &ring.ledger, &ring.stream)
            else {
                continue;
            };
            if ring.silent || self.base(buffer).is_none() || self.model.data(buffer) == 0 {
                continue;
            }
            let event = self.slots.get(slot).and_then(|slot| slot.event.as_ref());
            if let Some(count) = event.map(Event::count).transpose()?.flatten() {
                stream.accounts(count.value, ledger.flags)?;
            }
        }
        Ok(())
    }
}
