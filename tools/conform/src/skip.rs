// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases that do not apply to a PMU or a machine.

use std::fmt;

use anyhow::Error;

/// Why a case does not apply to this PMU or this machine.
#[derive(Debug)]
pub struct Skip(String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// The error of a case that does not apply.
pub fn skip(why: impl Into<String>) -> Error {
    Skip(why.into()).into()
}
