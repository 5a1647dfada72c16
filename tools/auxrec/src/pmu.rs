// SPDX-License-Identifier: GPL-2.0 OR MIT

//! PMUs as sysfs shows them, and descriptions of events in their terms.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{nearest, Error, Result};
use crate::target::parse_cpus;

mod event;
mod intel_pt;
mod parse;
mod role;
mod symbols;
mod term;
#[cfg(test)]
mod tests;

pub use event::{check_aux_sample, Action, EventSpec, Rate};
pub use role::{arrange, Role};
pub use term::Term;

/// The directory in which the kernel shows its PMUs.
const DEVICES: &str = "/sys/bus/event_source/devices";
/// Environment variable with another directory, for tests.
const DEVICES_ENV: &str = "AUXREC_PMUS";

/// The directory of PMUs.
#[derive(Debug, Clone)]
pub struct Pmus(PathBuf);

/// A PMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pmu {
    /// Its name.
    pub name: String,
    /// Its directory in sysfs. Empty for events that are known by name alone.
    pub dir: PathBuf,
    /// The number that `perf_event_attr.type` takes.
    pub kind: u32,
    /// The terms of its format.
    pub terms: BTreeMap<String, Term>,
    /// Events: names for sets of terms.
    pub events: BTreeMap<String, String>,
    /// The CPUs on which its events can be opened: its `cpumask`, or its `cpus` if it is of one kind of
    /// cores; [`None`]: all.
    pub cpus: Option<Vec<u32>>,
    /// The files of its `caps`.
    pub caps: BTreeMap<String, String>,
    /// Frequency ratio of the time stamp counter to the coarse clock of `MTC` packets: numerator and denominator.
    pub tsc_art_ratio: Option<(u64, u64)>,
    /// The processor's frequency without turbo, as a multiple of its bus clock. Intel's own driver of Intel PT shows it.
    pub max_nonturbo_ratio: Option<u64>,
}

impl Default for Pmus {
    fn default() -> Self {
        Self(std::env::var_os(DEVICES_ENV).map_or_else(|| DEVICES.into(), Into::into))
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

/// The names and contents of the files of a directory, ordered by name.
fn files(path: &Path) -> Vec<(String, String)> {
    let mut out: Vec<_> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().into_string().ok()?, read(&entry.path())?))
        })
        .collect();
    out.sort();
    out
}

impl Pmus {
    /// The PMUs of a directory that has the form of the one in sysfs.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The names of all PMUs.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The numbers and names of all PMUs.
    #[must_use]
    pub fn mappings(&self) -> Vec<(u32, String)> {
        let number = |name: &str| read(&self.0.join(name).join("type"))?.parse().ok();
        self.names()
            .into_iter()
            .filter_map(|name| Some((number(&name)?, name)))
            .collect()
    }

    /// The PMU of this name.
    ///
    /// # Errors
    /// If there is none, or its files in sysfs are not understood.
    pub fn get(&self, name: &str) -> Result<Pmu> {
        let names = self.names();
        if !names.iter().any(|known| known == name) {
            return Err(Error::usage(format!(
                "there is no PMU `{name}`{}; this kernel has: {}. If it is a module's, load the module first",
                nearest(name, &names),
                if names.is_empty() { "none".into() } else { names.join(", ") },
            )));
        }
        let dir = self.0.join(name);
        let kind = read(&dir.join("type"))
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                Error::failed(format!(
                    "the PMU `{name}` has no readable `type` in {}",
                    dir.display()
                ))
            })?;
        let mut terms = BTreeMap::new();
        for (term, format) in files(&dir.join("format")) {
            let parsed = Term::parse(&format).ok_or_else(|| {
                Error::failed(format!("the format of term `{term}` of PMU `{name}` is `{format}`, which is not understood"))
            })?;
            terms.insert(term, parsed);
        }
        let events = files(&dir.join("events"))
            .into_iter()
            .filter(|(name, _)| !name.contains('.'))
            .collect();
        let cpus = ["cpumask", "cpus"].iter().find_map(|file| {
            let list = read(&dir.join(file))?;
            (!list.is_empty()).then_some(list)
        });
        let cpus = cpus.as_deref().map(parse_cpus).transpose()?;
        Ok(Pmu {
            name: name.to_owned(),
            kind,
            terms,
            events,
            cpus,
            caps: files(&dir.join("caps")).into_iter().collect(),
            max_nonturbo_ratio: read(&dir.join("max_nonturbo_ratio"))
                .and_then(|text| text.parse().ok()),
            tsc_art_ratio: read(&dir.join("tsc_art_ratio")).and_then(|text| {
                let (ticks, coarse) = text.split_once(':')?;
                Some((ticks.parse().ok()?, coarse.parse().ok()?))
            }),
            dir,
        })
    }
}

/// The formats of trace that perf decodes and this crate can describe to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Intel PT, of hardware or software.
    IntelPt,
    /// Intel's branch trace store.
    IntelBts,
    /// Arm's CoreSight: ETM or ETE.
    CoreSight,
    /// Arm's Statistical Profiling Extension.
    ArmSpe,
    /// HiSilicon's PCIe Trace and Tuning.
    HisiPtt,
}

impl Pmu {
    /// The content of a file in its directory.
    pub(crate) fn file(&self, name: &str) -> Option<String> {
        read(&self.dir.join(name))
    }

    /// The names of its sinks: where a trace unit of CoreSight writes to.
    pub(crate) fn sinks(&self) -> Vec<String> {
        let sinks = files(&self.dir.join("sinks"));
        sinks.into_iter().map(|(name, _)| name).collect()
    }

    /// The format of its trace, if perf has a decoder for it. As in perf, the name of the PMU decides, except for Intel PT.
    #[must_use]
    pub fn format(&self) -> Option<Format> {
        match self.name.as_str() {
            _ if self.writes_intel_pt() => Some(Format::IntelPt),
            "intel_bts" => Some(Format::IntelBts),
            "cs_etm" => Some(Format::CoreSight),
            name if name.starts_with("arm_spe_") => Some(Format::ArmSpe),
            name if name.starts_with("hisi_ptt") => Some(Format::HisiPtt),
            _ => None,
        }
    }

    /// Whether its events can be opened on this CPU.
    pub(crate) fn is_on(&self, cpu: u32) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.contains(&cpu))
    }

    /// Whether it writes Intel PT. Its name does not matter. Its terms must be where perf's decoder
    /// expects them, and it must have a capability of `PSB` packets, which no other trace has.
    #[must_use]
    pub fn writes_intel_pt(&self) -> bool {
        let at = |name: &str, bit| {
            self.terms
                .get(name)
                .is_some_and(|term| term.word == 0 && term.bits == [(bit, bit)])
        };
        at("pt", 0)
            && at("tsc", 10)
            && at("noretcomp", 11)
            && at("branch", 13)
            && self.caps.contains_key("psb_cyc")
    }
}
