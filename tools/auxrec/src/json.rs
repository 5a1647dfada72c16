// SPDX-License-Identifier: GPL-2.0 OR MIT

//! JSON output of `record` and `doctor`, for programs. `Documentation/recorder-options.md` lists the names of the fields. These names do
//! not change; new fields may be added.

use auxview::json::{lost, ring, VERSION};
use serde_json::{json, Value};

use crate::doctor::{Area, Report};
use crate::record::Outcome;

/// The result of a recording.
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
        "trigger_hits": outcome.hits,
        "wakeups": outcome.wakeups,
        "events": total.events,
        "queue": outcome.queue.map(|queue| {
            json!({ "most_bytes": queue.max, "bound_bytes": queue.bound })
        }),
        "status": outcome.status,
        "lost": lost(&total),
        "rings": rings.collect::<Vec<_>>(),
    })
}

/// What can be recorded on this machine, and what prevents the rest.
#[must_use]
pub fn doctor(report: &Report) -> Value {
    let pmus = report.units.iter().map(|unit| {
        let ways = unit.rehearsals.iter().map(|found| {
            json!({ "arguments": found.way.arguments(&unit.name), "works": found.error.is_none(), "error": found.error })
        });
        json!({
            "name": unit.name,
            // Null means unknown.
            "aux": (unit.area == Area::Some).then_some(true),
            "ways": ways.collect::<Vec<_>>(),
        })
    });
    let findings = report.findings.iter().map(|finding| {
        json!({
            "name": finding.name,
            "is": finding.is,
            "prevents": finding.prevents,
            "remedy": finding.remedy,
        })
    });
    json!({
        "version": VERSION,
        "works": report.can_record(),
        "pmus": pmus.collect::<Vec<_>>(),
        "findings": findings.collect::<Vec<_>>(),
    })
}
