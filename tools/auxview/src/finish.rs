// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finishes one file that its recorder has not finished, alone or before it is joined with others.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use perfdata::{Feature, Recovered};

use crate::error::{Error, Result};
use crate::file::{create_new, spill_file};

/// Value of the note `ended` in a file that was recovered.
pub(crate) const ENDED: &str = "recovered";

pub(crate) fn cannot_recover(path: &Path, e: &Error) -> Error {
    Error::failed(format!("cannot recover {}: {e}", path.display()))
}

pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<File> {
    options
        .open(path)
        .map_err(|e| Error::failed(format!("cannot open {}: {e}", path.display())))
}

/// A copy of a file. Dropping it removes the copy, unless it is kept.
pub(crate) struct Copy(Option<PathBuf>);

impl Copy {
    /// Copies a file to a new file.
    pub fn of(from: &Path, to: &Path) -> Result<Self> {
        let mut input = open(from, OpenOptions::new().read(true))?;
        let mut output = create_new(to).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Error::failed(format!(
                "{} is there already: move it away, or name another file with -o",
                to.display()
            )),
            _ => Error::failed(format!("cannot create {}: {e}", to.display())),
        })?;
        let copy = Self(Some(to.to_owned()));
        io::copy(&mut input, &mut output).map_err(|e| {
            Error::failed(format!(
                "cannot copy {} to {}: {e}",
                from.display(),
                to.display()
            ))
        })?;
        Ok(copy)
    }

    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// Finishes one file in place.
pub(crate) fn finish(path: &Path) -> Result<Recovered> {
    let name = path.display();
    let mut file = open(path, OpenOptions::new().read(true).write(true))?;
    let cannot = |e: perfdata::Error| cannot_recover(path, &e.into());
    let found = perfdata::recover(
        &mut file,
        |features, _| {
            let mut notes = features
                .get(Feature::NOTES)
                .and_then(|section| section.notes().ok())
                .unwrap_or_default();
            notes.retain(|(key, _)| key != "ended");
            notes.push(("ended".to_owned(), ENDED.to_owned()));
            features.notes(&notes);
        },
        |file, len| file.set_len(len),
        Some(spill_file(path)),
    )
    .map_err(cannot)?;
    file.sync_all()
        .map_err(|e| Error::failed(format!("cannot write {name} to its disk: {e}")))?;
    Ok(found)
}
