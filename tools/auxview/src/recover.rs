// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `recover`: finishes a file whose recorder was killed, or whose machine lost its power.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use perfdata::{Feature, Stream};

use crate::error::{Error, Result};
use crate::file::create_new;
use crate::join::{Joined, Whole};

/// What a file's note `ended` says after it.
pub const ENDED: &str = "recovered";

/// The file that [`recover`] writes if the user names none.
#[must_use]
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".recovered");
    name.into()
}

/// Writes to `out`, a new file, what a file is when it is finished; of a recording that is apart, with the files of the threads.
/// Changes none of these. A file that is finished already is not copied.
///
/// # Errors
/// If it is no perf.data file, or was cut before its first record, or `out` is there already, or cannot be written.
pub fn recover(path: &Path, out: &Path) -> Result<Joined> {
    let cannot = |e: Error| cannot_recover(path, &e);
    let file = open(path, OpenOptions::new().read(true))?;
    let finished = Stream::found(&file).map_err(|e| cannot(e.into()))?;
    if finished.is_finished() {
        let mut joined = Joined::default();
        joined.found.was_finished = true;
        return Ok(joined);
    }
    let copy = Copy::of(path, out)?;
    let joined = match Whole::copied(path, out).map_err(cannot)? {
        Some(file) => file.join(true, true).map_err(cannot)?,
        None => finish(out)?,
    };
    copy.keep();
    Ok(joined)
}

/// Finishes a file in its place: cuts off what is no whole record at its end. Of a recording that is apart it joins the files
/// of the threads into it, and removes them.
///
/// # Errors
/// If it is no perf.data file, or was cut before its first record, or cannot be written.
pub fn in_place(path: &Path) -> Result<Joined> {
    let cannot = |e: Error| cannot_recover(path, &e);
    match Whole::open(path).map_err(cannot)? {
        Some(file) => match file.tidy().map_err(cannot)? {
            Some(tidied) => Ok(tidied),
            None => file.join(true, true).map_err(|e| {
                Error::failed(format!(
                    "{}. What its threads have written stays as it is, and it can be done again",
                    cannot(e)
                ))
            }),
        },
        None => finish(path),
    }
}

fn cannot_recover(path: &Path, e: &Error) -> Error {
    Error::failed(format!("cannot recover {}: {e}", path.display()))
}

fn open(path: &Path, options: &OpenOptions) -> Result<File> {
    options
        .open(path)
        .map_err(|e| Error::failed(format!("cannot open {}: {e}", path.display())))
}

/// A copy of a file, which is removed again unless it is kept.
pub(crate) struct Copy(Option<PathBuf>);

impl Copy {
    /// Copies a file to one that is not there yet.
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

/// Finishes one file in its place.
pub(crate) fn finish(path: &Path) -> Result<Joined> {
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
    )
    .map_err(cannot)?;
    file.sync_all()
        .map_err(|e| Error::failed(format!("cannot write {name} to its disk: {e}")))?;
    Ok(Joined {
        found,
        ..Joined::default()
    })
}
