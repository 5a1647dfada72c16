// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Differences in the files that the recorders write, and in the programs that can read them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};
use rustix::process::Signal;

use super::Tool::{Auxrec, Perf};
use super::{both, of_each, outcome, CPU, SLEEP};
use crate::module;
use crate::pattern;
use crate::recorder::size;
use crate::recording::{trace_in, Reader, TraceFile};
use crate::wait::wait_for;

/// The files of a recording. Their names begin with that of the file.
fn parts(file: &Path) -> Result<Vec<PathBuf>> {
    let name = format!(
        "{}.",
        file.file_name().unwrap_or_default().to_string_lossy()
    );
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(file.parent().context("no directory")?)? {
        let entry = entry?;
        if entry.path().is_file() && entry.file_name().to_string_lossy().starts_with(&name) {
            parts.push(entry.path());
        }
    }
    parts.sort();
    Ok(parts)
}

/// The index of trace of a later file must have no entries of an earlier one: perf refuses such a file.
pub(super) fn several_files() -> Result<String> {
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        ensure!(parts(file.path())?.is_empty(), "there are files already");
        // The area must not get full: perf may never start such an event again.
        let arguments = [&CPU[..4], &["-m", "64,512", "--switch-output"]].concat();
        let recorder = tool.start(&file, &arguments)?;
        // perf gives a file its own name only when the file is complete.
        let written = || -> Result<u64> {
            let parts = parts(file.path())?;
            Ok(size(file.path()) + parts.iter().map(|part| size(part)).sum::<u64>())
        };
        let grows = |bytes| wait_for("trace", || Ok(written()? > bytes));
        let mut outcome = grows(200_000);
        for part in 1..=2 {
            outcome = outcome
                .and_then(|()| recorder.signal(Signal::USR2))
                .and_then(|()| wait_for("a file", || Ok(parts(file.path())?.len() >= part)))
                .and_then(|()| grows(written()? + 200_000));
        }
        recorder.signal(Signal::INT)?;
        let ended = recorder.wait(Reader::KeepsUp)?;
        outcome.with_context(|| format!("{}: {}", tool.name(), ended.errors))?;
        let parts = parts(file.path())?;
        let mut bad = 0;
        for part in parts.iter().skip(1) {
            let findings = pattern::check(&std::fs::read(part)?)?;
            let index = findings
                .problems
                .iter()
                .any(|p| p.contains("the index names"));
            let mut script = Command::new("perf");
            script.arg("script");
            if tool == Auxrec {
                script.arg("--no-itrace");
            }
            let output = script.arg("-i").arg(part).output()?;
            let refused = String::from_utf8_lossy(&output.stderr).contains("AUXTRACE_INFO");
            bad += usize::from(index && refused);
            ensure!(
                tool == Perf || findings.problems.is_empty() && output.status.success(),
                "{}: {findings}",
                part.display()
            );
        }
        for part in &parts {
            std::fs::remove_file(part)?;
        }
        ensure!(tool == Perf || bad == 0, "{bad} of {}", parts.len());
        out.push(format!(
            "perf refuses {bad} of {} later files for the index of another file",
            parts.len() - 1
        ));
    }
    of_each(&out)
}

/// What comes of perf's option `--aio`. auxrec writes from a separate thread.
pub(super) fn aio() -> Result<String> {
    let file = Perf.file();
    let arguments = ["--aio", "-e", "intel_pt/rate=4096/", "-a", "-m", "64,64"];
    let ended = Perf.record(&file, &[&arguments[..], &SLEEP].concat())?;
    let seen = outcome(&ended, file.path(), "aio")?;
    Ok(both(
        &format!("with --aio {seen} of {} bytes", size(file.path())),
        "has no such option: a thread of its own writes",
    ))
}

/// In a file of auxrec with compressed trace, perf must find the AUX records at least.
pub(super) fn compressed() -> Result<String> {
    let mut out = Vec::new();
    for tool in [Perf, Auxrec] {
        let file = tool.file();
        let arguments = [&["-z"], &CPU[..], &SLEEP].concat();
        let ended = tool.record(&file, &arguments)?;
        ensure!(ended.status == 0, "{}: {}", tool.name(), ended.errors);
        let output = Command::new("perf")
            .args(["script", "-D", "--no-itrace", "-i"])
            .arg(file.path())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let count = |what: &str| text.matches(what).count();
        let [trace, aux] = ["PERF_RECORD_AUXTRACE ", "PERF_RECORD_AUX "].map(count);
        let warned = String::from_utf8_lossy(&output.stderr).contains("Unsupported header type");
        ensure!(
            output.status.success() && (aux != 0 || tool == Perf),
            "of the file of {}: {trace} pieces, {aux} AUX records, a warning: {warned}, {}",
            tool.name(),
            output.status
        );
        let bytes = std::fs::read(file.path())?;
        let found = match tool {
            Perf => trace_in(file.path())?,
            Auxrec => 0,
        };
        let len = u64::try_from(bytes.len())?;
        ensure!(found <= len, "{found} bytes of trace in a file of {len}");
        out.push(match tool {
            Perf => format!("of a file of {len} bytes {found} are trace that is not compressed"),
            Auxrec => format!(
                "a file of {len} bytes, all trace compressed; perf shows {aux} AUX records and {trace} pieces of trace, {} a warning",
                match warned {
                    true => "with",
                    false => "without",
                }
            ),
        });
    }
    of_each(&out)
}

/// The crate linux-perf-data must find every byte of trace. The files are kept, for other versions of perf.
pub(super) fn other_readers() -> Result<String> {
    let sleep = ["--", "auxe2e", "workload", "sleep", "--ms", "700"];
    let table: [(&str, &[&str], Reader); 4] = [
        (
            "all-cpus",
            &["-e", "intel_pt/rate=2048/", "-a", "-m", "64,16"],
            Reader::KeepsUp,
        ),
        (
            "truncated",
            &["-e", "intel_pt/rate=4096/", "-C", "1", "-m", "64,8"],
            Reader::Slow,
        ),
        (
            "snapshot",
            &["-e", "intel_pt/rate=2048/", "-a", "-m", "64,16", "-Se"],
            Reader::KeepsUp,
        ),
        (
            "other-events",
            &[
                "-e",
                "{intel_pt/rate=2048/,cpu-clock/freq=100/},context-switches",
                "-a",
                "-m",
                "64,16",
            ],
            Reader::KeepsUp,
        ),
    ];
    let mut out = Vec::new();
    for (name, arguments, reader) in table {
        let file = TraceFile::new(name);
        let arguments = [arguments, &sleep].concat();
        Auxrec.start(&file, &arguments)?.wait(reader)?;
        let bytes = std::fs::read(file.path())?;
        let seen = by_crate(&bytes)?;
        ensure!(
            seen == trace_in(file.path())? && seen != 0,
            "{name}: linux-perf-data finds {seen} bytes of trace"
        );
        std::fs::write(format!("/out/{name}.data"), bytes)?;
        out.push(format!("{name}: {seen}"));
    }
    // This program also exists where other versions of perf read the file.
    let file = TraceFile::new("soft-pt");
    let event = ["-e", "soft_pt//u", "-m", "16,64", "--"];
    let arguments = [&event[..], &["/bin/busybox", "true"]].concat();
    let ended = module::with("soft_pt", || Auxrec.record(&file, &arguments))?;
    ensure!(ended.status == 0, "soft_pt: {}", ended.errors);
    std::fs::copy(file.path(), "/out/soft-pt.data")?;
    Ok(both(
        "not compared",
        &format!("linux-perf-data finds all trace: {} bytes", out.join(", ")),
    ))
}

/// Bytes of trace that linux-perf-data finds.
fn by_crate(bytes: &[u8]) -> Result<u64> {
    use linux_perf_data::{PerfFileReader, PerfFileRecord, UserRecord};

    let PerfFileReader {
        mut perf_file,
        mut record_iter,
    } = PerfFileReader::parse_file(std::io::Cursor::new(bytes))?;
    let mut trace = 0;
    while let Some(record) = record_iter.next_record(&mut perf_file)? {
        match record {
            PerfFileRecord::EventRecord { record, .. } => {
                record.parse()?;
            }
            PerfFileRecord::UserRecord(record) => {
                if let UserRecord::Auxtrace(aux) = record.parse()? {
                    trace += u64::try_from(aux.aux_data.as_slice().len())?;
                }
            }
        }
    }
    Ok(trace)
}
