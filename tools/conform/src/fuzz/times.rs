// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How long the steps of all programs took.

use std::collections::HashMap;
use std::fmt;
use std::mem::{discriminant, Discriminant};
use std::time::{Duration, Instant};

use super::op::Op;

/// The number of steps of each kind, and their total time.
#[derive(Debug, Default)]
pub struct Times {
    steps: HashMap<Discriminant<Op>, Time>,
    /// Other work, which is done once for each program.
    others: HashMap<&'static str, Time>,
}

#[derive(Debug, Default)]
struct Time {
    name: String,
    count: u64,
    time: Duration,
}

impl Times {
    /// Adds a step that began at `begin` and ends now.
    pub fn add(&mut self, op: &Op, begin: Instant) {
        let time = self.steps.entry(discriminant(op));
        time.or_insert_with(|| Time::new(op.name())).add(begin);
    }

    /// Adds other work in the same way.
    pub fn add_other(&mut self, name: &'static str, begin: Instant) {
        let time = self.others.entry(name);
        time.or_insert_with(|| Time::new(name.to_owned()))
            .add(begin);
    }
}

impl Time {
    fn new(name: String) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    fn add(&mut self, begin: Instant) {
        self.count += 1;
        self.time += begin.elapsed();
    }
}

/// The kinds of steps, those with the longest total time first.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all: Vec<_> = self.steps.values().chain(self.others.values()).collect();
        all.sort_by_key(|time| std::cmp::Reverse(time.time));
        for Time { name, count, time } in all {
            writeln!(f, "{name}: {count} in {:.1} s", time.as_secs_f64())?;
        }
        Ok(())
    }
}
