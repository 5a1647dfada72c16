// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs a guest's command under virtme-ng instead of in a guest of our own. The root file system is then the build root itself.

use crate::cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::Outcome;
use crate::kernel::Kernel;
use crate::results::splat;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The path in the guest of the folder of its run. It is in /tmp, as virtme-ng itself creates the mount point.
const GUEST_DIR: &str = "/tmp/auxpmu";

/// Runs `command` with the same folders and programs as in our own guests.
///
/// # Errors
///
/// When virtme-ng cannot be started.
pub fn run(
    dir: &Path,
    kernel: &Kernel,
    modules: &[PathBuf],
    programs: &[(String, PathBuf)],
    command: &str,
    timeout: Duration,
) -> Result<Outcome> {
    cache::remove(dir)?;
    let files = dir.join("out");
    let (staged_modules, bin) = (dir.join("modules"), dir.join("bin"));
    for folder in [&files, &staged_modules, &bin] {
        fs::create_dir_all(folder).on("make", folder)?;
    }
    let mut order = String::new();
    for path in modules {
        let name = path
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        fs::copy(path, staged_modules.join(&name)).on("copy", path)?;
        order += &format!("{name}\n");
    }
    fs::write(staged_modules.join("order"), order).on("write", &staged_modules)?;
    for (name, path) in programs {
        fs::copy(path, bin.join(name)).on("copy", path)?;
    }
    // The guest sees the build root without the file systems that are mounted in it. So the folder of the run is shared separately.
    let script = dir.join("run.sh");
    let place = GUEST_DIR;
    let text = format!(
        "#!/bin/sh\nmkdir -p /modules /out\nmount --bind '{place}/modules' /modules\nmount -t tmpfs out /out\n\
         mountpoint -q /sys/kernel/debug || mount -t debugfs debug /sys/kernel/debug\n\
         export PATH='{place}/bin':$PATH AUXPMU_KERNEL={kind}\n({command}) >'{place}/said.log' 2>&1\necho $? >/out/.status\n\
         cp -r /out/. '{place}/out/'\ndmesg >'{place}/console.log'\n",
        kind = kernel.kind
    );
    fs::write(&script, text).on("write", &script)?;
    fs::create_dir_all("/modules").on("make", Path::new("/modules"))?;
    fs::create_dir_all("/out").on("make", Path::new("/out"))?;
    let log = dir.join("vng.log");
    let out = fs::File::create(&log).on("write", &log)?;
    let error = out.try_clone().on("write", &log)?;
    let start = Instant::now();
    let mut child = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "vng",
            "--verbose",
            "--disable-microvm",
            "--force-9p",
            "--user",
            "root",
            "--cpus",
            "2",
            "--memory",
            "1G",
        ])
        .arg("--run")
        .arg(kernel.image())
        .arg(format!("--rwdir={place}={}", dir.display()))
        .args(["--disable-kvm", "--exec"])
        .arg(format!("sh {place}/run.sh"))
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(error)
        .spawn()
        .map_err(|source| Error::Spawn {
            program: "vng".to_owned(),
            source,
        })?;
    let mut timed_out = false;
    while matches!(child.try_wait(), Ok(None)) {
        if start.elapsed() > timeout {
            timed_out = true;
            let _ = child.kill();
            let _ = child.wait();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let console = dir.join("console.log");
    if !console.exists() {
        fs::copy(&log, &console).on("copy", &log)?;
    }
    let text = String::from_utf8_lossy(&fs::read(&console).on("read", &console)?).into_owned();
    let said = fs::read(dir.join("said.log"))
        .map(|b| String::from_utf8_lossy(&b).into_owned())
        .unwrap_or_default();
    let status = fs::read_to_string(files.join(".status"))
        .ok()
        .and_then(|s| s.trim().parse().ok());
    Ok(Outcome {
        said,
        status,
        timed_out,
        cut: false,
        failed: None,
        splats: splat::scan(&text),
        console,
        files,
        process: child.id(),
        elapsed: start.elapsed(),
        peak_kib: 0,
    })
}
