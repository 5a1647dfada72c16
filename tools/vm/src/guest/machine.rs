// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The emulated machine: QEMU's command line, and the kernel's.

use crate::cache::Cache;
use crate::error::Result;
use crate::guest::accel::Accel;
use crate::kernel::{Kernel, Kind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory of a guest, in MiB. An ordinary machine has enough for two guests at once.
const MEMORY: u32 = 768;

/// Memory of a guest with the debug kernel, in MiB. KASAN's shadow memory and kmemleak's object records need more.
const MEMORY_DEBUG: u32 = 2048;

/// Memory of a guest, in MiB.
pub(super) fn memory(kernel: &Kernel) -> u32 {
    match kernel.kind {
        Kind::Stock | Kind::Lean | Kind::Rt => MEMORY,
        Kind::Debug => MEMORY_DEBUG,
    }
}

/// The options that every kernel command line has. Emulated processors on a busy machine are slow, so the stall detectors get more time,
/// and the kernel does not check at boot that the timer ticks within 10 ms.
const KERNEL_LINE: &str =
    "console=ttyS0 panic=-1 tsc=reliable rcupdate.rcu_cpu_stall_timeout=60 watchdog_thresh=30 printk.devkmsg=on random.trust_cpu=on no_timer_check";

/// The kernel's command line. The debug kernel uses only four levels of page tables. `identify_cpu()` clears the CPU's features for a
/// while. With five levels, an interrupt in that time makes KASAN report valid addresses.
pub(super) fn kernel_line(kernel: &Kernel) -> String {
    match kernel.kind {
        Kind::Stock | Kind::Lean | Kind::Rt => KERNEL_LINE.to_owned(),
        Kind::Debug => format!("{KERNEL_LINE} no5lvl"),
    }
}

/// Whether a guest has the `edu` device and the trace unit, and where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// `edu` on the root bus.
    #[default]
    Plain,
    /// `edu` and the trace unit on the root bus.
    TraceUnit,
    /// `edu` behind an IOMMU, in a slot from which it can be unplugged. The guest has QEMU's monitor (QMP) on the virtio port `qmp`.
    Pluggable,
    /// Only the trace unit, behind an IOMMU, in a slot whose power can be turned off.
    TraceUnitIommu,
}

impl Devices {
    /// Whether the trace unit is one of the devices.
    pub(super) fn have_trace_unit(self) -> bool {
        matches!(self, Self::TraceUnit | Self::TraceUnitIommu)
    }
}

/// An emulated machine whose instructions are counted.
pub(super) struct Counting {
    /// How many processors the machine has. Several processors have a thread each, and no clock counts their instructions. If they shared
    /// a thread, QEMU would pass the wrong processor to a plugin: the one for which the code was first translated.
    pub(super) processors: u32,
    /// The QEMU plugin that observes the guest, with its options, if there is one.
    pub(super) plugin: Option<String>,
}

impl Counting {
    /// QEMU's options. A single processor has a clock that advances by 1 ns an instruction, and it does not sleep when it is idle.
    /// Several processors run in parallel.
    fn args(&self) -> Vec<String> {
        let accel = match self.processors {
            1 => "-accel tcg,thread=single -icount shift=0,sleep=off -smp",
            _ => "-accel tcg,thread=multi -smp",
        };
        let mut args: Vec<_> = accel
            .split(' ')
            .chain([&*self.processors.to_string(), "-cpu", COUNTED])
            .map(str::to_owned)
            .collect();
        if let Some(plugin) = &self.plugin {
            args.extend(["-plugin".to_owned(), plugin.clone()]);
        }
        args
    }
}

/// The processor model for counted instructions. It has no fast strings, so the kernel copies by words: QEMU counts each byte that
/// `rep movsb` copies as an instruction.
pub(super) const COUNTED: &str = "max,-erms,-fsrm";

/// Chooses KVM or emulation. The trace unit is a QEMU plugin, which sees only emulated code.
pub(super) fn accel(cache: &Cache, kernel: &Kernel, devices: Devices) -> Result<Accel> {
    match devices.have_trace_unit() {
        true => Ok(Accel::Tcg),
        false => Accel::choose(cache, &kernel.image()),
    }
}

/// The default number of processors of a guest.
pub(super) const PROCESSORS: u32 = 2;

/// The size of a guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// In MiB.
    pub(super) memory: u32,
    pub(super) processors: u32,
}

/// The part of QEMU's command line that all guests share. The kernel kills QEMU when our process ends, for whatever reason.
pub(super) fn qemu(
    cache: &Cache,
    kernel: &Kernel,
    console: &Path,
    line: &str,
    counting: Option<&Counting>,
    devices: Devices,
    size: Size,
) -> Result<Command> {
    let image = kernel.image();
    let mut qemu = Command::new("setpriv");
    qemu.args([
        "--pdeathsig",
        "KILL",
        "qemu-system-x86_64",
        "-M",
        "q35,usb=off,vmport=off",
        "-nodefaults",
        "-no-user-config",
    ]);
    qemu.args([
        "-display",
        "none",
        "-no-reboot",
        "-m",
        &format!("{}M", size.memory),
    ]);
    match counting {
        Some(counting) => qemu.args(counting.args()),
        None => qemu
            .args(["-smp", &size.processors.to_string()])
            .args(accel(cache, kernel, devices)?.args(size.processors))
            .args(edu(devices)),
    };
    let firmware = Path::new("/usr/share/qemu/qboot.rom");
    if firmware.exists() {
        qemu.arg("-bios").arg(firmware);
    }
    qemu.arg("-chardev")
        .arg(format!("file,id=console,path={}", console.display()));
    qemu.args(["-serial", "chardev:console", "-append", line, "-kernel"])
        .arg(image);
    Ok(qemu)
}

/// QEMU's options for the `edu` device, which the driver `edu_trace` uses, and for its bus. The DMA mask is the kernel's default for PCI.
fn edu(devices: Devices) -> &'static [&'static str] {
    match devices {
        Devices::Plain | Devices::TraceUnit => &["-device", "edu,dma_mask=0xffffffff"],
        Devices::Pluggable => &[
            // The IOMMU must precede the devices behind it. Interrupt remapping is off: under KVM, it needs another interrupt controller.
            "-device",
            "intel-iommu,intremap=off",
            "-device",
            "pcie-root-port,id=root1,chassis=1,slot=1",
            "-device",
            "edu,id=edu,bus=root1,dma_mask=0xffffffff",
        ],
        Devices::TraceUnitIommu => &[
            // In caching mode, the kernel invalidates the IOTLB for new mappings, too. `vfio-user-pci` learns of them only by this.
            "-device",
            "intel-iommu,intremap=off,caching-mode=on",
            "-device",
            "pcie-root-port,id=root1,chassis=1,slot=1",
        ],
    }
}

/// QEMU's options for guest memory that the trace unit can map.
pub(super) fn shared_memory(memory: u32) -> [String; 4] {
    [
        "-object".to_owned(),
        format!("memory-backend-memfd,id=m,size={memory}M,share=on"),
        "-machine".to_owned(),
        "memory-backend=m".to_owned(),
    ]
}

/// QEMU's options for the trace unit: a plugin that serves `vfio-user-pci` on a socket. `log` is the prefix of the files into which it logs
/// the instructions that it traces.
pub(super) fn trace_unit(
    plugin: &Path,
    socket: &Path,
    devices: Devices,
    log: Option<&Path>,
) -> [String; 4] {
    let slot = match devices {
        Devices::TraceUnitIommu => r#","bus":"root1""#,
        _ => "",
    };
    let log = log.map_or(String::new(), |prefix| {
        format!(",out={},log=yes", prefix.display())
    });
    [
        "-plugin".to_owned(),
        format!("{},device={}{log}", plugin.display(), socket.display()),
        "-device".to_owned(),
        format!(
            r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{}"}}{slot}}}"#,
            socket.display()
        ),
    ]
}

/// QEMU's options for its monitor on a virtio port of the guest. Monitor and port need a chardev each: the two ends of one socket.
pub(super) fn monitor(socket: &Path) -> [String; 8] {
    let path = socket.display();
    [
        "-chardev".to_owned(),
        format!("socket,id=monitor,path={path},server=on,wait=off"),
        "-object".to_owned(),
        "monitor-qmp,id=mon,chardev=monitor".to_owned(),
        "-chardev".to_owned(),
        format!("socket,id=qmp,path={path}"),
        "-device".to_owned(),
        "virtserialport,chardev=qmp,nr=3,name=qmp".to_owned(),
    ]
}

/// QEMU's options for its monitor on a socket.
pub(super) fn inspector(socket: &Path) -> [String; 4] {
    let path = socket.display();
    [
        "-chardev".to_owned(),
        format!("socket,id=inspector,path={path},server=on,wait=off"),
        "-mon".to_owned(),
        "chardev=inspector,mode=readline".to_owned(),
    ]
}

/// A path for a socket that no other guest uses. It is not in the checkout, as the path of a socket has at most 107 bytes.
pub(super) fn socket() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    PathBuf::from(format!("/tmp/auxvm-{process}-{next}.sock"))
}

/// QEMU's options for a disk on which this many flushes succeed. All later flushes fail with `EIO`.
pub(super) fn failing(flushes: u32) -> String {
    let mut options = String::new();
    for flush in 0..flushes {
        let (state, next) = (flush + 1, flush + 2);
        let rule = format!("file.set-state.{flush}");
        options +=
            &format!(",{rule}.event=flush_to_disk,{rule}.state={state},{rule}.new_state={next}");
    }
    let last = flushes + 1;
    options
        + &format!(",file.inject-error.0.event=flush_to_disk,file.inject-error.0.iotype=flush,file.inject-error.0.state={last},file.inject-error.0.errno=5")
}
