// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An event with its configuration: its terms, its modifiers and its attribute.

use perfdata::{Attr, Flags, SampleType};

use super::{Format, Pmu, Term};
use crate::error::{nearest, one_of, Error, Result};

/// perf's limit for the trace in a sample. A sample is a record, and its length has 16 bits.
const LARGEST_SAMPLE: u64 = 60 * 1024;
/// The words of the configuration, which are terms of every PMU.
const WORDS: [&str; 5] = ["config", "config1", "config2", "config3", "config4"];

/// What an event does to the trace of its group's leader, or to its own (term `aux-action`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Trace begins only when another event resumes it.
    StartPaused,
    /// Each overflow pauses the trace.
    Pause,
    /// Each overflow resumes it.
    Resume,
}

impl Action {
    const NAMES: [(&'static str, Self); 3] = [
        ("start-paused", Self::StartPaused),
        ("pause", Self::Pause),
        ("resume", Self::Resume),
    ];

    /// `perf_event_attr.aux_action`.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Self::StartPaused => 1,
            Self::Pause => 2,
            Self::Resume => 4,
        }
    }
}

/// An event to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSpec {
    /// The description that the user gave.
    pub text: String,
    /// Its PMU.
    pub pmu: Pmu,
    /// `config`, `config1` … `config4`.
    pub config: [u64; 5],
    /// The flags that its modifiers exclude.
    pub exclude: Flags,
    /// Whether it writes trace. Other events are sampled.
    pub aux: bool,
    /// How often it is sampled (terms `period` and `freq`).
    pub rate: Rate,
    /// Length of its group leader's trace in each sample (term `aux-sample-size`).
    pub aux_sample: Option<u32>,
    /// What it does to trace (term `aux-action`).
    pub action: Option<Action>,
}

/// How often an event is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// The number of events between two samples.
    Period(u64),
    /// The number of samples a second.
    Freq(u64),
}

fn parse_value(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl EventSpec {
    pub(super) fn new(text: &str, pmu: Pmu) -> Self {
        Self {
            text: text.to_owned(),
            pmu,
            config: [0; 5],
            exclude: Flags::empty(),
            aux: true,
            rate: Rate::Period(1),
            aux_sample: None,
            action: None,
        }
    }

    /// Takes a term that is not part of the configuration, such as `period`. Returns `false` if this is no such term.
    fn usage_term(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let number = || {
            value
                .and_then(parse_value)
                .filter(|n| *n != 0)
                .ok_or_else(|| {
                    Error::usage(format!(
                        "term `{name}` takes a number above 0, not `{}`",
                        value.unwrap_or("")
                    ))
                })
        };
        match name {
            "period" => self.rate = Rate::Period(number()?),
            "freq" => self.rate = Rate::Freq(number()?),
            "aux-sample-size" => {
                let size = number()?;
                self.aux_sample = Some(check_aux_sample(size)?);
            }
            "aux-action" => {
                let names = Action::NAMES.map(|(name, _)| name);
                let found = Action::NAMES.iter().find(|(name, _)| Some(*name) == value);
                let (_, action) = found.ok_or_else(|| {
                    Error::usage(format!(
                        "term `aux-action` takes {}, not `{}`",
                        one_of(&names),
                        value.unwrap_or("")
                    ))
                })?;
                if self.aux != (*action == Action::StartPaused) {
                    return Err(Error::usage(format!(
                        "`{}`: start-paused is for the event that writes trace, pause and resume are for others in its group",
                        self.text
                    )));
                }
                self.action = Some(*action);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn terms(&mut self, terms: &str, aliases: bool) -> Result<()> {
        for term in terms.split(',').filter(|term| !term.is_empty()) {
            let (name, value) = term
                .split_once('=')
                .map_or((term, None), |(n, v)| (n.trim(), Some(v.trim())));
            if let Some(sink) = term.strip_prefix('@') {
                self.sink(sink)?;
                continue;
            }
            if let (true, None, Some(alias)) = (aliases, value, self.pmu.events.get(name)) {
                let alias = alias.clone();
                self.terms(&alias, false)?;
                continue;
            }
            if !self.pmu.terms.contains_key(name) && self.usage_term(name, value)? {
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

    pub(super) fn modifiers(&mut self, modifiers: &str) -> Result<()> {
        // Modifiers of a group come second, and replace those of the event unless there are none.
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

    /// Selects a sink by its name: the term `sinkid` gets the number that sysfs shows, as in perf.
    fn sink(&mut self, name: &str) -> Result<()> {
        let sinks = self.pmu.sinks();
        if !sinks.iter().any(|sink| sink == name) {
            return Err(Error::usage(format!(
                "PMU `{}` has no sink `{name}`{}; it has: {}. Without one its driver takes the best",
                self.pmu.name,
                nearest(name, &sinks),
                if sinks.is_empty() { "none".into() } else { sinks.join(", ") },
            )));
        }
        let text = self.pmu.file(&format!("sinks/{name}"));
        let number = text.and_then(|text| parse_value(&text)).ok_or_else(|| {
            Error::failed(format!(
                "the sink `{name}` of PMU `{}` has no readable number in {}",
                self.pmu.name,
                self.pmu.dir.display()
            ))
        })?;
        self.set_if_unset("sinkid", number);
        Ok(())
    }

    /// The value of a term; 0 if the PMU does not have it.
    pub(crate) fn value(&self, name: &str) -> u64 {
        let term = self.pmu.terms.get(name);
        let value = term.and_then(|term| Some(term.get(*self.config.get(term.word)?)));
        value.unwrap_or(0)
    }

    /// Sets a term of the PMU, unless the user has set it, or has set its bits by another name.
    pub(crate) fn set_if_unset(&mut self, name: &str, value: u64) {
        let Some(term) = self.pmu.terms.get(name) else {
            return;
        };
        let terms = self.text.split('/').nth(1).unwrap_or_default();
        let given = terms.split(',').any(|given| {
            let given = given.split('=').next().unwrap_or_default();
            let given = self.pmu.terms.get(given.trim());
            given.is_some_and(|given| given.overlaps(term))
        });
        if let (Some(word), false) = (self.config.get_mut(term.word), given) {
            *word = term.put(*word, value).unwrap_or(*word);
        }
    }

    /// The content of the trace, from which perf knows what to show.
    fn content(&self) -> SampleType {
        if self.pmu.format() != Some(Format::ArmSpe) {
            return SampleType::empty();
        }
        match self.value("pa_enable") {
            0 => SampleType::DATA_SRC,
            _ => SampleType::DATA_SRC | SampleType::PHYS_ADDR,
        }
    }

    /// The attribute, as far as the event's description determines it.
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
            flags: match self.rate {
                Rate::Period(_) => self.exclude,
                Rate::Freq(_) => self.exclude | Flags::FREQ,
            },
            sample_period: match self.rate {
                Rate::Period(n) | Rate::Freq(n) => n,
            },
            sample_type: match self.aux_sample {
                Some(_) => SampleType::AUX,
                None => self.content(),
            },
            aux_sample_size: self.aux_sample.unwrap_or(0),
            aux_action: self.action.map_or(0, Action::bits),
            ..Attr::default()
        }
    }
}

/// Checks the length of the trace in a sample.
///
/// # Errors
/// If a sample cannot hold this length.
pub fn check_aux_sample(size: u64) -> Result<u32> {
    u32::try_from(size)
        .ok()
        .filter(|_| size != 0 && size % 8 == 0 && size <= LARGEST_SAMPLE)
        .ok_or_else(|| {
            Error::usage(format!(
                "a sample cannot hold {size} bytes of trace: it must be a multiple of 8, up to {LARGEST_SAMPLE}"
            ))
        })
}
