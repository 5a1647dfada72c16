// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The input of a recording: a file, or bytes in memory. Only the part of a file that is in use is in memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// An input that several threads can read at any offset.
pub trait Source: Sync {
    /// Reads bytes at offset `at`. Returns how many; 0 at the end.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize>;

    /// Its length.
    ///
    /// # Errors
    /// If that is not known.
    fn size(&self) -> io::Result<u64>;
}

impl Source for File {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, out, at)
    }

    fn size(&self) -> io::Result<u64> {
        // The metadata of a block device has no length.
        let mut file = self;
        file.seek(SeekFrom::End(0))
    }
}

impl Source for [u8] {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        self.get(at..).unwrap_or_default().read(out)
    }

    fn size(&self) -> io::Result<u64> {
        u64::try_from(self.len()).map_err(io::Error::other)
    }
}

impl Source for Vec<u8> {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        self.as_slice().read_at(out, at)
    }

    fn size(&self) -> io::Result<u64> {
        self.as_slice().size()
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        (**self).read_at(out, at)
    }

    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }
}

/// Opens a recording. A recording of `perf record --kcore` is a directory: its file `data` is opened. A pipe cannot be read at any offset,
/// so it is copied to a temporary file without a name, in `TMPDIR`.
///
/// # Errors
/// If it cannot be read, or the temporary file cannot be written.
pub fn open(path: &Path) -> Result<File> {
    let data = path.join("data");
    let path = if path.is_dir() { &data } else { path };
    let cannot = |e: io::Error| Error::failed(format!("cannot read {}: {e}", path.display()));
    let mut file = File::open(path).map_err(cannot)?;
    if file.stream_position().is_ok() {
        return Ok(file);
    }
    let kept = |e: io::Error| {
        Error::failed(format!(
            "cannot keep what {} has in a temporary file: {e}; set TMPDIR to a directory with space for it",
            path.display()
        ))
    };
    let mut copy = tempfile::tempfile().map_err(kept)?;
    io::copy(&mut file, &mut copy).map_err(kept)?;
    Ok(copy)
}

/// The directory with the kernel's code: the one that the user names, or else that of the recording.
#[must_use]
pub fn kernel(recording: &Path, said: Option<&Path>) -> Option<PathBuf> {
    let own = || Some(recording.join("kcore_dir")).filter(|own| own.is_dir());
    said.map(Path::to_owned).or_else(own)
}

/// Provides [`Read`] and [`Seek`] for a source.
#[derive(Debug)]
pub(crate) struct Reader<'a, S: ?Sized> {
    source: &'a S,
    at: u64,
}

impl<'a, S: Source + ?Sized> Reader<'a, S> {
    pub fn new(source: &'a S) -> Self {
        Self { source, at: 0 }
    }
}

impl<S: Source + ?Sized> Read for Reader<'_, S> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read_at(out, self.at)?;
        self.at = self.at.saturating_add(u64::try_from(len).unwrap_or(0));
        Ok(len)
    }
}

impl<S: Source + ?Sized> Seek for Reader<'_, S> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(offset) => self.at.checked_add_signed(offset),
            SeekFrom::End(offset) => self.source.size()?.checked_add_signed(offset),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
