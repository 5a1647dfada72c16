// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Errors of reading and writing a file.

/// Names the invalid field, or the failed operation, and the file offset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file, section or record ends inside this field.
    #[error("{field} at file offset {offset:#x} needs {need} bytes and only {have} are there")]
    Short {
        /// The field that was being read.
        field: &'static str,
        /// File offset of its beginning.
        offset: u64,
        /// Its length.
        need: u64,
        /// Number of its bytes that are there.
        have: u64,
    },
    /// The value of the field is invalid.
    #[error("{field} at file offset {offset:#x} is {value:#x}: {why}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// File offset of the field.
        offset: u64,
        /// Its value.
        value: u64,
        /// Why the value is invalid.
        why: &'static str,
    },
    /// The caller tried to write something that a perf.data file cannot hold.
    #[error("{what} cannot be written to a perf.data file: {why}")]
    Unwritable {
        /// What the caller tried to write.
        what: &'static str,
        /// Why it cannot be.
        why: &'static str,
    },
    /// Reading the input failed.
    #[error("reading failed at file offset {offset:#x}: {reason}")]
    Input {
        /// File offset of the read.
        offset: u64,
        /// Error of the input.
        reason: std::io::Error,
    },
    /// Writing the output failed.
    #[error("writing failed at file offset {offset:#x}: {reason}")]
    Output {
        /// File offset of the write.
        offset: u64,
        /// Error of the output.
        reason: std::io::Error,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
