// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The output of `check` and `report` as JSON. `Documentation/recorder-options.md` lists the fields. Their names do not change; new fields
//! may be added.

use serde_json::{json, Value};

use crate::check::Findings;
use crate::error::Result;
use crate::loss::Loss;
use crate::source::Source;
use crate::trace::Trace;

/// Version of the output. It changes when a field changes its meaning or is removed.
pub const VERSION: u32 = 2;

/// Losses by cause.
#[must_use]
pub fn lost(loss: &Loss) -> Value {
    json!({
        "any": loss.any(),
        "truncated": { "times": loss.truncated, "ns": loss.untraced },
        "full": { "times": loss.full },
        "partial": { "times": loss.partial },
        "collision": { "times": loss.collision },
        "records": { "times": loss.records_lost },
        "offline": { "ns": loss.offline },
        "events": { "times": loss.events_lost },
        "skipped": { "times": loss.jumps, "bytes": loss.jumped },
    })
}

/// The fields of a ring.
#[must_use]
pub fn ring(name: &str, loss: &Loss, wraps: u64) -> Value {
    json!({
        "name": name,
        "bytes": loss.read,
        "aux_records": loss.records,
        "events": loss.events,
        "wraps": wraps,
        "lost": lost(loss),
    })
}

/// The findings of `check`.
#[must_use]
pub fn findings(findings: &Findings) -> Value {
    let total = findings.total();
    let rings = findings.rings.iter().map(|ring| {
        json!({
            "name": ring.name,
            "bytes": ring.loss.read,
            "aux_records": ring.loss.records,
            "events": ring.loss.events,
            "lost": lost(&ring.loss),
            "unreported": ring.unreported,
        })
    });
    json!({
        "version": VERSION,
        "records": findings.records,
        "bytes": total.read,
        "events": total.events,
        "wraps": findings.wraps,
        "recovered": findings.recovered,
        "problems": *findings.problems,
        "more_problems": findings.problems.more(),
        "lost": lost(&total),
        "rings": rings.collect::<Vec<_>>(),
    })
}

/// The summary of `report`, without the AUX records.
///
/// # Errors
/// If it is no perf.data file, or it cannot be read.
pub fn report<S: Source + ?Sized>(file: &S) -> Result<Value> {
    let trace = Trace::read(file)?;
    let rings = trace.rings.values().map(|of| {
        let wraps = trace
            .aux_size
            .map_or(0, |size| crate::check::wraps(of, size));
        let mut value = ring(&of.name(), &of.loss, wraps);
        value["cpu"] = json!(of.cpu);
        value["thread"] = json!(of.thread);
        let times = of.records.iter().map(|record| record.time);
        value["first_ns"] = json!(times.clone().min());
        value["last_ns"] = json!(times.max());
        let counters = of.counts.iter().map(|count| {
            json!({
                "id": count.id,
                "value": count.value,
                "enabled_ns": count.enabled,
                "running_ns": count.running,
            })
        });
        value["counters"] = counters.collect();
        value
    });
    let all = trace.rings.values().map(|ring| ring.loss);
    let all = all.chain(trace.tracefs.values().map(|of| of.loss));
    let total = all.fold(Loss::default(), Loss::plus);
    Ok(json!({
        "version": VERSION,
        "event": trace.event,
        "pmu": trace.pmu,
        "bytes": total.read,
        "events": total.events,
        "recovered": trace.recovered,
        "problems": *trace.problems,
        "more_problems": trace.problems.more(),
        "lost": lost(&total),
        "rings": rings.collect::<Vec<_>>(),
    }))
}
