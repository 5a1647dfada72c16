// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What `record` says, for programs. The names of the fields are listed in `Documentation/recorder.md`, and stay; new ones may be
//! added.

use auxview::json::{lost, ring, VERSION};
use serde_json::{json, Value};

use crate::record::Outcome;

/// How a recording went.
#[must_use]
pub fn outcome(outcome: &Outcome) -> Value {
    let total = outcome.total();
    let rings = outcome
        .rings
        .iter()
        .map(|(name, loss, wraps)| ring(name, loss, *wraps));
    json!({
        "version": VERSION,
        "bytes": total.read,
        "file_bytes": outcome.file,
        "files": outcome.files,
        "snapshots": outcome.snapshots.map(|(times, blind)| {
            json!({ "times": times, "blind_ns": { "max": blind.max, "sum": blind.sum } })
        }),
        "wakeups": outcome.wakeups,
        "events": total.events,
        "queue": outcome.queue.map(|queue| {
            json!({ "most_bytes": queue.most, "bound_bytes": queue.bound })
        }),
        "status": outcome.status,
        "lost": lost(&total),
        "rings": rings.collect::<Vec<_>>(),
    })
}
