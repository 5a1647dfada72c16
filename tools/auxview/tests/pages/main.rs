// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Man pages and completions have every command and every option that `--help` has.

#![allow(clippy::unwrap_used)]

use std::path::Path;

mod described;

#[test]
fn every_option_has_its_place() {
    let program = Path::new(env!("CARGO_BIN_EXE_auxview"));
    described::every_option_has_its_place("auxview", program, "check", 8);
}
