// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lines for tools, with fields between tabs: time, process, thread, name of the thread's program, `begin` or `end`. A `begin` also has
//! kind, name, program or library, and source file and line.

use std::io::{self, Write};

use super::files::{Put, Sink, Thread};
use super::frames::{Frame, GAP};

/// Writes these lines.
pub(super) struct Lines;

/// Replaces tabs, line ends and other control characters by spaces.
fn field(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

impl Sink for Lines {
    fn open(&mut self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn thread(&mut self, _: usize, _: &Thread, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn put(
        &mut self,
        put: Put,
        thread: &Thread,
        frame: Option<&Frame>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let Thread { pid, tid, name } = thread;
        write!(out, "{}\t{pid}\t{tid}\t{}\t", put.time, field(name))?;
        let (Some(id), Some(frame)) = (put.begins, frame) else {
            return writeln!(out, "end");
        };
        let kind = match (id, frame.inlined) {
            (GAP, _) => "lost",
            (_, true) => "inlined",
            _ => "function",
        };
        let (name, module) = (field(&frame.name), field(&frame.module));
        let source = frame.source.as_ref();
        let source = source.map_or_else(String::new, |(file, line)| {
            format!("{}:{line}", field(file))
        });
        writeln!(out, "begin\t{kind}\t{name}\t{module}\t{source}")
    }

    fn close(&mut self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn end_size(&self) -> u64 {
        0
    }
}
