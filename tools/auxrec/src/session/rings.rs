// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The pair of rings of a CPU or thread: reads them, and pauses and restarts the events that write into them.

use std::ops::Range;
use std::sync::Arc;

use perfdata::Auxtrace;

use super::opened::{Known, Opened};
use super::probe::Hotplug;
use super::switch::Switched;
use crate::error::{Error, Result};
use crate::ring::{AuxArea, Backward, DataArea, Newest, Reader};
use crate::sys::{self, Count, Event, Mapping};

/// A pair of rings, with the events that write into them.
#[derive(Debug)]
pub struct Rings {
    /// Number of the pair.
    pub idx: u32,
    /// CPU of the rings.
    pub cpu: Option<u32>,
    /// Thread of the rings.
    pub thread: Option<u32>,
    // The mappings stand before the events, so that they are dropped first: unmapping an area stops
    // the trace of its events.
    pub(super) aux_map: Option<Mapping>,
    pub(super) base: Mapping,
    /// Number of the event that has the rings.
    pub(super) number: usize,
    /// Name of that event, if several events write trace.
    pub(super) event: Option<String>,
    /// The events that write trace, as they were opened first. The first of them owns the rings.
    pub(super) first: Arc<[Opened]>,
    /// For each of them, the counts of the events that were replaced.
    pub(super) before: Vec<Count>,
    /// The same events, or those that replace them.
    pub(super) switched: Switched,
    /// The other events of their groups.
    pub(super) members: Vec<Opened>,
    pub(super) tracking: Vec<Opened>,
    /// The ring of the sideband records, if they share none with the trace.
    pub(super) beside: Option<Beside>,
    /// All events, as the file names them.
    pub(super) known: Vec<Known>,
    /// Hits of the trigger that replaced events have counted.
    pub(super) hits: u64,
    /// The ids of events that replace others, each with the id that the file has.
    pub(super) renamed: Vec<(u64, u64)>,
    /// Reopens the events when the CPU was offline. Rings of tasks need none.
    pub(super) again: Option<Hotplug>,
    /// Reader of the data ring.
    pub data: Reader,
    /// Reader of the AUX area.
    pub aux: Reader,
}

/// A data ring in overwrite mode, for sideband records.
///
/// The data ring of the trace cannot be in this mode, which needs a read-only mapping. The recorder
/// writes into its control page where the AUX area is, and how far it has read the area.
#[derive(Debug)]
pub(super) struct Beside {
    // Before the event, as in Rings.
    pub(super) map: Mapping,
    pub(super) owner: Event,
    pub(super) reader: Backward,
}

impl Rings {
    /// The events that write trace, as they were opened first. Events that replace them have the same
    /// ring, so a thread that polls the first is also woken for these.
    #[must_use]
    pub fn events(&self) -> &[Opened] {
        &self.first
    }

    /// The counts of the events that write trace, each with those of the events that it replaces. An
    /// event whose PMU is gone has no count.
    #[must_use]
    pub fn counts(&self) -> Vec<(Known, Count)> {
        let events = self.switched.lock().events.clone();
        let all = events.iter().zip(&self.before);
        all.filter_map(|(opened, before)| {
            let now = opened.event.count().ok()??;
            Some((opened.known(), now.plus(before)))
        })
        .collect()
    }

    /// The count of the event with this number, which is not one that writes trace. Includes the events that it has replaced.
    pub(super) fn hits(&self, number: usize) -> u64 {
        let state = self.switched.lock();
        let all = state.others.iter().map(|(opened, _)| opened);
        let counts = all.filter(|opened| opened.number == number);
        let counts = counts.filter_map(|opened| opened.event.count().ok()?);
        counts.fold(self.hits, |sum, count| sum.saturating_add(count.value))
    }

    /// The sideband records that were written since the last call and not overwritten, of rings in
    /// overwrite mode. The ring is paused meanwhile: the kernel counts the records that it drops.
    ///
    /// # Errors
    /// If the kernel refuses, or the bytes are no records.
    pub(crate) fn newest(&mut self) -> Result<Newest> {
        let Some(beside) = &mut self.beside else {
            return Ok(Newest::default());
        };
        let pause = |pause| {
            let done = beside.owner.pause_output(pause);
            done.map_err(|e| Error::failed(format!("cannot pause a data ring ({e})")))
        };
        pause(true)?;
        let newest = beside.reader.newest(&DataArea {
            base: &beside.map,
            page: sys::page_size(),
        });
        pause(false)?;
        newest
    }

    /// The ids of the events of this number.
    pub(crate) fn ids(&self, number: usize) -> Vec<u64> {
        let all = self.known.iter().filter(|known| known.number == number);
        all.map(|known| known.id).collect()
    }

    /// The number of the event that has written a sample. It begins with the id.
    pub(crate) fn number_of(&self, sample: &[u8]) -> Option<usize> {
        let id = u64::from_le_bytes(*sample.first_chunk()?);
        let mut all = self.known.iter();
        all.find(|known| known.id == id).map(|known| known.number)
    }

    /// Enables or disables the members of a group that have these numbers.
    ///
    /// # Errors
    /// If the PMU is gone.
    pub(crate) fn switch_members(
        &self,
        on: bool,
        numbers: impl Fn(usize) -> bool,
    ) -> std::io::Result<()> {
        let mut members = self.members.iter().filter(|opened| numbers(opened.number));
        members.try_for_each(|opened| match on {
            true => opened.event.enable(),
            false => opened.event.disable(),
        })
    }

    /// The data ring, with its reader.
    pub fn data(&mut self) -> (&mut Reader, DataArea<'_>) {
        let area = DataArea {
            base: &self.base,
            page: sys::page_size(),
        };
        (&mut self.data, area)
    }

    /// Whether there is an AUX area.
    pub(crate) fn have_aux(&self) -> bool {
        self.aux_map.is_some()
    }

    /// The AUX area, with its reader.
    pub fn aux(&mut self) -> (&mut Reader, AuxArea<'_>) {
        let area = AuxArea {
            base: &self.base,
            aux: self.aux_map.as_ref(),
        };
        (&mut self.aux, area)
    }

    /// The AUX area.
    pub fn area(&self) -> AuxArea<'_> {
        AuxArea {
            base: &self.base,
            aux: self.aux_map.as_ref(),
        }
    }

    /// Restarts the events that write trace, after the kernel has disabled one because its area was
    /// full.
    ///
    /// The kernel writes the record and wakes the reader *before* it disables the event: an interrupt
    /// of its own does that (`perf_event_disable_inatomic()`). An enable before this interrupt has no
    /// effect, as the event is still on, and the event then stays off. So this disables first. The
    /// disable runs on the event's CPU under its context's lock, and cancels the request:
    /// `event_sched_out()` clears `pending_disable`, and the interrupt has nothing to do.
    ///
    /// Does nothing if the trace is switched off.
    ///
    /// # Errors
    /// If the PMU is gone.
    pub fn restart(&self) -> std::io::Result<()> {
        let state = self.switched.lock();
        if !state.on {
            return Ok(());
        }
        state.events.iter().try_for_each(|opened| {
            opened.event.disable()?;
            opened.event.enable()
        })
    }

    /// Runs `still` while the events are disabled. Also returns the longest time that they can have
    /// been off, ns. Events that are switched off stay off.
    ///
    /// # Errors
    /// If the PMU is gone.
    pub fn pause<T>(&mut self, still: impl FnOnce(&mut Self) -> T) -> std::io::Result<(T, u64)> {
        let switched = self.switched.clone();
        let state = switched.lock();
        let (on, events) = (state.on, &state.events);
        let begin = sys::now();
        if on {
            events
                .iter()
                .try_for_each(|opened| opened.event.disable())?;
        }
        let out = still(self);
        if on {
            events.iter().try_for_each(|opened| opened.event.enable())?;
            Ok((out, sys::now().saturating_sub(begin)))
        } else {
            Ok((out, 0))
        }
    }

    /// The AUXTRACE record of the piece of trace at these positions.
    #[must_use]
    pub fn piece(&self, range: &Range<u64>, reference: u64) -> Auxtrace {
        Auxtrace {
            size: range.end.wrapping_sub(range.start).next_multiple_of(8),
            offset: range.start,
            reference,
            idx: self.idx,
            tid: self.thread.unwrap_or(u32::MAX),
            cpu: self.cpu.unwrap_or(u32::MAX),
        }
    }

    /// The CPU or thread of the rings, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        let place = match (self.cpu, self.thread) {
            (Some(cpu), _) => format!("CPU {cpu}"),
            (None, Some(thread)) => format!("thread {thread}"),
            (None, None) => format!("ring {}", self.idx),
        };
        match &self.event {
            Some(event) => format!("{place}, {event}"),
            None => place,
        }
    }
}
