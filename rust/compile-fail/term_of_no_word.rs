// SPDX-License-Identifier: GPL-2.0

//! A term in a word that an attr does not have.
//!
//! error: terms live in config, config1, config2 or config3

perf::format! {
    /// The terms.
    pub struct Config {
        /// A term without a word.
        lost: config4[0],
    }
}
