// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that `make install` installs all files, and that the programs run.

use crate::cache::{self, Cache};
use crate::error::Result;
use crate::results::ktap::Case;
use crate::step::Log;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The installed programs that are run.
const PROGRAMS: [&str; 3] = ["auxrec", "auxview", "tracering"];

/// The files that are installed below `/usr`. Of man pages, only one of each kind.
const FILES: [&str; 14] = [
    "bin/auxrec",
    "bin/auxview",
    "bin/tracering",
    "bin/core-with-trace",
    "share/bash-completion/completions/auxrec",
    "share/bash-completion/completions/auxview",
    "share/fish/vendor_completions.d/auxrec.fish",
    "share/fish/vendor_completions.d/auxview.fish",
    "share/man/man1/auxrec.1",
    "share/man/man1/auxrec-record.1",
    "share/man/man1/auxview.1",
    "share/man/man1/auxview-check.1",
    "share/zsh/site-functions/_auxrec",
    "share/zsh/site-functions/_auxview",
];

/// Installs the build for the architecture `arch` below `dir`, and checks it. `start` makes the command that runs a program.
///
/// # Errors
///
/// When a command cannot be started, or a program fails.
pub(crate) fn check(
    cache: &Cache,
    dir: &Path,
    arch: &str,
    start: impl Fn(&Path) -> Command,
) -> Result<Case> {
    const NAME: &str = "make install";

    let to = dir.join("install");
    cache::remove(&to)?;
    let mut make = Command::new("make");
    make.args(["-s", "-C"])
        .arg(cache.checkout())
        .args(["install", "PREFIX=/usr"])
        .arg(format!("ARCH={arch}"))
        .arg(format!("DESTDIR={}", to.display()));
    let log = Log::create(&dir.join("install.log"))?;
    if !log.status(&mut make)?.success() {
        let lines = log.text().lines().map(str::to_owned).collect();
        let reason = format!("see {}", log.path().display());
        return Ok(Case::fail(NAME, &reason).with_log(lines));
    }
    let is_there = |file: &&str| fs::metadata(to.join("usr").join(file)).is_ok_and(|m| m.len() > 0);
    if let Some(missing) = FILES.iter().find(|file| !is_there(file)) {
        return Ok(Case::fail(NAME, &format!("there is no {missing}")));
    }
    for program in PROGRAMS {
        let mut run = start(&to.join("usr/bin").join(program));
        let said = log.output("asking for a version", run.arg("--version"))?;
        if !said.starts_with(program) {
            return Ok(Case::fail(NAME, &format!("{program} says {said}")));
        }
    }
    Ok(Case::pass(NAME))
}
