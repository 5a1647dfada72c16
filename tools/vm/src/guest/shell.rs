// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A guest on the terminal.

use super::machine::{
    self, accel, kernel_line, memory, qemu, socket, trace_unit, Size, PROCESSORS,
};
use super::{Devices, Guest, BUSYBOX};
use crate::cache::{self, Cache};
use crate::error::{Error, OnFile, Result};
use crate::kernel::Kernel;
use crate::plugin;
use crate::step::Log;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The folder in which the root file system of an interactive guest is assembled. Its mounts are in a mount namespace of our own.
const SHARED: &str = "/run/guest-root";

/// Boots a guest on the terminal. Its root file system is the build root (read-only, changes go to memory), with the checkout under its
/// usual path. If `trace` is set, the guest has the trace unit and a processor of Intel's, as perf's `intel_pt` needs it.
///
/// # Errors
///
/// When it cannot be started, or QEMU fails.
pub fn shell(
    cache: &Cache,
    kernel: &Kernel,
    modules: &[PathBuf],
    programs: &[(String, PathBuf)],
    trace: bool,
) -> Result<()> {
    let mut guest = Guest::new(kernel, modules)?;
    for (name, path) in programs {
        guest = guest.program(name, path)?;
    }
    let dir = cache.build().join("shell");
    cache::remove(&dir)?;
    fs::create_dir_all(&dir).on("make", &dir)?;
    let console = dir.join("console.log");
    let mut archive = guest.archive;
    archive.program("init", include_str!("../../guest/shell-init.sh").as_bytes());
    archive.file(
        "etc/environment",
        format!("export AUXPMU_CHECKOUT='{}'\n", cache.checkout().display()).as_bytes(),
    );
    let initramfs = dir.join("initramfs");
    fs::write(&initramfs, archive.finish()).on("write", &initramfs)?;

    // The bind mounts are not recursive: the guest gets the build root and the checkout, but no other mount of this machine.
    let place = format!("{SHARED}{}", cache.checkout().display());
    let log = Log::create(&dir.join("mount.log"))?;
    log.run(
        "preparing the guest's root",
        Command::new("mkdir").args(["-p", SHARED]),
    )?;
    for (from, to) in [(Path::new("/"), SHARED), (cache.checkout(), &place)] {
        log.run(
            "preparing the guest's root",
            Command::new("mkdir").args(["-p", to]),
        )?;
        log.run(
            "preparing the guest's root",
            Command::new(BUSYBOX)
                .args(["mount", "-o", "bind"])
                .arg(from)
                .arg(to),
        )?;
    }

    let socket = socket();
    let log = dir.join("virtiofsd.log");
    let log_file = fs::File::create(&log).on("write", &log)?;
    let log_error = log_file.try_clone().on("write", &log)?;
    let mut server = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "/usr/libexec/virtiofsd",
            "--shared-dir",
            SHARED,
            "--no-announce-submounts",
            "--sandbox",
            "none",
            "--cache",
            "auto",
        ])
        .args(["--inode-file-handles=never", "--socket-path"])
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(log_file)
        .stderr(log_error)
        .spawn()
        .map_err(|source| Error::Spawn {
            program: "virtiofsd".to_owned(),
            source,
        })?;
    let start = Instant::now();
    while !socket.exists() {
        if start.elapsed() > Duration::from_secs(10) || !matches!(server.try_wait(), Ok(None)) {
            return Err(Error::Other(format!(
                "the file server of the guest does not start; its log is {}",
                log.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    crate::err!("Booting the {} kernel; leave the guest with ctrl-D, end it at once with ctrl-A x. The console's log is {}.", kernel.kind, console.display());
    let devices = match trace {
        true => Devices::TraceUnit,
        false => Devices::Plain,
    };
    let line = kernel_line(kernel);
    let memory = memory(kernel);
    let size = Size {
        memory,
        processors: PROCESSORS,
    };
    let mut qemu = qemu(cache, kernel, &console, &line, None, devices, size)?;
    qemu.arg("-initrd").arg(&initramfs);
    qemu.args([
        "-object",
        &format!("memory-backend-memfd,id=mem,size={memory}M,share=on"),
        "-numa",
        "node,memdev=mem",
    ]);
    qemu.arg("-chardev")
        .arg(format!("socket,id=fs,path={}", socket.display()));
    qemu.args([
        "-device",
        "vhost-user-fs-pci,chardev=fs,tag=root",
        "-chardev",
        "stdio,id=tty,mux=on,signal=off",
    ]);
    qemu.args([
        "-device",
        "virtio-serial-pci",
        "-device",
        "virtconsole,chardev=tty",
    ]);
    let trace_socket = machine::socket();
    if trace {
        let model = accel(cache, kernel, devices)?.model();
        qemu.args(["-cpu", &format!("{model},vendor=GenuineIntel")]);
        let plugin = plugin::build(cache, "traceunit")?;
        qemu.args(trace_unit(&plugin, &trace_socket, devices, None));
    }
    let status = qemu.status();
    let _ = server.kill();
    let _ = server.wait();
    for path in [&socket, &trace_socket, &initramfs] {
        let _ = fs::remove_file(path);
    }
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Error::Other(format!(
            "the guest ended badly; the console is {}",
            console.display()
        ))),
        Err(source) => Err(Error::Spawn {
            program: "qemu-system-x86_64".to_owned(),
            source,
        }),
    }
}
