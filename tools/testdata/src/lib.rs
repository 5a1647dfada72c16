// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings and programs for tests, of which every byte is known. Only tests use this crate.

#![deny(missing_docs)]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot make its data has failed"
)]

pub mod pattern;
pub mod program;
pub mod recording;
