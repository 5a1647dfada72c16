// SPDX-License-Identifier: GPL-2.0

//! Positions that are compared: they wrap, so that only distances mean something.
//!
//! error: binary operation `<` cannot be applied to type `Pos`

use auxcore::ring::Pos;

/// Whether `a` comes before `b`, until the counter wraps.
pub fn before(a: Pos, b: Pos) -> bool {
    a < b
}
