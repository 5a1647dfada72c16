// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `recover`: finishes a file whose recorder was killed, or whose machine lost its power.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use perfdata::{Recovered, Stream};

use crate::error::{Error, Result};
use crate::finish::{cannot_recover, finish, open, Copy};
use crate::join::{Joined, Whole};

/// The file that [`recover`] writes if the user names none.
#[must_use]
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".recovered");
    name.into()
}

/// Writes a finished copy of a file to `out`, a new file. For a split recording (see [`join`](mod@crate::join)), the copy includes the
/// files of the threads. Changes none of the input files. A file that is finished already is not copied.
///
/// # Errors
/// If it is no perf.data file, or was cut before its first record, or `out` exists already or cannot be written.
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
        None => alone(finish(out)?),
    };
    copy.keep();
    Ok(joined)
}

/// Finishes a file in place: cuts off an incomplete record at its end. For a split recording, joins the files of the threads into it and
/// removes them.
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
        None => finish(path).map(alone),
    }
}

/// The result for a file that no other was joined into.
fn alone(found: Recovered) -> Joined {
    Joined {
        found,
        ..Joined::default()
    }
}
