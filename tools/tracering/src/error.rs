// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The errors of this crate, by kind.

/// An error. Its text says what was wrong and, if the user can correct that, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The buffer, or a text of tracefs, has a value that no kernel writes.
    #[error("{what}, byte {at}: {why}")]
    Malformed {
        /// The structure or file that was read.
        what: &'static str,
        /// The offset in it, in bytes.
        at: usize,
        /// The reason.
        why: String,
    },
    /// The kernel cannot map this buffer, or cannot map it now. The buffer can still be read.
    #[error("{0}")]
    NoMapping(String),
    /// The kernel is removing the instance. It removes a copy of a buffer (`trace_instance=NAME=OTHER`) when all of the copy is read.
    #[error("{0}")]
    Gone(String),
    /// A system call failed, or a request cannot be met.
    #[error("{0}")]
    Failed(String),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A [`Malformed`](Self::Malformed) error at byte `at` of `what`.
    pub(crate) fn malformed(what: &'static str, at: usize, why: impl Into<String>) -> Self {
        Self::Malformed {
            what,
            at,
            why: why.into(),
        }
    }

    /// A [`Failed`](Self::Failed) error.
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }
}
