// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The recorder compared with stock perf on machines that exist only as descriptions: with Arm SPE, CoreSight, HiSilicon PTT, Intel PT and
//! Intel BTS.
//!
//! Both programs are built for the machine's architecture. They run under QEMU's user-mode emulator, which gives them sysfs files that are
//! written here. `golden/events.c` lets them open events of any PMU. The fields that a decoder reads must be the same in both files, except
//! for the differences in `differences.rs`, each of which has a reason. The trace in both files is a few handwritten packets. perf must
//! decode the same from both files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::{self, Cache};
use crate::error::{OnFile, Result};
use crate::results::ktap::Case;
use crate::step::{Log, Progress};

mod differences;
mod fields;
mod machine;
mod rows;
mod stock;
mod trace;

use fields::{fields, Fields};
use machine::Machine;
use rows::{Row, ROWS};
use stock::Stock;

/// The architecture of a described machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arch {
    Arm64,
    X86_64,
}

impl Arch {
    const ALL: [Self; 2] = [Self::Arm64, Self::X86_64];

    /// The compiler's name of the target.
    fn target(self) -> &'static str {
        match self {
            Self::Arm64 => "aarch64-unknown-linux-gnu",
            Self::X86_64 => "x86_64-unknown-linux-gnu",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Arm64 => include_str!("../../golden/arm64.txt"),
            Self::X86_64 => include_str!("../../golden/x86_64.txt"),
        }
    }

    /// Options for clang.
    fn flags(self) -> &'static [&'static str] {
        match self {
            // The machine's C library may be too old for the compiler's out-of-line functions.
            Self::Arm64 => &[
                "--target=aarch64-linux-gnu",
                "-mno-outline-atomics",
                "-isystem",
                "/usr/lib/linux/uapi/arm64",
            ],
            Self::X86_64 => &[],
        }
    }
}

/// Runs all rows, or those whose names contain one of `wanted`. If `few` is set, runs only those of one architecture, so that the recorder
/// is built only once.
///
/// # Errors
///
/// When perf cannot be had, the recorder cannot be built, or a file cannot be read or written.
pub(crate) fn run(cache: &Cache, dir: &Path, wanted: &[String], few: bool) -> Result<Case> {
    let dir = dir.join("golden");
    cache::remove(&dir)?;
    let log = Log::create(&dir.join("build.log"))?;
    let stock = Stock::prepare(cache)?;
    let progress = Progress::begin("the recorder for described machines");
    let (mut cases, mut seen) = (Vec::new(), BTreeSet::new());
    let arches = match few {
        true => &[Arch::Arm64][..],
        false => &Arch::ALL,
    };
    for &arch in arches {
        let recorder = stock.recorder(cache, &log, arch)?;
        let source = cache.checkout().join("tools/vm/golden/events.c");
        let machine = Machine::new(arch, &stock, &dir.join(arch.target()), &source, &log)?;
        let rows = ROWS.iter().filter(|row| row.arch == arch);
        for row in rows
            .filter(|row| wanted.is_empty() || wanted.iter().any(|name| row.name.contains(name)))
        {
            let both = Both {
                machine: &machine,
                recorder: &recorder,
                log: Log::create(&dir.join(format!("{}.log", row.name)))?,
                dir: dir.join(row.name),
            };
            cases.push(Case::judged(row.name, both.judge(row, &mut seen)?));
        }
    }
    if wanted.is_empty() && !few {
        let stale = differences::stale(&seen);
        cases.push(Case::judged(
            "each intended difference is there",
            match stale.is_empty() {
                true => Ok(format!("{} differences", seen.len())),
                false => Err(stale.join("; ")),
            },
        ));
    }
    let suite = Case::suite("golden", cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// The lines that perf prints for each record of this kind, without the line with its offset. Sorted, as the order of CPUs varies.
fn blocks(text: &str, kind: &str) -> Vec<Vec<String>> {
    let mut lines = text.lines();
    let mut all = Vec::new();
    while lines.any(|line| line.contains(kind)) {
        let block = lines.by_ref().take_while(|line| !line.is_empty());
        all.push(block.map(str::to_owned).collect());
    }
    all.sort();
    all
}

/// Stock perf and the recorder on the same machine.
struct Both<'a> {
    machine: &'a Machine<'a>,
    recorder: &'a Path,
    log: Log,
    dir: PathBuf,
}

impl Both<'_> {
    /// Makes the recording `row` with both, and compares the files.
    fn judge(
        &self,
        row: &Row,
        seen: &mut BTreeSet<usize>,
    ) -> Result<std::result::Result<String, String>> {
        fs::create_dir_all(&self.dir).on("make", &self.dir)?;
        self.machine.describe(row.changes)?;
        let perf = self.record(self.machine.perf(), "perf.data", row)?;
        if let Some(perf) = &perf {
            self.copy_ratio(perf)?;
        }
        let ours = self.record(self.machine.command(self.recorder), "auxrec.data", row)?;
        let (perf, ours) = match (perf, ours, row.is_refused) {
            (None, None, true) => return Ok(Ok("refused by both".to_owned())),
            (Some(perf), Some(ours), false) => (perf, ours),
            (perf, ours, _) => {
                let did = |file: bool| if file { "records" } else { "refuses" };
                return Ok(Err(format!(
                    "perf {} it, auxrec {} it: see {}",
                    did(perf.is_some()),
                    did(ours.is_some()),
                    self.log.path().display()
                )));
            }
        };
        let fields = |bytes: &[u8], who: &str| fields(bytes).map_err(|why| format!("{who}: {why}"));
        let mut judged = || {
            let (perf, ours) = (
                fields(&perf, "perf's file")?,
                fields(&ours, "auxrec's file")?,
            );
            let (wrong, found) = differences::find(&perf, &ours);
            seen.extend(found);
            match wrong.is_empty() {
                true => Ok(perf),
                false => Err(wrong.join("; ")),
            }
        };
        let perf = match judged() {
            Ok(perf) => perf,
            Err(why) => return Ok(Err(why)),
        };
        self.read(row, &perf)
    }

    /// Reads both files with stock perf. It must print the same AUXTRACE_INFO and the same trace, and for SPE the same samples.
    fn read(&self, row: &Row, fields: &Fields) -> Result<std::result::Result<String, String>> {
        let is_traced = row.trace().is_some();
        let mut printed = Vec::new();
        for file in ["perf.data", "auxrec.data"] {
            let text = self.script(&["-D"], file)?;
            let info = blocks(&text, "PERF_RECORD_AUXTRACE_INFO ");
            let trace = blocks(&text, "PERF_RECORD_AUXTRACE ");
            let samples = match row.event().starts_with("arm_spe") && is_traced {
                // In perf's own recording of a thread, the samples have no times, and the first one has no address.
                true if row.args.contains(&"--per-thread") => {
                    let samples = self.script(&["-F", "event,ip,addr"], file)?;
                    let is_there = |line: &&str| !line.ends_with(" 0");
                    samples.lines().filter(is_there).collect()
                }
                true => self.script(&["-F", "event,time,ip,addr"], file)?,
                false => "none".to_owned(),
            };
            if info.is_empty() || trace.is_empty() == is_traced || samples.is_empty() {
                return Ok(Err(format!(
                    "of {file} perf prints AUXTRACE_INFO {info:?}, trace {trace:?}, samples {samples:?}"
                )));
            }
            let framed = row.trace().is_some_and(|w| w.coresight == Some("framed"));
            let of_cpu = |id: &str| {
                text.lines()
                    .any(|line| line.contains(id) && line.contains("I_TRACE_ON"))
            };
            if framed && !trace::IDS.iter().all(|id| of_cpu(&format!("ID:{id:x}"))) {
                return Ok(Err(format!(
                    "perf finds no packets of each CPU in the frames of {file}"
                )));
            }
            printed.push((info, trace, samples));
        }
        Ok(match printed.first() == printed.last() {
            true => Ok(format!("{} fields", fields.len())),
            false => Err(format!("perf prints {printed:#?}")),
        })
    }

    /// The output of `perf script` for a file.
    fn script(&self, args: &[&str], file: &str) -> Result<String> {
        let mut perf = Command::new("perf");
        perf.env("HOME", "/nonexistent").arg("script").args(args);
        perf.arg("-i").arg(self.dir.join(file));
        self.log.output("reading a recording with perf", &mut perf)
    }

    /// Makes the recording `row`, and returns the file's content. [`None`] if the recorder refuses it.
    fn record(&self, mut recorder: Command, file: &str, row: &Row) -> Result<Option<Vec<u8>>> {
        let path = self.dir.join(file);
        recorder
            .arg("record")
            .args(row.args)
            // Every user may lock this much memory.
            .args(["-m", "32K,64K", "-o"])
            .arg(&path)
            .args(["--", "/bin/true"]);
        if let Some(written) = row.trace() {
            let trace = self.dir.join("trace");
            fs::write(&trace, written.bytes).on("write", &trace)?;
            recorder.env("EVENTS_TRACE", trace);
            recorder.envs(written.coresight.map(|how| ("EVENTS_CORESIGHT", how)));
        }
        Ok(match self.log.status(&mut recorder)?.success() {
            true => Some(fs::read(&path).on("read", &path)?),
            false => None,
        })
    }

    /// Copies the ratio of TSC and crystal clock from perf's recording to the described machine. The driver of Intel PT shows the ratio of
    /// the processor in a sysfs file. But perf asks the processor itself, which is the emulated one.
    fn copy_ratio(&self, perf: &[u8]) -> Result<()> {
        let Ok(fields) = fields(perf) else {
            return Ok(());
        };
        if fields
            .get("AUXTRACE_INFO[00]")
            .is_some_and(|kind| kind == "0x1")
        {
            let number = |word: &str| {
                let text = fields.get(word)?.strip_prefix("0x")?;
                u64::from_str_radix(text, 16).ok()
            };
            if let (Some(ticks), Some(coarse)) =
                (number("AUXTRACE_INFO[13]"), number("AUXTRACE_INFO[14]"))
            {
                let path = "sys/bus/event_source/devices/intel_pt/tsc_art_ratio";
                self.machine.write(path, &format!("{ticks}:{coarse}"))?;
            }
        }
        Ok(())
    }
}
