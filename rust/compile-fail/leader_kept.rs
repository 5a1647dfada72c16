// SPDX-License-Identifier: GPL-2.0

//! State of a group's leader, kept for longer than the `event_init()` in which it was found.
//!
//! error: lifetime `'a` required

use perf::{
    interrupt::Entry,
    Attr,
    AuxPmu, //
};

/// Keeps the leader's state.
pub fn keep<'a, L: AuxPmu, C: perf::format::Config>(
    attr: &Attr<'a, C>,
    leader: &'a Entry<L>,
) -> Option<&'a L::Event> {
    attr.leader(leader)
}
