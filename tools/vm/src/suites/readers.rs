// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the recorder's files with two versions of perf: that of this kernel's series, and 6.1.
//!
//! perf 6.1 is from Debian 12, which is older than the build root. So it has its own folder in the cache, with its libraries.

use crate::archive::Archive;
use crate::cache::{hash, Cache};
use crate::error::{Error, OnFile, Result};
use crate::results::ktap::Case;
use crate::step::{Log, Progress};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The suite that the old perf comes from.
const SUITE: &str = "bookworm";

/// Reads all recordings in `folder`.
///
/// # Errors
///
/// When the old perf cannot be fetched, or `folder` cannot be read.
pub fn run(cache: &Cache, dir: &Path, folder: &Path) -> Result<Case> {
    let old = fetch(cache)?;
    let progress = Progress::begin("recordings in other readers");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).on("read", folder)? {
        let path = entry.on("read", folder)?.path();
        if path.extension().is_some_and(|e| e == "data") {
            files.push(path);
        }
    }
    files.sort();
    let cases = files.iter().map(|file| read(dir, &old, file)).collect();
    let suite = Case::suite("readers", cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// What one version of perf finds in a file.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// The records with trace and those about trace, as perf prints them: with CPU, time and offset in the file.
    records: Vec<String>,
    /// How many instructions perf shows, and how many the events have counted. `None` if perf cannot decode the trace.
    instructions: Option<(u64, u64)>,
}

/// Checks that both versions find the same trace in a file, and that the trace is complete.
fn read(dir: &Path, old: &Path, file: &Path) -> Case {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let seen = || -> Result<String> {
        let new = find(dir, &name, || Command::new("perf"), file)?;
        let old = find(dir, &name, || perf_in(old), file)?;
        if new != old {
            return Err(Error::Other(format!(
                "perf finds {} records of trace, and instructions {:?}, perf 6.1 {} and {:?}, and they are not the same",
                new.records.len(),
                new.instructions,
                old.records.len(),
                old.instructions,
            )));
        }
        let bytes = covered(&new.records).map_err(Error::Other)?;
        match new.instructions {
            Some((shown, counted)) if shown != counted || shown == 0 => Err(Error::Other(format!(
                "perf shows {shown} instructions, and {counted} were counted"
            ))),
            Some((shown, _)) => Ok(format!("{bytes} bytes of trace, {shown} instructions")),
            None => Ok(format!("{bytes} bytes of trace")),
        }
    };
    match seen() {
        Ok(note) => Case::pass(&name).with_log(vec![note]),
        Err(e) => Case::fail(&name, &e.to_string()),
    }
}

fn find(dir: &Path, name: &str, perf: impl Fn() -> Command, file: &Path) -> Result<Found> {
    let log = Log::create(&dir.join("readers").join(format!("{name}.log")))?;
    let script = |options: &[&str]| {
        let mut perf = perf();
        perf.env("HOME", "/tmp").arg("script").args(options);
        log.output("reading a recording with perf", perf.arg("-i").arg(file))
    };
    let text = script(&["-D", "--no-itrace"])?;
    let lines = |kind| text.lines().filter(move |line| line.contains(kind));
    let records: Vec<_> = lines("PERF_RECORD_AUX").map(str::to_owned).collect();
    let decodes = records.iter().any(|r| r.contains("AUXTRACE_INFO"));
    let instructions = if decodes {
        let shown = script(&["--itrace=i1ie", "-F", "tid,ip"])?.lines().count();
        let counts = lines("PERF_RECORD_READ");
        let counts = counts.filter_map(|line| line.split(' ').next_back()?.parse::<u64>().ok());
        Some((u64::try_from(shown).unwrap_or(u64::MAX), counts.sum()))
    } else {
        None
    };
    Ok(Found {
        records,
        instructions,
    })
}

/// What perf prints about the trace of a CPU.
#[derive(Default)]
struct Ring {
    idx: Option<u64>,
    /// The beginning and the end of each piece of trace.
    pieces: Vec<(u64, u64)>,
    /// The beginning and the end of the trace that each AUX record reports.
    reported: Vec<(u64, u64)>,
    /// The heads of an AUX area in overwrite mode.
    heads: Vec<u64>,
}

/// How many bytes of trace there are. An error if the pieces or the AUX records of a CPU have gaps, or do not cover the same range.
fn covered(records: &[String]) -> Result<u64, String> {
    let mut rings = BTreeMap::<u64, Ring>::new();
    for record in records {
        let wrong = || format!("not understood: {record}");
        let number = |name: &str| number(record, name).ok_or_else(wrong);
        if record.contains("PERF_RECORD_AUXTRACE size") {
            let ring = rings.entry(number(" cpu: ")?).or_default();
            let (offset, idx) = (number(" offset: ")?, number(" idx: ")?);
            if ring.idx.is_some_and(|other| other != idx) {
                return Err(format!("in two rings: {record}"));
            }
            ring.idx = Some(idx);
            ring.pieces.push((offset, offset + number(" size: ")?));
        } else if record.contains("PERF_RECORD_AUX offset") {
            let cpu = self::number(record, "").ok_or_else(wrong)?;
            let ring = rings.entry(cpu).or_default();
            let offset = number(" offset: ")?;
            if number(" flags: ")? & OVERWRITE != 0 {
                ring.heads.push(offset);
            } else {
                ring.reported.push((offset, offset + number(" size: ")?));
            }
        }
    }
    // Pieces are padded to a multiple of 8 bytes.
    let near = |end: u64, next: u64| (0..8).contains(&end.wrapping_sub(next));
    let mut sum = 0;
    for (cpu, ring) in &rings {
        let fits = if ring.reported.is_empty() {
            let head = |end| ring.heads.iter().any(|head| near(end, *head));
            ring.pieces.iter().all(|(_, end)| head(*end))
        } else {
            let pieces = ring.pieces.windows(2).all(|w| near(w[0].1, w[1].0));
            let reported = ring.reported.windows(2).all(|w| w[0].1 == w[1].0);
            let begins = ring.pieces.first().zip(ring.reported.first());
            let ends = ring.pieces.last().zip(ring.reported.last());
            pieces
                && reported
                && begins.is_some_and(|(piece, reported)| piece.0 == reported.0)
                && ends.is_some_and(|(piece, reported)| near(piece.1, reported.1))
        };
        if !fits {
            return Err(format!(
                "of CPU {cpu} perf finds the pieces {:x?}, AUX records of {:x?}, and heads {:x?}",
                ring.pieces, ring.reported, ring.heads
            ));
        }
        sum += ring
            .pieces
            .iter()
            .map(|(start, end)| end - start)
            .sum::<u64>();
    }
    if sum == 0 {
        return Err("perf finds no trace".to_owned());
    }
    Ok(sum)
}

/// `PERF_AUX_FLAG_OVERWRITE`.
const OVERWRITE: u64 = 2;

/// The number after `name` in a line of perf's output.
fn number(record: &str, name: &str) -> Option<u64> {
    let (_, rest) = record.split_once(name)?;
    let word = rest.split_whitespace().next()?;
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    }
}

/// The command for the perf in this folder, with the libraries that it was built for.
fn perf_in(dir: &Path) -> Command {
    let library = |place: &str| dir.join(place).join("x86_64-linux-gnu");
    let mut path = library("lib").into_os_string();
    path.push(":");
    path.push(library("usr/lib"));
    let mut command = Command::new(library("lib").join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(path);
    command.arg(dir.join("usr/bin/perf"));
    command
}

/// Fetches the old perf, with all its dependencies, into the cache.
fn fetch(cache: &Cache) -> Result<PathBuf> {
    cache.entry(&format!("perf-{}", hash([SUITE, "1"])), |temporary, _| {
        let progress = Progress::begin("fetching perf 6.1");
        let log = Log::create(&cache.log("perf.log"))?;
        let work = temporary.join("apt");
        let archive =
            Archive::new(work.clone(), SUITE)?.with(&["Acquire::Check-Valid-Until=false"]);
        archive.update(&log, true)?;
        archive.fetch_all(&log, "linux-perf", temporary, |name| {
            ["lib", "zlib", "linux-perf"]
                .iter()
                .any(|p| name.starts_with(p))
        })?;
        fs::remove_dir_all(&work).on("remove", &work)?;
        progress.end("ready");
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(cpu: u64, idx: u64, offset: u64, size: u64) -> String {
        format!("0 0 0x65c0 [0x30]: PERF_RECORD_AUXTRACE size: {size:#x}  offset: {offset:#x}  ref: 0x1297d1e62  idx: {idx}  tid: -1  cpu: {cpu}")
    }

    fn aux(cpu: u64, offset: u64, size: u64, flags: u64) -> String {
        format!("{cpu} 4983757569 0x2248 [0x40]: PERF_RECORD_AUX offset: {offset:#x} size: {size:#x} flags: {flags:#x} []")
    }

    #[test]
    fn all_of_the_trace() {
        let info = "0 0 0x230 [0xa0]: PERF_RECORD_AUXTRACE_INFO type: 1".to_owned();
        let normal = [
            aux(1, 0, 0x40, 0),
            aux(1, 0x40, 0x3c, 1),
            piece(1, 0, 0, 0x80),
            info,
            piece(1, 0, 0x7c, 0x10),
            aux(1, 0x7c, 0x10, 0),
            piece(0, 1, 0, 0x20),
            aux(0, 0, 0x20, 0),
        ];
        assert_eq!(covered(&normal), Ok(0xb0));
        let snapshots = [
            piece(0, 0, 0x100, 0x100),
            aux(0, 0x200, 0x200, 2),
            aux(0, 0x300, 0x300, 2),
            piece(0, 0, 0x200, 0x100),
        ];
        assert_eq!(covered(&snapshots), Ok(0x200));

        for (record, broken) in [
            (0, aux(1, 8, 0x40, 0)),
            (1, aux(1, 0x40, 0x30, 1)),
            (1, aux(0, 0x40, 0x3c, 1)),
            (2, piece(1, 0, 0, 0x88)),
            (2, piece(1, 0, 8, 0x78)),
            (4, piece(1, 2, 0x7c, 0x10)),
            (4, piece(1, 0, 0x7c, 0x18)),
            (5, aux(1, 0x7c, 0x18, 0)),
            (6, piece(2, 1, 0, 0x20)),
            (7, "0 1 0x2 [0x40]: PERF_RECORD_AUX offset: what".to_owned()),
        ] {
            let mut records = normal.clone();
            records[record] = broken;
            assert!(covered(&records).is_err(), "{}", records[record]);
        }
        let mut records = snapshots;
        records[3] = piece(0, 0, 0x200, 0x108);
        assert!(covered(&records).is_err());
        assert!(covered(&[]).is_err());
    }
}
