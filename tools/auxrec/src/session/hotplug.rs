// SPDX-License-Identifier: GPL-2.0 OR MIT

//! CPUs that go offline: opens their events again.

use std::time::Duration;

use super::opened::Opened;
use super::probe::{Probe, STEP};
use super::rings::Rings;
use super::Session;
use crate::error::Result;
use crate::sys::Event;

impl Rings {
    /// Opens the events again if the CPU was offline and is back. The caller calls this now and then,
    /// after it has read the data ring.
    ///
    /// If the events cannot be opened, because the CPU is offline again, the next call tries again.
    /// Until then the CPU counts as offline.
    pub(crate) fn revive(&mut self) {
        let dead = self.again.as_mut().is_some_and(|h| h.probe.is_dead());
        if dead {
            let _ = self.reopen();
        }
    }

    /// Opens all events again, for the same rings, so that the positions in these continue. The event
    /// that was mapped still owns the rings.
    ///
    /// The new events have new ids, but a file has its ids at its beginning. So records of the new
    /// events get the ids of the old ones. (perf refuses an ID_INDEX with ids that it does not know.)
    fn reopen(&mut self) -> std::io::Result<()> {
        let (Some(again), Some(owner)) = (&mut self.again, self.first.first()) else {
            return Ok(());
        };
        let plan = again.plan.clone();
        // First, as it fails at once if the CPU is offline.
        let probe = Probe::open(again.system, again.cpu)?;
        let mut renamed = Vec::new();
        let mut open = |number: usize, leader: Option<&Event>| -> std::io::Result<Opened> {
            let attr = plan.attr_in(self.number, number);
            let event = Event::of(again.system, &attr, plan.of(-1), again.cpu, leader)?;
            let known = self.known.iter().find(|known| known.number == number);
            let known = known.ok_or(std::io::ErrorKind::NotFound)?;
            // The event that writes trace, its group, and the trigger share the ring of the trace.
            let beside = self.beside.as_ref();
            let of_trace =
                number == self.number || leader.is_some() || plan.trigger == Some(number);
            let beside = beside.filter(|_| !of_trace);
            event.set_output(beside.map_or(&owner.event, |beside| &beside.owner))?;
            renamed.push((event.id()?, known.id));
            Ok(Opened {
                event,
                number,
                id: known.id,
                thread: None,
            })
        };
        let new = open(self.number, None)?;
        if let Some(filter) = &plan.filter {
            new.event.set_filter(filter)?;
        }
        let members = self.members.iter();
        let members = members.map(|old| open(old.number, Some(&new.event)));
        let members = members.collect::<std::io::Result<Vec<_>>>()?;
        let tracking = self.tracking.iter().map(|old| open(old.number, None));
        let tracking = tracking.collect::<std::io::Result<Vec<_>>>()?;
        let mut state = self.switched.lock();
        let others = state.others.iter();
        let others = others.map(|(old, on)| Ok((open(old.number, None)?, *on)));
        let others = others.collect::<std::io::Result<Vec<_>>>()?;
        for opened in &tracking {
            opened.event.enable()?;
        }
        for (opened, _) in others.iter().filter(|(_, on)| *on) {
            opened.event.enable()?;
        }
        if state.on {
            new.event.enable()?;
        }
        for (before, old) in self.before.iter_mut().zip(state.events.iter()) {
            if let Some(count) = old.event.count()? {
                *before = count.plus(before);
            }
        }
        for (old, _) in &state.others {
            if let Some(count) = old
                .event
                .count()?
                .filter(|_| plan.trigger == Some(old.number))
            {
                self.hits = self.hits.saturating_add(count.value);
            }
        }
        (state.events, state.others) = ([new].into(), others);
        (self.members, self.tracking) = (members, tracking);
        // The records of the old events have been read.
        self.renamed = renamed;
        again.untraced = again.untraced.saturating_add(again.probe.untraced().max(1));
        again.probe = probe;
        Ok(())
    }

    /// Replaces the ids of reopened events by those that the file has.
    ///
    /// # Errors
    /// If the bytes are no records.
    pub(crate) fn rename(&self, records: &mut [u8]) -> Result<()> {
        if self.renamed.is_empty() {
            return Ok(());
        }
        Ok(perfdata::rename(records, &|id| {
            let mut all = self.renamed.iter();
            all.find(|(new, _)| *new == id).map(|(_, known)| *known)
        })?)
    }
}

impl Session {
    /// The CPUs that were offline, and how long each had no events, ns.
    #[must_use]
    pub fn offline(&mut self) -> Vec<(u32, u64)> {
        let look = |rings: &mut Rings| {
            let (cpu, hotplug) = rings.cpu.zip(rings.again.as_mut())?;
            let dead = hotplug.probe.is_dead();
            let now = if dead {
                hotplug.probe.untraced().max(1)
            } else {
                0
            };
            Some((cpu, hotplug.untraced.saturating_add(now)))
        };
        if self.rings.iter().all(|rings| rings.again.is_none()) {
            return Vec::new();
        }
        for rings in &mut self.rings {
            look(rings);
        }
        std::thread::sleep(Duration::from_nanos(STEP));
        let mut all: Vec<_> = self.rings.iter_mut().filter_map(look).collect();
        all.retain(|(_, untraced)| *untraced != 0);
        all
    }
}
