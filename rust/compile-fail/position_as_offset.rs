// SPDX-License-Identifier: GPL-2.0

//! A position that is used as an offset in the ring.
//!
//! error: the type `[u8]` cannot be indexed by

use perf::aux::Region;

/// The byte at the head, in a copy of the ring.
pub fn at_head(region: &Region, copy: &[u8]) -> u8 {
    copy[region.head()]
}
