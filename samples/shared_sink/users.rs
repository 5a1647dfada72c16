// SPDX-License-Identifier: GPL-2.0

//! The session that uses the sink, and its sources: a state machine without side effects.
//!
//! ```text
//!          joined                joined, left
//!   NONE ─────────► collecting ◄──────────────┐
//!    ▲                 │    ▲ └────────────────┘
//!    │     left, by    │    │ emptied, if
//!    │     the last    ▼    │ others have joined
//!    └───────────── emptying
//!       emptied
//! ```

/// The session that uses the sink. It packs into one word, so that it can be replaced atomically.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Users {
    /// The session of the sources, if `count` is not 0.
    session: u32,
    /// Number of started sources, including one that empties the sink.
    count: u16,
    /// Whether the last source to stop is emptying the sink. The sink accepts no frames meanwhile.
    emptying: bool,
}

impl Users {
    /// No source has started.
    pub(crate) const NONE: Self = Self {
        session: 0,
        count: 0,
        emptying: false,
    };

    /// Whether exactly one source is started, and it is not emptying the sink.
    pub(crate) fn is_one(self) -> bool {
        self.count == 1 && !self.emptying
    }

    /// Whether the last source to stop is emptying the sink.
    pub(crate) fn is_emptying(self) -> bool {
        self.emptying
    }

    /// The state after a source starts; [`None`] if another session uses the sink.
    pub(crate) fn joined(self, session: u32) -> Option<Self> {
        if self.count != 0 && self.session != session {
            return None;
        }
        Some(Self {
            session,
            count: self.count.checked_add(1)?,
            ..self
        })
    }

    /// The state after a source stops. The last one stays, to empty the sink.
    pub(crate) fn left(self) -> Self {
        if self.is_one() {
            return Self {
                emptying: true,
                ..self
            };
        }
        Self {
            count: self.count.saturating_sub(1),
            ..self
        }
    }

    /// The state after the last source to stop has emptied the sink.
    pub(crate) fn emptied(self) -> Self {
        match self.count.saturating_sub(1) {
            0 => Self::NONE,
            count => Self {
                count,
                emptying: false,
                ..self
            },
        }
    }
}

impl From<Users> for u64 {
    fn from(users: Users) -> u64 {
        u64::from(users.session) << 32 | u64::from(users.emptying) << 16 | u64::from(users.count)
    }
}

impl From<u64> for Users {
    fn from(word: u64) -> Self {
        let [low, high, emptying, _, a, b, c, d] = word.to_le_bytes();

        Self {
            session: u32::from_le_bytes([a, b, c, d]),
            count: u16::from_le_bytes([low, high]),
            emptying: emptying != 0,
        }
    }
}
