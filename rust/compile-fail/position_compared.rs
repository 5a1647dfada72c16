// SPDX-License-Identifier: GPL-2.0

//! Positions that are compared. They wrap, so only their distances have a meaning.
//!
//! error: binary operation `<` cannot be applied to type `Pos`

use auxcore::ring::Pos;

/// Whether `a` comes before `b`. False results once the counter wraps.
pub fn before(a: Pos, b: Pos) -> bool {
    a < b
}
