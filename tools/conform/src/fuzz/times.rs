// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the steps of all programs took.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// How many steps of each name there were, and what they took together.
#[derive(Debug, Default)]
pub struct Times(BTreeMap<String, (u64, Duration)>);

impl Times {
    /// Adds a step that began at `begin` and ends now.
    pub fn add(&mut self, name: String, begin: Instant) {
        let (count, time) = self.0.entry(name).or_default();
        *count += 1;
        *time += begin.elapsed();
    }
}

/// The steps, those first that took the most.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
        for (name, (count, time)) in all {
            writeln!(f, "{name}: {count} in {:.1} s", time.as_secs_f64())?;
        }
        Ok(())
    }
}
