// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events that are known by name alone: those of perf, and tracepoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{read, EventSpec, Pmu, Pmus, Rate};

/// perf's names of events, each with its type, its number, and whether every occurrence is sampled.
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

/// perf's default rate.
const FREQ: Rate = Rate::Freq(4000);
/// The directories in which the kernel shows tracepoints.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

impl Pmus {
    /// Name and modifiers of an event without slashes. A tracepoint has a colon of its own.
    pub(super) fn without_slashes(text: &str) -> (&str, &str) {
        match text.rsplit_once(':') {
            Some((name, modifiers))
                if name.contains(':') || SYMBOLS.iter().any(|(symbol, ..)| *symbol == name) =>
            {
                (name, modifiers)
            }
            _ => (text, ""),
        }
    }

    /// An event that is known by its name.
    pub(crate) fn symbol(text: &str, name: &str) -> Option<EventSpec> {
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
            dir: PathBuf::new(),
            kind,
            terms: BTreeMap::new(),
            events: BTreeMap::new(),
            cpus: None,
            caps: BTreeMap::new(),
            tsc_art_ratio: None,
            max_nonturbo_ratio: None,
        };
        let mut event = EventSpec::new(text, pmu);
        event.config[0] = config;
        event.aux = false;
        event.rate = if each { Rate::Period(1) } else { FREQ };
        Some(event)
    }
}
