// SPDX-License-Identifier: GPL-2.0

//! A writer that is kept beyond the callback.
//!
//! error: lifetime may not live long enough

use perf::{
    aux::{
        Session,
        Writer, //
    },
    Pmu, //
};

/// Keeps a writer to a window that will be gone.
pub fn keep<T: Pmu>(session: &mut Session<'_, T>) -> Option<Writer<'static>> {
    session.window.reserve(8).ok()
}
