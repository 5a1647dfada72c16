// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The errors of this crate, each with a message for the user.

use std::path::{Path, PathBuf};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be used.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    File {
        /// The operation that failed: "read", "write" and the like.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A command failed.
    #[error("{what} failed: {why}. The log is {log}.", log = log.display())]
    Step {
        /// The step that the command was to perform.
        what: String,
        /// The cause and the remedy, as far as the log shows them.
        why: String,
        /// The file with the command's output.
        log: PathBuf,
    },
    /// A command could not be started.
    #[error("cannot run {program}: {source}; run this through tools/vm/root.sh, which has all that is needed")]
    Spawn {
        /// The command's name.
        program: String,
        /// The reason.
        source: std::io::Error,
    },
    /// Any other error, as a complete message.
    #[error("{0}")]
    Other(String),
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the file to an I/O error.
pub trait OnFile<T> {
    /// Turns an I/O error into [`Error::File`]. `what` is the operation that was tried on the file `path`.
    ///
    /// # Errors
    ///
    /// The same error, with the file's name.
    fn on(self, what: &'static str, path: &Path) -> Result<T>;
}

impl<T> OnFile<T> for std::io::Result<T> {
    fn on(self, what: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::File {
            what,
            path: path.to_owned(),
            source,
        })
    }
}
