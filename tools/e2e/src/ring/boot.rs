// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of tracefs that depend on the kernel's command line: a locked-down kernel, and buffers that persist across a reboot.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;
use tracering::format::Format;
use tracering::{Map, Ring, Tracefs};

use super::{accounted, number, Instance, Log, ROOM};
use crate::cases::many;
use crate::module;
use crate::recording::{auxrec, run};
use crate::wait::wait_for;

/// What sets this guest apart from others: its kernel's command line, but for the last one.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Line {
    /// `lockdown=integrity`.
    Integrity,
    /// `lockdown=confidentiality`.
    Confidentiality,
    /// Instances in memory that is reserved: `kept` by `reserve_mem=`, `placed` by `memmap=`; `copied` and `recorded` are
    /// copies of `kept` that the kernel makes at boot.
    Persistent,
    /// At least 64 CPUs.
    ManyCpus,
}

/// A case: its name, and its code.
type Named = (&'static str, fn() -> Result<String>);

impl Line {
    /// The cases for a guest that was booted like this.
    pub fn cases(self) -> Vec<Named> {
        match self {
            Self::Integrity => vec![(
                "tracefs, lockdown=integrity: read as ever, until confidentiality",
                integrity,
            )],
            Self::Confidentiality => vec![(
                "tracefs, lockdown=confidentiality: refused in a sentence",
                confidentiality,
            )],
            Self::Persistent => vec![
                ("tracefs, persistent: the last boot's, mapped", kept),
                ("tracefs, persistent: a copy of it, read", copied),
                ("tracefs, persistent: a copy of it, recorded", recorded),
                ("tracefs, persistent: at a fixed address, read", placed),
                ("tracefs, persistent: this boot's, mapped", current),
            ],
            Self::ManyCpus => many::ALL.to_vec(),
        }
    }

    /// Prepares the guest, by a reboot if necessary. Returns in the boot that the cases need.
    pub fn prepare(self) -> Result<()> {
        match self {
            Self::Integrity | Self::Confidentiality | Self::ManyCpus => Ok(()),
            Self::Persistent => leave_for_the_next_boot(),
        }
    }
}

const SECURITYFS: &str = "/sys/kernel/security";
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
/// The error message about tracefs under lockdown=confidentiality.
const SENTENCE: &str =
    "the kernel is locked down (none integrity [confidentiality]): boot it without lockdown=confidentiality";

fn mount_securityfs() -> Result<()> {
    let mut mount = Command::new("mount");
    let status = mount
        .args(["-t", "securityfs", "security", SECURITYFS])
        .status()?;
    ensure!(status.success(), "mount: {status}");
    Ok(())
}

/// Checks that these commands fail, and that each prints one line with this message.
fn refused(commands: &[&[&str]], expected: &str) -> Result<()> {
    for words in commands {
        let (program, arguments) = words.split_first().context("no command")?;
        let output = Command::new(program)
            .args(arguments)
            .current_dir("/tmp")
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(1) && text.contains(expected) && text.lines().count() == 1,
            "{words:?}: {}: {text}",
            output.status
        );
    }
    Ok(())
}

/// `auxrec doctor` must report the level of lockdown, and that it prevents `what`. Its finding about modules must be true.
fn diagnosed(level: &str, what: &str) -> Result<()> {
    let output = run(&mut auxrec(["doctor", "--json"]))?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("doctor writes no JSON: {output:?}"))?;
    let findings = report["findings"].as_array();
    let finding = findings
        .into_iter()
        .flatten()
        .find(|finding| finding["name"] == "lockdown")
        .with_context(|| {
            format!("doctor does not find that the kernel is locked down: {report}")
        })?;
    let text = finding.to_string();
    ensure!(
        text.contains(&format!("locked down ({level})")) && text.contains(what),
        "of lockdown={level} doctor says {text}"
    );
    let refused = module::load("rust_perf").err();
    ensure!(
        refused.is_some(),
        "a kernel that is locked down has loaded a module that is not signed"
    );
    Ok(())
}

/// Commands that need tracefs.
const COMMANDS: [&[&str]; 4] = [
    &["tracering", "stat"],
    &["tracering", "cat", "--drain"],
    &["tracering", "record", "-e", "sched:sched_switch"],
    &[
        "auxrec",
        "record",
        "--sideband",
        "-a",
        "--trace",
        "sched:sched_switch",
        "--",
        "true",
    ],
];

/// With confidentiality, the kernel refuses new uses of tracefs. Files and mappings that are open stay usable.
fn integrity() -> Result<String> {
    mount_securityfs()?;
    let mode = fs::read_to_string(LOCKDOWN)?;
    ensure!(mode.contains("[integrity]"), "lockdown is {mode}");
    diagnosed("integrity", "modules")?;
    let instance = Instance::new(4, ROOM)?;
    let mut map = instance.map(0)?;
    let mut log = Log::default();
    instance.write(0, 0..1500)?;
    instance.drain_map(&mut map, &mut log)?;
    let lost = accounted(&instance, 0, &log, 1500, true)?;

    fs::write(LOCKDOWN, "confidentiality").context("cannot lock the kernel down")?;
    instance.write(0, 1500..1550)?;
    instance.drain_map(&mut map, &mut log)?;
    ensure!(
        log.gaps(1550, true)? == lost && log.numbers.last() == Some(&1549),
        "{:?} is the last event of a mapping that was there before",
        log.numbers.last()
    );
    let error = instance.map(0).err().map(|e| e.to_string());
    ensure!(
        error.as_ref().is_some_and(|e| e.contains(SENTENCE)),
        "a mapping of a kernel that is locked down: {error:?}"
    );
    refused(&[&["tracering", "-i", "auxe2e", "stat"]], SENTENCE)?;
    refused(&COMMANDS, SENTENCE)?;
    diagnosed("confidentiality", "--trace")?;
    Ok(format!(
        "{} read and {lost} lost; then {} commands refused",
        log.numbers.len(),
        COMMANDS.len() + 1
    ))
}

/// With confidentiality from the start, tracefs is empty. A file of securityfs has the reason, but securityfs may not be mounted.
fn confidentiality() -> Result<String> {
    refused(
        &COMMANDS,
        "no tracefs at /sys/kernel/tracing or /sys/kernel/debug/tracing: mount it (mount -t tracefs nodev \
         /sys/kernel/tracing); a kernel that has none lacks CONFIG_TRACING, or was booted locked down",
    )?;
    mount_securityfs()?;
    refused(&COMMANDS, SENTENCE)?;
    diagnosed("confidentiality", "modules")?;
    Ok(format!("{} commands refused", 2 * COMMANDS.len()))
}

/// The number of events for each CPU in each buffer that persists across the reboot.
const EVENTS: u64 = 1500;
const CPUS: [u32; 2] = [0, 1];

fn instance(name: &str) -> Result<Tracefs> {
    Ok(Tracefs::find()?.instance(name)?)
}

/// The address of the kernel's text in the boot that wrote the events of an instance; [`None`] if that is this boot.
fn last_boot(tracefs: &Tracefs) -> Result<Option<u64>> {
    let info = tracefs.read("last_boot_info")?;
    let first = info.lines().next().unwrap_or_default();
    if first == "# Current" {
        return Ok(None);
    }
    let address = first
        .strip_suffix("\t[kernel]")
        .and_then(|address| u64::from_str_radix(address, 16).ok());
    let address = address.with_context(|| format!("what does last_boot_info mean? {info}"))?;
    Ok(Some(address))
}

/// Clears an instance, and starts tracing in this boot.
fn begin(tracefs: &Tracefs) -> Result<()> {
    // When a tracer is selected, the kernel clears the events of the last boot.
    tracefs.write("current_tracer", "nop")?;
    let of = last_boot(tracefs)?;
    ensure!(of.is_none(), "the events are still those of {of:?}");
    tracefs.write("tracing_on", "1")?;
    Ok(())
}

/// In the first boot, writes the events and reboots. In the second boot, does nothing.
fn leave_for_the_next_boot() -> Result<()> {
    // The address is 0 if the memory has no events of another boot.
    if last_boot(&instance("kept")?)? != Some(0) {
        return Ok(());
    }
    for name in ["kept", "placed"] {
        let tracefs = instance(name)?;
        begin(&tracefs)?;
        let instance = Instance::of(tracefs, ROOM)?;
        for cpu in CPUS {
            instance.write(cpu, 0..EVENTS)?;
        }
        instance.tracefs.write("tracing_on", "0")?;
    }
    let status = Command::new("reboot").arg("-f").status()?;
    ensure!(status.success(), "reboot: {status}");
    loop {
        thread::sleep(Duration::from_secs(60));
    }
}

/// Reads all events of the last boot, which must be in order and complete.
fn drained(tracefs: &Tracefs, cpu: u32, ring: &mut Ring) -> Result<()> {
    let format = Format::parse(&tracefs.read("events/ftrace/print/format")?)?;
    let before = tracefs.stats(cpu)?;
    let mut log = Log::default();
    while let Some(reader) = ring.reader()? {
        log.take(reader, &format)?;
    }
    let lost = log.gaps(EVENTS, true)?;
    let after = tracefs.stats(cpu)?;
    ensure!(
        lost == 0 && before.entries == EVENTS && after.entries == 0,
        "CPU {cpu}: {} of {EVENTS} events; before, {before:?}; then, {after:?}",
        log.numbers.len()
    );
    Ok(())
}

/// The address of the kernel's text in this boot. Without KASLR, it was the same in the last boot.
fn text_address() -> Result<u64> {
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let line = symbols.lines().find(|line| line.ends_with(" T _text"));
    let address = line.and_then(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok());
    address.context("no _text in /proc/kallsyms")
}

/// A view shows the events of the last boot, and then a read returns them. `last_boot_info` names the other boot.
fn kept() -> Result<String> {
    let tracefs = instance("kept")?;
    let (of, text) = (last_boot(&tracefs)?, text_address()?);
    ensure!(
        of == Some(text),
        "the events are those of a kernel at {of:x?}, and not at {text:x}"
    );
    let format = Format::parse(&tracefs.read("events/ftrace/print/format")?)?;
    let mut subbufs = 0;
    for cpu in CPUS {
        let map = Map::open(
            tracefs.cpu_file(cpu, "trace_pipe_raw"),
            tracefs.page_header()?,
        )?;
        let mut numbers = Vec::new();
        for sub in map.view()? {
            subbufs += 1;
            for event in sub.events {
                numbers.push(number(&format, event?.data)?);
            }
        }
        ensure!(
            numbers.iter().copied().eq(0..EVENTS),
            "CPU {cpu}: {} of {EVENTS} events are seen",
            numbers.len()
        );
        drained(&tracefs, cpu, &mut Ring::Mapped(map))?;
    }
    Ok(format!(
        "{EVENTS} events of each CPU, in {subbufs} sub-buffers"
    ))
}

/// Opens a buffer that the kernel cannot map. The error message must name the possible reasons.
fn unmapped(tracefs: &Tracefs, cpu: u32) -> Result<Ring> {
    let raw = tracefs.cpu_file(cpu, "trace_pipe_raw");
    let ring = Ring::open(&raw, tracefs.page_header()?)?;
    match &ring {
        Ring::Read(_, why) => {
            let said = why.to_string();
            ensure!(
                said.contains("the buffer is at a fixed address (memmap=) or a copy of another's"),
                "{said}"
            );
        }
        Ring::Mapped(_) => bail!("{} is mapped", raw.display()),
    }
    Ok(ring)
}

/// A buffer at a fixed address is read.
fn placed() -> Result<String> {
    let tracefs = instance("placed")?;
    for cpu in CPUS {
        drained(&tracefs, cpu, &mut unmapped(&tracefs, cpu)?)?;
    }
    Ok(format!("{EVENTS} events of each CPU"))
}

/// `tracering cat` reads a copy of another buffer to its end. The kernel then removes the instance of the copy.
fn copied() -> Result<String> {
    let tracefs = instance("copied")?;
    for cpu in CPUS {
        drop(unmapped(&tracefs, cpu)?);
    }
    let mut command = Command::new("tracering");
    let output = command.args(["-i", "copied", "cat", "--drain"]).output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {errors}", output.status);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for cpu in CPUS {
        let of = format!("[{cpu:03}]");
        let lines = text.lines().filter(|line| line.contains(&of));
        let numbers = lines
            .map(|line| {
                let number = line
                    .split_once("number ")
                    .and_then(|(_, text)| text.get(..8));
                let number = number.and_then(|number| number.parse().ok());
                number.with_context(|| format!("no number: {line}"))
            })
            .collect::<Result<Vec<u64>>>()?;
        ensure!(
            numbers.iter().copied().eq(0..EVENTS),
            "CPU {cpu}: {} of {EVENTS} events",
            numbers.len()
        );
    }
    wait_for("the removal of the copy", || Ok(!tracefs.path().exists()))?;
    Ok(format!("{EVENTS} events of each CPU; {}", errors.trim()))
}

/// The recording of a copy must be complete, although the instance is removed before its file is written.
fn recorded() -> Result<String> {
    const FILE: &str = "/tmp/recorded.dat";
    let tracefs = instance("recorded")?;
    let mut command = Command::new("tracering");
    command.args(["-i", "recorded", "record", "--drain", "-o", FILE]);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let sum = 2 * EVENTS;
    ensure!(
        output.status.success() && said.contains(&format!("{sum} events of 2 CPUs")),
        "{}: {said}",
        output.status
    );
    wait_for("the removal of the copy", || Ok(!tracefs.path().exists()))?;
    let recording = super::record::report(FILE)?;
    fs::remove_file(FILE)?;
    for numbers in &recording.numbers {
        ensure!(
            numbers.iter().copied().eq(0..EVENTS),
            "{} of {EVENTS} events",
            numbers.len()
        );
    }
    Ok(said.trim().to_owned())
}

/// A buffer that had events of the last boot must work like any other.
fn current() -> Result<String> {
    let tracefs = instance("kept")?;
    begin(&tracefs)?;
    let instance = Instance::of(tracefs, ROOM)?;
    let mut said = Vec::new();
    for cpu in CPUS {
        let mut map = instance.map(cpu)?;
        let (mut log, mut written) = (Log::default(), 0);
        for burst in [10, 0, 700, 20_000, 1, 3000] {
            instance.write(cpu, written..written + burst)?;
            written += burst;
            instance.drain_map(&mut map, &mut log)?;
        }
        let lost = accounted(&instance, cpu, &log, written, true)?;
        ensure!(lost > 1000, "{lost} lost of {written}");
        said.push(format!("CPU {cpu}: {written} written, {lost} lost"));
    }
    Ok(said.join("; "))
}
