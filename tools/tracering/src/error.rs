// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What can go wrong, by its kind.

/// An error; its text is a sentence that says what was wrong and, where the user can mend it, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes of the buffer, or text of tracefs, that no kernel writes.
    #[error("{what}, byte {at}: {why}")]
    Malformed {
        /// What was read.
        what: &'static str,
        /// Where in it.
        at: usize,
        /// What is wrong there.
        why: String,
    },
    /// The kernel cannot map this buffer, or not now; reading it still works.
    #[error("{0}")]
    NoMapping(String),
    /// The instance is being removed: the kernel removes a copy of a buffer (`trace_instance=NAME=OTHER`) when all of it is read.
    #[error("{0}")]
    Gone(String),
    /// The system refuses.
    #[error("{0}")]
    Failed(String),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Something at a byte of what was read is wrong.
    pub(crate) fn malformed(what: &'static str, at: usize, why: impl Into<String>) -> Self {
        Self::Malformed {
            what,
            at,
            why: why.into(),
        }
    }

    /// The system refuses.
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }
}
