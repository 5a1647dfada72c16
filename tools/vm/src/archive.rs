// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Debian's package archive. Package lists and packages have their own folder, so that those of the build root do not change.

use crate::error::{Error, OnFile, Result};
use crate::step::Log;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mirror that the user has chosen, or the one that the build root was made from.
///
/// # Errors
///
/// When `AUXPMU_MIRROR` is not set, as outside the build root.
pub(crate) fn mirror() -> Result<String> {
    std::env::var("AUXPMU_MIRROR").map_err(|_| {
        Error::Other("the mirror of the packages is not known: run this with tools/vm/root.sh run, or set AUXPMU_MIRROR to a Debian mirror".to_owned())
    })
}

/// One or several suites of the archive.
pub(crate) struct Archive {
    dir: PathBuf,
    options: Vec<String>,
}

impl Archive {
    /// One suite. Keeps lists and packages in `dir`.
    ///
    /// # Errors
    ///
    /// When `dir` cannot be made.
    pub fn new(dir: PathBuf, suite: &str) -> Result<Self> {
        Self::of(dir, &[suite])
    }

    /// Several suites. Keeps lists and packages in `dir`.
    ///
    /// # Errors
    ///
    /// When `dir` cannot be made.
    pub fn of(dir: PathBuf, suites: &[&str]) -> Result<Self> {
        for folder in ["lists/partial", "archives/partial"] {
            let folder = dir.join(folder);
            fs::create_dir_all(&folder).on("make", &folder)?;
        }
        let sources = dir.join("sources.list");
        let mirror = mirror()?;
        let line = |suite: &&str| {
            format!("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n")
        };
        let lines: String = suites.iter().map(line).collect();
        if fs::read_to_string(&sources).ok().as_deref() != Some(&lines) {
            fs::write(&sources, lines).on("write", &sources)?;
        }
        let options = vec![
            format!("Dir::State::lists={}/lists", dir.display()),
            format!("Dir::Cache={}", dir.display()),
            format!("Dir::Etc::sourcelist={}", sources.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        Ok(Self { dir, options })
    }

    /// Adds options of apt.
    #[must_use]
    pub fn with(mut self, options: &[&str]) -> Self {
        self.options
            .extend(options.iter().map(|&option| option.to_owned()));
        self
    }

    /// The command for a program of apt that sees these suites only.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command
    }

    /// Downloads the package lists if there are none yet, or if `anew` is set.
    ///
    /// # Errors
    ///
    /// When the archive cannot be read.
    pub fn update(&self, log: &Log, anew: bool) -> Result<()> {
        let there = fs::read_dir(self.dir.join("lists"))
            .is_ok_and(|lists| lists.flatten().filter(|e| e.path().is_file()).count() >= 2);
        if there && !anew {
            return Ok(());
        }
        log.run(
            "reading the archive's package lists",
            self.command("apt-get").arg("update").arg("--error-on=any"),
        )
    }

    /// The size of the download of these packages in bytes, if apt reports it.
    fn size<S: AsRef<OsStr>>(&self, packages: &[S]) -> Option<u64> {
        let mut apt = self.command("apt-get");
        let output = apt
            .args(["download", "--print-uris"])
            .args(packages)
            .output()
            .ok()?;

        sizes(&String::from_utf8_lossy(&output.stdout))
    }

    /// Fetches packages, each `NAME` or `NAME=VERSION`, and unpacks them into `into`.
    ///
    /// # Errors
    ///
    /// When the archive lacks one of them, or `into` cannot be written.
    pub fn fetch<S: AsRef<OsStr>>(&self, log: &Log, packages: &[S], into: &Path) -> Result<()> {
        let debs = into.join("debs");
        let names: Vec<_> = packages
            .iter()
            .map(|name| name.as_ref().to_string_lossy())
            .collect();

        fs::create_dir_all(&debs).on("make", &debs)?;
        if let Some(bytes) = self.size(packages) {
            crate::out!(
                "downloading {} MiB: {}",
                bytes.div_ceil(1 << 20),
                names.join(", ")
            );
        }
        log.run(
            &format!("fetching {}", names.join(", ")),
            self.command("apt-get")
                .arg("download")
                .args(packages)
                .current_dir(&debs),
        )?;
        unpack(log, &debs, into, |_| true)?;
        fs::remove_dir_all(&debs).on("remove", &debs)
    }

    /// Fetches a package and all its dependencies, as if nothing were installed. Unpacks the packages for which `wanted` returns true;
    /// it gets the file name.
    ///
    /// # Errors
    ///
    /// As [`Self::fetch`].
    pub fn fetch_all(
        self,
        log: &Log,
        package: &str,
        into: &Path,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let alone = self.with(&[
            "Dir::State::status=/dev/null",
            "Dir::Etc::preferencesparts=/dev/null",
        ]);

        log.run(
            &format!("fetching {package} and what it needs"),
            alone.command("apt-get").args([
                "install",
                "-y",
                "--download-only",
                "--no-install-recommends",
                package,
            ]),
        )?;
        unpack(log, &alone.dir.join("archives"), into, wanted)
    }
}

/// Unpacks the packages in `debs` for which `wanted` returns true. Removes each package at once, so that the disk holds only one of them
/// both packed and unpacked.
fn unpack(log: &Log, debs: &Path, into: &Path, wanted: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(debs).on("read", debs)? {
        let deb = entry.on("read", debs)?.path();
        let name = deb.file_name().unwrap_or_default().to_string_lossy();

        if name.ends_with(".deb") && wanted(&name) {
            log.run(
                &format!("unpacking {name}"),
                Command::new("dpkg-deb").arg("-x").arg(&deb).arg(into),
            )?;
            fs::remove_file(&deb).on("remove", &deb)?;
        }
    }
    Ok(())
}
/// The sum of the package sizes that `--print-uris` prints. It prints one line per package: address, file, size, digest.
fn sizes(uris: &str) -> Option<u64> {
    let size = |line: &str| line.split(' ').nth(2)?.parse::<u64>().ok();
    let sizes: Vec<u64> = uris.lines().map(size).collect::<Option<_>>()?;

    (!sizes.is_empty()).then(|| sizes.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_added() {
        let line = "'http://mirror/a_1_all.deb' a_1_all.deb 1000 SHA256:12\n";

        assert_eq!(sizes(&line.repeat(3)), Some(3000));
        assert_eq!(sizes(&format!("{line}nonsense\n")), None);
        assert_eq!(sizes(""), None);
    }
}
