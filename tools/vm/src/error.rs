// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What can go wrong, each in a sentence that says what to do.

use std::path::{Path, PathBuf};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be used.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    File {
        /// What was tried: "read", "write" and the like.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A command ended badly.
    #[error("{what} failed: {why}. The log is {log}.", log = log.display())]
    Step {
        /// What it was to do.
        what: String,
        /// The cause and the remedy, as far as the log tells.
        why: String,
        /// All that the command said.
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
    /// Anything that a sentence says best.
    #[error("{0}")]
    Other(String),
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the file to an I/O error.
pub trait OnFile<T> {
    /// What was tried, and with which file.
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
