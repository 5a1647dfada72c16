// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the state of one CPU does next: when a transaction is begun, and when it is ended.
//!
//! [`Lifecycle`] is the state machine of the framework's per-CPU state, without the state: it knows
//! neither perf nor a driver. A caller reports an input, carries out the [`Action`] that it gets,
//! and reports the outcome by [`Lifecycle::began`] or [`Lifecycle::ended`].
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
//! - `wanted` is what perf has asked for last: `start` or `stop`. It outlives an offline CPU, so
//!   that an offline that is rolled back begins again.
//! - `disabling` is set when perf has queued the disable of the event (the AUX area was full, or
//!   the transaction ended as truncated). Nothing is begun from then on until `del`.

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
    /// It failed otherwise.
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

    /// perf adds an event, and starts it if `start` is set; [`None`] if another event owns the unit.
    ///
    /// An event that cannot be begun because the CPU is offline is not refused here: the caller
    /// sees [`Action::None`] and asks [`Self::is_online`].
    pub fn add(&mut self, start: bool) -> Option<Action> {
        if self.owned {
            return None;
        }
        self.owned = true;
        self.wanted = start;
        self.disabling = false;
        Some(self.begin_if_due())
    }

    /// perf deletes the event: the caller ends what is active, then calls [`Self::disown`].
    pub fn del(&mut self) -> Action {
        self.wanted = false;
        self.end_if_active()
    }

    /// No event owns the unit any more. Nothing is active.
    pub fn disown(&mut self) {
        self.owned = false;
        self.wanted = false;
        self.disabling = false;
    }

    /// perf starts the event. Counting is ended first: there may be an AUX area now. So
    /// [`Action::End`] is followed by [`Self::resume`].
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

    /// The CPU goes offline. What perf wants stays as it is.
    pub fn offline(&mut self) -> Action {
        self.online = false;
        self.end_if_active()
    }

    /// The CPU comes online, or its offline was rolled back.
    pub fn online(&mut self) -> Action {
        self.online = true;
        self.begin_if_due()
    }

    /// The driver wants a commit and a new transaction. [`Action::End`] is followed by
    /// [`Self::resume`].
    pub fn flush(&mut self) -> Action {
        match self.phase {
            Phase::Tracing => Action::End,
            Phase::Idle | Phase::Counting => Action::None,
        }
    }

    /// Whether to begin again after an end.
    pub fn resume(&self) -> Action {
        self.begin_if_due()
    }

    /// Reports how a begin ended. Also for a counting event whose caller looked for an AUX area and
    /// found one ([`Begun::Traced`]) or none ([`Begun::Counted`]).
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

    /// Reports an end; `truncated` if perf has queued the disable of the event with it.
    pub fn ended(&mut self, truncated: bool) {
        self.phase = Phase::Idle;
        self.disabling |= truncated;
    }
}

#[cfg(test)]
mod tests;
