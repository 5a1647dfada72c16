// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Programs for 64-bit Arm: Debian's libraries to link them with, and QEMU's user-mode emulator to run them here.
//!
//! The libraries and the emulator are in the cache, not in the build root. They are large, and only `make tools ARCH=aarch64` and its
//! tests need them.

use crate::archive::{mirror, Archive};
use crate::cache::{hash, Cache};
use crate::error::{Error, OnFile, Result};
use crate::step::{Log, Progress};
use crate::tools::STATIC;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The suite that the build root is made from.
const SUITE: &str = "trixie";

/// The standard library of Rust must be of the compiler's very version.
const STD: &str = "libstd-rust-dev";
const PACKAGES: [&str; 4] = [
    "libc6-dev:arm64",
    "libgcc-14-dev:arm64",
    "linux-libc-dev",
    "qemu-user",
];

const QEMU: &str = "usr/bin/qemu-aarch64";
/// The emulator of programs for x86-64. It can emulate an x86-64 processor other than this machine's.
const QEMU_X86_64: &str = "usr/bin/qemu-x86_64";

/// The files and folders of the packages that are used.
const KEPT: [&str; 6] = [
    "usr/include",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/gcc/aarch64-linux-gnu",
    "usr/lib/rustlib/aarch64-unknown-linux-gnu",
    QEMU,
    QEMU_X86_64,
];

/// The libraries and emulators that build and run programs for 64-bit Arm.
#[derive(Debug)]
pub struct Aarch64 {
    dir: PathBuf,
}

impl Aarch64 {
    /// The target's name in rustc.
    pub const TARGET: &str = "aarch64-unknown-linux-gnu";

    /// Takes the libraries and emulators from the cache. If they are missing, fetches the packages and keeps only the parts that are used.
    ///
    /// # Errors
    ///
    /// When the archive does not have them, or cannot be reached.
    pub fn prepare(cache: &Cache) -> Result<Self> {
        let mirror = mirror()?;
        let parts = [mirror.as_str(), SUITE, cache.root_hash(), "2"];
        let name = format!("aarch64-{}", hash(parts.into_iter().chain(PACKAGES)));
        let dir = cache.entry(&name, |temporary, _| {
            let progress = Progress::begin("fetching the libraries for aarch64, and qemu-user");
            fetch(&Log::create(&cache.log("aarch64.log"))?, temporary)?;
            progress.end("ready");
            Ok(())
        })?;
        Ok(Self { dir })
    }

    /// Configures a cargo command: it compiles static programs for this target, and runs tests under QEMU.
    pub fn configure(&self, cargo: &mut Command) {
        self.configure_with(cargo, STATIC, &self.dir);
    }

    /// Like [`Self::configure`], but with the compiler's flag `flag`, and with libraries from `libraries`.
    pub(crate) fn configure_with(&self, cargo: &mut Command, flag: &str, libraries: &Path) {
        let dir = self.dir.display();
        let flags = [
            flag.to_owned(),
            format!("--sysroot={dir}/usr"),
            "-Clink-arg=--target=aarch64-linux-gnu".to_owned(),
            format!("-Clink-arg=--sysroot={}", libraries.display()),
            "-Clink-arg=-fuse-ld=lld".to_owned(),
        ];
        let ours = [
            ("LINKER", "clang".to_owned()),
            ("RUSTFLAGS", flags.join(" ")),
            ("RUNNER", self.dir.join(QEMU).display().to_string()),
        ];
        for (name, value) in ours {
            cargo.env(
                format!("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_{name}"),
                value,
            );
        }
        // Build scripts compile C, such as zstd's.
        cargo
            .env("CC_aarch64_unknown_linux_gnu", "clang")
            .env("AR_aarch64_unknown_linux_gnu", "llvm-ar")
            .env(
                "CFLAGS_aarch64_unknown_linux_gnu",
                format!("--target=aarch64-linux-gnu --sysroot={dir}"),
            );
    }

    /// The emulators of programs for 64-bit Arm, and for x86-64.
    pub(crate) fn emulators(&self) -> [PathBuf; 2] {
        [QEMU, QEMU_X86_64].map(|qemu| self.dir.join(qemu))
    }

    /// The command that runs a program under QEMU.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut qemu = Command::new(self.dir.join(QEMU));
        qemu.arg(program);
        qemu
    }
}

fn fetch(log: &Log, into: &Path) -> Result<()> {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${Version}", STD]);
    let version = log.output("asking for the compiler's version", &mut query)?;
    let std = format!("{STD}:arm64={version}");
    let work = into.join("apt");
    let archive = Archive::new(work.clone(), SUITE)?
        .with(&["APT::Architectures::=amd64", "APT::Architectures::=arm64"]);

    archive.update(log, true)?;
    archive.fetch(log, &[std.as_str()], &work).map_err(|error| {
        Error::Other(format!(
            "{error} The build root's compiler needs this very version: if the archive has a newer one only, make a new root with \
             \"make clean-cache\"."
        ))
    })?;
    archive.fetch(log, &PACKAGES, &work)?;
    for name in KEPT {
        let (from, to) = (work.join(name), into.join(name));
        let folder = to.parent().unwrap_or(into);
        fs::create_dir_all(folder).on("make", folder)?;
        fs::rename(&from, &to).on("rename", &from)?;
    }
    fs::remove_dir_all(&work).on("remove", &work)
}
