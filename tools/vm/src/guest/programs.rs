// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs that a guest gets, with their libraries.

use super::Guest;
use crate::cache::Cache;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The loader's variable for folders of libraries.
const SEARCHED: &str = "LD_LIBRARY_PATH";

impl Guest<'_> {
    /// Adds a program as `/bin/NAME`.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn program(mut self, name: &str, source: &Path) -> Result<Self> {
        self.archive.program_from(&format!("bin/{name}"), source)?;
        Ok(self)
    }

    /// Adds a program or another file under its own path, with the libraries that it needs.
    ///
    /// # Errors
    ///
    /// When it or a library cannot be read.
    pub fn installed(self, program: &Path) -> Result<Self> {
        self.copied(program, program, None)
    }

    /// Does the same for a program that finds libraries in `folder`, too, also in the guest.
    ///
    /// # Errors
    ///
    /// When it or a library cannot be read.
    pub fn installed_with(self, program: &Path, folder: &Path) -> Result<Self> {
        self.variable(SEARCHED, &folder.to_string_lossy())
            .copied(program, program, Some(folder))
    }

    /// Does the same for a program of the user. It may be outside of the build root. Then the Makefile has copied it below `build/with`.
    ///
    /// # Errors
    ///
    /// When it or a library cannot be read.
    pub fn taken(self, cache: &Cache, program: &Path) -> Result<Self> {
        let copy = cache.build().join("with").join(inner_path(program));
        match copy.exists() {
            true => self.copied(program, &copy, None),
            false => self.copied(program, program, None),
        }
    }

    /// Adds `file` under the path `program`, with the libraries that it needs. Those that the build root lacks are in `folder`.
    fn copied(mut self, program: &Path, file: &Path, folder: Option<&Path>) -> Result<Self> {
        self.archive.program_from(&inner_path(program), file)?;
        for library in libraries(file, folder)? {
            self.archive.program_from(&inner_path(&library), &library)?;
        }
        Ok(self)
    }
}

fn inner_path(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').to_owned()
}

/// The shared libraries of a program, and the dynamic loader. A static program has none.
fn libraries(program: &Path, folder: Option<&Path>) -> Result<Vec<PathBuf>> {
    let out = Command::new("ldd")
        .arg(program)
        .envs(folder.map(|folder| (SEARCHED, folder)))
        .output()
        .map_err(|source| Error::Spawn {
            program: "ldd".to_owned(),
            source,
        })?;
    let text = String::from_utf8_lossy(&out.stdout);
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        return Err(Error::Other(format!(
            "{} cannot run in a guest: the build root lacks a library or a version of it: {}; link the program statically",
            program.display(),
            line.trim()
        )));
    }
    // ldd prints "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f…)" and "/lib64/ld-linux-x86-64.so.2 (0x7f…)".
    Ok(text
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(PathBuf::from)
        .collect())
}
