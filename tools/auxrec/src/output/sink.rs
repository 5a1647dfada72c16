// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes records and trace into the file, and begins the next file when one is long enough.

use std::io::{self, IoSlice, Seek, Write};
use std::ops::Range;
use std::sync::atomic::Ordering;

use perfdata::{Auxtrace, FinishedRound, Writer};

use super::Output;
use auxview::join::merge;

use crate::drain::{FileSink, Sink, Times};
use crate::error::Result;
use crate::sys::Mapping;

impl Sink for Output {
    fn records(&mut self, bytes: &[u8], times: Option<Times>) -> Result<()> {
        self.times = merge(self.times, times);
        self.content += u64::try_from(bytes.len()).unwrap_or(0);
        Ok(self.file.raw(bytes)?)
    }

    fn piece_limit(&self) -> usize {
        Sink::piece_limit(&self.file)
    }

    fn piece(&mut self, aux: &Auxtrace) -> Result<()> {
        self.content += aux.size;
        match &mut self.pack {
            Some(pack) => pack.piece(aux),
            None => self.file.auxtrace(aux)?,
        }
        Ok(())
    }

    fn payload(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.pack {
            Some(pack) => pack.payload(bytes, &mut self.file),
            None => Ok(Writer::payload(&mut self.file, bytes)?),
        }
    }

    fn payload_from(&mut self, aux: &Mapping, run: Range<usize>) -> Result<bool> {
        if self.pack.is_some() {
            return Ok(false);
        }
        payload_at(
            &mut self.file,
            run,
            |file, front, at, len| aux.write_out(front, at, len, &*file),
            |at, copy| aux.copy_out(at, copy),
        )?;
        Ok(true)
    }
}

impl FileSink for Output {
    fn round(&mut self) -> Result<()> {
        // The records go to the system now. FINISHED_ROUND may wait for the next records, or for the
        // header.
        self.file.flush()?;
        // Events of tracefs come behind all other records, and may be older than these.
        if self.what.tracepoints.is_some() {
            return Ok(());
        }
        Ok(self.file.record(&FinishedRound, None)?)
    }

    fn describe(&mut self) -> Result<()> {
        self.processes()
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.file.flush()?)
    }

    fn checkpoint(&mut self) -> Result<()> {
        Ok(self.file.checkpoint()?)
    }

    fn is_over(&self) -> bool {
        self.limits.all.is_some_and(|limit| self.total() >= limit)
    }

    fn turn(&mut self) -> Result<()> {
        if let Some(sync) = &mut self.sync {
            sync.check()?;
        }
        if let Some((sum, counted)) = &mut self.together {
            let now = self.file.position();
            sum.fetch_add(now.saturating_sub(*counted), Ordering::Relaxed);
            *counted = now;
            return Ok(());
        }
        let long = |limit| self.file.position() >= limit;
        // A file without any content is never ended: the next one would be as long, and so on for ever.
        if self.limits.part.is_some_and(long) && self.content != 0 && !self.is_over() {
            self.next()?;
        }
        Ok(())
    }

    fn rotate(&mut self) -> Result<()> {
        if self.limits.parts {
            self.next()?;
        }
        Ok(())
    }

    fn takes_all(&self) -> bool {
        !self.limits.parts && self.pack.is_none()
    }
}

/// Writes some of the payload of a piece with `straight`. Its arguments are the file, bytes that come
/// before the payload, the payload's offset in the area, and its length. It returns how much it has
/// written of both.
///
/// Some file systems (9p) cannot write from a driver's mapping. Then the payload is copied first.
pub(super) fn payload_at<W: Write + Seek>(
    file: &mut Writer<W>,
    run: Range<usize>,
    mut straight: impl FnMut(&mut W, &[u8], usize, usize) -> io::Result<usize>,
    copy_out: impl Fn(usize, &mut [u8]) -> Option<()>,
) -> perfdata::Result<()> {
    let mut copy = Vec::new();
    file.payload_by(run.len(), |file, front, done| {
        let (at, len) = (run.start + done, run.len() - done);
        match straight(file, front, at, len) {
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => {
                copy.resize(len, 0);
                copy_out(at, &mut copy).ok_or(io::ErrorKind::InvalidInput)?;
                file.write_vectored(&[IoSlice::new(front), IoSlice::new(&copy)])
            }
            other => other,
        }
    })
}
