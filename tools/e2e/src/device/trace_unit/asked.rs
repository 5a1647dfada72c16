// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Permissions and terms of the trace unit's events.

use std::fs;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use auxrec::sys::Event;
use perfdata::{Attr, Flags};

use super::attr;
use crate::soft_pt::{as_nobody, PROGRAM};

const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// Terms of Intel PT that this unit must accept or refuse: `config`, `config1`, and the error.
const TERMS: &[(&str, u64, u64, Option<i32>)] = &[
    ("pt,branch", PT | BRANCH, 0, None),
    ("no bits at all", 0, 0, None),
    ("tsc,cyc,mtc", PT | BRANCH | TSC | CYC | MTC, 0, None),
    ("noretcomp", PT | BRANCH | 1 << 11, 0, None),
    ("the longest psb_period", PT | BRANCH | 5 << 24, 0, None),
    (
        "a psb_period that is none",
        PT | BRANCH | 6 << 24,
        0,
        Some(EINVAL),
    ),
    (
        "the largest psb_period",
        PT | BRANCH | 15 << 24,
        0,
        Some(EINVAL),
    ),
    ("pt without branch", PT, 0, Some(EINVAL)),
    ("branch without pt", BRANCH, 0, Some(EINVAL)),
    ("cyc without tsc", PT | BRANCH | CYC, 0, Some(EINVAL)),
    ("mtc without tsc", PT | BRANCH | MTC, 0, Some(EINVAL)),
    ("a rate", PT | BRANCH, 20, Some(EINVAL)),
    (
        "cyc_thresh",
        PT | BRANCH | TSC | CYC | 1 << 19,
        0,
        Some(EINVAL),
    ),
    ("pwr_evt", PT | BRANCH | 1 << 4, 0, Some(EINVAL)),
    ("fup_on_ptw", PT | BRANCH | 1 << 5, 0, Some(EINVAL)),
    ("ptw", PT | BRANCH | 1 << 12, 0, Some(EINVAL)),
    ("event", PT | BRANCH | 1 << 31, 0, None),
    ("event of the pattern", 1 << 31, 1 << 32, Some(EINVAL)),
    ("notnt", PT | BRANCH | 1 << 55, 0, Some(EINVAL)),
    (
        "branches of the pattern",
        PT | BRANCH,
        1 << 32,
        Some(EINVAL),
    ),
    ("a source that is none", 0, 2 << 32, Some(EOPNOTSUPP)),
];

const PT: u64 = 1;
const CYC: u64 = 1 << 1;
const MTC: u64 = 1 << 9;
const TSC: u64 = 1 << 10;
const BRANCH: u64 = 1 << 13;

/// Each event must be opened, or be refused with its error.
pub(super) fn terms() -> Result<String> {
    for &(what, config, config1, errno) in TERMS {
        let attr = Attr {
            config,
            config1,
            ..attr(0)?
        };
        let found = Event::open(&attr, -1, 0).err();
        let found = found.as_ref().map(std::io::Error::raw_os_error);
        ensure!(
            found == errno.map(Some),
            "{what}: {found:?}, and {errno:?} is right"
        );
    }
    // The pattern belongs to no privilege level, so no level can be excluded.
    let attr = Attr {
        flags: Flags::DISABLED | Flags::EXCLUDE_KERNEL,
        ..attr(20)?
    };
    let found = Event::open(&attr, -1, 0).err();
    let found = found.as_ref().and_then(std::io::Error::raw_os_error);
    ensure!(
        found == Some(EOPNOTSUPP),
        "the pattern without the kernel: {found:?}"
    );
    Ok(format!("{} events", TERMS.len() + 1))
}

/// An unprivileged user must be able to trace the user's own programs, and nothing else.
pub(super) fn nobody() -> Result<String> {
    let paranoid = Path::new("/proc/sys/kernel/perf_event_paranoid");
    let before = fs::read_to_string(paranoid).context("cannot read perf_event_paranoid")?;
    let tried = || -> Result<String> {
        fs::write(paranoid, "2").context("cannot write perf_event_paranoid")?;
        let own = ["--", PROGRAM, "workload", "calls"];
        let other = std::process::id().to_string();
        let refused: [(&str, &[&str]); 4] = [
            ("trace_unit//", &own),
            ("trace_unit//k", &own),
            ("trace_unit//u", &["-p", &other]),
            ("trace_unit//u", &["-C", "0", "--", "true"]),
        ];
        for (event, arguments) in refused {
            let (traced, said) = as_nobody(event, arguments)?;
            ensure!(
                traced.is_none(),
                "nobody records {event} with {arguments:?}: {said}"
            );
        }
        let (traced, said) = as_nobody("trace_unit//u", &own)?;
        let traced = traced.filter(|bytes| *bytes != 0);
        let bytes =
            traced.with_context(|| format!("nobody does not trace its own program: {said}"))?;
        Ok(format!("{bytes} bytes of its own program"))
    };
    let outcome = tried();
    fs::write(paranoid, before).context("cannot write perf_event_paranoid")?;
    outcome
}
