// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `dump`: the records of a file, one a line.

use std::io::{self, Write};

use perfdata::{Event, RecordType, SampleId};

use crate::error::{Error, Result};
use crate::source::Source;
use crate::unpack::{Next, Plain};

/// Writes a line for each record: its file offset, time, CPU, task, type and fields. Unknown values are `-`. For a file with compressed
/// trace, shows the records of the decompressed file.
///
/// # Errors
/// If it is no perf.data file, has an invalid record, or cannot be read. The records before the failure are written.
pub fn dump<S: Source + ?Sized>(file: &S, out: &mut impl Write) -> Result<()> {
    let mut file = Plain::open(file)?;
    while let Some(next) = file.next()? {
        let written = match next {
            Next::Piece(aux, place) => {
                if place.packed {
                    // Decompresses the piece to find damage.
                    file.bytes(place, |_| Ok(()))?;
                }
                let (kind, event) = (RecordType::AUXTRACE, Event::Auxtrace(aux, &[]));
                line(out, file.at, kind, 40, &event, &SampleId::default())
            }
            Next::Record => {
                let record = file.stream.last();
                let (event, who) = file.stream.decode()?;
                let who = who.unwrap_or_default();
                line(out, file.at, record.kind, record.body.len(), &event, &who)
            }
        };
        match written {
            // The reader has closed the pipe, and wants no more.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(e) => return Err(Error::failed(format!("cannot write the records: {e}"))),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn line(
    out: &mut impl Write,
    at: u64,
    kind: RecordType,
    body: usize,
    event: &Event<'_>,
    who: &SampleId,
) -> io::Result<()> {
    let number = |n: Option<u32>| n.map_or("-".to_owned(), |n| n.to_string());
    let name = kind
        .name()
        .map_or_else(|| format!("type {}", kind.0), str::to_owned);
    let time = who.time.map_or("-".to_owned(), |ns| {
        format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
    });
    write!(
        out,
        "{at:#x} {time} cpu {} {}/{} {name}",
        number(who.cpu),
        number(who.pid),
        number(who.tid),
    )?;
    match event {
        Event::Lost(lost) => write!(out, " id {} lost {}", lost.id, lost.lost)?,
        Event::LostSamples(lost) => write!(out, " lost {lost}")?,
        Event::Comm(comm) => {
            let exec = if comm.exec { " exec" } else { "" };
            write!(out, "{exec} {}/{} {}", comm.pid, comm.tid, text(comm.comm))?;
        }
        Event::Fork(task) | Event::Exit(task) => write!(
            out,
            " {}/{} of {}/{}",
            task.pid, task.tid, task.ppid, task.ptid
        )?,
        Event::Tracepoint(event) => write!(
            out,
            " id {:#x} time {}.{:09} cpu {} thread {} {} bytes",
            event.id,
            event.time / 1_000_000_000,
            event.time % 1_000_000_000,
            number((event.cpu != u32::MAX).then_some(event.cpu)),
            number((event.tid != u32::MAX).then_some(event.tid)),
            event.data.len()
        )?,
        Event::Read(read) => write!(
            out,
            " id {} value {} enabled {} running {}",
            read.id, read.value, read.enabled, read.running
        )?,
        Event::Mmap2(map) => write!(
            out,
            " {}/{} {:#x}+{:#x} at {:#x} {}",
            map.pid,
            map.tid,
            map.addr,
            map.len,
            map.pgoff,
            text(map.filename)
        )?,
        Event::Aux(aux) => write!(
            out,
            " offset {:#x} size {:#x} flags {}",
            aux.offset,
            aux.size,
            aux.flags.names()
        )?,
        Event::ItraceStart(start) => write!(out, " {}/{}", start.pid, start.tid)?,
        Event::AuxtraceInfo(kind, words) => {
            write!(out, " decoder {kind}, {} words", words.len() / 8)?;
        }
        Event::Auxtrace(piece, _) => write!(
            out,
            " offset {:#x} size {:#x} reference {} ring {} cpu {} thread {}",
            piece.offset,
            piece.size,
            piece.reference,
            piece.idx,
            number((piece.cpu != u32::MAX).then_some(piece.cpu)),
            number((piece.tid != u32::MAX).then_some(piece.tid)),
        )?,
        _ => write!(out, " {body} bytes")?,
    }
    writeln!(out)
}

/// Escapes a name from a file, so that it is always one line.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).escape_debug().to_string()
}
