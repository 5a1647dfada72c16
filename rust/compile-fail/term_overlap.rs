// SPDX-License-Identifier: GPL-2.0

//! Two terms that share a bit.
//!
//! error: two terms share a bit

perf::format! {
    /// The terms.
    pub struct Config {
        /// Low.
        low: config[0..=8],
        /// High, from the last bit of the low one on.
        high: config[8..=15],
    }
}
