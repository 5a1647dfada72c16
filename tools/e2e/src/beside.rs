// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares `auxrec` with stock `perf record`: both record the same deterministic run of the same driver.
//!
//! perf supports AUX areas only for PMUs whose names it knows, on processors where it expects them. So the guest's processor claims to be
//! Intel's, and `pattern` is loaded under such a name. A table in `Documentation/recorder-and-perf.md` lists the differences; any other
//! difference fails the case.

pub mod counting;
pub mod differences;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};
use auxview::pieces::Pieces;
use auxview::trace::Trace;
use pattern_codec::Header;

use crate::module;
use crate::recording::said;
use crate::soft_pt;

/// The table of differences.
const DOCUMENT: &str = include_str!("../../../Documentation/recorder-and-perf.md");

/// A case: its name, and a function that runs it and returns a note about the result.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Runs it.
    pub run: fn() -> Result<String>,
}

/// All cases.
pub const CASES: &[Case] = &[
    Case {
        name: "one CPU, as intel_pt",
        run: one_cpu,
    },
    Case {
        name: "one thread, as intel_bts",
        run: || same(&ONE_THREAD),
    },
    Case {
        name: "a ring that is filled many times",
        run: || same(&WRAPS),
    },
    Case {
        name: "perf list",
        run: counting::listed,
    },
    Case {
        name: "perf stat",
        run: counting::counted,
    },
    Case {
        name: "a trigger, in perf script",
        run: soft_pt::trigger_by_perf,
    },
];

impl Case {
    /// Runs the case. Returns a note about the result.
    pub fn run(&self) -> Result<String> {
        let seen = (self.run)();
        // Even if the case failed, the next case needs the driver under its own name.
        module::alias(0)?;
        seen
    }
}

/// What to record, with both recorders.
struct Run {
    /// The value of `pattern`'s parameter `alias`, and the name that it selects.
    alias: (u8, &'static str),
    terms: &'static str,
    /// Bytes after which the unit generates nothing more.
    limit: usize,
    /// `-m` for both.
    rings: &'static str,
    target: &'static [&'static str],
    workload: &'static [&'static str],
}

/// The area holds all trace, so that a recorder that gets no processor for a while loses none.
const ONE_CPU: Run = Run {
    alias: (1, "intel_pt"),
    terms: "rate=2048",
    limit: 1 << 20,
    rings: "64,512",
    target: &["-C", "1"],
    workload: &["sleep", "--ms", "2500"],
};

/// Packets of 8 times 24 bytes, and a ring that does not wrap: perf cuts each piece of BTS trace to a multiple of 24 bytes.
const ONE_THREAD: Run = Run {
    alias: (2, "intel_bts"),
    terms: "rate=2048,packet=3,burst=11",
    limit: 11 * 192 * 480,
    rings: "64,512",
    target: &["--per-thread"],
    workload: &["spin", "--ms", "2500"],
};

/// The area is filled eight times, so slowly that a recorder may get no processor for a third of a second.
const WRAPS: Run = Run {
    terms: "rate=64,packet=3,burst=5",
    // Whole bursts of 5 packets of 3 units of 64 bytes.
    limit: 960 * 300,
    rings: "16,8",
    workload: &["sleep", "--ms", "6000"],
    ..ONE_CPU
};

/// What one recorder has written.
struct Recorded {
    /// The bytes of the AUX area, with the fields that differ between runs set to 0.
    bytes: Vec<u8>,
    /// Offset, size and flags of each AUX record, as perf prints them.
    aux: Vec<String>,
    /// Offset and size of each piece of trace, as perf prints them.
    pieces: Vec<String>,
    /// Thread and CPU of the pieces, as perf prints them.
    places: BTreeSet<String>,
    /// The kinds of records, as perf prints them.
    kinds: BTreeSet<String>,
    /// The words of AUXTRACE_INFO, as perf prints them.
    info: Vec<String>,
}

/// All of a CPU, as `intel_pt`.
pub fn one_cpu() -> Result<String> {
    same(&ONE_CPU)
}

fn same(run: &Run) -> Result<String> {
    let theirs = record(run, "perf")?;
    let ours = record(run, "auxrec")?;
    ensure!(
        ours.bytes.len() == run.limit,
        "auxrec has {} bytes of trace, and not {}",
        ours.bytes.len(),
        run.limit
    );
    let missing = run.limit.checked_sub(theirs.bytes.len());
    let missing = missing.context("perf has more trace than was generated")?;
    ensure!(
        ours.bytes.starts_with(&theirs.bytes),
        "the bytes of the AUX area differ"
    );
    ensure!(missing == 0, "perf has {missing} bytes less");
    if run.alias.1 == "intel_pt" {
        // It depends on chance where a thread is scheduled out. The trace of a CPU does not.
        ensure!(
            theirs.aux == ours.aux,
            "AUX records differ: perf {:?}, auxrec {:?}",
            theirs.aux,
            ours.aux
        );
        ensure!(
            theirs.places == ours.places,
            "pieces are of {:?} in perf's file, and of {:?} in auxrec's",
            theirs.places,
            ours.places
        );
    }
    // Both files describe the trace to perf's decoder in the same way. The name `intel_pt` is excluded: `pattern` lacks the terms by which
    // auxrec recognises Intel PT.
    if run.alias.1 == "intel_bts" {
        ensure!(
            theirs.info.len() == 6 && theirs.info == ours.info,
            "AUXTRACE_INFO differs: perf {:?}, auxrec {:?}",
            theirs.info,
            ours.info
        );
    }
    let chance = named(["some", "some"]);
    for (whose, table, one, other) in [
        ("perf", ["yes", "no"], &theirs, &ours),
        ("auxrec", ["no", "yes"], &ours, &theirs),
    ] {
        let named = named(table);
        for kind in one.kinds.difference(&other.kinds) {
            ensure!(
                named.contains(kind.as_str()) || chance.contains(kind.as_str()),
                "only {whose} has {kind} records, and the table of differences does not say so"
            );
        }
    }
    Ok(format!(
        "{} bytes in both; {} AUX records and {} pieces of perf's, {} and {} of auxrec's; only perf: {:?}; only auxrec: {:?}",
        theirs.bytes.len(),
        theirs.aux.len(),
        theirs.pieces.len(),
        ours.aux.len(),
        ours.pieces.len(),
        theirs.kinds.difference(&ours.kinds).collect::<Vec<_>>(),
        ours.kinds.difference(&theirs.kinds).collect::<Vec<_>>(),
    ))
}

/// The kinds of records for which the table in the document has these two cells: `[perf, auxrec]`.
fn named(who: [&str; 2]) -> BTreeSet<&'static str> {
    DOCUMENT
        .lines()
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let kind = cells.next()?.strip_prefix('`')?.strip_suffix("` records")?;
            (cells.next()? == who[0] && cells.next()? == who[1]).then_some(kind)
        })
        .collect()
}

fn record(run: &Run, program: &str) -> Result<Recorded> {
    let (number, name) = run.alias;
    // The driver is loaded anew, so that its streams have the same numbers.
    module::alias(number)?;
    let file = File::new(program);
    let mut command = Command::new(program);
    command.arg("record").arg("-o").arg(&file.0);
    if program == "perf" {
        // Build IDs are not compared, and perf needs much time to collect them.
        command.args(["-N", "-B"]);
    } else {
        // auxrec uses perf's default watermark here: the bytes show where transactions end.
        let (_, area) = run.rings.split_once(',').context("no size of the area")?;
        let quarter = area.parse::<usize>()? / 4;
        command.args(["--aux-watermark", &quarter.to_string()]);
    }
    command
        .args(["-e", &format!("{name}/{},limit={}/", run.terms, run.limit)])
        .args(["-m", run.rings])
        .args(run.target)
        .args(["--", "auxe2e", "workload"])
        .args(run.workload);
    said(&mut command)?;

    let mut dump = Command::new("perf");
    // Without perf's decoder, because `pattern` does not write a processor's trace.
    dump.args(["script", "-D", "--no-itrace", "-i"])
        .arg(&file.0);
    let text = said(&mut dump)?;
    let records = || {
        text.lines()
            .filter_map(|line| line.split_once("PERF_RECORD_"))
    };
    let of = |kind: &str| -> Vec<String> {
        records()
            .filter_map(|(_, rest)| rest.strip_prefix(kind)?.strip_prefix(' '))
            .map(|rest| rest.split_once("  ref:").map_or(rest, |(front, _)| front))
            .map(|rest| rest.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    };
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let info = text.lines();
    let info = info.skip_while(|line| !line.contains("PERF_RECORD_AUXTRACE_INFO"));
    let info = info.skip(1).take_while(|line| line.starts_with("  "));
    Ok(Recorded {
        info: info.map(|line| line.trim().to_owned()).collect(),
        bytes: bytes(&file.0, run.alias.1 == "intel_bts")?,
        aux: of("AUX"),
        pieces: of("AUXTRACE"),
        places: records()
            .filter_map(|(_, rest)| rest.strip_prefix("AUXTRACE ")?.split_once("  tid:"))
            .map(|(_, place)| place.to_owned())
            .collect(),
        kinds: records()
            .filter_map(|(_, rest)| rest.split(word).next())
            .map(str::to_owned)
            .collect(),
    })
}

/// The trace of a file with one ring. Verifies every packet, and then sets the fields to 0 that differ between runs: time and checksum. If
/// the trace is of a thread, CPU and session differ too, because the scheduler moves the thread.
fn bytes(file: &Path, thread: bool) -> Result<Vec<u8>> {
    let bytes = std::fs::read(file)?;
    let trace = Trace::read(&bytes)?;
    ensure!(trace.problems.is_empty(), "{:?}", trace.problems);
    let files = [&bytes];
    let mut all = Pieces::of(&files);
    let mut out = Vec::new();
    for piece in trace.rings.values().flat_map(|ring| &ring.pieces) {
        ensure!(
            piece.offset == u64::try_from(out.len())?,
            "a piece of trace is at {:#x}, and {} bytes stand before it",
            piece.offset,
            out.len()
        );
        out.extend(all.bytes(piece)?);
    }
    let mut at = 0;
    while let Some(rest) = out
        .get_mut(at..)
        .filter(|rest| rest.len() >= pattern_codec::HEADER_LEN)
    {
        let header = Header::decode(rest).map_err(|e| anyhow::anyhow!("byte {at}: {e}"))?;
        let len = usize::from(header.len).min(rest.len());
        let (packet, _) = rest.split_at_mut(len);
        let (head, payload) = packet.split_at_mut(pattern_codec::HEADER_LEN);
        let offset = u16::try_from(pattern_codec::HEADER_LEN)?;
        if let Err(wrong) = pattern_codec::verify_payload(&header, offset, payload) {
            anyhow::bail!("the packet at {at} differs from its byte {wrong} on");
        }
        let mut chance = vec![16..24, 36..40];
        if thread {
            chance.extend([28..30, 32..36]);
        }
        for field in chance {
            head.get_mut(field).context("a short header")?.fill(0);
        }
        at += len;
    }
    Ok(out)
}

/// A file that is removed when the case ends.
struct File(PathBuf);

impl File {
    fn new(program: &str) -> Self {
        Self(Path::new("/tmp").join(format!("beside-{program}.data")))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // The recorder may not have created it.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document must have a row for each case. `make coverage` writes the rows.
    #[test]
    fn the_document_has_each_case() {
        for case in differences::CASES {
            let row = format!("\n| {} | ", case.name);
            assert!(
                DOCUMENT.contains(&row),
                "{}: run make beside and make coverage",
                case.name
            );
        }
    }
}
