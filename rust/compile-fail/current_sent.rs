// SPDX-License-Identifier: GPL-2.0

//! A current task that is sent to another task.
//!
//! error: cannot be sent between threads safely

use stepping::Current;

fn send<T: Send>(_: T) {}

/// Sends the task.
pub fn current(task: Current<'_>) {
    send(task);
}
