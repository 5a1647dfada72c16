// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What can be wrong with a file.

/// Says which field is wrong, and where in the file it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file, section or record ends inside this field.
    #[error("{field} at file offset {offset:#x} needs {need} bytes and only {have} are there")]
    Short {
        /// The field that was being read.
        field: &'static str,
        /// Where it begins in the file.
        offset: u64,
        /// Its length.
        need: u64,
        /// What is there of it.
        have: u64,
    },
    /// The field's value cannot be.
    #[error("{field} at file offset {offset:#x} is {value:#x}: {why}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Where it is in the file.
        offset: u64,
        /// What it says.
        value: u64,
        /// Why that cannot be.
        why: &'static str,
    },
    /// Something that no perf.data file can hold was to be written.
    #[error("{what} cannot be written to a perf.data file: {why}")]
    Unwritable {
        /// What was to be written.
        what: &'static str,
        /// Why it cannot be.
        why: &'static str,
    },
    /// The input refused.
    #[error("reading failed at file offset {offset:#x}: {reason}")]
    Input {
        /// Where.
        offset: u64,
        /// What the input said.
        reason: std::io::Error,
    },
    /// The output refused.
    #[error("writing failed at file offset {offset:#x}: {reason}")]
    Output {
        /// How far the file had got.
        offset: u64,
        /// What the output said.
        reason: std::io::Error,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
