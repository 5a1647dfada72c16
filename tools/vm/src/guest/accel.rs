// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Chooses KVM if it can really run a guest, else emulation.
//!
//! On some machines, /dev/kvm can be opened although no guest runs. So a guest is booted as a test, once per boot of the machine.

use crate::cache::Cache;
use crate::error::{Error, Result};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How QEMU runs the guest's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// In hardware.
    Kvm,
    /// Emulated.
    Tcg,
}

/// A guest with more processors than this emulates all of them in one thread. With one thread for each, it would hit stale breakpoints
/// before `tcg_int3.ko` is loaded.
const MANY: u32 = 8;

impl Accel {
    /// QEMU's options for a guest with so many processors.
    #[must_use]
    pub fn args(self, processors: u32) -> [&'static str; 4] {
        let accel = match self {
            Self::Kvm => "kvm",
            Self::Tcg if processors > MANY => "tcg,thread=single",
            Self::Tcg => "tcg,thread=multi",
        };
        ["-accel", accel, "-cpu", self.model()]
    }

    /// The processor that a guest sees.
    #[must_use]
    pub fn model(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "max",
        }
    }

    /// Chooses `AUXPMU_ACCEL` if it is set, else KVM if a test boot of `image` succeeds, else TCG.
    ///
    /// # Errors
    ///
    /// When `AUXPMU_ACCEL` is neither kvm nor tcg.
    pub fn choose(cache: &Cache, image: &Path) -> Result<Self> {
        match std::env::var("AUXPMU_ACCEL").as_deref() {
            Ok("kvm") => return Ok(Self::Kvm),
            Ok("tcg") => return Ok(Self::Tcg),
            Ok("") | Err(_) => {}
            Ok(other) => {
                return Err(Error::Other(format!(
                    "AUXPMU_ACCEL={other} is not known: use kvm or tcg, or leave it unset"
                )))
            }
        }
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let opens = || {
            std::fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/kvm")
                .is_ok()
        };
        if !has_virtualisation(&cpuinfo) || !opens() {
            return Ok(Self::Tcg);
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let record = cache.dir().join("kvm-probe");
        let known = std::fs::read_to_string(&record).unwrap_or_default();
        let works = match known.split_once(' ') {
            Some((id, answer)) if id == boot.trim() => answer == "yes",
            _ => {
                let works = probe(image);
                // If the record cannot be written, the next run repeats the probe.
                let _ = std::fs::write(
                    &record,
                    format!("{} {}", boot.trim(), if works { "yes" } else { "no" }),
                );
                works
            }
        };
        Ok(if works { Self::Kvm } else { Self::Tcg })
    }
}

/// Whether the processor's flags include hardware virtualisation.
fn has_virtualisation(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|l| l.starts_with("flags"))
        .any(|l| l.split_whitespace().any(|f| f == "vmx" || f == "svm"))
}

/// Boots the kernel under KVM without a root file system. Returns whether the kernel got as far as to panic for lack of one.
fn probe(image: &Path) -> bool {
    let child = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "qemu-system-x86_64",
            "-M",
            "q35",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(Accel::Kvm.args(1))
        .args([
            "-m",
            "256M",
            "-serial",
            "stdio",
            "-append",
            "console=ttyS0 panic=-1",
            "-kernel",
        ])
        .arg(image)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let reader = child.stdout.take().map(|mut out| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = std::io::Read::read_to_end(&mut out, &mut text);
            String::from_utf8_lossy(&text).contains("Kernel panic")
        })
    });
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
            _ => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    reader.and_then(|r| r.join().ok()).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags() {
        assert!(has_virtualisation(
            "processor : 0\nflags\t\t: fpu vme svm lm\n"
        ));
        assert!(has_virtualisation("flags: fpu vmx\n"));
        assert!(!has_virtualisation("flags: fpu vme\nvmx flags: vnmi\n"));
        assert!(!has_virtualisation("model name: vmx svm\n"));
    }
}
