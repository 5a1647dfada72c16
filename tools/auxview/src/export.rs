// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `export`: the calls in a trace of Intel PT's format, with their times, for viewers and for tools.
//!
//! [`flamegraph`](crate::flamegraph) follows the trace. [`spans`] converts its reports to begins and ends of functions, for each thread,
//! with times. [`files`] divides these into files, each of which opens by itself. The formats write them:
//!
//! | format | module | viewers |
//! |---|---|---|
//! | Perfetto's | [`perfetto`] | Perfetto |
//! | the Firefox Profiler's | [`firefox`] | Firefox Profiler, speedscope |
//! | lines | [`lines`] | tools |
//!
//! Spans are written as they come. The functions, the places of calls and the open spans are in memory; for the Firefox Profiler's format,
//! also one file.

mod files;
mod firefox;
mod frames;
mod lines;
mod perfetto;
mod source_lines;
mod spans;

use std::io::Write;
use std::path::{Path, PathBuf};

pub use files::{Clock, PIECE, PIECE_MIN};

use crate::error::{Error, Result};
use crate::flamegraph::{Calls, Places, Recording};
use crate::source::Source;
use files::{Files, Target};
use spans::Spans;

/// The format of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Perfetto's, of protocol buffers.
    Perfetto,
    /// The Firefox Profiler's, of JSON.
    Firefox,
}

/// What an export has written.
#[derive(Debug)]
pub struct Exported {
    /// The calls that were followed.
    pub calls: Calls,
    /// The unit of the times.
    pub clock: Clock,
    /// The files, in their order.
    pub files: Vec<PathBuf>,
    /// Number of calls that were left out, because viewers do not show calls so deep.
    pub hidden: u64,
}

impl Exported {
    /// Describes what was written and what was not, in lines.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = self.calls.summary();
        if self.clock == Clock::Instructions {
            text.push_str("# times are instructions, a nanosecond each\n");
        }
        if self.hidden != 0 {
            text.push_str(&format!(
                "# {} calls are left out: they are deeper than {}\n",
                self.hidden,
                Spans::DEPTH_MAX
            ));
        }
        for file in &self.files {
            text.push_str(&format!("# {} is written\n", file.display()));
        }
        text
    }
}

/// The options of an export.
#[derive(Debug)]
pub struct Options<'a> {
    /// Where the code is.
    pub places: Places<'a>,
    /// The unit of the times. The default is perf's clock if the trace has times.
    pub clock: Option<Clock>,
    /// Whether source lines and inlined functions are looked for.
    pub lines: bool,
}

/// Writes the calls of a recording into `output`, or into `output.1`, `output.2` and so on, of at most `piece` bytes each.
///
/// # Errors
/// If the recording cannot be followed, or a file cannot be written.
pub fn export<S: Source + ?Sized>(
    file: &S,
    options: &Options<'_>,
    format: Format,
    output: &Path,
    piece: u64,
) -> Result<Exported> {
    if piece < PIECE_MIN {
        return Err(Error::usage(format!(
            "--piece: files of {piece} bytes are too small; give {PIECE_MIN} at least"
        )));
    }
    let target = Target::Files {
        path: output.to_owned(),
        piece,
    };
    let sink = |clock| -> Box<dyn files::Sink> {
        match format {
            Format::Perfetto => Box::new(perfetto::Perfetto::new(clock)),
            Format::Firefox => Box::new(firefox::Firefox::new(clock)),
        }
    };
    run(file, options, target, sink)
}

/// Writes the calls of a recording in lines.
///
/// # Errors
/// If the recording cannot be followed, or `out` cannot be written.
pub fn script<S: Source + ?Sized>(
    file: &S,
    options: &Options<'_>,
    out: Box<dyn Write>,
) -> Result<Exported> {
    run(file, options, Target::Stream(out), |_| {
        Box::new(lines::Lines)
    })
}

fn run<S: Source + ?Sized>(
    file: &S,
    options: &Options<'_>,
    target: Target,
    sink: impl FnOnce(Clock) -> Box<dyn files::Sink>,
) -> Result<Exported> {
    let recording = Recording::read(file)?;
    let clock = match (options.clock, recording.is_timed()) {
        (Some(Clock::Instructions), _) | (_, false) => Clock::Instructions,
        _ => Clock::Time,
    };
    let lines = options.lines.then_some(options.places.root);
    let mut spans = Spans::new(clock, Files::new(target, sink(clock)), lines);
    let calls = recording.follow(options.places, Some(&mut spans))?;
    if calls.count() == 0 {
        return Err(Error::failed(format!(
            "there is nothing to export: no instruction of the trace could be followed\n{}",
            calls.summary()
        )));
    }
    let (files, hidden) = spans.end();
    Ok(Exported {
        calls,
        clock,
        files,
        hidden,
    })
}
