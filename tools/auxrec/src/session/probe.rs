// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds out that the kernel has removed the events of a CPU.

use std::sync::Arc;

use perfdata::{Attr, Flags, Read};

use super::plan::Plan;
use crate::sys::{Event, Of, System};

/// Longer than one step of any event's clock, even of one that advances only at timer ticks, ns.
pub(super) const STEP: u64 = 20_000_000;

/// Finds out that the kernel has removed the events of a CPU.
///
/// The kernel does so when the CPU goes offline. It reports nothing, and does not restore the events
/// when the CPU comes back.
#[derive(Debug)]
pub(super) struct Hotplug {
    pub(super) system: &'static dyn System,
    pub(super) plan: Arc<Plan>,
    pub(super) cpu: i32,
    /// Detects that the CPU has lost its events.
    pub(super) probe: Probe,
    /// How long the CPU had no events before the probe was opened, ns.
    pub(super) untraced: u64,
}

/// An event that is always on. Its time advances as long as its CPU has its events.
#[derive(Debug)]
pub(super) struct Probe {
    system: &'static dyn System,
    event: Event,
    /// When it was opened, ns.
    opened: u64,
    /// When it was read last, ns, and its time then.
    looked: (u64, u64),
}

impl Hotplug {
    /// Opens the probe of a CPU.
    pub(super) fn open(
        system: &'static dyn System,
        plan: &Arc<Plan>,
        cpu: i32,
    ) -> std::io::Result<Self> {
        Ok(Self {
            system,
            plan: plan.clone(),
            cpu,
            probe: Probe::open(system, cpu)?,
            untraced: 0,
        })
    }
}

impl Probe {
    pub(super) fn open(system: &'static dyn System, cpu: i32) -> std::io::Result<Self> {
        let attr = Attr {
            kind: 1,
            config: 9,
            flags: Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV,
            read_format: Read::FORMAT,
            ..Attr::default()
        };
        let event = Event::of(system, &attr, Of::Thread(-1), cpu, None)?;
        let now = system.now();
        Ok(Self {
            system,
            event,
            opened: now,
            looked: (now, 0),
        })
    }

    /// Whether the event's time has not advanced since the last call.
    pub(super) fn is_dead(&mut self) -> bool {
        let Ok(Some(count)) = self.event.count() else {
            return false;
        };
        let (at, enabled) = self.looked;
        let now = self.system.now();
        if now.saturating_sub(at) < STEP {
            return false;
        }
        self.looked = (now, count.enabled);
        count.enabled == enabled
    }

    /// How long the event was off, ns.
    pub(super) fn untraced(&self) -> u64 {
        let all = self.system.now().saturating_sub(self.opened);
        all.saturating_sub(self.looked.1)
    }
}
