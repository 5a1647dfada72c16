// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What can go wrong, in two kinds: what was asked for is wrong, or it cannot be done.

/// An error; its text is a sentence that says what was wrong and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for makes no sense: another command line would.
    #[error("{0}")]
    Usage(String),
    /// It cannot be done: the system refuses.
    #[error("{0}")]
    Failed(String),
    /// The disk reported an error: how much of a file is on it is not known.
    #[error("{0}")]
    Disk(String),
    /// A perf.data file is not what it should be, or cannot be written.
    #[error(transparent)]
    File(#[from] perfdata::Error),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What was asked for makes no sense.
    #[must_use]
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// It cannot be done.
    #[must_use]
    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    /// Whether the output had no room left.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::File(perfdata::Error::Output { reason, .. }) => matches!(
                reason.kind(),
                std::io::ErrorKind::StorageFull
                    | std::io::ErrorKind::QuotaExceeded
                    | std::io::ErrorKind::FileTooLarge
            ),
            _ => false,
        }
    }
}
