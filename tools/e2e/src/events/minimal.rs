// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the trace of `minimal`, record by record. `Documentation/abi.md` specifies it.

use std::fmt;

use anyhow::{bail, ensure, Context, Result};
use auxview::pieces::Pieces;
use auxview::trace::Trace;

use crate::ktap::Skip;
use crate::module;
use crate::recording::{Reader, Recorder, TraceFile};

/// Length of a record.
const RECORD: usize = 16;

/// How `minimal` is recorded.
struct Row {
    terms: &'static str,
    pages: &'static str,
    target: &'static [&'static str],
    workload: &'static str,
    reader: Reader,
    /// Bytes of trace.
    bytes: u32,
    /// Whether records must have been lost, in more than one truncation.
    full: bool,
}

const ROWS: [Row; 3] = [
    Row {
        terms: "interval=50",
        pages: "64,16",
        target: &["-C", "0"],
        workload: "sleep",
        reader: Reader::KeepsUp,
        bytes: 200_000,
        full: false,
    },
    Row {
        terms: "interval=20",
        pages: "64,2",
        target: &["-C", "1"],
        workload: "sleep",
        reader: Reader::Slow,
        bytes: 64_000,
        full: true,
    },
    // One event of a thread that migrates: its numbers continue on the other CPU.
    Row {
        terms: "",
        pages: "64,4",
        target: &["--per-thread"],
        workload: "migrate",
        reader: Reader::KeepsUp,
        bytes: 16_000,
        full: false,
    },
];

/// Records `minimal`. Each number must be there once, or be reported as lost.
pub fn every_number(name: &str) -> Result<String> {
    let Some((pmu, module)) = module::load_second()? else {
        bail!(Skip("there is no second driver"));
    };
    let seen = ROWS
        .iter()
        .map(|row| row.run(name, pmu))
        .collect::<Result<Vec<_>>>();
    // No event of it is open any more.
    module::unload(module)?;
    Ok(seen?.join("; "))
}

impl Row {
    fn run(&self, name: &str, pmu: &str) -> Result<String> {
        let file = TraceFile::new(name);
        let path = file.path().display().to_string();
        let event = format!("{pmu}/{}/", self.terms);
        let mut arguments = vec!["-e", &event, "-m", self.pages];
        arguments.extend(self.target);
        let bytes = self.bytes.to_string();
        arguments.extend(["--", "auxe2e", "workload", self.workload]);
        arguments.extend(["--trace", &path, &bytes]);
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();

        let lost = || module::counter(pmu, "lost_no_space");
        let before = lost()?;
        let ended = Recorder::start(file.path(), &arguments)?.wait(self.reader)?;
        let lost = lost()? - before;
        let seen = Seen::of(&std::fs::read(file.path())?)?;

        // Each truncation stands for a record that found no space.
        ensure!(
            lost == seen.missing * u64::try_from(RECORD)? && seen.missing == seen.truncations,
            "{lost} bytes are reported lost: {seen}"
        );
        ensure!(
            seen.missing > 1 || !self.full,
            "the ring was not full, and then enabled again: {seen}"
        );
        ensure!(
            ended.status == if seen.missing > 0 { 3 } else { 0 },
            "auxrec record: exit status {}: {}: {seen}",
            ended.status,
            ended.errors
        );
        Ok(seen.to_string())
    }
}

/// The content of a file.
#[derive(Debug, Default)]
struct Seen {
    records: u64,
    /// Numbers that no record has.
    missing: u64,
    truncations: u64,
}

impl Seen {
    fn of(bytes: &[u8]) -> Result<Self> {
        let trace = Trace::read(bytes)?;
        ensure!(trace.problems.is_empty(), "{}", trace.problems.join("\n"));
        let [ring] = &trace.rings.values().collect::<Vec<_>>()[..] else {
            bail!("{} rings", trace.rings.len());
        };
        ensure!(ring.loss.records_lost == 0, "AUX records are lost");

        let mut stream = Vec::new();
        let files = [bytes];
        let mut read = Pieces::of(&files);
        for piece in &ring.pieces {
            ensure!(
                piece.offset == u64::try_from(stream.len())?,
                "a piece of trace begins at {} and not at {}",
                piece.offset,
                stream.len()
            );
            stream.extend(read.bytes(piece)?);
        }
        ensure!(stream.len() % RECORD == 0, "half a record at the end");

        let mut seen = Self {
            truncations: ring.loss.truncated,
            ..Self::default()
        };
        let (mut next, mut before) = (0, 0);
        for record in stream.chunks_exact(RECORD) {
            let (time, rest) = record.split_first_chunk().context("no time")?;
            let (cpu, rest) = rest.split_first_chunk().context("no CPU")?;
            let number = rest.first_chunk().context("no number")?;
            let (time, cpu) = (u64::from_le_bytes(*time), u32::from_le_bytes(*cpu));
            let number = u64::from(u32::from_le_bytes(*number));

            ensure!(
                time >= before && number >= next,
                "record {number} of {time} ns comes after {next} of {before} ns"
            );
            ensure!(
                ring.cpu.is_none_or(|of| of == cpu) && cpu < 2,
                "record {number} is of CPU {cpu}"
            );
            seen.records += 1;
            seen.missing += number - next;
            (next, before) = (number + 1, time);
        }
        // The counter shows the losses after the last record.
        let counted: u64 = ring.counts.iter().map(|read| read.value).sum();
        seen.missing += counted
            .checked_sub(next)
            .with_context(|| format!("{counted} ticks, but a record {}", next - 1))?;
        Ok(seen)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} records, {} missing, {} truncations",
            self.records, self.missing, self.truncations
        )
    }
}
