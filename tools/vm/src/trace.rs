// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records a whole guest from outside, from the kernel's first instruction on, for stock perf.
//!
//! The trace unit is a QEMU plugin that writes the trace into files; the guest needs no driver. While the command runs, `auxrec` in the
//! guest records which process runs when. Together they become a folder like that of `perf record --kcore`:
//!
//! | file | contents |
//! |---|---|
//! | `data` | the trace of each CPU, the changes of the kernel's code, and the guest's records |
//! | `kcore_dir/kcore` | the kernel's code as it was at the beginning |
//! | `kcore_dir/kallsyms`, `kcore_dir/modules` | the guest's `/proc/kallsyms` and `/proc/modules` |

use crate::cache::{self, Cache};
use crate::error::{Error, OnFile, Result};
use crate::guest::{Guest, Outcome};
use crate::plugin;
use crate::step::Log;
use crate::tools;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod chart;
mod code;
mod data;

use code::Code;
use data::Recording;

/// The program that records in the guest.
const RECORDER: &str = "auxrec";

/// The script in the guest that has the command. Its process has this name.
const SCRIPT: &str = "traced";

/// How a guest is recorded.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// How many CPUs the guest has.
    pub cpus: u32,
    /// How many executed instructions of each CPU the plugin logs.
    pub log: Option<u64>,
    /// Whether to make a second recording, which shows the guest as a virtual machine of a host.
    pub vm: bool,
    /// Whether the trace has the time of each branch, by `CYC` packets.
    pub cyc: bool,
}

/// A guest that was recorded.
#[derive(Debug)]
pub struct Recorded {
    /// The recording, for `perf script -i`.
    pub data: PathBuf,
    /// The recording with the guest as a virtual machine.
    pub vm: Option<PathBuf>,
    /// The outcome of the guest.
    pub outcome: Outcome,
    /// The prefix of the paths of the plugin's files.
    pub prefix: PathBuf,
}

/// Boots `guest`, runs `command` in it, and records both. All files are in `dir`.
///
/// # Errors
///
/// When the guest cannot be started, a trace is incomplete, or the guest has not stored its kernel's symbols.
pub fn record(
    cache: &Cache,
    dir: &Path,
    guest: Guest<'_>,
    command: &str,
    plan: Plan,
    live: impl FnMut(&str),
) -> Result<Recorded> {
    cache::remove(dir)?;
    fs::create_dir_all(dir).on("make", dir)?;
    let unit = plugin::build(cache, "traceunit")?;
    let tools = tools::build(cache)?;
    let recorder = tools.iter().find(|(name, _)| name == RECORDER);
    let (_, recorder) = recorder.ok_or_else(|| {
        Error::Other("this checkout has no tools/auxrec, which records in the guest".to_owned())
    })?;
    let prefix = dir.join("unit");
    let mut options = format!("{},out={}", unit.display(), prefix.display());
    if let Some(max) = plan.log {
        options += &format!(",log={max}");
    }
    if plan.cyc {
        options += ",cyc=yes";
    }
    let guest = guest
        .observed(plan.cpus, &options)
        .program(RECORDER, recorder)?
        .script(SCRIPT, &format!("#!/bin/sh\n{command}\n"));
    let outcome = guest.run(cache, &dir.join("guest"), INSIDE, live)?;
    let said = dir.join("guest/qemu.log");
    if let Some(why) = unwritten(&fs::read_to_string(&said).on("read", &said)?) {
        return Err(Error::Other(format!(
            "the trace in {} is not whole: {why}",
            dir.display()
        )));
    }
    let (data, vm) = assemble(dir, &prefix, &outcome, command, plan)?;
    Ok(Recorded {
        data,
        vm,
        outcome,
        prefix,
    })
}

/// The guest's script. It runs the command and stores the kernel's symbols, while `auxrec` records the sideband if it can. The symbols do not
/// come after the recording: a second after its end the kernel changes code again, as perf is not in use any more.
const INSIDE: &str = "\
echo 0 >/proc/sys/kernel/kptr_restrict
run='/bin/traced; echo $? >/tmp/status; cat /proc/kallsyms >/out/kallsyms; cat /proc/modules >/out/modules'
auxrec record -q -a --sideband -o /out/sideband -- sh -c \"$run\"
[ -e /tmp/status ] || eval \"$run\"
exit $(cat /tmp/status)
";

fn assemble(
    dir: &Path,
    prefix: &Path,
    outcome: &Outcome,
    command: &str,
    plan: Plan,
) -> Result<(PathBuf, Option<PathBuf>)> {
    let folder = dir.join("perf.data");
    let kcore = folder.join("kcore_dir");
    fs::create_dir_all(&kcore).on("make", &kcore)?;
    let symbols = outcome.files.join("kallsyms");
    let text = fs::read_to_string(&symbols).unwrap_or_default();
    let text = bounds(&text).ok_or_else(|| {
        Error::Other(format!(
            "the guest has not said what its kernel's symbols are, so perf cannot show the trace. Its console is {}.",
            outcome.console.display()
        ))
    })?;
    for name in ["kallsyms", "modules"] {
        let (from, to) = (outcome.files.join(name), kcore.join(name));
        fs::copy(&from, &to).on("copy", &from)?;
    }
    let pokes = code::pokes(&prefix.with_extension("pokes"))?;
    let mut code = Code::read(
        &prefix.with_extension("image"),
        &prefix.with_extension("list"),
    )?;
    let last = dir.join("guest.data");
    if plan.vm {
        // perf does not support code changes of a virtual machine, so the file has the code as it is at the end.
        let kcore = last.join("kcore_dir");
        fs::create_dir_all(&kcore).on("make", &kcore)?;
        for name in ["kallsyms", "modules"] {
            let (from, to) = (outcome.files.join(name), kcore.join(name));
            fs::copy(&from, &to).on("copy", &from)?;
        }
        code.write(&kcore.join("kcore"), text)?;
    }
    code.undo(&pokes);
    code.write(&kcore.join("kcore"), text)?;
    let trace = |cpu| prefix.with_extension(format!("cpu{cpu}.pt"));
    let traces: Vec<_> = (0..plan.cpus).map(trace).collect();
    let sideband = outcome.files.join("sideband");
    let recording = Recording {
        traces: &traces,
        pokes: &pokes,
        sideband: Some(&*sideband).filter(|path| path.exists()),
        text,
        command,
        cyc: plan.cyc,
    };
    recording.write(&folder.join("data"))?;
    let vm = match plan.vm {
        true => Some(as_vm(dir, &recording, &last, outcome.process)?),
        false => None,
    };
    for trace in &traces {
        fs::remove_file(trace).on("remove", trace)?;
    }
    Ok((folder, vm))
}

/// Writes the recording that a host would have made, and merges the guest's recording into it with `perf inject`.
fn as_vm(dir: &Path, recording: &Recording<'_>, guest: &Path, process: u32) -> Result<PathBuf> {
    let (host, merged) = (dir.join("host.data"), dir.join("vm.data"));
    recording.write_host(&host, process)?;
    recording.write_guest(&guest.join("data"))?;
    let log = Log::create(&dir.join("inject.log"))?;
    let mut perf = Command::new("perf");
    perf.args(["inject", "-i"])
        .arg(&host)
        .arg("-o")
        .arg(&merged);
    perf.arg(format!("--guest-data={},{process}", guest.display()));
    log.run("merging with perf inject", &mut perf)?;
    fs::remove_file(&host).on("remove", &host)?;
    Ok(merged)
}

/// Draws the first call of a function that returns without a context switch. The recording needs `CYC` packets. Returns a description of
/// the picture.
///
/// # Errors
///
/// When no call of it returns without a context switch, or perf fails.
pub fn draw(recorded: &Recorded, function: &str, to: &Path) -> Result<String> {
    chart::draw(&recorded.data, function, to)
}

/// Why the plugin could not write its files, according to QEMU's output.
fn unwritten(said: &str) -> Option<&str> {
    said.lines().find_map(|line| {
        let why = line.strip_prefix("traceunit: ")?;
        ["the trace ends early", "cannot write"]
            .iter()
            .any(|what| why.starts_with(what))
            .then_some(why)
    })
}

/// The addresses of `_text` and `_end`, between which the kernel's text is.
fn bounds(kallsyms: &str) -> Option<(u64, u64)> {
    let address = |name: &str| {
        kallsyms.lines().find_map(|line| {
            let mut words = line.split(' ');
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            (words.nth(1) == Some(name) && address != 0).then_some(address)
        })
    };
    let (start, end) = (address("_text")?, address("_end")?);
    (start < end).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_noticed() {
        let good = "traceunit: 261 instructions have changed\n";
        let full = "traceunit: the trace ends early: No space left on device (os error 28)";
        assert_eq!(unwritten(good), None);
        let found = unwritten(&format!("{full}\n{good}")).map(str::to_owned);
        assert_eq!(found, full.strip_prefix("traceunit: ").map(str::to_owned));
    }

    #[test]
    fn the_text_is_between_its_symbols() {
        let table = [
            (
                "ffffffff81000000 T _text\nffffffff82000000 B _end\n",
                Some((0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000)),
            ),
            ("0000000000000000 T _text\n0000000000000000 B _end\n", None),
            ("ffffffff81000000 T _text\n", None),
            ("", None),
        ];
        for (symbols, want) in table {
            assert_eq!(bounds(symbols), want, "{symbols}");
        }
    }
}
