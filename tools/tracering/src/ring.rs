// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The buffer of a CPU, mapped or read.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::header::PageHeader;
use crate::map::{Map, Reader};
use crate::stream::Stream;

/// A buffer. It is mapped if the kernel can map it, and read otherwise.
#[derive(Debug)]
pub enum Ring {
    /// A mapped buffer.
    Mapped(Map),
    /// A buffer that is read, and the reason why it is not mapped.
    Read(Stream, Error),
}

impl Ring {
    /// Opens this `trace_pipe_raw`, whose sub-buffers have this header.
    ///
    /// # Errors
    /// If it can neither be mapped nor read.
    pub fn open(path: impl AsRef<Path>, header: PageHeader) -> Result<Self> {
        match Map::open(&path, header) {
            Ok(map) => Ok(Self::Mapped(map)),
            Err(why @ Error::NoMapping(_)) => {
                Ok(Self::Read(Stream::open(path, header, true)?, why))
            }
            Err(e) => Err(e),
        }
    }

    /// Reads the next events: see [`Map::reader`].
    ///
    /// # Errors
    /// The same as those of [`Map::reader`].
    pub fn reader(&mut self) -> Result<Option<Reader<'_>>> {
        match self {
            Self::Mapped(map) => map.reader(),
            Self::Read(stream, _) => stream.reader(),
        }
    }

    /// Waits for events: see [`Map::wait`].
    ///
    /// # Errors
    /// The same as those of [`Map::wait`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        match self {
            Self::Mapped(map) => map.wait(timeout),
            Self::Read(stream, _) => stream.wait(timeout),
        }
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Mapped(map) => map.as_fd(),
            Self::Read(stream, _) => stream.as_fd(),
        }
    }
}
