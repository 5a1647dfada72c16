// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings to a disk of a guest. The disk is slow or fails, or the guest loses its power.
//!
//! For a power cut, QEMU is killed while recorders run. Data that the guest's kernel has not yet written to the disk is then lost. Data
//! that it has written is kept, so the loss of a disk's own cache is not tested. Before the cut, the guest prints which data the recorders
//! report as safe. The next boot verifies that this data is there.

use crate::cache::Cache;
use crate::error::Result;
use crate::guest::{Disk, Guest, Outcome, PowerCut};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use crate::step::{Log, Progress};
use crate::tools;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How many power cuts there are.
const CUTS: u32 = 4;
/// The number of the recording, from 0 on, that has a file for each thread.
const SPLIT: u32 = 1;

/// The write rate of the slow disk, in bytes a second: a sixteenth of the rate of the units.
const SLOW: u64 = 1024 * 1024;

/// How many flushes of the failing disk succeed: enough for mounting it and for some flushes of the recorders.
const FLUSHES: u32 = 12;

/// Runs all cases, in a guest of this kernel, which must have ext4.
///
/// # Errors
///
/// When there is no kernel or no tools, or the disk cannot be made.
pub fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let built = modules::build(cache, kernel, Mode::Plain)?;
    let programs = tools::build(cache)?;
    let log = Log::create(&dir.join("disk.log"))?;
    let image = dir.join("disk.img");
    let disk = |slow| Disk {
        image: image.clone(),
        bytes_per_second: slow,
        flushes: None,
    };
    let boot = |name: &str, command: &str, disk, cut| -> Result<Outcome> {
        let mut guest = Guest::new(kernel, &built.files)?
            .append("kunit.enable=0")
            .disk(disk)
            .timeout(Duration::from_secs(180));
        for (program, path) in &programs {
            guest = guest.program(program, path)?;
        }
        if let Some(cut) = cut {
            guest = guest.power_cut(cut);
        }
        guest.run(cache, &dir.join(name), command, |_| {})
    };
    let format = || {
        log.run(
            "making a disk",
            Command::new("mke2fs")
                .args(["-q", "-F", "-t", "ext4"])
                .arg(&image)
                .arg("128M"),
        )
    };
    let progress = Progress::begin("recording onto disks");

    format()?;
    let mut cases = vec![case(
        "slow disk",
        &boot("disk-slow", "auxe2e disk slow", disk(Some(SLOW)), None)?,
    )];
    format()?;
    let failing = Disk {
        flushes: Some(FLUSHES),
        ..disk(None)
    };
    cases.push(case(
        "failing disk",
        &boot("disk-failing", "auxe2e disk failing", failing, None)?,
    ));
    format()?;
    let mut verify = String::new();
    // The power is cut at irregular times, which are the same in each run.
    let mut seed: u32 = 1;
    for time in 0..=CUTS {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let last = time == CUTS;
        let split = if time == SPLIT { " --split-files" } else { "" };
        let command = if last {
            format!("{verify}true")
        } else {
            format!("{verify}auxe2e disk record{split}")
        };
        let cut = (!last).then(|| PowerCut {
            // The delay starts when some data is safe. It varies so much that the cut can hit any point of the next flush.
            line: |line| {
                line.strip_prefix("safe ")
                    .is_some_and(|l| !l.starts_with("0 "))
            },
            after: Duration::from_millis(u64::from(seed >> 8) % 2500),
        });
        let outcome = boot(&format!("disk-power-{time}"), &command, disk(None), cut)?;
        if time != 0 {
            cases.push(case(&format!("power cut {time}"), &outcome));
        }
        let safe = outcome
            .said
            .lines()
            .rev()
            .find_map(|l| l.strip_prefix("safe "));
        verify = match (safe, last) {
            (Some(safe), false) => format!("auxe2e disk verify{split} {} && ", safe.trim()),
            (_, true) => break,
            (None, false) => {
                cases.push(
                    Case::fail("recording", "nothing was said to be safe")
                        .with_log(outcome.said.lines().map(str::to_owned).collect()),
                );
                break;
            }
        };
    }
    let suite = Case::suite("disk", cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// Passes if the guest ran until its power was cut or its command succeeded.
fn case(name: &str, outcome: &Outcome) -> Case {
    let said: Vec<String> = outcome
        .said
        .lines()
        .filter(|line| !line.starts_with("safe "))
        .map(str::to_owned)
        .collect();
    if let Some(fault) = outcome.faults().into_iter().next() {
        return Case::fail(name, &format!("{}: {}", fault.name, fault.reason)).with_log(said);
    }
    match outcome.status {
        None | Some(0) => Case::pass(name).with_log(said),
        Some(status) => Case::fail(name, &format!("status {status}")).with_log(said),
    }
}
