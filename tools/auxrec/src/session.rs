// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens the events of a recording and maps their rings.

use std::sync::Arc;

use perfdata::{IdIndexEntry, TimeConv};

use crate::error::Result;
use crate::limits::Limits;
use crate::sys;

mod hotplug;
mod open;
mod opened;
mod plan;
mod rings;
mod switch;

pub(crate) use plan::default_watermark;

pub use opened::{Known, Opened};
pub use plan::{known_sideband, Mode, Plan, SIDEBAND, TRACKING};
pub use rings::Rings;
pub use switch::Switch;

use switch::{refused, SwitchOf};

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
        let plan = Arc::new(plan);
        let pairs = plan.pairs();
        let all: Vec<usize> = plan.owners().collect();
        let each = sys::page_size() + plan.data + plan.aux + plan.beside();
        let count = pairs.len() * all.len();
        limits.preflight(count, u64::try_from(each).unwrap_or(u64::MAX))?;
        let sum = u64::try_from(each * count).unwrap_or(u64::MAX);
        let of_all = all.iter().flat_map(|number| {
            pairs
                .iter()
                .map(move |(cpu, threads)| (*number, *cpu, threads))
        });
        let rings = (0..)
            .zip(of_all)
            .map(|(idx, (number, cpu, threads))| {
                Rings::open(&plan, number, idx, cpu, threads, limits, sum)
            })
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

    /// Enables the events that do not wait for an exec: the tracking events and, with `trace`, the events
    /// that write trace.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn enable(&self, trace: bool) -> Result<()> {
        if !self.plan.on_exec {
            for opened in self.rings.iter().flat_map(|ring| &ring.tracking) {
                let enabled = opened.event.enable();
                enabled.map_err(|e| refused("enable", TRACKING, &e))?;
            }
        }
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

    /// A handle that switches the trace on and off, also from other threads.
    #[must_use]
    pub fn switch(&self) -> Switch {
        let of = |ring: &Rings| SwitchOf {
            number: ring.number,
            switched: ring.switched.clone(),
        };
        Switch {
            rings: self.rings.iter().map(of).collect(),
            names: (0..=self.plan.events.len())
                .map(|number| self.plan.name(number).to_owned())
                .collect(),
        }
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
