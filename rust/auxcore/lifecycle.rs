// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The state machine of one CPU: it decides when a transaction begins, and when it ends.
//!
//! [`Lifecycle`] does not call perf or a driver. The caller reports an input, carries out the
//! [`Action`] that it gets, and reports the outcome by [`Lifecycle::began`] or
//! [`Lifecycle::ended`].
//!
//! ```text
//!                 add, start, online         began(Traced)
//!            ┌──────────────────────► begin ───────────────► Tracing ──┐
//!            │                          │ │                    ▲       │ stop, del, offline,
//!   Idle ────┘             began(Failed)│ │ began(Counted)     │       │ flush
//!    ▲ ▲ ▲                              │ ▼                    │       ▼
//!    │ │ └──────────────────────────────┘ Counting ── try ─────┘      end
//!    │ └───────────────── end ◄───────────┘ stop, del, offline         │
//!    └─────────────────────────────────────────────────────────────────┘ ended
//! ```
//!
//! - An event *owns* the CPU's unit from `add` to `del`.
//! - `wanted` is perf's last request: `start` or `stop`. It is kept while the CPU is offline, so
//!   that tracing begins again when the CPU comes back or the offline is rolled back.
//! - `disabling` is set when perf has queued the disable of the event (the AUX area was full, or
//!   the transaction ended as truncated). From then on no transaction begins until `del`.

/// What the unit of the CPU is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Phase {
    /// Nothing.
    #[default]
    Idle,
    /// It runs without an AUX area: the event only counts.
    Counting,
    /// It traces: a transaction is open.
    Tracing,
}

/// What the caller has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Action {
    /// Nothing.
    None,
    /// Begin a transaction, or counting, and report by [`Lifecycle::began`].
    Begin,
    /// End the transaction, or counting, and report by [`Lifecycle::ended`].
    End,
}

/// How a begin ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    /// A transaction is open.
    Traced,
    /// The event counts: there is no AUX area.
    Counted,
    /// There is no space in the AUX area: perf has queued the disable of the event.
    NoSpace,
    /// It failed for another reason.
    Failed,
}

/// The state machine of one CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lifecycle {
    owned: bool,
    wanted: bool,
    online: bool,
    disabling: bool,
    phase: Phase,
}

impl Lifecycle {
    /// A CPU that is offline, with a unit that no event owns.
    pub const fn new() -> Self {
        Self {
            owned: false,
            wanted: false,
            online: false,
            disabling: false,
            phase: Phase::Idle,
        }
    }

    /// What the unit is doing.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether an event owns the unit.
    pub const fn is_owned(&self) -> bool {
        self.owned
    }

    /// Whether the CPU may trace.
    pub const fn is_online(&self) -> bool {
        self.online
    }

    const fn begin_if_due(&self) -> Action {
        match self.phase {
            Phase::Idle if self.owned && self.wanted && self.online && !self.disabling => {
                Action::Begin
            }
            _ => Action::None,
        }
    }

    const fn end_if_active(&self) -> Action {
        match self.phase {
            Phase::Idle => Action::None,
            Phase::Counting | Phase::Tracing => Action::End,
        }
    }

    /// perf adds an event, and starts it if `start` is set; [`None`] if another event owns the
    /// unit.
    ///
    /// It does not fail if the CPU is offline. Then the result is [`Action::None`], and the caller
    /// checks [`Self::is_online`].
    pub fn add(&mut self, start: bool) -> Option<Action> {
        if self.owned {
            return None;
        }
        self.owned = true;
        self.wanted = start;
        self.disabling = false;
        Some(self.begin_if_due())
    }

    /// perf deletes the event. The caller carries out the action, then calls [`Self::disown`].
    pub fn del(&mut self) -> Action {
        self.wanted = false;
        self.end_if_active()
    }

    /// Ends the ownership of the unit. The phase must be [`Phase::Idle`].
    pub fn disown(&mut self) {
        self.owned = false;
        self.wanted = false;
        self.disabling = false;
    }

    /// perf starts the event. Counting ends first, because there may be an AUX area now: after
    /// [`Action::End`] the caller calls [`Self::resume`].
    pub fn start(&mut self) -> Action {
        if !self.owned {
            return Action::None;
        }
        self.wanted = true;
        match self.phase {
            Phase::Tracing => Action::None,
            Phase::Counting => Action::End,
            Phase::Idle => self.begin_if_due(),
        }
    }

    /// perf stops the event.
    pub fn stop(&mut self) -> Action {
        self.wanted = false;
        self.end_if_active()
    }

    /// The CPU goes offline. perf's last request is kept.
    pub fn offline(&mut self) -> Action {
        self.online = false;
        self.end_if_active()
    }

    /// The CPU comes online, or its offline was rolled back.
    pub fn online(&mut self) -> Action {
        self.online = true;
        self.begin_if_due()
    }

    /// The driver requests a commit and a new transaction. After [`Action::End`] the caller calls
    /// [`Self::resume`].
    pub fn flush(&mut self) -> Action {
        match self.phase {
            Phase::Tracing => Action::End,
            Phase::Idle | Phase::Counting => Action::None,
        }
    }

    /// [`Action::Begin`] if a transaction is to begin again after an end.
    pub fn resume(&self) -> Action {
        self.begin_if_due()
    }

    /// Reports how a begin ended. The caller also reports when it has checked whether a counting
    /// event has an AUX area now: [`Begun::Traced`] if it has, [`Begun::Counted`] if not.
    pub fn began(&mut self, begun: Begun) {
        self.phase = match begun {
            Begun::Traced => Phase::Tracing,
            Begun::Counted => Phase::Counting,
            Begun::NoSpace => {
                self.disabling = true;
                Phase::Idle
            }
            Begun::Failed => Phase::Idle,
        };
    }

    /// Reports an end. `truncated`: perf has queued the disable of the event.
    pub fn ended(&mut self, truncated: bool) {
        self.phase = Phase::Idle;
        self.disabling |= truncated;
    }
}

#[cfg(test)]
mod tests;
