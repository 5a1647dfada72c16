// SPDX-License-Identifier: GPL-2.0 OR MIT

//! CPUs that come online while all are recorded.
//!
//! Those that go and come back are recorded again (see [`session`](crate::session)). Of others nothing is: rings are made, and the
//! ids of events are in the file, when the recording begins. That is a loss, and counts as one.

use std::collections::BTreeMap;

use crate::message::say;
use crate::sys;
use crate::target::{online_cpus, possible_cpus, present_cpus};

/// See the module.
#[derive(Debug)]
pub(crate) struct Newcomers {
    /// CPUs that have rings; [`None`]: no others are of interest, or can be.
    recorded: Option<Vec<u32>>,
    /// When it was looked last, ns.
    looked: u64,
    /// For how long each was online, ns.
    missed: BTreeMap<u32, u64>,
}

impl Newcomers {
    /// From now on.
    pub fn new(recorded: Option<Vec<u32>>) -> Self {
        // To look costs more than most of what a recorder does when it wakes.
        let possible = possible_cpus().unwrap_or_default();
        let others = |recorded: &Vec<u32>| possible.iter().any(|cpu| !recorded.contains(cpu));
        Self {
            recorded: recorded.filter(others),
            looked: sys::now(),
            missed: BTreeMap::new(),
        }
    }

    /// Those that may come.
    pub fn possible(&self) -> Vec<u32> {
        let Some(recorded) = &self.recorded else {
            return Vec::new();
        };
        let mut present = present_cpus().unwrap_or_default();
        present.retain(|cpu| !recorded.contains(cpu));
        present
    }

    /// Looks which are there, and says so of each once. To be called now and then.
    pub fn look(&mut self) {
        if self.recorded.is_none() {
            return;
        }
        // It could be read when the recording began.
        let online = online_cpus().unwrap_or_default();
        for cpu in self.found(&online, sys::now()) {
            say(format_args!(
                "warning: CPU {cpu} has come online, and is not recorded: it was offline when the recording began"
            ));
        }
    }

    /// Those that were not seen before. What was online at one look was since the one before.
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

    /// Those that were online, and for how long, ns.
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
            let mut newcomers = Newcomers {
                recorded,
                looked: 100,
                missed: BTreeMap::new(),
            };
            assert!(newcomers.found(&[0, 1], 110).is_empty());
            assert_eq!(newcomers.found(&[0, 2], 120), new);
            assert!(newcomers.found(&[0, 1], 150).is_empty());
            newcomers.found(&[0, 1, 2, 3], 160);
            assert_eq!(newcomers.missed().collect::<Vec<_>>(), missed);
        }
    }
}
