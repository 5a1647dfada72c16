// SPDX-License-Identifier: GPL-2.0

//! A term whose first bit comes after its last one.
//!
//! error: bits are 0 to 63, the lower first

perf::format! {
    /// The terms.
    pub struct Config {
        /// Turned round.
        turned: config[8..=0],
    }
}
