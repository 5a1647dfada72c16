// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hotplugged CPUs: CPUs that come online while all CPUs are recorded.
//!
//! A CPU that was online at the beginning, goes offline and comes back is recorded again: see [`session`](crate::session). A CPU that was
//! offline at the beginning is not: the rings are created, and the ids of the events are written to the file, at the beginning. The time
//! that such a CPU is online counts as a loss.

use std::collections::BTreeMap;

use crate::message::say;
use crate::sys;
use crate::target::{online_cpus, possible_cpus, present_cpus};

/// Watches for CPUs that come online and have no rings.
#[derive(Debug)]
pub(crate) struct Hotplugged {
    /// CPUs that have rings; [`None`]: not all CPUs are recorded, or there can be no others.
    recorded: Option<Vec<u32>>,
    /// When the list of online CPUs was read last, ns.
    looked: u64,
    /// How long each CPU without rings was online, ns.
    missed: BTreeMap<u32, u64>,
}

impl Hotplugged {
    /// Starts to watch: a CPU that comes online later counts as missed.
    pub fn new(recorded: Option<Vec<u32>>) -> Self {
        // To read the list of online CPUs costs more than most other work of a wakeup. So it is not read if there can be no others.
        let possible = possible_cpus().unwrap_or_default();
        let others = |recorded: &Vec<u32>| possible.iter().any(|cpu| !recorded.contains(cpu));
        Self {
            recorded: recorded.filter(others),
            looked: sys::now(),
            missed: BTreeMap::new(),
        }
    }

    /// The CPUs without rings that are present.
    pub fn possible(&self) -> Vec<u32> {
        let Some(recorded) = &self.recorded else {
            return Vec::new();
        };
        let mut present = present_cpus().unwrap_or_default();
        present.retain(|cpu| !recorded.contains(cpu));
        present
    }

    /// Reads the list of online CPUs and warns once about each CPU that has no ring. The recorder calls it at each heartbeat.
    pub fn look(&mut self) {
        if self.recorded.is_none() {
            return;
        }
        // The list could be read when the recording began, so an error is unlikely and counts as no CPU.
        let online = online_cpus().unwrap_or_default();
        for cpu in self.found(&online, sys::now()) {
            say(format_args!(
                "warning: CPU {cpu} has come online, and is not recorded: it was offline when the recording began"
            ));
        }
    }

    /// Adds the time since the last call to each online CPU without rings. Returns those of them that were not seen before. A CPU that is
    /// online now counts as online since the last call.
    fn found(&mut self, online: &[u32], now: u64) -> Vec<u32> {
        let since = now.saturating_sub(self.looked);
        self.looked = now;
        let recorded = self.recorded.as_deref().unwrap_or(online);
        let mut new = Vec::new();
        for cpu in online.iter().filter(|cpu| !recorded.contains(cpu)) {
            let sum = self.missed.entry(*cpu).or_insert_with(|| {
                new.push(*cpu);
                0
            });
            *sum = sum.saturating_add(since);
        }
        new
    }

    /// The CPUs without rings that were online, and for how long, ns.
    pub fn missed(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.missed.iter().map(|(cpu, ns)| (*cpu, *ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_online_add_up() {
        for (recorded, new, missed) in [
            (Some(vec![0, 1]), vec![2], vec![(2, 20), (3, 10)]),
            (None, vec![], vec![]),
        ] {
            let mut hotplugged = Hotplugged {
                recorded,
                looked: 100,
                missed: BTreeMap::new(),
            };
            assert!(hotplugged.found(&[0, 1], 110).is_empty());
            assert_eq!(hotplugged.found(&[0, 2], 120), new);
            assert!(hotplugged.found(&[0, 1], 150).is_empty());
            hotplugged.found(&[0, 1, 2, 3], 160);
            assert_eq!(hotplugged.missed().collect::<Vec<_>>(), missed);
        }
    }
}
