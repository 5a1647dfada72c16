// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `list` and `doctor`: what can be recorded on this machine, and what prevents the rest.
//!
//! There are two sources. A [rehearsal](Rehearsal) opens and maps what a recording would, and returns the error of the recorder itself. A
//! [`Host`] has what files of the kernel show; each [`Finding`] is derived from it alone.

use std::fmt::{self, Display, Write as _};

use crate::error::{one_of, Result};
use crate::pmu::{Pmu, Pmus};
use crate::target::online_cpus;

mod finding;
mod host;
mod rehearsal;
#[cfg(test)]
mod tests;

pub use finding::Finding;
pub use host::{Host, Lockdown, Processor};
pub use rehearsal::{Area, Rehearsal, Way};

/// A PMU, whether it has an AUX area, and how it can be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The name of the PMU.
    pub name: String,
    /// Whether it has an AUX area.
    pub area: Area,
    /// The ways to record it, each rehearsed. None if the PMU has no AUX area.
    pub rehearsals: Vec<Rehearsal>,
}

impl Unit {
    fn examine(pmu: &Pmu, ways: &[Way]) -> Self {
        let area = rehearsal::area(pmu);
        let ways = match &area {
            Area::None | Area::Unknown { denied: false, .. } => &[],
            Area::Some | Area::Unknown { denied: true, .. } => ways,
        };
        Self {
            name: pmu.name.clone(),
            rehearsals: ways.iter().map(|way| way.rehearse(&pmu.name)).collect(),
            area,
        }
    }

    fn works(&self) -> Option<&Rehearsal> {
        self.rehearsals.iter().find(|found| found.error.is_none())
    }
}

/// The PMUs with their terms, whether each has an AUX area, and what keeps this process from it.
///
/// # Errors
/// If the list of online CPUs cannot be read.
pub fn list() -> Result<String> {
    let pmus = Pmus::default();
    let mut text = String::new();
    for name in pmus.names() {
        let Ok(pmu) = pmus.get(&name) else { continue };
        let unit = Unit::examine(&pmu, &Way::one_ring(&pmu, &online_cpus()?));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name} (type {}): {}", pmu.kind, Line(&unit));
        for (term, field) in &pmu.terms {
            let _ = writeln!(text, "  {name}/{term}=0..{}/", field.max());
        }
        for (event, terms) in &pmu.events {
            let _ = writeln!(text, "  {name}/{event}/ is {name}/{terms}/");
        }
    }
    Ok(text)
}

/// A [`Unit`] in a line.
struct Line<'a>(&'a Unit);

impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = self.0;
        match &unit.area {
            Area::None => f.write_str("no AUX area"),
            Area::Some => {
                f.write_str("AUX area; ")?;
                match (unit.works(), unit.rehearsals.first()) {
                    (Some(works), _) => {
                        write!(f, "record it with {}", works.way.arguments(&unit.name))
                    }
                    (
                        None,
                        Some(Rehearsal {
                            error: Some(why), ..
                        }),
                    ) => f.write_str(why),
                    (None, _) => f.write_str("no CPU of it is online"),
                }
            }
            Area::Unknown { why, .. } => write!(f, "whether it has an AUX area is unknown: {why}"),
        }
    }
}

/// The report of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The PMUs that have an AUX area, or may have one.
    pub units: Vec<Unit>,
    /// The causes that prevent recording, or a part of it.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Examines this machine, for this process. Each rehearsal opens the events of a PMU for an instant. In that instant another
    /// program cannot open a PMU that is exclusive.
    ///
    /// # Errors
    /// If the list of online CPUs cannot be read.
    pub fn make() -> Result<Self> {
        let pmus = Pmus::default();
        let host = Host::read(&pmus, online_cpus()?.len());
        let all = host.pmus.iter().filter_map(|name| pmus.get(name).ok());
        let units = all.map(|pmu| Unit::examine(&pmu, &Way::ALL));
        Ok(Self {
            units: units.filter(|unit| unit.area != Area::None).collect(),
            findings: finding::all(&host),
        })
    }

    /// Whether an AUX area can be recorded.
    #[must_use]
    pub fn can_record(&self) -> bool {
        self.units.iter().any(|unit| unit.works().is_some())
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (known, unknown): (Vec<_>, Vec<_>) = self
            .units
            .iter()
            .partition(|unit| unit.area == Area::Some || unit.works().is_some());
        for unit in known {
            writeln!(f, "PMU {} has an AUX area", unit.name)?;
            for Rehearsal { way, error } in &unit.rehearsals {
                let command = format!("auxrec record {}", way.arguments(&unit.name));
                match error {
                    None => writeln!(f, "  works:   {command}")?,
                    Some(why) => writeln!(f, "  refused: {command}\n    {why}")?,
                }
            }
        }
        // A server has a hundred of these, all for the same reason, so the reason of the first is enough.
        if let Some(Unit {
            area: Area::Unknown { why, .. },
            ..
        }) = unknown.first()
        {
            let names: Vec<_> = unknown.iter().map(|unit| unit.name.as_str()).collect();
            writeln!(
                f,
                "PMUs of which it is unknown whether they have an AUX area: {}\n  {why}",
                names.join(", ")
            )?;
        }
        for Finding {
            is,
            prevents,
            remedy,
            ..
        } in &self.findings
        {
            writeln!(
                f,
                "{is}\n  prevents: {}\n  remedy:   {remedy}",
                prevents.join("; ")
            )?;
        }
        let works = |unit: &Unit| Some(unit.works()?.way.arguments(&unit.name));
        let works: Vec<_> = self.units.iter().filter_map(works).collect();
        match works.is_empty() {
            true => writeln!(f, "No AUX area can be recorded here."),
            false => writeln!(
                f,
                "An AUX area can be recorded here: auxrec record {}",
                one_of(&works)
            ),
        }
    }
}
