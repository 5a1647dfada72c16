// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A CPU's buffer, mapped or read.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::header::PageHeader;
use crate::map::{Map, Reader};
use crate::stream::Stream;

/// A buffer: mapped if the kernel can, read otherwise.
#[derive(Debug)]
pub enum Ring {
    /// Mapped.
    Mapped(Map),
    /// Read, and why it is not mapped.
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

    /// As [`Map::reader`].
    ///
    /// # Errors
    /// As there.
    pub fn reader(&mut self) -> Result<Option<Reader<'_>>> {
        match self {
            Self::Mapped(map) => map.reader(),
            Self::Read(stream, _) => stream.reader(),
        }
    }

    /// As [`Map::wait`].
    ///
    /// # Errors
    /// As there.
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
