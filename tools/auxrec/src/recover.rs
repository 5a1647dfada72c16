// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `recover`: finishes a file whose recorder was killed, or whose machine lost its power.

use std::fs::OpenOptions;
use std::path::Path;

use perfdata::{Feature, Recovered};

use crate::error::{Error, Result};
use crate::join::{Joined, Whole};

/// What a file's note `ended` says after it.
pub(crate) const ENDED: &str = "recovered";

/// Finishes a file in its place. Of a recording that is apart it joins the files of the threads into it.
///
/// # Errors
/// If it is no perf.data file, or was cut before its first record, or cannot be written.
pub fn recover(path: &Path) -> Result<Joined> {
    let cannot = |e: Error| Error::failed(format!("cannot recover {}: {e}", path.display()));
    match Whole::open(path).map_err(cannot)? {
        Some(file) => match file.tidy().map_err(cannot)? {
            Some(tidied) => Ok(tidied),
            None => file.join(true, true).map_err(|e| {
                Error::failed(format!(
                    "cannot recover {}: {e}. What its threads have written stays as it is, and it can be done again",
                    path.display()
                ))
            }),
        },
        None => Ok(Joined {
            found: finish(path)?,
            ..Joined::default()
        }),
    }
}

/// Finishes one file in its place.
pub(crate) fn finish(path: &Path) -> Result<Recovered> {
    let name = path.display();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| Error::failed(format!("cannot open {name}: {e}")))?;
    let cannot = |e: perfdata::Error| Error::failed(format!("cannot recover {name}: {e}"));
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
    Ok(found)
}
