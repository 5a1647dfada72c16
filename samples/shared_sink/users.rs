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

/// The session that uses the sink. Packed into a word, so that it changes at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Users {
    /// Whose sources they are, if there are any.
    session: u32,
    /// The sources that have started and not stopped. One that empties the sink is among them.
    count: u16,
    /// The last source to stop empties the sink, which takes nothing meanwhile.
    emptying: bool,
}

impl Users {
    /// No source has started.
    pub(crate) const NONE: Self = Self {
        session: 0,
        count: 0,
        emptying: false,
    };

    /// Whether there is one user, which does not empty the sink yet.
    pub(crate) fn is_one(self) -> bool {
        self.count == 1 && !self.emptying
    }

    /// Whether the last user empties the sink.
    pub(crate) fn is_emptying(self) -> bool {
        self.emptying
    }

    /// A source starts; [`None`] if the sink is another session's.
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

    /// A source stops. The last one empties the sink first.
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

    /// The one that emptied the sink has done so.
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
