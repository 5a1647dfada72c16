// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Stock perf for 64-bit Arm with its libraries, and the recorder for described machines.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use super::Arch;
use crate::archive::{mirror, Archive};
use crate::cache::{hash, Cache};
use crate::error::{OnFile, Result};
use crate::step::{Log, Progress};
use crate::tools::aarch64::Aarch64;

/// perf comes from the backports, like the kernel, its libraries from the release.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const PERF: &str = "linux-perf/trixie-backports";
/// The prefixes of the packages that are used. The other dependencies of perf are for scripts.
const WANTED: [&str; 4] = ["lib", "gcc-14-base", "zlib", "linux-perf"];
/// The packages that the recorder is linked with.
const TO_LINK: [&str; 3] = ["libc6-dev", "libgcc-14-dev", "linux-libc-dev"];

/// Stock perf for 64-bit Arm, and the emulators and libraries for the recorder.
#[derive(Debug)]
pub(super) struct Stock {
    /// The root directory of perf for 64-bit Arm.
    pub arm64: PathBuf,
    /// QEMU's user-mode emulators for 64-bit Arm and for x86-64.
    pub emulators: [PathBuf; 2],
    aarch64: Aarch64,
}

impl Stock {
    /// Fetches the packages if the cache does not have them.
    pub fn prepare(cache: &Cache) -> Result<Self> {
        let aarch64 = Aarch64::prepare(cache)?;
        let mirror = mirror()?;
        let parts = [mirror.as_str(), PERF, cache.root_hash(), "1"];
        let parts = parts.into_iter().chain(SUITES).chain(WANTED).chain(TO_LINK);
        let arm64 = cache.entry(&format!("perf-arm64-{}", hash(parts)), |temporary, _| {
            let progress = Progress::begin("fetching perf for 64-bit Arm");
            let log = Log::create(&cache.log("perf-arm64.log"))?;
            let work = temporary.join("apt");
            let archive = Archive::of(work.clone(), &SUITES)?
                .with(&["APT::Architecture=arm64", "APT::Architectures=arm64"]);
            archive.update(&log, true)?;
            archive.fetch(&log, &TO_LINK, temporary)?;
            archive.fetch_all(&log, PERF, temporary, |name| {
                WANTED.iter().any(|wanted| name.starts_with(wanted))
            })?;
            fs::remove_dir_all(&work).on("remove", &work)?;
            let lib = temporary.join("lib");
            symlink("usr/lib", &lib).on("make", &lib)?;
            progress.end("ready");
            Ok(())
        })?;
        Ok(Self {
            arm64,
            emulators: aarch64.emulators(),
            aarch64,
        })
    }

    /// Builds the recorder, and returns its path. It makes system calls through the C library, as perf does, so that `events.c` can replace
    /// them.
    pub fn recorder(&self, cache: &Cache, log: &Log, arch: Arch) -> Result<PathBuf> {
        const THROUGH_LIBC: &str = "--cfg=rustix_use_libc";
        let mut cargo = Command::new("cargo");
        match arch {
            Arch::Arm64 => self
                .aarch64
                .configure_with(&mut cargo, THROUGH_LIBC, &self.arm64),
            Arch::X86_64 => {
                cargo.env(
                    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
                    THROUGH_LIBC,
                );
            }
        }
        cargo
            .current_dir(cache.checkout().join("tools"))
            .args(["build", "--locked", "--config", "profile.dev.debug=0"])
            .args(["-p", "auxrec", "--target", arch.target()]);
        log.run("building the recorder for described machines", &mut cargo)?;
        let target = cache.build().join("target").join(arch.target());
        Ok(target.join("debug/auxrec"))
    }
}
