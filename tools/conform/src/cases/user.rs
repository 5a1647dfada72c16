// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an ordinary user is allowed.

use std::collections::BTreeMap;

use anyhow::{ensure, Context, Result};

use super::{case, core, skip, Case};
use crate::part::as_nobody;
use crate::pmu::{Place, Pmu};

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// `EACCES`; and `EOPNOTSUPP`, which is the error of a PMU that never traces the kernel.
const DENIED: [i32; 2] = [13, 95];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for level in [-1, 0, 1, 2] {
        cases.push(case(
            format!("user: perf_event_paranoid is {level}"),
            core(13921, "err = perf_allow_kernel();"),
            move |pmu| paranoid(pmu, level),
        ));
    }
    cases
}

/// Opens events as the user `nobody`. Returns the numbers of the errors.
fn opens(pmu: &Pmu) -> Result<BTreeMap<String, i32>> {
    let cpu = match pmu.cpu() {
        Ok(Place::Cpu(cpu)) => cpu,
        _ => 0,
    };
    let said = as_nobody(&["open", &pmu.attr().kind.to_string(), &cpu.to_string()])?;
    said.lines()
        .map(|line| {
            let (what, number) = line.split_once(' ').context("a part says nothing")?;
            Ok((what.to_owned(), number.parse()?))
        })
        .collect()
}

fn paranoid(pmu: &Pmu, level: i32) -> Result<String> {
    let before = std::fs::read_to_string(PARANOID)?;
    if !rustix::process::geteuid().is_root() || std::fs::write(PARANOID, level.to_string()).is_err()
    {
        return Err(skip("this user cannot set perf_event_paranoid"));
    }
    let seen = opens(pmu);
    std::fs::write(PARANOID, before.trim())?;
    let seen = seen?;
    let of = |what: &str| seen.get(what).copied().unwrap_or(-1);
    // A driver may deny more than perf does, but never less.
    let (denied_cpu, denied_kernel) = (level > 0, level > 1);
    ensure!(
        !denied_cpu || of("cpu") != 0,
        "the user nobody could open an event of a CPU"
    );
    ensure!(
        !denied_kernel || of("task") != 0,
        "the user nobody could open an event that traces the kernel"
    );
    ensure!(
        denied_cpu || pmu.cpu().is_err() || of("cpu") == 0 || DENIED.contains(&of("cpu")),
        "error {} for an event of a CPU",
        of("cpu")
    );
    Ok(format!("{seen:?}"))
}
