// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Parses lists of events, groups, and single events, as the user gives them.

use super::{intel_pt, EventSpec, Format, Pmus, Rate};
use crate::error::{Error, Result};

/// PMUs of perf's core and of the CPU. They write no trace.
const WITHOUT_AUX: [&str; 6] = [
    "software",
    "tracepoint",
    "breakpoint",
    "kprobe",
    "uprobe",
    "cpu",
];

/// Number of operations between two samples of Arm SPE, if its driver does not show the minimum. As in perf.
const SPE_INTERVAL: u64 = 4096;

impl Pmus {
    /// Whether the PMU of this name is one that never writes trace.
    pub(crate) fn is_without_aux(name: &str) -> bool {
        WITHOUT_AUX.contains(&name)
    }

    /// Parses a list of events in the form `pmu/term=value,…/modifiers` or `name[:modifiers]`, and of
    /// groups `{event,event}[:modifiers]`. Each group is an item, and each event outside of one.
    ///
    /// # Errors
    /// If a part of the list is wrong. The error lists the names that exist.
    pub fn events(&self, text: &str) -> Result<Vec<Vec<EventSpec>>> {
        let bad = |why: &str| Error::usage(format!("`{text}` is no list of events: {why}"));
        split(text)
            .ok_or_else(|| bad("its braces and slashes do not match"))?
            .into_iter()
            .map(|item| {
                let Some(rest) = item.strip_prefix('{') else {
                    return Ok(vec![self.event(item)?]);
                };
                let (inside, after) = rest
                    .rsplit_once('}')
                    .ok_or_else(|| bad("a group ends with `}`"))?;
                let modifiers = match after.strip_prefix(':') {
                    Some(modifiers) => modifiers,
                    None if after.is_empty() => "",
                    None => return Err(bad("after a group comes a comma, or `:` and modifiers")),
                };
                let members = split(inside).ok_or_else(|| bad("a group has no groups in it"))?;
                members
                    .into_iter()
                    .map(|member| {
                        let mut event = self.event(member)?;
                        event.modifiers(modifiers)?;
                        Ok(event)
                    })
                    .collect()
            })
            .collect()
    }

    /// Parses an event in the form `pmu/term=value,…/modifiers` or `name[:modifiers]`.
    ///
    /// # Errors
    /// If a part of the event is wrong. The error lists the names that exist.
    pub fn event(&self, text: &str) -> Result<EventSpec> {
        let mut parts = text.split('/');
        let (name, terms, modifiers) =
            match (parts.next(), parts.next(), parts.next(), parts.next()) {
                (Some(name), Some(terms), modifiers, None) => {
                    (name, terms, modifiers.unwrap_or(""))
                }
                (Some(name), None, None, None) => {
                    let (name, modifiers) = Self::without_slashes(name);
                    (name, "", modifiers)
                }
                _ => ("", "", ""),
            };
        let mut spec = if self.names().iter().any(|known| known == name) && text.contains('/') {
            EventSpec {
                aux: !Self::is_without_aux(name),
                ..EventSpec::new(text, self.get(name)?)
            }
        } else if let Some(event) = Self::symbol(text, name) {
            event
        } else if text.contains('/') && !name.is_empty() && !name.contains(':') {
            EventSpec::new(text, self.get(name)?)
        } else {
            return Err(Error::usage(format!(
                "`{text}` is not an event of the form `pmu/term=value,…/modifiers`, such as `pattern/rate=1024/u`, nor one that is \
                 known by its name, such as `cpu-clock:u` or `sched:sched_switch`"
            )));
        };
        match spec.pmu.format() {
            Some(Format::IntelPt) => spec.terms(&intel_pt::default_terms(&spec.pmu), false)?,
            // This is also perf's default.
            Some(Format::ArmSpe) => {
                let least = spec.pmu.caps.get("min_interval");
                let least = least.and_then(|text| text.parse().ok());
                spec.rate = Rate::Period(least.unwrap_or(SPE_INTERVAL));
            }
            _ => {}
        }
        spec.terms(terms, true)?;
        spec.modifiers(modifiers)?;
        if spec.pmu.writes_intel_pt() {
            intel_pt::validate(&spec)?;
        }
        Ok(spec)
    }
}

/// Splits a list at the commas outside of slashes and braces; [`None`] if these do not match.
fn split(text: &str) -> Option<Vec<&str>> {
    let mut out = Vec::new();
    let (mut from, mut slash, mut brace) = (0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            '/' => slash = !slash,
            '{' if !slash && !brace => brace = true,
            '}' if !slash && brace => brace = false,
            '{' | '}' if !slash => return None,
            ',' if !slash && !brace => {
                out.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    out.push(&text[from..]);
    (!slash && !brace).then_some(out)
}
