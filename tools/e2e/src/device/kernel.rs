// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the kernel shows of a device: in sysfs, in `/proc/interrupts` and in its log.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};

/// The directory in sysfs of the first PCI device that `driver` serves, and its PCI address. `driver` is a directory in sysfs.
pub fn of_driver(driver: &str) -> Result<(PathBuf, String)> {
    for entry in fs::read_dir(driver).with_context(|| format!("cannot read {driver}"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("0000:") {
            return Ok((Path::new("/sys/bus/pci/devices").join(&name), name));
        }
    }
    bail!("the driver has no device")
}

/// An interrupt of `module`, the one with this index: its number, and how often it arrived on each CPU.
pub fn interrupt(module: &str, index: usize) -> Result<(String, Vec<u64>)> {
    let text = fs::read_to_string("/proc/interrupts").context("cannot read /proc/interrupts")?;
    let mut lines = text.lines().filter(|line| line.ends_with(module));
    let line = lines.nth(index).context("there is no interrupt")?;
    let mut words = line.split_whitespace();
    let number = words.next().unwrap_or_default().trim_end_matches(':');
    Ok((
        number.to_owned(),
        words.map_while(|word| word.parse().ok()).collect(),
    ))
}

/// The file that shows and sets the CPUs that serve the interrupt with this number.
pub fn affinity(number: &str) -> String {
    format!("/proc/irq/{number}/smp_affinity_list")
}

/// The CPUs that serve the interrupt with this number.
pub fn served_by(number: &str) -> Result<String> {
    let path = affinity(number);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    Ok(text.trim().to_owned())
}

/// The kernel's log.
pub fn messages() -> Result<String> {
    let output = Command::new("dmesg")
        .output()
        .context("cannot start dmesg")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Calls `what` where an IOMMU translates the DMA of `device`, a directory in sysfs. The IOMMU must report no fault.
pub fn without_faults(
    device: impl FnOnce() -> Result<PathBuf>,
    what: impl Fn() -> Result<String>,
) -> Result<String> {
    const FAULTS: [&str; 2] = ["DMAR: [DMA", "DMAR: DRHD: handling fault"];
    let faults = || -> Result<usize> {
        let messages = messages()?;
        let is_fault = |line: &&str| FAULTS.iter().any(|fault| line.contains(fault));
        Ok(messages.lines().filter(is_fault).count())
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
