// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands `export` and `script`.

use std::cell::Cell;
use std::io::{self, Stdout, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::end::{print, ALL};
use crate::flamegraph::Places;
use crate::size::parse_bytes;
use crate::{export, source};

/// Which calls of a trace are written.
#[derive(Debug, Args)]
struct Calls {
    /// Root directory for the files of the programs
    #[arg(long, value_name = "DIR", default_value = "/")]
    symfs: PathBuf,
    /// Also follow the kernel's code, from the files kcore and kallsyms in this directory
    /// [default: kcore_dir of a recording that is a directory]
    #[arg(long, value_name = "DIR")]
    kernel: Option<PathBuf>,
    /// The unit of the times [default: time, if the trace has times]
    #[arg(long, value_name = "CLOCK", value_enum)]
    clock: Option<Clock>,
    /// Skip source lines and inlined functions
    #[arg(long)]
    no_lines: bool,
}

impl Calls {
    fn options<'a>(&'a self, kernel: Option<&'a Path>) -> export::Options<'a> {
        export::Options {
            places: Places {
                root: &self.symfs,
                kernel,
            },
            clock: self.clock.map(Into::into),
            lines: !self.no_lines,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Clock {
    /// Nanoseconds of perf's clock
    Time,
    /// Number of instructions executed so far, shown as nanoseconds
    Instructions,
}

impl From<Clock> for export::Clock {
    fn from(clock: Clock) -> Self {
        match clock {
            Clock::Time => Self::Time,
            Clock::Instructions => Self::Instructions,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Viewer {
    /// Perfetto
    Perfetto,
    /// The Firefox Profiler, and speedscope
    Firefox,
}

#[derive(Debug, Args)]
pub struct Export {
    /// The recording
    #[arg(default_value = "perf.data")]
    file: PathBuf,
    /// The viewer
    #[arg(long, value_name = "VIEWER", value_enum, default_value_t = Viewer::Perfetto)]
    format: Viewer,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Split it into files of this size (bytes, or with K, M or G): FILE.1, FILE.2 and so on. Viewers open each by itself [default: 64M]
    #[arg(long, value_name = "SIZE")]
    piece: Option<String>,
    #[command(flatten)]
    calls: Calls,
}

impl Export {
    /// Writes the calls.
    pub fn run(&self) -> anyhow::Result<u8> {
        let piece = match &self.piece {
            None => export::PIECE,
            Some(text) => parse_bytes(text)?,
        };
        let format = match self.format {
            Viewer::Perfetto => export::Format::Perfetto,
            Viewer::Firefox => export::Format::Firefox,
        };
        let recording = source::open(&self.file)?;
        let kernel = source::kernel(&self.file, self.calls.kernel.as_deref());
        let options = self.calls.options(kernel.as_deref());
        let done = export::export(&recording, &options, format, &self.output, piece)
            .with_context(|| self.file.display().to_string())?;
        print(&done.summary())?;
        Ok(ALL)
    }
}

#[derive(Debug, Args)]
pub struct Script {
    /// The recording
    #[arg(default_value = "perf.data")]
    file: PathBuf,
    #[command(flatten)]
    calls: Calls,
}

impl Script {
    /// Prints the calls.
    pub fn run(&self) -> anyhow::Result<u8> {
        let recording = source::open(&self.file)?;
        let kernel = source::kernel(&self.file, self.calls.kernel.as_deref());
        let options = self.calls.options(kernel.as_deref());
        let left = Rc::new(Cell::new(false));
        let out = Lines {
            out: io::stdout(),
            left: Rc::clone(&left),
        };
        let done = match export::script(&recording, &options, Box::new(out)) {
            Err(_) if left.get() => return Ok(ALL),
            done => done.with_context(|| self.file.display().to_string())?,
        };
        // The reader may have closed the pipe.
        let _ = io::stderr().write_all(done.summary().as_bytes());
        Ok(ALL)
    }
}

/// Standard output. A reader that closes the pipe early is no error.
struct Lines {
    out: Stdout,
    /// Whether the reader has closed the pipe.
    left: Rc<Cell<bool>>,
}

impl Lines {
    fn noted<T>(&self, done: io::Result<T>) -> io::Result<T> {
        if matches!(&done, Err(e) if e.kind() == io::ErrorKind::BrokenPipe) {
            self.left.set(true);
        }
        done
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.out.write(bytes);
        self.noted(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.out.flush();
        self.noted(done)
    }
}
