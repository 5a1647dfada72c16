// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `report`: a line for each AUX record, a summary, and a picture.

use std::io::{self, Write};

use crate::check::wraps;
use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::source::Source;
use crate::svg;
use crate::trace::{AuxAt, Mode, Trace};

/// Writes the report of a recording.
///
/// # Errors
/// If it is no perf.data file, or it cannot be read, or the output fails.
pub fn report<S: Source + ?Sized>(file: &S, out: &mut impl Write) -> Result<()> {
    let trace = Trace::read(file)?;
    match print(&trace, out) {
        // The reader has closed the pipe, and wants no more.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(Error::failed(format!("cannot write the report: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// The picture of a recording, as SVG.
///
/// # Errors
/// If it is no perf.data file, or it cannot be read.
pub fn timeline<S: Source + ?Sized>(file: &S) -> Result<String> {
    svg::draw(&Trace::read(file)?)
}

/// Formats nanoseconds as seconds with nine decimals.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn print(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let mut records: Vec<(&AuxAt, u32)> = trace
        .rings
        .iter()
        .flat_map(|(&idx, ring)| ring.records.iter().map(move |record| (record, idx)))
        .collect();
    records.sort_by_key(|(record, idx)| (record.time, *idx));
    writeln!(out, "# event {}, PMU {}", trace.event, trace.pmu)?;
    writeln!(
        out,
        "# {:>20} {:>4} {:>8} {:>16} {:>12}  flags",
        "time", "CPU", "thread", "offset", "size"
    )?;
    for (record, _) in records {
        let aux = record.aux;
        let number = |n: Option<u32>| {
            n.and_then(|n| i32::try_from(n).ok())
                .map_or("-".to_owned(), |n| n.to_string())
        };
        writeln!(
            out,
            "  {:>20} {:>4} {:>8} {:>#16x} {:>12}  {}",
            seconds(record.time),
            number(record.cpu),
            number(record.tid),
            aux.offset,
            aux.size,
            aux.flags.names(),
        )?;
    }
    writeln!(out, "#")?;
    let mut total = Loss::default();
    let mut all_wraps = 0;
    for ring in trace.rings.values() {
        let wraps = trace.aux_size.map_or(0, |size| wraps(ring, size));
        line(out, &ring.name(), &ring.loss, wraps)?;
        total = total.plus(ring.loss);
        all_wraps = wraps.saturating_add(all_wraps);
    }
    line(out, "total", &total, all_wraps)?;
    for (cpu, of) in &trace.tracefs {
        let lost = of.loss.describe();
        let lost = if lost.is_empty() {
            "nothing lost"
        } else {
            &lost
        };
        writeln!(
            out,
            "# tracefs, CPU {cpu}: {} events; {lost}",
            of.loss.events
        )?;
    }
    if trace.mode == Mode::Overwrite {
        writeln!(
            out,
            "# the area was overwritten: only its last content is in the file"
        )?;
    }
    for problem in trace.problems.iter() {
        writeln!(out, "# problem: {problem}")?;
    }
    if let more @ 1.. = trace.problems.more() {
        writeln!(out, "# problem: and {more} more")?;
    }
    Ok(())
}

fn line(out: &mut impl Write, name: &str, loss: &Loss, wraps: u64) -> io::Result<()> {
    let lost = loss.describe();
    writeln!(
        out,
        "# {name}: {} AUX records, {} bytes, {wraps} wraps; {}",
        loss.records,
        loss.read,
        if lost.is_empty() {
            "nothing lost"
        } else {
            &lost
        },
    )
}
