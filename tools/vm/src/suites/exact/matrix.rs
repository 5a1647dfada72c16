// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that stock perf's features for Intel PT give correct results for our units. A table has uses of perf, each on a recording. The
//! output of each is compared with an independent log.
//!
//! In one guest, `soft_pt` records programs. Outside, `steptrace` steps them. In a second guest, whose clock counts instructions, the trace
//! unit records the kernel and programs, and logs the instructions that it traces. Each row of the table runs perf on one recording.
//!
//! - [`recordings`]: the recordings.
//! - [`rows`]: the table.
//! - [`executed`]: the instructions that were executed, from the log.
//! - [`trail`]: the packets, compared with the log.
//! - [`spans`]: the output of `auxview export`.
//! - [`viewers`]: what viewers show of this output.
//! - The other modules compare perf's output with the log.

use super::device::shown;
use super::programs;
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::{Devices, Guest, Outcome};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::parallel::{self, both};
use crate::results::ktap::Case;
use crate::step::Progress;
use crate::tools;
use executed::{Code, Ends, Executed, Printed};
use recordings::Recording;
use rows::Row;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

mod branches;
mod calls;
mod events;
pub(super) mod executed;
mod instructions;
mod kernel;
mod packets;
pub(super) mod pairs;
mod recordings;
mod rows;
mod sampled;
pub(super) mod samples;
mod spans;
mod trail;
pub(crate) mod viewers;

/// The case's name.
pub(super) const NAME: &str = "decoder matrix";

/// The time limit of a row, in seconds. Only an endless loop in perf takes longer.
const LONGEST: &str = "120";

/// The recordings, and the instructions that were executed.
struct Recorded {
    files: PathBuf,
    files_of_unit: PathBuf,
    programs: PathBuf,
    /// Variables for the commands of rows: the paths of the recorder, of QEMU's log of interrupts and exceptions, and of scripts.
    environment: Vec<(&'static str, PathBuf)>,
    /// What each program executed.
    executed: HashMap<&'static str, Executed>,
}

pub(super) fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let tools = tools::build(cache)?;
    let tool = |name: &str| tools.iter().find(|(tool, _)| tool == name);
    let (Some((_, steptrace)), Some((_, auxrec))) = (tool("steptrace"), tool("auxrec")) else {
        return Ok(Case::skip(
            NAME,
            "tools/steptrace or tools/auxrec is not in this checkout",
        ));
    };
    let progress = Progress::begin(&format!("exact: {NAME} on {}", kernel.kind));
    let dir = dir.join("exact-matrix");
    let prefix = dir.join("unit");
    // Both guests need these builds, and must not make them at the same time.
    let built = modules::build(cache, kernel, Mode::Plain)?;
    programs(cache)?;
    let (unit, outcome) = both(
        || record_by_unit(cache, &dir, kernel, &built.files, &prefix),
        || record(cache, &dir, kernel, &built.files, &tools, &recordings::ALL),
    )?;
    if let Some(fault) = [unit.faults(), outcome.faults()].concat().first() {
        let why = format!("{}: {}", fault.name, fault.reason);
        return Ok(Case::fail(NAME, &why));
    }
    let mut executed = steps(cache, &dir, steptrace, &recordings::STEPPED)?;
    let log = by_unit(&unit.files, &prefix, &mut executed)?;
    let recorded = Recorded {
        files: outcome.files,
        files_of_unit: unit.files,
        programs: cache.build().join("programs"),
        environment: vec![
            ("AUXREC", auxrec.clone()),
            ("INTERRUPTS", interrupts(&prefix)),
            (
                "PYTHONPATH",
                cache
                    .checkout()
                    .join("tools/vm/src/suites/exact/matrix/scripts"),
            ),
        ],
        executed,
    };
    let mut cases = judged(&dir, &recorded, &rows::all())?;
    cases.push(log);
    let suite = Case::suite(NAME, cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// Steps each program, and returns what it executes.
fn steps(
    cache: &Cache,
    dir: &Path,
    steptrace: &Path,
    all: &[&'static str],
) -> Result<HashMap<&'static str, Executed>> {
    let step = |&program: &&'static str| {
        let path = cache.build().join("programs").join(program);
        let executed = Executed::stepped(dir, steptrace, &path, Ends::Itself)?;
        Ok((program, executed))
    };
    all.iter().map(step).collect()
}

/// Records programs in a guest.
fn record(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    modules: &[PathBuf],
    tools: &[(String, PathBuf)],
    all: &[&Recording],
) -> Result<Outcome> {
    let mut guest = Guest::new(kernel, modules)?
        // No vDSO: perf here does not have the code of the guest kernel's vDSO.
        .append("vdso=0 vdso32=0")
        .timeout(Duration::from_secs(900))
        .intel()
        .devices(Devices::TraceUnit)
        .installed(Path::new("/usr/bin/perf"))?
        .installed(Path::new("/usr/bin/env"))?
        .installed(Path::new("/usr/bin/chrt"))?;
    for (name, path) in tools {
        guest = guest.program(name, path)?;
    }
    for program in recorded(programs(cache)?, all) {
        guest = guest.installed(&program)?;
    }
    let place = cache.build().join("programs");
    let command = format!("PROGRAMS={}\n{}", place.display(), recordings::command(all));
    guest.run(cache, &dir.join("guest"), &command, |_| {})
}

/// Records with the trace unit, in a guest whose clock counts instructions.
fn record_by_unit(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    modules: &[PathBuf],
    prefix: &Path,
) -> Result<Outcome> {
    let mut guest = Guest::new(kernel, modules)?
        .append("vdso=0 vdso32=0")
        .timeout(Duration::from_secs(900))
        .counting()
        .more_memory(512)
        .intel()
        .devices(Devices::TraceUnit)
        .logged(prefix)
        .interrupts_logged(&interrupts(prefix))
        .installed(Path::new("/usr/bin/perf"))?
        .installed(Path::new("/usr/bin/env"))?;
    for program in recorded(programs(cache)?, &recordings::BY_UNIT) {
        guest = guest.installed(&program)?;
    }
    let place = cache.build().join("programs");
    let command = format!(
        "PROGRAMS={}\n{}",
        place.display(),
        recordings::command_of_unit()
    );
    guest.run(cache, &dir.join("guest-unit"), &command, |_| {})
}

fn interrupts(prefix: &Path) -> PathBuf {
    prefix.with_extension("interrupts")
}

/// The programs that are recorded.
fn recorded(programs: Vec<PathBuf>, all: &[&Recording]) -> Vec<PathBuf> {
    let is = |path: &PathBuf| all.iter().any(|one| path.ends_with(one.program));
    programs.into_iter().filter(is).collect()
}

impl Recorded {
    fn file(&self, recording: &Recording) -> PathBuf {
        let files = match recording.is_by_unit() {
            true => &self.files_of_unit,
            false => &self.files,
        };
        files.join(recording.file())
    }
}

/// Divides the unit's log among the recordings: each gets as many instructions as perf shows of it. The rows compare these. If the program
/// was also stepped, its instructions must be its steps.
fn by_unit(
    files: &Path,
    prefix: &Path,
    executed: &mut HashMap<&'static str, Executed>,
) -> Result<Case> {
    const LOG: &str = "unit, what it logs of programs";

    let read = |name: &str| {
        let path = prefix.with_extension(name);
        fs::read_to_string(&path).on("read", &path)
    };
    let image = prefix.with_extension("image");
    let image = fs::read(&image).on("read", &image)?;
    let (log, parts) = (read("cpu0.log")?, read("list")?);
    let mut lines = log.lines();
    let last = recordings::BY_UNIT.len() - 1;
    let mut same = 0;
    for (number, recording) in recordings::BY_UNIT.iter().enumerate() {
        let file = files.join(recording.file());
        let count = match number == last {
            true => usize::MAX,
            false => shown(&file, 0)?.count(),
        };
        let logged = lines.by_ref().take(count);
        if recording.is_of_program() {
            let logged: Vec<_> = logged.collect();
            if let Some(steps) = executed.get(recording.program) {
                if let Err(why) = steps.are(&logged) {
                    return Ok(Case::fail(LOG, &format!("{}: {why}", recording.name)));
                }
                same += 1;
            }
            continue;
        }
        let symbols = file.join("kcore_dir/kallsyms");
        let symbols = fs::read_to_string(&symbols).on("read", &symbols)?;
        let code = Code::of_kernel(&image, &parts, &symbols);
        executed.insert(recording.program, Executed::by_cpu(logged, code)?);
    }
    Ok(Case::pass(LOG).with_log(vec![format!("{same} recordings, the steps of each")]))
}

/// Runs all rows, two at a time.
fn judged(dir: &Path, recorded: &Recorded, rows: &[Row]) -> Result<Vec<Case>> {
    let judged = parallel::each(2, rows, |number, row| {
        judge(&dir.join(format!("row-{number}")), recorded, row)
    });
    judged.into_iter().collect()
}

/// Runs a row in its own folder.
fn judge(place: &Path, recorded: &Recorded, row: &Row) -> Result<Case> {
    crate::cache::remove(place)?;
    fs::create_dir_all(place).on("make", place)?;
    let none = Executed::default();
    let executed = recorded
        .executed
        .get(row.recording.program)
        .unwrap_or(&none);
    let output = Command::new("timeout")
        .args([LONGEST, "sh", "-c", row.command])
        .current_dir(place)
        .env("HOME", place)
        .env("DATA", recorded.file(row.recording))
        .envs(recorded.environment.iter().map(|(name, path)| (name, path)))
        .env("PYTHONDONTWRITEBYTECODE", "yes")
        .env("PROGRAM", recorded.programs.join(row.recording.program))
        .output()
        .map_err(|source| Error::Spawn {
            program: "timeout".to_owned(),
            source,
        })?;
    let [out, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    for (name, text) in [("out", &output.stdout), ("errors", &output.stderr)] {
        let file = place.join(name);
        fs::write(&file, text).on("write", &file)?;
    }
    let printed = Printed {
        out: &out,
        executed,
    };
    let verdict = match output.status.success() {
        true => (row.right)(&printed),
        false => Err(format!(
            "the command ends with {}: {}",
            output.status,
            errors.lines().last().unwrap_or_default()
        )),
    };
    Ok(match verdict {
        Ok(note) => {
            crate::cache::remove(place)?;
            Case::pass(&row.name).with_log(vec![note])
        }
        Err(why) => Case::fail(&row.name, &why).with_log(vec![format!(
            "$ {}, in {}",
            row.command,
            place.display()
        )]),
    })
}
