// SPDX-License-Identifier: GPL-2.0

//! A session that is kept beyond the callback.
//!
//! error: explicit lifetime required in the type of `session`

use perf::{
    aux::Session,
    Pmu, //
};

/// Keeps a session where it outlives the callback.
pub fn keep<'a, T: Pmu>(kept: &mut Option<&'a mut Session<'a, T>>, session: &mut Session<'_, T>) {
    *kept = Some(session);
}
