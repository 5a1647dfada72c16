// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens output files, and syncs them to their disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use perfdata::OpenSpillFile;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// The options to open files of trace. They are readable, too: the writer reads them when the disk is full. As with perf, other users must
/// not read them, because trace shows what a program does with its secrets.
#[must_use]
pub fn options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    options
}

/// Creates a file that does not exist yet.
///
/// # Errors
/// If the file exists, or cannot be created.
pub fn create_new(path: &Path) -> io::Result<File> {
    options().create_new(true).open(path)
}

/// Opens a file without a name in the directory of `path`, for the index of a long recording.
#[must_use]
pub fn spill_file(path: &Path) -> OpenSpillFile {
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new(".")).to_owned();
    Box::new(move || Ok(Box::new(tempfile::tempfile_in(directory)?)))
}

/// Waits until all of a file is on its disk.
///
/// `fdatasync()` returns `EINVAL` or `EROFS` for a pipe or a device, which has no disk: that is no error. A file system that has
/// become read-only after an error of its disk returns `EROFS` for a file: that is one.
///
/// # Errors
/// If the disk reports one.
pub fn bring(file: &File) -> io::Result<()> {
    match rustix::fs::fdatasync(file) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL | Errno::ROFS) if !file.metadata()?.is_file() => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// As [`bring`], with an error that names the file.
///
/// # Errors
/// If the disk reports one.
pub fn to_disk(file: &File, path: &Path) -> Result<()> {
    bring(file).map_err(|e| cannot_write(path, &e))
}

/// The error for a file that the disk has failed to store.
#[must_use]
pub fn cannot_write(path: &Path, e: &io::Error) -> Error {
    Error::Disk(format!(
        "cannot write {} to its disk: {e}. What of it is on the disk is not known: copy it to another disk, check the copy with \
         `auxrec check`, and record there",
        path.display()
    ))
}
