// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How commands end: what they print, and their exit status.

use std::io::Write as _;

use anyhow::Context as _;

use crate::error::Error;

/// Finished, and everything was recorded.
pub const ALL: u8 = 0;
/// An error.
pub const FAILED: u8 = 1;
/// The command line is invalid.
pub const USAGE: u8 = 2;
/// Finished, and trace was lost.
pub const LOST: u8 = 3;

/// The exit status of an error.
#[must_use]
pub fn failed(e: &anyhow::Error) -> u8 {
    if matches!(e.downcast_ref(), Some(Error::Usage(_))) {
        USAGE
    } else {
        FAILED
    }
}

/// Formats JSON with line breaks and indentation.
#[must_use]
pub fn pretty(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

/// Writes to standard output. A reader that closes the pipe early is no error.
///
/// # Errors
/// If it cannot be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(e).context("cannot write the output")
        }
        _ => Ok(()),
    }
}
