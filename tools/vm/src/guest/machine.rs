// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The emulated machine: QEMU's command line, and the kernel's.

use crate::cache::Cache;
use crate::error::Result;
use crate::guest::accel::Accel;
use crate::kernel::{Kernel, Kind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory of a guest, in MiB; an ordinary machine runs two side by side.
const MEMORY: u32 = 768;

/// The same where the kernel keeps a shadow of all memory, and a note of each piece of it.
const MEMORY_DEBUG: u32 = 2048;

/// Memory of a guest, in MiB.
pub(super) fn memory(kernel: &Kernel) -> u32 {
    match kernel.kind {
        Kind::Stock | Kind::Lean | Kind::Rt => MEMORY,
        Kind::Debug => MEMORY_DEBUG,
    }
}

/// What stands on every kernel command line. Emulated processors on a busy machine are slow, so stalls get more time, and
/// that the timer ticks within 10 ms of the boot is not looked at.
const KERNEL_LINE: &str =
    "console=ttyS0 panic=-1 tsc=reliable rcupdate.rcu_cpu_stall_timeout=60 watchdog_thresh=30 printk.devkmsg=on random.trust_cpu=on no_timer_check";

/// The kernel's command line. The debug kernel has four levels of page tables: `identify_cpu()` clears
/// the processor's features for a while. An interrupt that comes then makes KASAN report good addresses.
pub(super) fn kernel_line(kernel: &Kernel) -> String {
    match kernel.kind {
        Kind::Stock | Kind::Lean | Kind::Rt => KERNEL_LINE.to_owned(),
        Kind::Debug => format!("{KERNEL_LINE} no5lvl"),
    }
}

/// Where a guest's `edu` device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// On the root bus.
    #[default]
    Plain,
    /// On the root bus, and the trace unit beside it.
    TraceUnit,
    /// Behind an IOMMU, in a slot from which it can be unplugged. The guest has QEMU's monitor (QMP) on the virtio port `qmp`.
    Pluggable,
    /// The trace unit behind an IOMMU, in a slot whose power can be turned off.
    TraceUnitIommu,
}

impl Devices {
    /// Whether the trace unit is one of them.
    pub(super) fn have_trace_unit(self) -> bool {
        matches!(self, Self::TraceUnit | Self::TraceUnitIommu)
    }
}

/// How instructions are counted.
pub(super) struct Counting {
    /// Of two, no clock counts, but a plugin can tell them apart: where processors take turns, QEMU gives it the number of the one
    /// that the code was first translated for.
    pub(super) processors: u32,
    /// The plugin that looks on, with its options, if there is one.
    pub(super) plugin: Option<String>,
}

impl Counting {
    /// An emulated processor whose clock goes by a nanosecond an instruction, and which does not wait when it is idle; or two that
    /// run at once.
    ///
    /// Without fast strings: QEMU counts each byte that `rep movsb` copies as an instruction, so the kernel is to copy words.
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

/// The processor whose instructions are counted. It copies by words: QEMU counts `rep movsb` by the byte.
pub(super) const COUNTED: &str = "max,-erms,-fsrm";

/// What runs a guest. Plugins see only what is emulated.
pub(super) fn accel(cache: &Cache, kernel: &Kernel, devices: Devices) -> Result<Accel> {
    match devices.have_trace_unit() {
        true => Ok(Accel::Tcg),
        false => Accel::choose(cache, &kernel.image()),
    }
}

/// Most guests have so many processors.
pub(super) const PROCESSORS: u32 = 2;

/// How large a guest is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// In MiB.
    pub(super) memory: u32,
    pub(super) processors: u32,
}

/// The part of QEMU's command line that all guests share. The guest ends with us, whatever ends us.
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

/// The device for `edu_trace`. Its mask is the kernel's default for a PCI device.
fn edu(devices: Devices) -> &'static [&'static str] {
    match devices {
        Devices::Plain | Devices::TraceUnit => &["-device", "edu,dma_mask=0xffffffff"],
        Devices::Pluggable => &[
            // Before the devices behind it. Interrupts are not remapped: that wants another interrupt controller under KVM.
            "-device",
            "intel-iommu,intremap=off",
            "-device",
            "pcie-root-port,id=root1,chassis=1,slot=1",
            "-device",
            "edu,id=edu,bus=root1,dma_mask=0xffffffff",
        ],
        Devices::TraceUnitIommu => &[
            // `vfio-user-pci` learns each mapping only if the kernel announces the new ones, too.
            "-device",
            "intel-iommu,intremap=off,caching-mode=on",
            "-device",
            "pcie-root-port,id=root1,chassis=1,slot=1",
        ],
    }
}

/// Memory that the trace unit can map.
pub(super) fn shared_memory(memory: u32) -> [String; 4] {
    [
        "-object".to_owned(),
        format!("memory-backend-memfd,id=m,size={memory}M,share=on"),
        "-machine".to_owned(),
        "memory-backend=m".to_owned(),
    ]
}

/// The trace unit: a plugin that serves `vfio-user-pci` on a socket. `log`: the prefix of the files where it writes what it traces.
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

/// QEMU's monitor, on a virtio port of the guest's. A monitor and a port have a chardev each: two ends of one socket.
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

/// A path for a socket that no other guest has. It may be no longer than 107 bytes, a checkout's may.
pub(super) fn socket() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    PathBuf::from(format!("/tmp/auxvm-{process}-{next}.sock"))
}

/// QEMU's options for a disk whose flushes fail after so many.
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
