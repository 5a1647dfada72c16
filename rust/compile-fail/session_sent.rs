// SPDX-License-Identifier: GPL-2.0

//! A session that is sent to another thread.
//!
//! error: cannot be sent between threads safely

use perf::{
    aux::Session,
    Pmu, //
};

fn send(_what: impl Send) {}

/// Sends a session away, to another CPU perhaps.
pub fn away<T: Pmu>(session: &mut Session<'_, T>) {
    send(session);
}
