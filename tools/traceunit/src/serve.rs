// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the device to QEMU's `vfio-user-pci`, on a socket of this process.

use crate::device::config::{self, Config};
use crate::device::memory::{Memory, Refused};
use crate::device::pattern::Pattern;
use crate::device::unit::Unit;
use crate::device::{self, Device, Raise};
use crate::source::{Cpu, Held, Packets, Sink, Source};
use qemuplugin::biased::Outside;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use vfio_bindings::bindings::vfio::{
    vfio_region_info, VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_SET_ACTION_TRIGGER,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR2_REGION_INDEX,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Interval at which patterns are generated.
const TICK: Duration = Duration::from_millis(1);
/// Maximum number of packets of a pattern per tick. A pattern that is late catches up in later ticks.
const MAX_BURST: usize = 4096;
/// Time for which QEMU still reports blocks after the last unit has stopped: the next start may come soon.
const IDLE: Duration = Duration::from_secs(1);

/// The functions of QEMU that the device uses.
pub trait Engine: Send + Sync {
    /// Whether a CPU has reached the last instruction of its current block.
    fn is_whole(&self, cpu: usize) -> bool;

    /// Runs `work` later, while no CPU executes anything. Afterwards QEMU translates each block anew.
    fn exclusively(&self, work: Box<dyn FnOnce() + Send>);
}

/// The device, and its connections to the guest.
struct Served {
    device: Device,
    config: Config,
    guest: Guest,
    lines: Lines,
    patterns: Vec<Pattern>,
    began: Instant,
    /// Whether the request to report blocks is pending.
    arming: bool,
}

/// The memory that is mapped for the device.
#[derive(Default)]
struct Guest {
    maps: Vec<Map>,
    master: bool,
}

struct Map {
    address: u64,
    size: u64,
    /// [`None`] for a mapping without a file: the device cannot access it.
    memory: Option<MmapRegion>,
    readable: bool,
    writable: bool,
}

impl Guest {
    /// Calls `f` with the `len` bytes of memory at an address, in a mapping for which `may` returns true.
    fn with<R>(
        &self,
        address: u64,
        len: usize,
        may: impl Fn(&Map) -> bool,
        f: impl FnOnce(VolatileSlice<'_>) -> R,
    ) -> Result<R, Refused> {
        if !self.master {
            return Err(Refused::Master);
        }
        for map in self.maps.iter().filter(|map| may(map)) {
            let Some(offset) = address
                .checked_sub(map.address)
                .filter(|offset| *offset < map.size)
            else {
                continue;
            };
            let (Some(memory), Ok(offset)) = (&map.memory, usize::try_from(offset)) else {
                break;
            };
            return match memory.get_slice(offset, len) {
                Ok(slice) => Ok(f(slice)),
                Err(_) => Err(Refused::Unmapped),
            };
        }
        Err(Refused::Unmapped)
    }
}

impl Memory for Guest {
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        let len = to.len();
        self.with(
            address,
            len,
            |map| map.readable,
            |slice| {
                slice.copy_to(to);
            },
        )
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.with(
            address,
            from.len(),
            |map| map.writable,
            |slice| {
                slice.copy_from(from);
            },
        )
    }
}

/// The eventfds of the vectors. QEMU raises a vector when its eventfd is written.
#[derive(Default)]
struct Lines(Vec<Option<File>>);

impl Raise for Lines {
    fn raise(&mut self, vector: usize) {
        if let Some(Some(event)) = self.0.get_mut(vector) {
            // The write fails only if the counter is full. Then the vector is raised already.
            let _ = event.write_all(&1u64.to_ne_bytes());
        }
    }
}

/// The device, shared with the CPUs that generate trace.
#[derive(Clone)]
pub struct Shared {
    served: Arc<Mutex<Served>>,
    /// Notified when a unit is enabled.
    enabled: Arc<Condvar>,
    source: Arc<Source>,
    engine: Arc<dyn Engine>,
}

impl Sink for Shared {
    fn put(&self, cpu: usize, packets: &Packets) {
        let served = &mut *self.lock();
        let (guest, lines) = (&mut served.guest, &mut served.lines);
        served.device.put_packets(cpu, packets, guest, lines);
    }
}

impl Shared {
    /// A device with one unit for each CPU, which serves no guest yet.
    #[must_use]
    pub fn new(source: Arc<Source>, engine: Arc<dyn Engine>) -> Self {
        let cpus = source.cpus().min(device::MAX_CPUS);
        let vectors = u16::try_from(cpus.saturating_add(1)).unwrap_or(u16::MAX);
        let served = Served {
            device: Device::new(cpus),
            config: Config::new(vectors),
            guest: Guest::default(),
            lines: Lines((0..vectors).map(|_| None).collect()),
            patterns: (0..u16::try_from(cpus).unwrap_or(0))
                .map(Pattern::new)
                .collect(),
            began: Instant::now(),
            arming: false,
        };
        Self {
            served: Arc::new(Mutex::new(served)),
            enabled: Arc::default(),
            source,
            engine,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold(&self, cpus: Range<usize>) -> Vec<(usize, Held<'_, Outside<'_, Cpu>>)> {
        cpus.filter_map(|index| Some((index, self.source.cpu(index)?)))
            .collect()
    }

    fn read_register(&self, offset: u64, to: &mut [u8]) {
        // The registers include trace that was not passed to the device yet.
        if let Some(index) = device::cpu(offset) {
            if let Some(mut cpu) = self.source.cpu(index) {
                cpu.pass_all(index, self);
            }
        }
        let served = &mut *self.lock();
        let (guest, lines) = (&mut served.guest, &mut served.lines);
        served.device.read(offset, to, guest, lines);
    }

    fn write_register(&self, offset: u64, from: &[u8]) {
        let cpus = self.source.cpus();
        self.control(device::controlled(offset, cpus), |served| {
            served.device.write(offset, from, &mut served.lines);
        });
    }

    /// Writes to the configuration space.
    fn configure(&self, offset: u64, from: &[u8]) {
        let (restored, fault) = {
            let mut served = self.lock();
            (served.configure(offset, from), served.config.fault(offset))
        };
        let cpus = 0..self.source.cpus();
        if restored {
            self.control(cpus, |served| served.device.reset());
        } else if let Some(fault) = fault {
            self.control(cpus, |served| {
                let (guest, lines) = (&mut served.guest, &mut served.lines);
                served.device.fault(fault, guest, lines);
            });
        }
    }

    /// Runs `what`, which may start or stop the units of these CPUs.
    fn control(&self, units: Range<usize>, what: impl FnOnce(&mut Served)) {
        let mut cpus = self.hold(units);
        for (index, cpu) in &mut cpus {
            cpu.stop(self.engine.is_whole(*index));
            cpu.pass_all(*index, self);
        }
        let mut served = self.lock();
        what(&mut served);
        let now = served.now();
        for (index, cpu) in &mut cpus {
            let Some(unit) = served.device.unit_mut(*index) else {
                continue;
            };
            if let Some(request) = unit.instructions() {
                if self.source.is_armed() {
                    cpu.start(&request);
                    unit.runs();
                } else if !served.arming {
                    served.arming = true;
                    self.arm();
                }
                self.enabled.notify_one();
            } else if unit.makes_pattern() {
                if let Some(pattern) = served.patterns.get_mut(*index) {
                    pattern.start(now);
                }
                self.enabled.notify_one();
            }
        }
    }

    /// Makes QEMU report blocks. Then starts the units that wait for this.
    fn arm(&self) {
        let this = self.clone();
        self.engine.exclusively(Box::new(move || {
            let mut cpus = this.hold(0..this.source.cpus());
            let served = &mut *this.lock();
            served.arming = false;
            this.source.arm(true);
            for (index, cpu) in cpus.iter_mut().filter(|(_, cpu)| !cpu.is_on()) {
                let unit = served.device.unit_mut(*index);
                if let Some((unit, request)) = unit.and_then(|unit| {
                    let request = unit.instructions()?;
                    Some((unit, request))
                }) {
                    cpu.start(&request);
                    unit.runs();
                }
            }
        }));
    }

    /// Stops the reports of blocks if no unit needs them.
    fn disarm(&self) {
        let this = self.clone();
        self.engine.exclusively(Box::new(move || {
            let cpus = this.hold(0..this.source.cpus());
            if !cpus.iter().any(|(_, cpu)| cpu.is_on()) {
                this.source.arm(false);
            }
        }));
    }

    /// Generates the patterns, and stops the reports of blocks when they are not needed.
    fn tick(&self) {
        let mut unused: Option<Instant> = None;
        loop {
            let mut served = self.lock();
            while !self.source.is_armed() && !served.has(Unit::makes_pattern) {
                let waited = self.enabled.wait(served);
                served = waited.unwrap_or_else(PoisonError::into_inner);
            }
            served.tick();
            let used = served.has(|unit| unit.instructions().is_some());
            drop(served);
            match (used || !self.source.is_armed(), unused) {
                (true, _) => unused = None,
                (false, None) => unused = Some(Instant::now()),
                (false, Some(since)) if since.elapsed() > IDLE => {
                    self.disarm();
                    unused = None;
                }
                (false, Some(_)) => {}
            }
            thread::sleep(TICK);
        }
    }
}

impl Served {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn has(&self, what: impl Fn(&Unit) -> bool) -> bool {
        (0..self.patterns.len()).any(|cpu| self.device.unit(cpu).is_some_and(&what))
    }

    /// Writes to the configuration space. Returns whether the function returns to D0, which resets it: it does not have `No_Soft_Reset`.
    fn configure(&mut self, offset: u64, from: &[u8]) -> bool {
        let before = self.config.is_on();
        self.config.write(offset, from);
        self.guest.master = self.config.is_master();
        !before && self.config.is_on()
    }

    /// Generates the packets of patterns that are due.
    fn tick(&mut self) {
        let now = self.now();
        for (cpu, pattern) in self.patterns.iter_mut().enumerate() {
            for _ in 0..MAX_BURST {
                let rate = match self.device.unit(cpu) {
                    Some(unit) if unit.makes_pattern() => unit.rate(),
                    _ => break,
                };
                let Some(packet) = pattern.next(now, rate) else {
                    break;
                };
                self.device
                    .put(cpu, &packet, &mut self.guest, &mut self.lines);
            }
        }
    }
}

impl ServerBackend for Shared {
    fn region_read(&mut self, region: u32, offset: u64, to: &mut [u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => {
                let served = &mut *self.lock();
                served.config.happened(served.device.faults());
                served.config.read(offset, to);
            }
            VFIO_PCI_BAR0_REGION_INDEX => self.read_register(offset, to),
            _ => to.fill(0),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, from: &[u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.configure(offset, from),
            VFIO_PCI_BAR0_REGION_INDEX => self.write_register(offset, from),
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        let memory = match (fd, usize::try_from(size)) {
            (Some(file), Ok(len)) => {
                let region = MmapRegion::from_file(FileOffset::new(file, offset), len);
                Some(region.map_err(io::Error::other)?)
            }
            _ => None,
        };
        self.lock().guest.maps.push(Map {
            address,
            size,
            memory,
            readable: flags.contains(DmaMapFlags::READ),
            writable: flags.contains(DmaMapFlags::WRITE),
        });
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        let all = flags.contains(DmaUnmapFlags::UNMAP_ALL);
        let end = address.saturating_add(size);
        self.lock().guest.maps.retain(|map| {
            !all && (map.address >= end || map.address.saturating_add(map.size) <= address)
        });
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.control(0..self.source.cpus(), |served| {
            served.device.reset();
            served.config.reset();
            served.guest.master = false;
        });
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX || flags & VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            return Ok(());
        }
        let mut served = self.lock();
        let lines = &mut served.lines.0;
        if count == 0 {
            lines.fill_with(|| None);
            return Ok(());
        }
        let mut fds = fds.into_iter();
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        for line in lines.iter_mut().skip(start).take(count) {
            *line = match flags & VFIO_IRQ_SET_DATA_EVENTFD {
                0 => None,
                _ => fds.next(),
            };
        }
        Ok(())
    }
}

/// Serves the device on a socket, from threads of its own, as long as the process lives.
///
/// # Errors
///
/// The file exists already, or its directory does not exist.
pub fn serve(
    socket: &Path,
    source: Arc<Source>,
    engine: Arc<dyn Engine>,
) -> Result<Shared, String> {
    let shared = Shared::new(source, engine);
    let vectors = u32::try_from(shared.lock().lines.0.len()).unwrap_or(0);
    let irqs = (0..VFIO_PCI_NUM_IRQS)
        .map(|index| IrqInfo {
            index,
            count: match index {
                VFIO_PCI_MSIX_IRQ_INDEX => vectors,
                // QEMU warns if the device lacks this interrupt, for bus errors. It is never raised.
                VFIO_PCI_ERR_IRQ_INDEX => 1,
                _ => 0,
            },
            flags: VFIO_IRQ_INFO_EVENTFD,
        })
        .collect();
    let regions = (0..VFIO_PCI_NUM_REGIONS).map(region).collect();
    let server = Server::new(socket, true, irqs, regions)
        .map_err(|error| format!("cannot serve {}: {error}", socket.display()))?;
    let mut backend = shared.clone();
    let ticking = shared.clone();
    let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
        spawned.map_err(|error| format!("cannot start a thread: {error}"))
    };
    start(
        "traceunit",
        Box::new(move || {
            if let Err(error) = server.run(&mut backend) {
                eprintln!("traceunit: QEMU cannot be served any more: {error}");
            }
        }),
    )?;
    start("traceunit tick", Box::new(move || ticking.tick()))?;
    Ok(shared)
}

fn region(index: u32) -> ServerRegion {
    let size = match index {
        VFIO_PCI_BAR0_REGION_INDEX => device::SIZE,
        VFIO_PCI_BAR2_REGION_INDEX => config::MSIX_SIZE,
        VFIO_PCI_CONFIG_REGION_INDEX => u64::try_from(config::SIZE).unwrap_or(0),
        _ => 0,
    };
    let flags = match size {
        0 => 0,
        _ => VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
    };
    ServerRegion {
        region_info: vfio_region_info {
            argsz: u32::try_from(size_of::<vfio_region_info>()).unwrap_or(0),
            index,
            size,
            flags,
            ..Default::default()
        },
        sparse_areas: Vec::new(),
        mmap_fd: None,
    }
}
