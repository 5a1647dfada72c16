// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Machines that exist only as descriptions: sysfs files, and the emulator that lets a program see them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::stock::Stock;
use super::Arch;
use crate::cache;
use crate::error::{OnFile, Result};
use crate::step::Log;

/// A file of the machine, and its changed content. [`None`]: the file is missing.
pub(super) type Change = (&'static str, Option<&'static str>);

/// A described machine.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    arch: Arch,
    stock: &'a Stock,
    /// Its root directory.
    root: PathBuf,
    events: PathBuf,
}

impl<'a> Machine<'a> {
    /// A machine whose files are below `dir`; [`Self::describe`] writes them. Builds the library that emulates its events from `source`.
    pub fn new(arch: Arch, stock: &'a Stock, dir: &Path, source: &Path, log: &Log) -> Result<Self> {
        let root = dir.join("root");
        let events = dir.join("events.so");
        let mut clang = Command::new("clang");
        clang
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
            .args(["-nostdlib", "-fuse-ld=lld"])
            .args(arch.flags());
        if arch == Arch::Arm64 {
            clang.arg(format!("--sysroot={}", stock.arm64.display()));
        }
        fs::create_dir_all(dir).on("make", dir)?;
        log.run(
            "building the events of described machines",
            clang.arg("-o").args([&events, source]),
        )?;
        Ok(Self {
            arch,
            stock,
            root,
            events,
        })
    }

    /// Writes the files of the machine as described, with these changes.
    pub fn describe(&self, changes: &[Change]) -> Result<()> {
        cache::remove(&self.root)?;
        let lines = self.arch.description().lines();
        for line in lines.filter(|line| !line.starts_with('#')) {
            let (path, text) = line.split_once(' ').unwrap_or((line, ""));
            for path in expand(path) {
                self.write(&path, text)?;
            }
        }
        for (path, text) in changes {
            match text {
                Some(text) => self.write(path, text)?,
                None => {
                    let path = self.root.join(path);
                    fs::remove_file(&path).on("remove", &path)?;
                }
            }
        }
        if self.arch == Arch::Arm64 {
            for name in ["usr", "lib"] {
                let path = self.root.join(name);
                symlink(self.stock.arm64.join(name), &path).on("make", &path)?;
            }
        }
        Ok(())
    }

    /// Writes a file of the machine.
    pub fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = self.root.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).on("make", folder)?;
        }
        fs::write(&path, format!("{text}\n")).on("write", &path)
    }

    /// The command that runs stock perf on the machine.
    pub fn perf(&self) -> Command {
        match self.arch {
            Arch::Arm64 => self.command(&self.stock.arm64.join("usr/bin/perf")),
            Arch::X86_64 => self.command(Path::new("/usr/bin/perf")),
        }
    }

    /// The command that runs a program on the machine.
    pub fn command(&self, program: &Path) -> Command {
        let [arm64, x86_64] = &self.stock.emulators;
        let mut command = match self.arch {
            Arch::Arm64 => Command::new(arm64),
            Arch::X86_64 => {
                let mut command = Command::new(x86_64);
                // perf checks the name of the vendor.
                command.args(["-cpu", "max,vendor=GenuineIntel"]);
                command
            }
        };
        let set = |name: &str, value: &Path| format!("{name}={}", value.display());
        command
            .arg("-L")
            .arg(&self.root)
            .args(["-E", &set("LD_PRELOAD", &self.events)])
            // The emulator redirects open() to files of the machine, but not the check whether a file exists.
            .args(["-E", &set("SYSFS_PATH", &self.root.join("sys"))])
            .args(["-E", "HOME=/nonexistent"])
            .arg(program);
        command
    }
}

/// The paths that a path with a range such as `{0-3}` stands for.
fn expand(path: &str) -> Vec<String> {
    let range = path.split_once('{').and_then(|(before, rest)| {
        let (range, after) = rest.split_once('}')?;
        let (first, last) = range.split_once('-')?;
        Some((
            before,
            first.parse::<u32>().ok()?..=last.parse().ok()?,
            after,
        ))
    });
    match range {
        Some((before, range, after)) => range
            .map(|number| format!("{before}{number}{after}"))
            .collect(),
        None => vec![path.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_names() {
        assert_eq!(
            expand("sys/cpu{9-11}/x"),
            ["sys/cpu9/x", "sys/cpu10/x", "sys/cpu11/x"]
        );
        assert_eq!(expand("sys/type"), ["sys/type"]);
    }
}
