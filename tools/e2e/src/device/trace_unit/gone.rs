// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The trace unit disappears while both CPUs are traced, and comes back.
//!
//! The positions in the device's streams do not restart when a driver starts a unit. So the packets that are missing between the last trace
//! of one driver and the first trace of the next show exactly what was lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use perfdata::AuxFlags;

use super::{attr, every_byte, open, verify, DRIVER, MODULE, PMU};
use crate::device::kernel::of_driver;
use crate::events::probe::Probe;
use crate::hostile::drivers::{accounted, Trace};
use crate::ktap::Skip;
use crate::module;
use crate::wait::wait_for;
use crate::workload::spin;

/// How often the device disappears in each case.
const TIMES: u64 = 3;
/// Microseconds for each KiB: the reader keeps up while it waits for the device to disappear.
const RATE: u64 = 1000;

/// The device's directory in sysfs, even if no driver is bound.
pub fn found() -> Result<PathBuf> {
    let devices = "/sys/bus/pci/devices";
    for entry in fs::read_dir(devices).with_context(|| format!("cannot read {devices}"))? {
        let path = entry?.path();
        let is = |file: &str, value: &str| {
            fs::read_to_string(path.join(file)).is_ok_and(|text| text.trim() == value)
        };
        if is("vendor", "0x1234") && is("device", "0x7472") {
            return Ok(path);
        }
    }
    bail!("there is no such device")
}

/// Whether the driver can account for each byte until the device disappears.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notice {
    /// The driver has stopped the units before.
    Given,
    /// The device was gone before.
    None,
}

fn read(probe: &mut Probe) -> Result<()> {
    probe.read_records()?;
    while probe.read_trace(u64::MAX)? > 0 {}
    Ok(())
}

/// Whether a record reports lost trace.
fn tells(probe: &Probe) -> bool {
    let lost = AuxFlags::TRUNCATED | AuxFlags::PARTIAL;
    probe
        .records
        .iter()
        .any(|record| record.flags.intersects(lost))
}

/// Reads until there are some more kilobytes of trace.
fn some(probe: &mut Probe) -> Result<()> {
    let wanted = probe.head() + 8 * 1024;
    wait_for("there is trace", || {
        read(probe)?;
        probe.event.enable()?;
        Ok(probe.head() >= wanted)
    })
}

/// Removes the device while both CPUs are traced, several times. Afterwards, the PMU must be gone, and the old events must get no more
/// trace. The next driver must find the device fully working.
fn goes(
    notice: Notice,
    away: impl Fn() -> Result<()>,
    back: impl Fn() -> Result<()>,
) -> Result<String> {
    let (mut bytes, mut missing) = (0, 0);
    for n in 0..TIMES {
        let mut before = [open(0, RATE, false)?, open(1, RATE, false)?];
        for probe in &mut before {
            some(probe)?;
        }
        spin(Duration::from_millis(n));
        away()?;
        wait_for("the PMU goes", || {
            for probe in &mut before {
                read(probe)?;
            }
            Ok(!Path::new(PMU).exists())
        })?;
        let mut heads = Vec::new();
        for probe in &mut before {
            read(probe)?;
            bytes += accounted(probe, Trace::Contiguous)?;
            heads.push(probe.head());
        }
        ensure!(
            module::unload(MODULE).is_err(),
            "the module goes with AUX areas alive"
        );
        back()?;
        wait_for("the PMU is back", || Ok(Path::new(PMU).exists()))?;

        for (cpu, old) in (0..).zip(&mut before) {
            let mut new = open(i32::from(cpu), RATE, false)?;
            some(&mut new)?;
            new.event.disable()?;
            read(&mut new)?;
            bytes += accounted(&new, Trace::Contiguous)?;
            let whole = [&*old.trace, &*new.trace].concat();
            let gap = verify(&whole, cpu)?;
            ensure!(
                gap == 0 || tells(old) || tells(&new),
                "CPU {cpu}: {gap} bytes are missing, and no record tells"
            );
            ensure!(
                notice == Notice::Given || tells(old),
                "CPU {cpu}: the device was gone, and no record tells"
            );
            missing += gap;
        }
        let now: Vec<_> = before.iter().map(Probe::head).collect();
        ensure!(heads == now, "trace of a device that is gone");
    }
    Ok(format!(
        "{TIMES} times, {bytes} bytes, {missing} reported lost; then {}",
        every_byte()?
    ))
}

fn write(path: impl AsRef<Path>, text: &str) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, text).with_context(|| format!("cannot write to {}", path.display()))
}

/// The driver is unbound from the device.
pub fn unbound() -> Result<String> {
    let name = of_driver(DRIVER)?.1;
    goes(
        Notice::Given,
        || write(Path::new(DRIVER).join("unbind"), &name),
        || write(Path::new(DRIVER).join("bind"), &name),
    )
}

/// The kernel removes the device.
pub fn removed() -> Result<String> {
    goes(
        Notice::Given,
        || write(of_driver(DRIVER)?.0.join("remove"), "1"),
        || write("/sys/bus/pci/rescan", "1"),
    )
}

/// The device's slot loses power, and the kernel removes the device only afterwards. So the registers cannot be read, the device is reset,
/// and its mappings and interrupts are released when it is gone.
pub fn powerless() -> Result<String> {
    let Some(slot) = Slot::of(&found()?)? else {
        bail!(Skip("the device is in no slot"));
    };
    let control = slot.control()?;
    goes(
        Notice::None,
        || {
            let path = of_driver(DRIVER)?.0;
            slot.set(control | Slot::POWER_OFF)?;
            spin(Duration::from_millis(5));
            write(path.join("remove"), "1")
        },
        || {
            slot.set(control)?;
            write("/sys/bus/pci/rescan", "1")
        },
    )
}

/// Calls `what` while both CPUs are traced; it does something to the device that the driver is not informed of. Missing bytes must be
/// reported as lost. The same events must continue, and later events must work.
fn goes_on(what: impl Fn() -> Result<()>) -> Result<String> {
    let (mut bytes, mut missing) = (0, 0);
    for n in 0..TIMES {
        let mut probes = [open(0, RATE, false)?, open(1, RATE, false)?];
        for probe in &mut probes {
            some(probe)?;
        }
        spin(Duration::from_millis(n));
        what()?;
        for (cpu, probe) in (0..).zip(&mut probes) {
            // Whatever state the device is in, the driver stops the unit here.
            probe.event.disable()?;
            probe.event.enable()?;
            some(probe)?;
            probe.event.disable()?;
            read(probe)?;
            bytes += accounted(probe, Trace::Contiguous)?;
            let gap = verify(&probe.trace, cpu)?;
            ensure!(
                gap == 0 || tells(probe),
                "CPU {cpu}: {gap} bytes are missing, and no record tells"
            );
            missing += gap;
        }
        drop(probes);
        every_byte()?;
    }
    Ok(format!(
        "{TIMES} times, {bytes} bytes, {missing} reported lost"
    ))
}

/// The kernel resets the device on request of user space: it goes to D3 and back, and its registers are lost. A bus reset is not possible:
/// the emulated port does not report its link afterwards, so the kernel regards the device as gone.
pub fn reset() -> Result<String> {
    let path = of_driver(DRIVER)?.0;
    let method = path.join("reset_method");
    if !method.exists() {
        bail!(Skip("this kernel can't reset the device"));
    }
    write(method, "pm")?;
    goes_on(|| write(path.join("reset"), "1"))
}

/// The system makes a hibernation image, cannot write it, and resumes. Meanwhile, all devices are suspended, and CPU 1 is offline. The
/// event of CPU 0 must continue by itself. The unit must not have tried to write meanwhile.
pub fn suspended() -> Result<String> {
    const ENODEV: i32 = 19;
    const MIB: usize = 256;
    let state = "/sys/power/state";
    if !fs::read_to_string(state).is_ok_and(|states| states.contains("disk")) {
        bail!(Skip("this kernel doesn't hibernate"));
    }
    write("/sys/power/disk", "shutdown")?;
    // The ring has space for seconds of trace, and a low watermark.
    let attr = perfdata::Attr {
        aux_watermark: 16 * 1024,
        ..attr(5 * RATE)?
    };
    let (mut bytes, mut full) = (0, 0);
    for _ in 0..TIMES {
        let mut probe = Probe::open(&attr, -1, 0, MIB, false)?;
        some(&mut probe)?;
        let image = fs::write(state, "disk");
        reopen()?;
        let error = image.err().context("the image was written somewhere")?;
        ensure!(
            error.raw_os_error() == Some(ENODEV),
            "the system was not suspended: {error}"
        );
        let wanted = probe.head() + 64 * 1024;
        wait_for("the event goes on", || {
            read(&mut probe)?;
            // A full ring disables the event.
            if probe.truncations() > 0 {
                probe.event.enable()?;
            }
            Ok(probe.head() >= wanted)
        })?;
        probe.event.disable()?;
        read(&mut probe)?;
        bytes += accounted(&probe, Trace::Contiguous)?;
        let partial = |record: &perfdata::Aux| record.flags.contains(AuxFlags::PARTIAL);
        ensure!(
            !probe.records.iter().any(partial),
            "the unit ran while the device was suspended"
        );
        let gap = verify(&probe.trace, 0)?;
        match probe.truncations() {
            0 => ensure!(gap == 0, "{gap} bytes are missing, and no record tells"),
            _ => full += 1,
        }
    }
    ensure!(full < TIMES, "the ring was always full before");
    Ok(format!(
        "{TIMES} times, {bytes} bytes; then {}",
        every_byte()?
    ))
}

/// Reopens the port to which results are written. While its driver restores ports, it ignores messages of the host, and so regards the port
/// as closed. A write would wait for ever. If the driver is bound again, it asks the host for the state.
fn reopen() -> Result<()> {
    const PORT: &str = "/dev/vport0p1";
    let driver = Path::new("/sys/bus/virtio/drivers/virtio_console");
    let mut devices = fs::read_dir(driver)
        .with_context(|| format!("cannot read {}", driver.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let device = devices
        .find(|name| name.starts_with("virtio"))
        .context("there are no ports")?;
    write(driver.join("unbind"), &device)?;
    write(driver.join("bind"), &device)?;
    let mut port = Err(std::io::ErrorKind::NotFound.into());
    wait_for("the port is there", || {
        port = fs::File::options().write(true).open(PORT);
        Ok(port.is_ok())
    })?;
    let port = port.with_context(|| format!("cannot open {PORT}"))?;
    rustix::stdio::dup2_stdout(&port).context("cannot write to the port")?;
    rustix::stdio::dup2_stderr(&port).context("cannot write to the port")
}

/// The slot of the PCIe port above the device.
struct Slot {
    config: fs::File,
    /// The offset of the slot's control register.
    at: u64,
}

impl Slot {
    const POWER_OFF: u16 = 1 << 10;

    /// Finds the slot. Returns [`None`] if the device is not below a port.
    fn of(device: &Path) -> Result<Option<Self>> {
        let path = fs::canonicalize(device).context("the device has no place in sysfs")?;
        let path = path
            .parent()
            .context("the device has no parent")?
            .join("config");
        if !path.exists() {
            return Ok(None);
        }
        let config = fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let mut slot = Self { config, at: 0 };
        // The list of capabilities: each entry has its number and the offset of the next one.
        let mut at = slot.read(0x34)? & 0xff;
        while at != 0 {
            let head = slot.read(at.into())?;
            if head & 0xff == 0x10 {
                slot.at = u64::from(at) + 0x18;
                return Ok(Some(slot));
            }
            at = head >> 8;
        }
        Ok(None)
    }

    fn read(&self, at: u64) -> Result<u16> {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 2];
        self.config
            .read_exact_at(&mut bytes, at)
            .context("cannot read the port's registers")?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn control(&self) -> Result<u16> {
        self.read(self.at)
    }

    fn set(&self, control: u16) -> Result<()> {
        use std::os::unix::fs::FileExt;
        let bytes = control.to_le_bytes();
        self.config
            .write_all_at(&bytes, self.at)
            .context("cannot write the port's registers")
    }
}
