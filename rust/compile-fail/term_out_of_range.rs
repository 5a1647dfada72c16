// SPDX-License-Identifier: GPL-2.0

//! A term of bits that a word does not have.
//!
//! error: bits are 0 to 63, the lower first

perf::format! {
    /// The terms.
    pub struct Config {
        /// Too high.
        high: config[60..=64],
    }
}
