// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Man pages and completions have every command and every option that `--help` has.

#![allow(clippy::unwrap_used)]

use std::path::Path;

#[path = "../../auxview/tests/pages/described.rs"]
mod described;

#[test]
fn every_option_has_its_place() {
    let program = Path::new(env!("CARGO_BIN_EXE_auxrec"));
    described::every_option_has_its_place("auxrec", program, "record", 20);
}
