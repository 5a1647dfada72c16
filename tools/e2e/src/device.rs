// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device that writes to the AUX area by DMA and raises interrupts: QEMU's `edu`, with the driver `edu_trace`.

pub mod sink;
pub mod trace_unit;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::{page_size, Event, Field};
use perfdata::{Attr, Flags, Read};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::attack::{aux, base, get, random, set, sleep, Attack, Victim};
use crate::ktap::Skip;
use crate::module;
use crate::wait::{wait_for, PATIENCE};

/// The cases for each guest.
pub const ALL: [Attack; 6] = [
    attack("device: DMA into the AUX area", dma),
    attack("device: DMA into coherent bounce memory", bounce),
    attack("device: stop against the interrupt", stops),
    attack("device: an interrupt on another CPU", forwarded),
    attack("device: unbound while it is traced", unbound),
    attack("device: removed while it is traced", removed),
];

/// The cases for a guest whose device is behind an IOMMU and can be unplugged.
pub const IOMMU: [Attack; 5] = [
    attack("device, IOMMU: DMA into the AUX area", || translated(dma)),
    attack("device, IOMMU: DMA into coherent bounce memory", || {
        translated(bounce)
    }),
    attack("device, IOMMU: stop against the interrupt", || {
        translated(stops)
    }),
    attack("device, IOMMU: unbound while it is traced", || {
        translated(unbound)
    }),
    attack("device, IOMMU: unplugged while it is traced", || {
        translated(unplugged)
    }),
];

/// The cases for a guest where swiotlb bounces all DMA.
pub const SWIOTLB: [Attack; 1] = [attack(
    "device, swiotlb: an AUX area that would be bounced is refused",
    bounced,
)];

/// Where the device is.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Machine {
    /// Behind an IOMMU.
    Iommu,
    /// Where all DMA is bounced.
    Swiotlb,
    /// With the trace unit.
    TraceUnit,
    /// With the trace unit behind an IOMMU, in a slot.
    TraceUnitIommu,
}

/// A case: its name in this guest, and a function that runs it.
pub type Named = (String, Box<dyn Fn() -> Result<String>>);

impl Machine {
    /// The cases for a guest with this device.
    pub fn cases(self) -> Vec<Named> {
        let named = |cases: &'static [Attack]| {
            let named =
                |case: &'static Attack| -> Named { (case.name.to_owned(), Box::new(case.run)) };
            cases.iter().map(named).collect()
        };
        match self {
            Self::Iommu => named(&IOMMU),
            Self::Swiotlb => named(&SWIOTLB),
            Self::TraceUnit => trace_unit::all(),
            Self::TraceUnitIommu => trace_unit::translated(),
        }
    }
}

const fn attack(name: &'static str, run: fn() -> Result<String>) -> Attack {
    Attack { name, run }
}

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
pub fn with<T>(what: impl FnOnce() -> Result<T>) -> Result<T> {
    if !Path::new("/modules/edu_trace.ko").exists() {
        bail!(Skip("this kernel has no message-signalled interrupts"));
    }
    module::with(MODULE, || {
        ensure!(Path::new(PMU).exists(), "the driver found no device");
        what()
    })
}

/// Reads a number from a file of the PMU in sysfs.
pub fn number(name: &str) -> Result<u32> {
    let path = format!("{PMU}/{name}");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    text.trim()
        .parse()
        .with_context(|| format!("{path} reads {text:?}"))
}

/// An event of the device, with its rings.
pub struct Traced {
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
    pub fn with(config: u64, pages: usize) -> Result<Self> {
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
    pub fn more(&mut self, bytes: u64) -> Result<()> {
        self.until(bytes, true)
    }

    /// Like [`Self::more`], but does not enable the event.
    pub fn goes_on(&mut self, bytes: u64) -> Result<()> {
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
    pub fn ends(&mut self) -> Result<u64> {
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
fn dma() -> Result<String> {
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
fn bounce() -> Result<String> {
    with(|| {
        let mut traced = Traced::with(1, PAGES)?;
        traced.more(2 * 16384)?;
        Ok(format!("{} bytes", traced.ends()?))
    })
}

/// Stops the event at various times of a transfer.
fn stops() -> Result<String> {
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

/// The device's interrupt: its number, and how often it arrived on each CPU.
fn interrupts() -> Result<(String, Vec<u64>)> {
    let text = fs::read_to_string("/proc/interrupts").context("cannot read /proc/interrupts")?;
    let line = text.lines().find(|line| line.ends_with(MODULE));
    let mut words = line.context("there is no interrupt")?.split_whitespace();
    let number = words.next().unwrap_or_default().trim_end_matches(':');
    Ok((
        number.to_owned(),
        words.map_while(|word| word.parse().ok()).collect(),
    ))
}

/// The file that shows and sets the CPUs that serve the interrupt.
fn affinity_path() -> Result<String> {
    let (number, _) = interrupts()?;
    Ok(format!("/proc/irq/{number}/smp_affinity_list"))
}

/// The CPUs that serve the interrupt.
pub fn affinity() -> Result<String> {
    let path = affinity_path()?;
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.trim().to_owned())
}

/// The interrupt arrives on a CPU that is not the event's.
fn forwarded() -> Result<String> {
    with(|| {
        let mut traced = Traced::open()?;
        traced.more(4096)?;
        let (_, before) = interrupts()?;
        let other = 1 - number("cpumask")?;
        let there = |counts: &[u64]| {
            counts
                .get(usize::try_from(other).unwrap_or(usize::MAX))
                .copied()
                .unwrap_or(0)
        };
        let end = Instant::now() + PATIENCE;
        write(affinity_path()?, &other.to_string())?;
        loop {
            traced.more(4096)?;
            let (_, now) = interrupts()?;
            if there(&now) > there(&before) + 3 {
                traced.ends()?;
                return Ok(format!("interrupts: {before:?}, then {now:?}"));
            }
            ensure!(Instant::now() < end, "interrupts: {before:?}, then {now:?}");
        }
    })
}

/// The device's directory in sysfs, and its PCI address.
fn device() -> Result<(PathBuf, String)> {
    for entry in fs::read_dir(DRIVER).with_context(|| format!("cannot read {DRIVER}"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("0000:") {
            return Ok((Path::new("/sys/bus/pci/devices").join(&name), name));
        }
    }
    bail!("the driver has no device")
}

fn write(path: impl AsRef<Path>, text: &str) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, text).with_context(|| format!("cannot write to {}", path.display()))
}

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
        let (path, name) = device()?;
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

fn unbound() -> Result<String> {
    with(|| {
        goes(
            |_, name| write(Path::new(DRIVER).join("unbind"), name),
            |name| write(Path::new(DRIVER).join("bind"), name),
        )
    })
}

fn removed() -> Result<String> {
    with(|| {
        goes(
            |path, _| write(path.join("remove"), "1"),
            |_| write("/sys/bus/pci/rescan", "1"),
        )
    })
}

/// The kernel's log.
pub fn messages() -> Result<String> {
    let output = Command::new("dmesg")
        .output()
        .context("cannot start dmesg")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Calls `what` on a device behind an IOMMU. The IOMMU must report no fault.
fn translated(what: fn() -> Result<String>) -> Result<String> {
    without_faults(|| with(|| Ok(device()?.0)), what)
}

/// Calls `what` where an IOMMU translates the DMA of `device`, a directory in sysfs. The IOMMU must report no fault.
pub fn without_faults(
    device: impl FnOnce() -> Result<PathBuf>,
    what: impl Fn() -> Result<String>,
) -> Result<String> {
    const FAULTS: [&str; 2] = ["DMAR: [DMA", "DMAR: DRHD: handling fault"];
    let faults = || -> Result<usize> {
        let messages = messages()?;
        let mut lines = messages.lines();
        let is_fault = |line: &&str| FAULTS.iter().any(|fault| line.contains(fault));
        Ok(lines.by_ref().filter(is_fault).count())
    };
    let path = device()?.join("iommu_group/type");
    let domain =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(
        domain.starts_with("DMA"),
        "the device's IOMMU domain is {domain:?}"
    );
    let before = faults()?;
    let said = what()?;
    ensure!(faults()? == before, "the IOMMU reports faults");
    Ok(format!("{said}; domain {}", domain.trim()))
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

/// The errno that an error came from.
fn errno(error: &anyhow::Error) -> Option<Errno> {
    Errno::from_io_error(error.downcast_ref()?)
}

/// QEMU unplugs the device, and plugs in another one.
fn unplugged() -> Result<String> {
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

/// perf returns ENOMEM for every error of `setup_aux()`, and the kernel's log has the cause. Coherent memory is not bounced.
fn bounced() -> Result<String> {
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
