// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The errors of this crate.

/// An error. Its text names the failure, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request is invalid: the user has to change the command line.
    #[error("{0}")]
    Usage(String),
    /// The operation failed.
    #[error("{0}")]
    Failed(String),
    /// The disk reported an error. It is unknown how much of a file is on it.
    #[error("{0}")]
    Disk(String),
    /// A perf.data file is invalid, or cannot be read or written.
    #[error(transparent)]
    File(#[from] perfdata::Error),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an [`Error::Usage`].
    #[must_use]
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// Creates an [`Error::Failed`].
    #[must_use]
    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    /// Whether the output had no space left.
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
