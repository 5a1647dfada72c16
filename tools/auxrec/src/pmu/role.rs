// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The roles of events in a recording.

use super::EventSpec;
use crate::error::{Error, Result};

/// The role of an event in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The event writes trace into rings of its own.
    Aux,
    /// The event is in the group of the event of this number, which writes trace.
    Member(usize),
    /// Its records go into the rings of the event of this number.
    Other(usize),
}

/// Finds the role of each event. `aux_sample` is the default length of the trace in samples.
///
/// # Errors
/// If no event writes trace, or one that does is not the first of its group.
pub fn arrange(
    groups: Vec<Vec<EventSpec>>,
    aux_sample: Option<u32>,
) -> Result<Vec<(EventSpec, Role)>> {
    let first = {
        let mut all = groups.iter().flatten();
        all.position(|event| event.aux).ok_or_else(|| {
            Error::usage(
                "none of these events writes trace: give one of a PMU with an AUX area, as pmu//",
            )
        })?
    };
    let mut out: Vec<(EventSpec, Role)> = Vec::new();
    let mut last = first;
    for group in groups {
        let leader = out.len();
        let alone = group.len() == 1;
        for (n, mut event) in group.into_iter().enumerate() {
            let role = match (event.aux, n, alone) {
                (true, 0, _) => {
                    last = leader;
                    Role::Aux
                }
                (true, ..) | (false, 0, false) => {
                    return Err(Error::usage(format!(
                    "`{}`: a group begins with the event that writes trace, and has no other such",
                    event.text
                )))
                }
                (false, _, false) => Role::Member(leader),
                // An event that samples or controls trace must be in a group with the event that writes it.
                (false, _, true)
                    if event.action.is_some() || event.aux_sample.or(aux_sample).is_some() =>
                {
                    Role::Member(last)
                }
                (false, _, true) => Role::Other(first),
            };
            if let (Role::Member(_), None) = (role, event.action) {
                event.aux_sample = event.aux_sample.or(aux_sample);
            }
            out.push((event, role));
        }
    }
    if aux_sample.is_some() && out.iter().all(|(event, _)| event.aux_sample.is_none()) {
        return Err(Error::usage(
            "--aux-sample puts trace into samples of another event: give one, such as -e cpu-clock:u",
        ));
    }
    Ok(out)
}
