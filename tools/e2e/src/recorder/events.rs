// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings of several events, and of the sideband records beside the trace.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxview::trace::Trace;

use super::{accounted, end, pieces, with};
use crate::events::sampling::exported;
use crate::module;
use crate::recording::{released, wait_for_trace, Ended, Reader, Recorder, Seen, TraceFile, PAGE};
use crate::wait::wait_for;

/// Records until the file has `bytes` bytes of trace, and then ends the recording.
fn record(file: &TraceFile, arguments: &[String], bytes: u64) -> Result<(Ended, Seen)> {
    let recorder = Recorder::start(file.path(), arguments)?;
    let mut waited = wait_for_trace(file.path(), bytes);
    let ended = end(recorder)?;
    if let Err(error) = &mut waited {
        bail!("{error}: exit status {}: {}", ended.status, ended.errors);
    }
    let seen = Seen::of(file)?;
    accounted(&ended, &seen)?;
    released()?;
    Ok((ended, seen))
}

/// Counts the records of a file by their kind and the name of their event.
fn kinds(file: &Path) -> Result<BTreeMap<(String, String), usize>> {
    let bytes = std::fs::read(file)?;
    let parsed = perfdata::File::parse(&bytes)?;
    let section = parsed.feature(perfdata::Feature::EVENT_DESC);
    let names = section.context("no names of events")?.events()?;
    let mut out = BTreeMap::new();
    for record in parsed.records() {
        let record = record?;
        // A sample begins with the event's id. Other records end with it.
        let id = if record.kind == perfdata::RecordType::SAMPLE {
            record
                .body
                .first_chunk::<8>()
                .map(|id| u64::from_le_bytes(*id))
        } else {
            parsed.decode(&record)?.1.and_then(|id| id.id)
        };
        let event = names
            .iter()
            .find(|event| id.is_some_and(|id| event.ids.contains(&id)));
        let event = event.map_or(String::new(), |event| event.name.clone());
        *out.entry((format!("{:?}", record.kind), event))
            .or_default() += 1;
    }
    Ok(out)
}

fn has(kinds: &BTreeMap<(String, String), usize>, kind: &str, event: &str) -> Result<()> {
    ensure!(
        kinds.contains_key(&(kind.to_owned(), event.to_owned())),
        "no {kind} of {event}: {kinds:?}"
    );
    Ok(())
}

/// Records events of two PMUs on the same CPUs, each with rings of its own.
pub(super) fn two_events(name: &str) -> Result<String> {
    let Some((pmu, second)) = module::load_second()? else {
        bail!(crate::ktap::Skip("there is no second driver"));
    };
    let file = TraceFile::new(name);
    let list = format!("pattern/rate=512/,{pmu}//");
    let result = record(
        &file,
        &["-a", "-m", "64,16", "-e", &list].map(String::from),
        12 * 16 * PAGE,
    )
    .and_then(|(_, seen)| {
        let bytes = std::fs::read(file.path())?;
        let trace = Trace::read(&bytes)?;
        let written: Vec<(&str, u64)> = trace
            .rings
            .values()
            .map(|ring| (ring.pmu.as_str(), ring.loss.read))
            .collect();
        ensure!(
            matches!(written.as_slice(), [("pattern", 1..), ("pattern", 1..), (a, 1..), (b, 1..)] if [*a, *b] == [pmu; 2]),
            "not two rings of each: {written:?}"
        );
        Ok(format!("{written:?}; {seen}"))
    });
    module::unload(second)?;
    result
}

/// Records a member of the group and an event outside it. The data ring must have samples of both, and no byte of trace may be lost.
pub(super) fn other_events(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let events = "{pattern/rate=512/,cpu-clock/freq=100/},context-switches";
    let (_, seen) = record(
        &file,
        &["-a", "-m", "64,16", "-e", events].map(String::from),
        10 * 16 * PAGE,
    )?;
    let kinds = kinds(file.path())?;
    has(&kinds, "AUX", "pattern/rate=512/")?;
    has(&kinds, "SAMPLE", "cpu-clock/freq=100/")?;
    has(&kinds, "SAMPLE", "context-switches")?;
    Ok(seen.to_string())
}

/// Trace may come only between an event that resumes it and one that pauses it.
pub(super) fn pause_and_resume(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let paused = "pattern/rate=512,aux-action=start-paused/";
    let arguments = |events: &str| {
        let all = ["-C", "0", "-m", "64,16", "-e", events, "--"];
        let workload = ["auxe2e", "workload", "sleep", "--ms", "500"];
        all.into_iter()
            .chain(workload)
            .map(String::from)
            .collect::<Vec<_>>()
    };
    let ended = Recorder::start(file.path(), &arguments(paused))?.wait(Reader::KeepsUp)?;
    ensure!(
        ended.status == 0,
        "exit status {}: {}",
        ended.status,
        ended.errors
    );
    let rings = pieces(file.path())?;
    ensure!(
        rings.iter().all(Vec::is_empty),
        "trace though nothing resumed it: {rings:x?}"
    );
    // A sample of the clock event resumes the trace within the first half second.
    let resumed = format!("{paused},cpu-clock/freq=50,aux-action=resume/");
    let ended = Recorder::start(file.path(), &arguments(&resumed))?.wait(Reader::KeepsUp)?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;
    ensure!(seen.content.recorded > 0, "no trace: {seen}");
    released()?;
    Ok(seen.to_string())
}

/// Puts trace into samples, if kernel and driver support that. Otherwise the recorder must name what is missing.
pub(super) fn aux_sample(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let sampled = "{pattern/rate=2048/,cpu-clock/freq=100/}";
    let all = [
        "-C",
        "0",
        "-m",
        "64,16",
        "-e",
        sampled,
        "--aux-sample=1024",
        "--",
    ];
    let workload = ["auxe2e", "workload", "spin", "--ms", "500"];
    let arguments: Vec<_> = all.into_iter().chain(workload).map(String::from).collect();
    let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
    if ended.status == 1 {
        ensure!(
            !exported()?,
            "refused, and the kernel can: {}",
            ended.errors
        );
        for says in [
            "cannot put trace into samples",
            "perf_output_copy_aux",
            "-S",
        ] {
            ensure!(
                ended.errors.contains(says),
                "not {says:?}: {}",
                ended.errors
            );
        }
        ensure!(!file.path().exists(), "it left a file");
        released()?;
        return Ok(format!("refused: {}", ended.errors.trim()));
    }
    ensure!(
        ended.status == 0,
        "exit status {}: {}",
        ended.status,
        ended.errors
    );
    // The samples must contain packets of the driver.
    let bytes = std::fs::read(file.path())?;
    let parsed = perfdata::File::parse(&bytes)?;
    let mut packets = 0;
    for record in parsed.records() {
        let record = record?;
        if record.kind == perfdata::RecordType::SAMPLE {
            let mut rest = record.body;
            while let Some(at) = pattern_codec::find_sync(rest) {
                let (_, packet) = rest.split_at(at);
                if pattern_codec::Header::decode(packet).is_ok() {
                    packets += 1;
                }
                rest = packet.get(8..).unwrap_or_default();
            }
        }
    }
    ensure!(packets > 10, "{packets} packets in all samples");
    released()?;
    Ok(format!("{packets} packets in samples"))
}

/// The file must describe the programs that ran before, the kernel and its modules, and the tasks that start, end or are switched to.
pub(super) fn sideband(name: &str) -> Result<String> {
    let file = TraceFile::new(name);
    let mut before = std::process::Command::new("auxe2e")
        .args(["workload", "sleep", "--ms", "600000"])
        .spawn()?;
    // Until its exec, the child is a copy of this program.
    let comm = format!("/proc/{}/comm", before.id());
    wait_for("its exec", || {
        Ok(std::fs::read_to_string(&comm)?.trim() == "auxe2e")
    })?;
    thread::sleep(Duration::from_millis(100));
    let all = ["-a", "--", "auxe2e", "workload", "fork", "--ms", "400"];
    let ended = Recorder::start(file.path(), &with("rate=64", 16, &all))?.wait(Reader::KeepsUp)?;
    let pid = before.id();
    before.kill()?;
    before.wait()?;
    let seen = Seen::of(&file)?;
    accounted(&ended, &seen)?;

    let bytes = std::fs::read(file.path())?;
    let parsed = perfdata::File::parse(&bytes)?;
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for record in parsed.records() {
        let record = record?;
        let (event, id) = parsed.decode(&record)?;
        let made_up = id.is_some_and(|id| id.time == Some(0));
        let what = match event {
            perfdata::Event::Mmap(map) if map.filename.starts_with(b"[kernel.kallsyms]") => {
                "kernel"
            }
            perfdata::Event::Mmap(map) if map.filename == b"[pattern]" => "module",
            perfdata::Event::Comm(comm) if made_up && comm.pid == pid => "name before",
            perfdata::Event::Mmap2(map) if made_up && map.pid == pid => {
                let named = map.file.build_id().is_some();
                *found.entry("build-id before").or_default() += usize::from(named);
                "mapping before"
            }
            perfdata::Event::Comm(comm) if comm.exec && !made_up => "exec",
            perfdata::Event::Mmap2(map) if map.file.build_id().is_some() => "build-id",
            perfdata::Event::Mmap2(_) if !made_up => "mapping",
            perfdata::Event::Fork(_) => "fork",
            perfdata::Event::Exit(_) => "exit",
            perfdata::Event::Switch(..) => "switch",
            _ => continue,
        };
        *found.entry(what).or_default() += 1;
    }
    let wanted = [
        "kernel",
        "module",
        "name before",
        "mapping before",
        "exec",
        "fork",
        "exit",
        "switch",
    ];
    for what in wanted {
        ensure!(found.contains_key(what), "no {what}: {found:?}");
    }
    // If the kernel finds a build ID of this program, the recorder must find it, too.
    ensure!(
        !found.contains_key("build-id") || found.get("build-id before") != Some(&0),
        "no build-id of what ran already: {found:?}"
    );
    let mappings = found.get("mapping").or_else(|| found.get("build-id"));
    ensure!(mappings.is_some(), "no mapping of what was run: {found:?}");
    released()?;
    Ok(format!("{found:?}"))
}
