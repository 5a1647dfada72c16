// SPDX-License-Identifier: GPL-2.0 OR MIT

//! PMUs as sysfs shows them, and event descriptions in terms of their formats.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use perfdata::{Attr, Flags};

use crate::error::{nearest, one_of, Error, Result};
use crate::target::parse_cpus;

/// Where the kernel shows its PMUs.
const DEVICES: &str = "/sys/bus/event_source/devices";
/// Environment variable that names another place, for tests.
const DEVICES_ENV: &str = "AUXREC_PMUS";

/// The directory of PMUs.
#[derive(Debug, Clone)]
pub struct Pmus(PathBuf);

/// A field of an event's configuration: some bits of one of its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// Which word: 0 is `config`, 1 `config1`, and so on.
    pub word: usize,
    /// Ranges of bits, the first takes the lowest bits of the value.
    pub bits: Vec<(u32, u32)>,
}

/// A PMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pmu {
    /// Its name.
    pub name: String,
    /// The number that `perf_event_attr.type` takes.
    pub kind: u32,
    /// The terms of its format.
    pub terms: BTreeMap<String, Term>,
    /// Named sets of terms.
    pub events: BTreeMap<String, String>,
    /// The CPUs that it wants its events on, where it says.
    pub cpus: Option<Vec<u32>>,
    /// What it says of itself in `caps`.
    pub caps: BTreeMap<String, String>,
}

/// An event that is to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSpec {
    /// As the user gave it.
    pub text: String,
    /// Its PMU.
    pub pmu: Pmu,
    /// `config`, `config1` … `config4`.
    pub config: [u64; 5],
    /// What its modifiers exclude.
    pub exclude: Flags,
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

/// The files of a directory with what they say, in the order of their names.
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
    /// The PMUs that a directory such as the one in sysfs describes.
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
    /// If there is none, or what sysfs says of it is not understood.
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
        let cpus = match read(&dir.join("cpumask")) {
            Some(list) if !list.is_empty() => Some(parse_cpus(&list)?),
            _ => None,
        };
        Ok(Pmu {
            name: name.to_owned(),
            kind,
            terms,
            events,
            cpus,
            caps: files(&dir.join("caps")).into_iter().collect(),
        })
    }

    /// An event in the form `pmu/term=value,…/modifiers`.
    ///
    /// # Errors
    /// If a part of it is wrong; the error lists what there is.
    pub fn event(&self, text: &str) -> Result<EventSpec> {
        let mut parts = text.split('/');
        let (Some(name), Some(terms), modifiers, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Error::usage(format!(
                "`{text}` is not an event of the form `pmu/term=value,…/modifiers`, such as `pattern/rate=1024/u`"
            )));
        };
        let mut spec = EventSpec {
            text: text.to_owned(),
            pmu: self.get(name)?,
            config: [0; 5],
            exclude: Flags::empty(),
        };
        if spec.pmu.writes_intel_pt() {
            // As perf has it: without time stamps a trace cannot be matched with mappings that change.
            spec.terms("tsc", false)?;
        }
        spec.terms(terms, true)?;
        spec.modifiers(modifiers.unwrap_or(""))?;
        Ok(spec)
    }
}

impl Term {
    /// `config1:0-7,12`.
    #[must_use]
    pub fn parse(format: &str) -> Option<Self> {
        let (word, ranges) = format.split_once(':').unwrap_or((format, "0-63"));
        let word = match word.trim().strip_prefix("config")? {
            "" => 0,
            n => n.parse().ok().filter(|n| (1..5).contains(n))?,
        };
        let bits = ranges
            .split(',')
            .map(|range| {
                let (low, high) = range.split_once('-').unwrap_or((range, range));
                let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
                (low <= high && high < 64).then_some((low, high))
            })
            .collect::<Option<_>>()?;
        Some(Self { word, bits })
    }

    /// The largest value.
    #[must_use]
    pub fn max(&self) -> u64 {
        let width: u32 = self.bits.iter().map(|(low, high)| high - low + 1).sum();
        u64::MAX >> 64_u32.saturating_sub(width).min(63)
    }

    /// Puts a value into its bits; [`None`] if it is too large.
    #[must_use]
    pub fn put(&self, word: u64, value: u64) -> Option<u64> {
        if value > self.max() {
            return None;
        }
        let mut word = word;
        let mut rest = value;
        for &(low, high) in &self.bits {
            let width = high - low + 1;
            let mask = u64::MAX >> (64 - width);
            word = word & !(mask << low) | (rest & mask) << low;
            rest = rest.checked_shr(width).unwrap_or(0);
        }
        Some(word)
    }
}

/// The words that an event can always set whole.
const WORDS: [&str; 5] = ["config", "config1", "config2", "config3", "config4"];

fn parse_value(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Pmu {
    /// Whether it writes Intel PT: by its terms, which have to be where perf's decoder looks for them, and by what it says
    /// of its `PSB` packets, as no other trace has them. Its name does not matter.
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

impl EventSpec {
    fn terms(&mut self, terms: &str, aliases: bool) -> Result<()> {
        for term in terms.split(',').filter(|term| !term.is_empty()) {
            let (name, value) = term
                .split_once('=')
                .map_or((term, None), |(n, v)| (n.trim(), Some(v.trim())));
            if let (true, None, Some(alias)) = (aliases, value, self.pmu.events.get(name)) {
                let alias = alias.clone();
                self.terms(&alias, false)?;
                continue;
            }
            let number = match value {
                None => Some(1),
                Some(text) => parse_value(text),
            };
            let field = match self.pmu.terms.get(name) {
                Some(field) => field.clone(),
                None => match WORDS.iter().position(|word| *word == name) {
                    Some(word) => Term {
                        word,
                        bits: vec![(0, 63)],
                    },
                    None => return Err(self.no_such_term(name)),
                },
            };
            let word = &mut self.config[field.word];
            *word = number
                .and_then(|number| field.put(*word, number))
                .ok_or_else(|| {
                    Error::usage(format!(
                        "term `{name}` of PMU `{}` takes a number from 0 to {}, not `{}`",
                        self.pmu.name,
                        field.max(),
                        value.unwrap_or("1"),
                    ))
                })?;
        }
        Ok(())
    }

    fn no_such_term(&self, name: &str) -> Error {
        let known: Vec<&str> = self
            .pmu
            .terms
            .keys()
            .chain(self.pmu.events.keys())
            .map(String::as_str)
            .chain(WORDS)
            .collect();
        Error::usage(format!(
            "PMU `{}` has no term `{name}`{}; it has: {}",
            self.pmu.name,
            nearest(name, &known),
            known.join(", "),
        ))
    }

    fn modifiers(&mut self, modifiers: &str) -> Result<()> {
        let mut include = Flags::empty();
        for modifier in modifiers.chars() {
            include |= match modifier {
                'u' => Flags::EXCLUDE_USER,
                'k' => Flags::EXCLUDE_KERNEL,
                'h' => Flags::EXCLUDE_HV,
                other => {
                    return Err(Error::usage(format!(
                        "`{other}` in `{}` is not a modifier; they are: {}",
                        self.text,
                        one_of(&["u (user space)", "k (kernel)", "h (hypervisor)"]),
                    )))
                }
            };
        }
        if !include.is_empty() {
            let all = Flags::EXCLUDE_USER | Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV;
            self.exclude = all - include;
        }
        Ok(())
    }

    /// The event's part of the attribute.
    #[must_use]
    pub fn attr(&self) -> Attr {
        let [config, config1, config2, config3, config4] = self.config;
        Attr {
            kind: self.pmu.kind,
            config,
            config1,
            config2,
            config3,
            config4,
            flags: self.exclude,
            ..Attr::default()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn pmus(dir: &Path) -> Pmus {
        for (path, text) in [
            ("pattern/type", "42"),
            ("pattern/format/rate", "config:0-23"),
            ("pattern/format/limit", "config2:0-63"),
            ("pattern/format/split", "config1:0-3,60-63"),
            ("pattern/events/fast", "rate=100,split=0x21"),
            ("software/type", "1"),
        ] {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        Pmus::at(dir)
    }

    #[test]
    fn events() {
        let dir = tempfile::tempdir().unwrap();
        let pmus = pmus(dir.path());
        let config = |text: &str| pmus.event(text).unwrap().config;
        assert_eq!(config("pattern//"), [0; 5]);
        assert_eq!(config("pattern/rate=0x10,limit=7/"), [16, 0, 7, 0, 0]);
        assert_eq!(config("pattern/fast,rate=3/"), [3, 2 << 60 | 1, 0, 0, 0]);
        assert_eq!(config("pattern/config=5,config3=6/u")[3], 6);
        let exclude = |text: &str| pmus.event(text).unwrap().exclude;
        assert_eq!(
            exclude("pattern//u"),
            Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV
        );
        assert_eq!(exclude("pattern//uk"), Flags::EXCLUDE_HV);
        assert_eq!(exclude("pattern//"), Flags::empty());
        assert_eq!(
            pmus.mappings(),
            [(42, "pattern".to_owned()), (1, "software".to_owned())]
        );
    }

    #[test]
    fn what_is_wrong_with_them() {
        let dir = tempfile::tempdir().unwrap();
        let pmus = pmus(dir.path());
        for (text, says) in [
            ("patern//", "did you mean `pattern`?"),
            ("intel_pt//", "this kernel has: pattern, software"),
            ("pattern", "not an event of the form"),
            ("pattern/rate=1/u/", "not an event of the form"),
            (
                "pattern/rat=1/",
                "no term `rat` (did you mean `rate`?); it has: limit, rate, split, fast, config",
            ),
            (
                "pattern/rate=16777216/",
                "a number from 0 to 16777215, not `16777216`",
            ),
            ("pattern/rate=x/", "not `x`"),
            ("pattern//z", "`z` in `pattern//z` is not a modifier"),
        ] {
            let error = pmus.event(text).unwrap_err();
            assert!(matches!(error, Error::Usage(_)), "{text}");
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn formats() {
        assert_eq!(
            Term::parse("config"),
            Some(Term {
                word: 0,
                bits: vec![(0, 63)]
            })
        );
        assert_eq!(Term::parse("config2:1,4-5").unwrap().bits, [(1, 1), (4, 5)]);
        for bad in [
            "",
            "conf:1",
            "config5:1",
            "config:64",
            "config:5-1",
            "config:a",
            "config0:1",
        ] {
            assert_eq!(Term::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_value_comes_back_out_of_its_bits(low in 0_u32..60, width in 1_u32..4, more in 0_u32..2, value: u64, before: u64) {
            let mut bits = vec![(low, low + width - 1)];
            if more == 1 && low > 0 {
                bits.push((0, low - 1));
            }
            let term = Term { word: 0, bits: bits.clone() };
            let value = value & term.max();
            let word = term.put(before, value).unwrap();
            let mut out = 0;
            let mut at = 0;
            let mut touched = 0;
            for (low, high) in bits {
                let mask = u64::MAX >> (63 - (high - low));
                out |= (word >> low & mask) << at;
                touched |= mask << low;
                at += high - low + 1;
            }
            prop_assert_eq!(out, value);
            prop_assert_eq!(word & !touched, before & !touched);
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = Term::parse(&text);
            let _ = Pmus::at(Path::new("/nonexistent")).event(&text);
        }
    }
}
