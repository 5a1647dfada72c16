// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `edu` is unbound, removed or unplugged while it is traced.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::Field;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::{errno, with, write, Traced, DRIVER, MODULE, PMU};
use crate::attack::{get, set, sleep};
use crate::device::kernel::of_driver;
use crate::ktap::Skip;
use crate::module;
use crate::wait::{wait_for, PATIENCE};

/// Removes the device while it is traced, and brings it back, three times. Each time, a new event traces the device afterwards.
fn goes(
    away: impl Fn(&Path, &str) -> Result<()>,
    back: impl Fn(&str) -> Result<()>,
) -> Result<String> {
    const TIMES: u64 = 3;
    let mut bytes = 0;
    for n in 0..TIMES {
        let mut traced = Traced::open()?;
        traced.more(4096)?;
        traced.victim.event.enable()?;
        // In the middle of a transfer.
        sleep(30 * n);
        let (path, name) = of_driver(DRIVER)?;
        away(&path, &name)?;
        ensure!(!Path::new(PMU).exists(), "the PMU is still there");
        // The removal has ended the transaction: its trace must be there, and right.
        traced.look()?;
        bytes += traced.next;
        let head = traced.next;
        sleep(200);
        let control = traced.victim.control()?;
        ensure!(
            get(control, Field::AuxHead) == head,
            "trace of a device that is gone"
        );
        set(control, Field::AuxTail, head);
        // The AUX area holds a reference to the module.
        ensure!(
            module::unload(MODULE).is_err(),
            "the module goes with an AUX area alive"
        );
        back(&name)?;
        ensure!(Path::new(PMU).exists(), "the PMU is not back");
        let mut next = Traced::open()?;
        next.more(4096)?;
        next.ends()?;
    }
    Ok(format!("{TIMES} times, {bytes} bytes"))
}

pub fn unbound() -> Result<String> {
    with(|| {
        goes(
            |_, name| write(Path::new(DRIVER).join("unbind"), name),
            |name| write(Path::new(DRIVER).join("bind"), name),
        )
    })
}

pub fn removed() -> Result<String> {
    with(|| {
        goes(
            |path, _| write(path.join("remove"), "1"),
            |_| write("/sys/bus/pci/rescan", "1"),
        )
    })
}

/// A connection to QEMU's monitor, through a virtio port of the guest.
struct Monitor {
    port: File,
    asked: u32,
}

impl Monitor {
    fn open() -> Result<Self> {
        let ports = "/sys/class/virtio-ports";
        for entry in fs::read_dir(ports).with_context(|| format!("cannot read {ports}"))? {
            let entry = entry?;
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim() == "qmp" {
                let path = Path::new("/dev").join(entry.file_name());
                let port = File::options().read(true).write(true).open(&path);
                let port = port.with_context(|| format!("cannot open {}", path.display()))?;
                let mut this = Self { port, asked: 0 };
                // QEMU refuses this command if an earlier user of the port has negotiated already.
                let _ = this.ask("\"execute\": \"qmp_capabilities\"");
                return Ok(this);
            }
        }
        bail!(Skip("this guest has no port to QEMU's monitor"));
    }

    /// Sends a command to QEMU and waits for the response.
    fn ask(&mut self, what: &str) -> Result<()> {
        self.asked += 1;
        let id = format!("\"id\": {}", self.asked);
        writeln!(self.port, "{{{what}, {id}}}").context("cannot ask QEMU")?;
        let end = Instant::now() + PATIENCE;
        let mut answer = String::new();
        // Events may come before and after the response.
        while !answer.lines().any(|line| line.contains(&id)) {
            ensure!(Instant::now() < end, "QEMU does not answer: {answer}");
            let time = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            let ready = poll(&mut [PollFd::new(&self.port, PollFlags::IN)], Some(&time))
                .context("cannot poll")?;
            let mut bytes = [0; 1024];
            if ready != 0 {
                let len = self
                    .port
                    .read(&mut bytes)
                    .context("cannot read from QEMU")?;
                answer += &String::from_utf8_lossy(bytes.get(..len).unwrap_or_default());
            }
        }
        ensure!(!answer.contains("\"error\""), "QEMU refuses: {answer}");
        Ok(())
    }
}

/// Waits until the PMU is gone.
fn wait_until_gone() -> Result<()> {
    wait_for("unregistering", || Ok(!Path::new(PMU).exists()))
}

/// Waits until the PMU accepts events: `perf_pmu_register()` in `kernel/events/core.c` creates its directory earlier.
fn wait_until_there() -> Result<()> {
    wait_for("registering", || {
        Ok(Path::new(PMU).exists()
            && match Traced::open() {
                Ok(_) => true,
                // Any other error must be reported by the case.
                Err(error) => errno(&error) != Some(Errno::NOENT),
            })
    })
}

/// QEMU unplugs the device, and plugs in another one.
pub fn unplugged() -> Result<String> {
    let slots = fs::read_dir("/sys/bus/pci/slots").map_or(0, Iterator::count);
    if slots == 0 {
        bail!(Skip("this kernel unplugs no PCI devices"));
    }
    Monitor::open()?;
    with(|| {
        goes(
            |_, _| {
                Monitor::open()?
                    .ask("\"execute\": \"device_del\", \"arguments\": {\"id\": \"edu\"}")?;
                wait_until_gone()
            },
            |_| {
                let end = Instant::now() + PATIENCE;
                let mut monitor = Monitor::open()?;
                // QEMU refuses the id until it has removed the old device.
                while let Err(error) = monitor.ask(
                    "\"execute\": \"device_add\", \"arguments\": {\"driver\": \"edu\", \"id\": \"edu\", \"bus\": \"root1\", \"dma_mask\": 4294967295}",
                ) {
                    ensure!(Instant::now() < end, "{error:#}");
                    sleep(100);
                }
                wait_until_there()
            },
        )
    })
}
