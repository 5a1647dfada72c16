// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens the events of a recording and maps their rings.

use std::collections::BTreeSet;
use std::sync::Arc;

use perfdata::{IdIndexEntry, TimeConv};

use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::sys::{self, Kernel, System};

mod clock;
mod hotplug;
mod open;
mod opened;
mod plan;
mod probe;
mod rings;
mod switch;

pub(crate) use plan::{default_watermark, known_sideband, max_files, FILES_OF_A_THREAD};

pub use auxview::trace::Mode;
pub use clock::{Clock, Moment};
pub use opened::{Known, Opened};
pub use plan::{OnTruncate, Plan, SIDEBAND, TRACKING};
pub use rings::Rings;
pub use switch::Switch;

use open::Opening;
use switch::{refused, SwitchOf};

/// How often threads are listed again at most. A process may start new ones for ever.
const LISTS: usize = 16;

/// All rings of a recording.
#[derive(Debug)]
pub struct Session {
    plan: Arc<Plan>,
    rings: Vec<Rings>,
}

impl Session {
    /// Opens all events, disabled, and maps their rings.
    ///
    /// # Errors
    /// If the system refuses. The error explains why, and what to do.
    pub fn open(plan: Plan, limits: &Limits) -> Result<Self> {
        Self::open_on(&Kernel, plan, limits)
    }

    /// The same, with the events of this system.
    pub(crate) fn open_on(
        system: &'static dyn System,
        plan: Plan,
        limits: &Limits,
    ) -> Result<Self> {
        let plan = Arc::new(plan);
        let each = sys::page_size() + plan.data + plan.aux + plan.beside();
        limits.preflight(plan.pairs(), u64::try_from(each).unwrap_or(u64::MAX))?;
        let limits = &limits.with_files(plan.files());
        let new = |number, cpu| Opening::new(system, &plan, limits, number, cpu);
        let places = plan.places().into_iter();
        let mut opening: Vec<_> = places.map(|(number, cpu)| new(number, Some(cpu))).collect();
        let mut add = |thread: Option<u32>, late: bool| -> Result<bool> {
            let mut added = false;
            if plan.cpus.is_some() {
                for opening in &mut opening {
                    added |= opening.add(thread, late)?;
                }
                return Ok(added);
            }
            for number in plan.owners() {
                let mut new = new(number, None);
                if new.add(thread, late)? {
                    opening.push(new);
                    added = true;
                }
            }
            Ok(added)
        };
        match &plan.threads {
            None => drop(add(None, false)?),
            Some(threads) => each_thread(
                threads,
                || plan.list_again(system),
                |id, late| add(Some(id), late),
            )?,
        }
        // If no event is open on a CPU, all threads had ended by then.
        if opening.is_empty() || opening.iter().any(Opening::is_empty) {
            return Err(Error::failed(
                "no thread is left to record: all ended before their events were open. Record a process that still runs, or \
                 have auxrec run the command, after --",
            ));
        }
        // The rings of each event follow one another.
        opening.sort_by_key(Opening::number);
        let sum = u64::try_from(each * opening.len()).unwrap_or(u64::MAX);
        let rings = (0..).zip(opening);
        let rings = rings
            .map(|(idx, opening)| opening.map(idx, sum))
            .collect::<Result<_>>()?;
        Ok(Self { plan, rings })
    }

    /// The plan of the session.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The rings.
    #[must_use]
    pub fn rings(&self) -> &[Rings] {
        &self.rings
    }

    /// The rings, to read them.
    pub fn rings_mut(&mut self) -> &mut [Rings] {
        &mut self.rings
    }

    /// Enables the tracking events, unless they wait for an exec. What a process does from then on is recorded: its
    /// names and mappings until then may be read from `/proc` now.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn track(&self) -> Result<()> {
        if self.plan.on_exec {
            return Ok(());
        }
        for opened in self.rings.iter().flat_map(|ring| &ring.tracking) {
            let enabled = opened.event.enable();
            enabled.map_err(|e| refused("enable", TRACKING, &e))?;
        }
        for ring in self.rings.iter().filter(|ring| !self.switches(ring)) {
            let mut state = ring.switched.lock();
            for opened in state.events.iter() {
                let enabled = opened.event.enable();
                enabled.map_err(|e| refused("enable", TRACKING, &e))?;
            }
            state.on = true;
        }
        Ok(())
    }

    /// Enables the events that write trace, with `trace`, unless they wait for an exec.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn enable(&self, trace: bool) -> Result<()> {
        if trace && self.plan.on_exec && !self.plan.delayed {
            // The exec enables the events.
            for ring in &self.rings {
                ring.switched.lock().on = true;
            }
        } else if trace {
            self.switch().set(true, None)?;
        }
        Ok(())
    }

    /// Disables the trace. The tracking events stay on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn disable(&self) -> Result<()> {
        self.switch().set(false, None)
    }

    /// Whether the trace switch applies to the events of these rings. Other events stay on during the whole recording.
    fn switches(&self, rings: &Rings) -> bool {
        !self.plan.events.is_empty() && !self.plan.only_tracks(rings.number)
    }

    /// A handle that switches the trace on and off, also from other threads.
    #[must_use]
    pub fn switch(&self) -> Switch {
        let of = |ring: &Rings| SwitchOf {
            number: ring.number,
            switched: ring.switched.clone(),
        };
        Switch {
            rings: self
                .rings
                .iter()
                .filter(|rings| self.switches(rings))
                .map(of)
                .collect(),
            names: (0..=self.plan.events.len())
                .map(|number| self.plan.name(number).to_owned())
                .collect(),
        }
    }

    /// How often the trigger was reached; [`None`] if there is none.
    #[must_use]
    pub fn hits(&self) -> Option<u64> {
        let number = self.plan.trigger?;
        let hits = self.rings.iter().map(|rings| rings.hits(number));
        Some(hits.fold(0, u64::saturating_add))
    }

    /// The clock of the events' records.
    #[must_use]
    pub fn record_clock(&self) -> Clock {
        if self.plan.has_own_clock() {
            return Clock::Monotonic;
        }
        Clock::Perf(self.rings.first().and_then(|rings| rings.base.clock()))
    }

    /// How to convert the processor's clock to perf's, if the kernel provides the conversion.
    #[must_use]
    pub fn clock(&self) -> TimeConv {
        self.rings
            .first()
            .and_then(|rings| rings.base.clock())
            .unwrap_or_default()
    }

    /// The ids of all events.
    #[must_use]
    pub fn id_index(&self) -> Vec<IdIndexEntry> {
        let signed = |n: Option<u32>| n.map_or(-1, i64::from);
        self.rings
            .iter()
            .flat_map(|ring| {
                let known = ring.known.iter();
                let known = known.filter(|known| known.number != self.plan.code_number());
                known.map(|known| IdIndexEntry {
                    id: known.id,
                    idx: u64::from(ring.idx),
                    cpu: signed(ring.cpu),
                    tid: signed(known.thread),
                })
            })
            .collect()
    }

    /// The ids of the event of this number. The tracking event has the number after the last.
    #[must_use]
    pub fn ids(&self, number: usize) -> Vec<u64> {
        let all = self.rings.iter().flat_map(|ring| &ring.known);
        all.filter(|known| known.number == number)
            .map(|known| known.id)
            .collect()
    }
}

/// Opens these threads. Then lists the threads again and opens the new ones, until `open` takes none of them. A thread that was created
/// before its creator had an event has inherited none.
fn each_thread(
    threads: &[u32],
    mut list: impl FnMut() -> Vec<u32>,
    mut open: impl FnMut(u32, bool) -> Result<bool>,
) -> Result<()> {
    let mut known = BTreeSet::new();
    let mut found = threads.to_vec();
    for round in 0..LISTS {
        let mut added = false;
        for thread in found {
            added |= known.insert(thread) && open(thread, round != 0)?;
        }
        if !added {
            break;
        }
        found = list();
    }
    Ok(())
}

#[cfg(test)]
mod refusals;
#[cfg(test)]
mod tests;
