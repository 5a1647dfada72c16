// SPDX-License-Identifier: GPL-2.0 OR MIT

//! valgrind and QEMU's user-mode emulator, for the guest.
//!
//! They are in the cache, not in the build root: valgrind brings debug files of the C library with it, which other tests would see. Their
//! other dependencies are needed only for dynamically linked programs.

use crate::archive::{mirror, Archive};
use crate::cache::{hash, Cache};
use crate::error::{OnFile, Result};
use crate::guest::Guest;
use crate::step::{Log, Progress};
use std::fs;
use std::path::PathBuf;

/// The suite that the build root is made from.
const SUITE: &str = "trixie";
const PACKAGES: [&str; 2] = ["valgrind", "qemu-user"];

/// The files that are used. valgrind starts its tools from the folder [`TOOLS`].
const VALGRIND: &str = "usr/bin/valgrind.bin";
const TOOLS: &str = "usr/libexec/valgrind";
const NONE: &str = "usr/libexec/valgrind/none-amd64-linux";
const LACKEY: &str = "usr/libexec/valgrind/lackey-amd64-linux";
const QEMU: &str = "usr/bin/qemu-x86_64";

/// Adds both to a guest, which must already have a program with the C library.
///
/// # Errors
///
/// When the archive lacks them, or cannot be reached.
pub(super) fn give<'a>(cache: &Cache, guest: Guest<'a>) -> Result<Guest<'a>> {
    let dir = fetch(cache)?;
    guest
        .program("valgrind", &dir.join(VALGRIND))?
        .program("qemu-x86_64", &dir.join(QEMU))?
        .installed(&dir.join(NONE))?
        .installed(&dir.join(LACKEY))
        .map(|guest| guest.variable("VALGRIND_LIB", &dir.join(TOOLS).to_string_lossy()))
}

/// Fetches the packages into the cache, and keeps only the files that are used.
fn fetch(cache: &Cache) -> Result<PathBuf> {
    let mirror = mirror()?;
    let parts = [mirror.as_str(), SUITE, "1"].into_iter().chain(PACKAGES);
    cache.entry(&format!("rivals-{}", hash(parts)), |temporary, _| {
        let progress = Progress::begin("fetching valgrind and qemu-user");
        let log = Log::create(&cache.log("rivals.log"))?;
        let work = temporary.join("apt");
        let archive = Archive::new(work.clone(), SUITE)?;
        archive.update(&log, true)?;
        archive.fetch(&log, &PACKAGES, &work)?;
        for name in [VALGRIND, NONE, LACKEY, QEMU] {
            let (from, to) = (work.join(name), temporary.join(name));
            let folder = to.parent().unwrap_or(temporary);
            fs::create_dir_all(folder).on("make", folder)?;
            fs::rename(&from, &to).on("rename", &from)?;
        }
        fs::remove_dir_all(&work).on("remove", &work)?;
        progress.end("ready");
        Ok(())
    })
}
