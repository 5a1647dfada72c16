// SPDX-License-Identifier: GPL-2.0 OR MIT

//! QEMU's device `edu`, with the driver `edu_trace`. It writes to the AUX area by DMA and raises interrupts.

pub mod gone;

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{page_size, Event};
use perfdata::{Attr, Flags, Read};
use rustix::io::Errno;

use super::kernel::{affinity, interrupt, messages, of_driver, served_by, without_faults};
use crate::attack::{aux, base, random, sleep, unpin, Victim};
use crate::hotplug::{switch, ONLINE};
use crate::ktap::Skip;
use crate::module;
use crate::wait::{wait_for, PATIENCE};
use crate::workload::pin;

/// The driver's module.
const MODULE: &str = "edu_trace";

/// The PMU's directory in sysfs.
const PMU: &str = "/sys/bus/event_source/devices/edu";

/// The driver's directory in sysfs.
const DRIVER: &str = "/sys/bus/pci/drivers/edu_trace";

/// The default number of pages of an AUX area.
const PAGES: usize = 4;

/// The byte that the device writes at a position of the AUX area.
fn byte(pos: usize) -> u8 {
    u8::try_from(pos % 4096 % 251).unwrap_or(0)
}

/// Calls `what` with the driver loaded. Skips the case if the kernel lacks the driver.
fn with<T>(what: impl FnOnce() -> Result<T>) -> Result<T> {
    if !Path::new("/modules/edu_trace.ko").exists() {
        bail!(Skip("this kernel has no message-signalled interrupts"));
    }
    module::with(MODULE, || {
        ensure!(Path::new(PMU).exists(), "the driver found no device");
        what()
    })
}

/// Reads a number from a file of the PMU in sysfs.
fn number(name: &str) -> Result<u32> {
    module::number(&format!("{PMU}/{name}"))
}

/// An event of the device, with its rings.
struct Traced {
    victim: Victim,
    /// Bytes of its AUX area.
    size: usize,
    /// The position of the first byte that was not checked.
    next: u64,
}

impl Traced {
    fn open() -> Result<Self> {
        Self::with(0, PAGES)
    }

    /// Opens an event with this `config` and an AUX area of `pages` pages, on the CPU of the PMU's `cpumask`.
    fn with(config: u64, pages: usize) -> Result<Self> {
        let attr = Attr {
            kind: number("type")?,
            config,
            read_format: Read::FORMAT,
            flags: Flags::DISABLED,
            ..Attr::default()
        };
        let cpu = i32::try_from(number("cpumask")?)?;
        let event = Event::open(&attr, -1, cpu).context("cannot open an event")?;
        let data = base(&event).context("cannot map the data ring")?;
        let area = aux(&event, &data, pages).context("cannot map the AUX area")?;
        let victim = Victim {
            aux: Some(area),
            base: Some(data),
            event,
        };
        Ok(Self {
            victim,
            size: pages * page_size(),
            next: 0,
        })
    }

    /// Checks the new bytes, and releases them.
    fn look(&mut self) -> Result<()> {
        let head = self.victim.head();
        let area = self.victim.aux.as_ref().context("not mapped")?;

        for pos in self.next..head {
            let offset = usize::try_from(pos)? % self.size;
            let mut found = [0];
            area.copy_out(offset, &mut found)
                .context("beyond the AUX area")?;
            ensure!(
                found == [byte(offset)],
                "byte {pos} is {} and not {}",
                found[0],
                byte(offset)
            );
        }
        self.next = head;
        self.victim.release();
        self.victim.read();
        Ok(())
    }

    /// Waits until the device has written `bytes` more bytes, and checks them. Enables the event again and again: a full area disables it.
    fn more(&mut self, bytes: u64) -> Result<()> {
        self.until(bytes, true)
    }

    /// Like [`Self::more`], but does not enable the event.
    fn goes_on(&mut self, bytes: u64) -> Result<()> {
        self.until(bytes, false)
    }

    fn until(&mut self, bytes: u64, enables: bool) -> Result<()> {
        let wanted = self.next + bytes;
        wait_for(&format!("{wanted} bytes"), || {
            if self.next < wanted {
                self.look()?;
                if enables {
                    self.victim.event.enable()?;
                }
            }
            Ok(self.next >= wanted)
        })
    }

    /// Disables the event. The recorded bytes must be as many as the device has written; returns their number.
    fn ends(&mut self) -> Result<u64> {
        self.victim.event.disable()?;
        self.look()?;
        let count = self.victim.event.count()?.context("it does not count")?;
        ensure!(
            count.value == self.next,
            "the device wrote {} bytes, {} are recorded",
            count.value,
            self.next
        );
        Ok(self.next)
    }
}

/// Checks that the AUX area has the bytes that the device wrote, also after the area was full.
pub fn dma() -> Result<String> {
    with(|| {
        let mut traced = Traced::open()?;
        traced.more(3 * 16384)?;
        let all = traced.ends()?;

        // Nothing reads, so the area gets full. Then the reader releases space, and the device continues there.
        traced.victim.event.enable()?;
        sleep(1000);
        let full = traced.victim.head() - traced.next;
        ensure!(
            full < 16384 && full > 16384 - 4096,
            "{full} bytes are in an area of 16384 that was not read"
        );
        traced.more(16384)?;
        let more = traced.ends()? - all;
        Ok(format!("{all} bytes, then {full} of {more} in a full area"))
    })
}

/// Checks the trace that the device writes to bounce memory and the driver copies.
pub fn bounce() -> Result<String> {
    with(|| {
        let mut traced = Traced::with(1, PAGES)?;
        traced.more(2 * 16384)?;
        Ok(format!("{} bytes", traced.ends()?))
    })
}

/// Stops the event at various times of a transfer.
pub fn stops() -> Result<String> {
    with(|| {
        const TIMES: u64 = 40;
        let mut traced = Traced::open()?;
        for n in 0..TIMES {
            traced.victim.event.enable()?;
            // A transfer takes 100 ms.
            sleep(random(n) % 130);
            traced.ends()?;
        }
        Ok(format!("{TIMES} stops, {} bytes", traced.next))
    })
}

/// The interrupt arrives on a CPU that is not the event's.
pub fn forwarded() -> Result<String> {
    with(|| {
        let mut traced = Traced::open()?;
        traced.more(4096)?;
        let (irq, before) = interrupt(MODULE, 0)?;
        let other = 1 - number("cpumask")?;
        let there = |counts: &[u64]| {
            counts
                .get(usize::try_from(other).unwrap_or(usize::MAX))
                .copied()
                .unwrap_or(0)
        };
        let end = Instant::now() + PATIENCE;
        write(affinity(&irq), &other.to_string())?;
        loop {
            traced.more(4096)?;
            let (_, now) = interrupt(MODULE, 0)?;
            if there(&now) > there(&before) + 3 {
                traced.ends()?;
                return Ok(format!("interrupts: {before:?}, then {now:?}"));
            }
            ensure!(Instant::now() < end, "interrupts: {before:?}, then {now:?}");
        }
    })
}

fn write(path: impl AsRef<Path>, text: &str) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, text).with_context(|| format!("cannot write to {}", path.display()))
}

/// perf returns ENOMEM for every error of `setup_aux()`, and the kernel's log has the cause. Coherent memory is not bounced.
pub fn bounced() -> Result<String> {
    const SENTENCE: &str = "cannot map an AUX area for DMA: the device does not reach its memory";
    if !Path::new("/sys/kernel/debug/swiotlb").exists() {
        bail!(Skip("this kernel has no swiotlb"));
    }
    let said = with(|| {
        let said = |text: &str| text.matches(SENTENCE).count();
        let before = said(&messages()?);
        let held = module::references(MODULE)?;
        let error = Traced::open().err().context("it is mapped")?;
        ensure!(
            errno(&error) == Some(Errno::NOMEM),
            "the area is refused with {error:#}"
        );
        ensure!(
            said(&messages()?) == before + 1,
            "the kernel does not say why"
        );
        ensure!(
            module::references(MODULE)? == held,
            "a reference to the module is left"
        );
        Ok(error.root_cause().to_string())
    })?;
    Ok(format!("{said}; bounce memory: {}", bounce()?))
}

/// The events of a unit that all CPUs share migrate when their CPU goes offline. Tracing continues without `PERF_EVENT_IOC_ENABLE`.
pub fn moved() -> Result<String> {
    const TIMES: u64 = 3;
    if !Path::new(ONLINE).exists() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    let mut bytes = 0;
    for n in 0..TIMES {
        // The unit's events are at first on the CPU where the PMU was registered. CPU 0 cannot go offline, so CPU 1 registers it.
        pin(1)?;
        let outcome = with(|| {
            unpin()?;
            one_move(n)
        });
        unpin()?;
        // Even if the case failed, the next case needs two CPUs.
        switch(true)?;
        bytes += outcome?;
    }
    Ok(format!("{TIMES} times, {bytes} bytes"))
}

fn one_move(n: u64) -> Result<u64> {
    let lives_on = |cpu: u32| {
        let found = number("cpumask")?;
        ensure!(found == cpu, "cpumask is {found} and not {cpu}");
        let served = served_by(&interrupt(MODULE, 0)?.0)?;
        ensure!(
            served == cpu.to_string(),
            "CPU {served} serves the interrupt, and not {cpu}"
        );
        Ok(())
    };
    lives_on(1)?;
    // The area is larger than the trace that comes during a teardown: a full area would disable the event.
    let mut traced = Traced::with(0, 128)?;
    traced.more(4096)?;
    // In the middle of a transfer, which takes 100 ms.
    sleep(30 * n);
    switch(false)?;
    lives_on(0)?;
    traced.goes_on(2 * 4096).context("after its CPU went")?;
    switch(true)?;
    traced
        .goes_on(2 * 4096)
        .context("after the CPU came back")?;
    lives_on(0)?;
    traced.ends()
}

/// Calls `what` on a device behind an IOMMU. The IOMMU must report no fault.
pub fn translated(what: fn() -> Result<String>) -> Result<String> {
    without_faults(|| with(|| Ok(of_driver(DRIVER)?.0)), what)
}

/// The errno that an error came from.
fn errno(error: &anyhow::Error) -> Option<Errno> {
    Errno::from_io_error(error.downcast_ref()?)
}
