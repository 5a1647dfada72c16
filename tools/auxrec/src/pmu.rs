// SPDX-License-Identifier: GPL-2.0 OR MIT

//! PMUs as sysfs shows them, and event descriptions in terms of their formats.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use perfdata::{Attr, Flags, SampleType};

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

/// What an event does to the trace of its group's leader, or to its own: the term `aux-action`.
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
    /// Whether it writes trace. One that does not is sampled.
    pub aux: bool,
    /// How often it is sampled: events between two samples (term `period`), or samples a second (term `freq`).
    pub rate: Rate,
    /// How much of its group leader's trace each sample holds (term `aux-sample-size`).
    pub aux_sample: Option<u32>,
    /// What it does to trace (term `aux-action`).
    pub action: Option<Action>,
}

/// How often an event is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Once in so many events.
    Period(u64),
    /// So many times a second.
    Freq(u64),
}

/// Events that are known by name alone, in perf's words: their type, number, and whether each one is sampled.
const SYMBOLS: [(&str, u32, u64, bool); 24] = [
    ("cpu-clock", 1, 0, false),
    ("task-clock", 1, 1, false),
    ("page-faults", 1, 2, true),
    ("faults", 1, 2, true),
    ("context-switches", 1, 3, true),
    ("cs", 1, 3, true),
    ("cpu-migrations", 1, 4, true),
    ("migrations", 1, 4, true),
    ("minor-faults", 1, 5, true),
    ("major-faults", 1, 6, true),
    ("alignment-faults", 1, 7, true),
    ("emulation-faults", 1, 8, true),
    ("dummy", 1, 9, true),
    ("bpf-output", 1, 10, true),
    ("cgroup-switches", 1, 11, true),
    ("cycles", 0, 0, false),
    ("cpu-cycles", 0, 0, false),
    ("instructions", 0, 1, false),
    ("cache-references", 0, 2, false),
    ("cache-misses", 0, 3, false),
    ("branches", 0, 4, false),
    ("branch-instructions", 0, 4, false),
    ("branch-misses", 0, 5, false),
    ("bus-cycles", 0, 6, false),
];

/// What perf samples by, if nothing is said.
const FREQ: Rate = Rate::Freq(4000);
/// PMUs of the kernel's own that write no trace.
const WITHOUT_AUX: [&str; 6] = [
    "software",
    "tracepoint",
    "breakpoint",
    "kprobe",
    "uprobe",
    "cpu",
];
/// Where tracepoints are.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// perf's limit: a sample is a record, whose length has 16 bits.
const LARGEST_SAMPLE: u64 = 60 * 1024;

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

    /// A list of events, each in the form `pmu/term=value,…/modifiers` or `name[:modifiers]`, and of groups `{event,event}[:modifiers]`.
    /// Each group, or event outside of one, is an item.
    ///
    /// # Errors
    /// If a part of it is wrong; the error lists what there is.
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

    /// An event in the form `pmu/term=value,…/modifiers` or `name[:modifiers]`.
    ///
    /// # Errors
    /// If a part of it is wrong; the error lists what there is.
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
                aux: !WITHOUT_AUX.contains(&name),
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
        if spec.pmu.writes_intel_pt() {
            // As perf has it: without time stamps a trace cannot be matched with mappings that change.
            spec.terms("tsc", false)?;
        }
        spec.terms(terms, true)?;
        spec.modifiers(modifiers)?;
        Ok(spec)
    }

    /// Name and modifiers of an event without slashes. A tracepoint has a colon of its own.
    fn without_slashes(text: &str) -> (&str, &str) {
        match text.rsplit_once(':') {
            Some((name, modifiers))
                if name.contains(':') || SYMBOLS.iter().any(|(symbol, ..)| *symbol == name) =>
            {
                (name, modifiers)
            }
            _ => (text, ""),
        }
    }

    /// An event of the kernel's own that is known by its name.
    fn symbol(text: &str, name: &str) -> Option<EventSpec> {
        let found = SYMBOLS.iter().find(|(symbol, ..)| *symbol == name);
        let (kind, config, each) = match found {
            Some(&(_, kind, config, each)) => (kind, config, each),
            None => {
                let (system, point) = name.split_once(':')?;
                let id = TRACEFS.iter().find_map(|dir| {
                    read(
                        &Path::new(dir)
                            .join("events")
                            .join(system)
                            .join(point)
                            .join("id"),
                    )
                })?;
                (2, id.parse().ok()?, true)
            }
        };
        let pmu = Pmu {
            name: ["hardware", "software", "tracepoint"]
                .get(usize::try_from(kind).ok()?)
                .map(|name| (*name).to_owned())?,
            kind,
            terms: BTreeMap::new(),
            events: BTreeMap::new(),
            cpus: None,
            caps: BTreeMap::new(),
        };
        let mut event = EventSpec::new(text, pmu);
        event.config[0] = config;
        event.aux = false;
        event.rate = if each { Rate::Period(1) } else { FREQ };
        Some(event)
    }
}

/// Cuts a list at its commas, but not within slashes or braces; [`None`] if these do not match.
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
    fn new(text: &str, pmu: Pmu) -> Self {
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

    /// A term that is no part of the configuration, but says how the event is used; `false` if it is none.
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

    fn modifiers(&mut self, modifiers: &str) -> Result<()> {
        // Those of the group come after its own, which stay.
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
            flags: match self.rate {
                Rate::Period(_) => self.exclude,
                Rate::Freq(_) => self.exclude | Flags::FREQ,
            },
            sample_period: match self.rate {
                Rate::Period(n) | Rate::Freq(n) => n,
            },
            sample_type: match self.aux_sample {
                Some(_) => SampleType::AUX,
                None => SampleType::empty(),
            },
            aux_sample_size: self.aux_sample.unwrap_or(0),
            aux_action: self.action.map_or(0, Action::bits),
            ..Attr::default()
        }
    }
}

/// Checks how much trace a sample is to hold.
///
/// # Errors
/// If it cannot.
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

/// What part an event has in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It writes trace, into rings of its own.
    Aux,
    /// It is in the group of the event of this number, which writes trace.
    Member(usize),
    /// Its records go into the rings of the event of this number.
    Other(usize),
}

/// Finds what part each event has. `aux_sample` is for events without a size of their own.
///
/// # Errors
/// If none writes trace, or one that does is not the first of its group.
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
                // What asks for trace needs to be in a group with it.
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
            ("nonsense:nonsense", "not an event of the form"),
            (
                "pattern/aux-action=pause/",
                "start-paused is for the event that writes trace",
            ),
            (
                "cpu-clock/aux-action=start-paused/",
                "pause and resume are for others",
            ),
            (
                "cpu-clock/aux-action=stop/",
                "takes start-paused, pause or resume, not `stop`",
            ),
            ("cpu-clock/aux-sample-size=65536/", "up to 61440"),
            ("cpu-clock/period=0/", "a number above 0"),
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
    fn lists_and_groups() {
        let dir = tempfile::tempdir().unwrap();
        let pmus = pmus(dir.path());
        let roles = |text: &str, aux_sample| -> Vec<(Role, Option<u32>, u32)> {
            arrange(pmus.events(text).unwrap(), aux_sample)
                .unwrap()
                .into_iter()
                .map(|(event, role)| (role, event.aux_sample, event.attr().aux_action))
                .collect()
        };
        use Role::{Aux, Member, Other};
        assert_eq!(roles("pattern/rate=1,split=2/", None), [(Aux, None, 0)]);
        assert_eq!(
            roles(
                "cs,pattern//,{pattern//,cpu-clock/aux-sample-size=64/}:u,page-faults",
                None
            ),
            [
                (Other(1), None, 0),
                (Aux, None, 0),
                (Aux, None, 0),
                (Member(2), Some(64), 0),
                (Other(1), None, 0)
            ]
        );
        assert_eq!(
            roles(
                "pattern/aux-action=start-paused/,cs/aux-action=resume/,cs/aux-action=pause/",
                None
            ),
            [(Aux, None, 1), (Member(0), None, 4), (Member(0), None, 2)]
        );
        assert_eq!(
            roles("cpu-clock,pattern//", Some(4096)),
            [(Member(1), Some(4096), 0), (Aux, None, 0)]
        );
        let user = Flags::EXCLUDE_KERNEL | Flags::EXCLUDE_HV;
        let group = pmus.events("{pattern//,cpu-clock:k}:u").unwrap().remove(0);
        assert_eq!(group[0].exclude, user);
        assert_eq!(pmus.event("cpu-clock:u").unwrap().exclude, user);
        let freq = pmus.event("cpu-clock/freq=99/").unwrap().attr();
        assert_eq!(
            (freq.sample_period, freq.flags.contains(Flags::FREQ)),
            (99, true)
        );
        for (text, says) in [
            ("{pattern//", "do not match"),
            ("pattern/", "do not match"),
            ("{{pattern//}}", "do not match"),
            ("{pattern//}x", "comes a comma"),
        ] {
            let error = pmus.events(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        for (text, aux_sample, says) in [
            ("cs", None, "none of these events writes trace"),
            (
                "{cs,pattern//}",
                None,
                "a group begins with the event that writes trace",
            ),
            ("{pattern//,pattern//}", None, "and has no other such"),
            (
                "pattern//",
                Some(8),
                "--aux-sample puts trace into samples of another event",
            ),
        ] {
            let error = arrange(pmus.events(text).unwrap(), aux_sample)
                .unwrap_err()
                .to_string();
            assert!(error.contains(says), "{text}: {error}");
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
