// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Switches the trace of a session on and off.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::opened::Opened;
use crate::error::{Error, Result};

/// The events of a pair of rings that are switched on and off.
///
/// The lock is held while they are switched, while an event that the kernel has disabled is restarted,
/// and while an event is replaced.
#[derive(Debug, Clone)]
pub(super) struct Switched(pub(super) Arc<Mutex<State>>);

#[derive(Debug)]
pub(super) struct State {
    /// Whether the trace is switched on.
    pub(super) on: bool,
    /// The events that write trace.
    pub(super) events: Arc<[Opened]>,
    /// Other events of the data ring, and whether each is on.
    pub(super) others: Vec<(Opened, bool)>,
}

impl Switched {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panics under the lock leaves the state valid: each change is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Switches the trace of a session on and off, from any thread.
#[derive(Debug)]
pub struct Switch {
    pub(super) rings: Vec<SwitchOf>,
    pub(super) names: Vec<String>,
}

/// The events of one pair of rings.
#[derive(Debug)]
pub(super) struct SwitchOf {
    pub(super) number: usize,
    pub(super) switched: Switched,
}

impl Switch {
    /// The names of the events.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Enables or disables all events, or the one of this name. A member of a group follows its leader.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn set(&self, on: bool, name: Option<&str>) -> Result<()> {
        let what = if on { "enable" } else { "disable" };
        for ring in &self.rings {
            let named = |number: usize| {
                name.is_none_or(|name| self.names.get(number).is_some_and(|n| n == name))
            };
            let switch = |opened: &Opened| {
                let result = if on {
                    opened.event.enable()
                } else {
                    opened.event.disable()
                };
                let name = self.names.get(opened.number).map_or("", String::as_str);
                result.map_err(|e| refused(what, name, &e))
            };
            let mut state = ring.switched.lock();
            if named(ring.number) {
                state.events.iter().try_for_each(switch)?;
                state.on = on;
            }
            for (opened, state) in &mut state.others {
                if named(opened.number) {
                    switch(opened)?;
                    *state = on;
                }
            }
        }
        Ok(())
    }
}

pub(super) fn refused(what: &str, name: &str, error: &std::io::Error) -> Error {
    Error::failed(format!(
        "cannot {what} `{name}`: the PMU may be gone, its module unloaded ({error})"
    ))
}
