// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Terms of events that write Intel PT: their defaults, and the values that a unit supports.

use super::{EventSpec, Pmu};
use crate::error::{Error, Result};

/// The PMU of Intel's own driver.
const HARDWARE: &str = "intel_pt";
/// The exponent that perf takes for `mtc_period` and `psb_period` if the unit supports it.
const PERIOD: u32 = 3;

/// The terms that an event has unless the user sets them. Without time stamps a decoder cannot match the trace with changing mappings.
/// Without `pt` the bit of `branch` has no meaning. The processor's own unit also gets the terms of perf's `intel_pt_default_config()`.
pub(super) fn default_terms(pmu: &Pmu) -> String {
    let mut terms = "tsc,pt,branch".to_owned();
    if pmu.name != HARDWARE {
        return terms;
    }
    let is_on = |name: &str| pmu.caps.get(name).is_none_or(|text| text != "0");
    let periods = |name: &str| {
        let text = pmu.caps.get(name)?;
        nearest(u32::from_str_radix(text, 16).ok()?)
    };
    if let Some(period) = periods("mtc_periods").filter(|_| is_on("mtc")) {
        terms += &format!(",mtc,mtc_period={period}");
        if let Some(period) = periods("psb_periods").filter(|_| is_on("psb_cyc")) {
            terms += &format!(",psb_period={period}");
        }
    }
    terms
}

/// The number of the highest set bit up to [`PERIOD`]; if there is none, of the lowest set bit.
fn nearest(bits: u32) -> Option<u32> {
    let all = || (0..u32::BITS).filter(|bit| bits >> bit & 1 == 1);
    all()
        .take_while(|bit| *bit <= PERIOD)
        .last()
        .or_else(|| all().next())
}

/// Terms with a limited set of values: the term, the file of `caps/` with a bit for each value, and the file that says whether there are
/// any.
const VALUES: [(&str, &str, &str); 3] = [
    ("mtc_period", "mtc_periods", "mtc"),
    ("cyc_thresh", "cycle_thresholds", "psb_cyc"),
    ("psb_period", "psb_periods", "psb_cyc"),
];

/// Checks that the unit supports the values of an event's terms, as perf's `intel_pt_validate_config()` does. 0 is always valid.
///
/// # Errors
/// If a value is not supported. The error lists the valid values.
pub(super) fn validate(event: &EventSpec) -> Result<()> {
    let pmu = &event.pmu;
    let hex = |name: &str| u64::from_str_radix(pmu.caps.get(name)?, 16).ok();
    for (name, values, flag) in VALUES {
        if !pmu.terms.contains_key(name) {
            continue;
        }
        let has_any = pmu.caps.get(flag).is_some_and(|text| text != "0");
        let valid = hex(values).filter(|_| has_any).unwrap_or(0) | 1;
        let value = event.value(name);
        let is_valid = u32::try_from(value)
            .ok()
            .and_then(|value| valid.checked_shr(value))
            .is_some_and(|valid| valid & 1 == 1);
        if !is_valid {
            return Err(Error::usage(format!(
                "invalid {name} {value} for {}; valid values are: {}",
                pmu.name,
                list(valid)
            )));
        }
    }
    Ok(())
}

/// The numbers of the bits that are set, such as `0-3,6`.
fn list(bits: u64) -> String {
    let is_set = |bit: &u32| bits >> bit & 1 == 1;
    let numbers: Vec<u32> = (0..u64::BITS).filter(is_set).collect();
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let runs: Vec<_> = runs
        .filter_map(|run| match (run.first()?, run.last()?) {
            (first, last) if first == last => Some(first.to_string()),
            (first, last) => Some(format!("{first}-{last}")),
        })
        .collect();
    runs.join(",")
}
