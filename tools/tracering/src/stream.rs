// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The buffer of a CPU, read or spliced.

use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{fcntl_setpipe_size, pipe_with, splice, PipeFlags, SpliceFlags};

use crate::error::{Error, Result};
use crate::header::PageHeader;
use crate::map::{open, wait, Reader};
use crate::subbuf::SubBuffer;
use crate::sys::Bytes;
use crate::tracefs::refused;

/// Size of the pipe of a recording, in bytes: the default of `/proc/sys/fs/pipe-max-size`, which every user may use.
const PIPE: usize = 1 << 20;

/// A buffer that is read: with `splice` while it has whole sub-buffers, with `read` otherwise.
///
/// This works on every kernel. Each sub-buffer is copied, by the kernel or through a pipe.
#[derive(Debug)]
pub struct Stream {
    file: File,
    path: PathBuf,
    header: PageHeader,
    page: Vec<u8>,
    /// The read end and the write end of the pipe for `splice`; [`None`] if only `read` is used.
    pipe: Option<(OwnedFd, OwnedFd)>,
}

impl Stream {
    /// Opens this `trace_pipe_raw`, whose sub-buffers have this header. With `with_splice`, the stream tries `splice` before `read`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(path: impl AsRef<Path>, header: PageHeader, with_splice: bool) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let file = open(&path)?;
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let pipe = with_splice.then(|| pipe_with(flags)).transpose();
        let pipe = pipe.map_err(|e| Error::failed(format!("cannot make a pipe: {e}")))?;
        Ok(Self {
            file,
            path,
            header,
            page: vec![0; header.subbuf_size()],
            pipe,
        })
    }

    /// Reads the next events: see [`Map::reader`](crate::Map::reader).
    ///
    /// # Errors
    /// The same as those of [`Map::reader`](crate::Map::reader).
    pub fn reader(&mut self) -> Result<Option<Reader<'_>>> {
        let filled = self
            .splice()
            .and_then(|spliced| Ok(spliced || self.read()?));
        if !filled.map_err(|e| refused(&self.path, &e))? {
            return Ok(None);
        }
        let sub = SubBuffer::parse(&self.header, Bytes::from(&*self.page))?;
        Ok((!sub.is_empty()).then(|| Reader::copied(&sub)))
    }

    /// Moves a full sub-buffer through the pipe. Returns false if there is none.
    fn splice(&mut self) -> io::Result<bool> {
        let Some((out, into)) = &self.pipe else {
            return Ok(false);
        };
        let len = self.page.len();
        match splice(&self.file, None, into, None, len, SpliceFlags::NONBLOCK) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(false),
            Ok(n) if n == len => {}
            Ok(_) => return Err(partial()),
            Err(e) => return Err(e.into()),
        }
        let mut filled = 0;
        while filled < len {
            match rustix::io::read(out, &mut self.page[filled..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => filled += n,
            }
        }
        Ok(true)
    }

    /// Reads the events of a sub-buffer, which need not be full. Returns false if there are none.
    fn read(&mut self) -> io::Result<bool> {
        match rustix::io::read(&self.file, &mut *self.page) {
            Ok(0) | Err(Errno::AGAIN) => Ok(false),
            Ok(n) if n == self.page.len() => Ok(true),
            Ok(_) => Err(partial()),
            Err(e) => Err(e.into()),
        }
    }

    /// Enlarges the pipe, so that [`Stream::move_to`] moves many sub-buffers per call.
    pub(crate) fn enlarge(&self) {
        if let Some((_, into)) = &self.pipe {
            // On failure more calls are needed.
            let _ = fcntl_setpipe_size(into, PIPE);
        }
    }

    /// Moves whole sub-buffers into a file, as many as the pipe holds and without a change. Returns the number of bytes. The writer's
    /// current sub-buffer is not moved: see [`Stream::read_to`].
    ///
    /// # Errors
    /// If the kernel refuses, or the file cannot be written. The content of the pipe is then lost.
    pub(crate) fn move_to(&mut self, to: &mut File) -> io::Result<usize> {
        let Some((out, into)) = &self.pipe else {
            return Ok(0);
        };
        // The pipe is empty, so the kernel moves no more bytes than the pipe holds.
        let max = PIPE.max(self.page.len());
        let moved = match splice(&self.file, None, into, None, max, SpliceFlags::NONBLOCK) {
            Ok(n) => n,
            Err(Errno::AGAIN) => 0,
            Err(e) => return Err(e.into()),
        };
        let mut left = moved;
        while left > 0 {
            left -= match splice(out, None, &*to, None, left, SpliceFlags::empty()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => n,
                // The file system does not support splice.
                Err(Errno::INVAL) => {
                    let len = left.min(self.page.len());
                    let n = rustix::io::read(out, &mut self.page[..len])?;
                    to.write_all(&self.page[..n])?;
                    n
                }
                Err(e) => return Err(e.into()),
            };
        }
        Ok(moved)
    }

    /// Reads the events of a sub-buffer, which may be the writer's current one, and writes them to a file as a whole sub-buffer. Returns
    /// the number of bytes.
    ///
    /// # Errors
    /// If the kernel refuses, or the file cannot be written.
    pub(crate) fn read_to(&mut self, to: &mut File) -> io::Result<usize> {
        if !self.read()? {
            return Ok(0);
        }
        to.write_all(&self.page)?;
        Ok(self.page.len())
    }

    /// Waits for events: see [`Map::wait`](crate::Map::wait).
    ///
    /// # Errors
    /// The same as those of [`Map::wait`](crate::Map::wait).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        wait(&self.path, self.file.as_fd(), timeout)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The error for a part of a sub-buffer. The kernel returns only whole sub-buffers, unless their size has changed.
fn partial() -> io::Error {
    io::Error::other("the kernel gave a part of a sub-buffer: its size has changed")
}

#[cfg(test)]
mod tests;
