// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Boots a kernel in QEMU. It takes a command and files, and returns the command's output, its files and its exit status.
//!
//! The command's output arrives on one virtio port, the files in `/out` on a second one as a tar stream. Neither needs a file system that
//! a kernel may lack (Debian's cloud kernel has no 9p). The first serial line is the kernel's console and is kept as a log.

use crate::cache::{self, Cache};
use crate::error::{Error, OnFile, Result};
use crate::guest::accel::Accel;
use crate::guest::cpio::Archive;
use crate::kernel::Kernel;
use crate::plugin;
use crate::results::splat;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

pub mod accel;
pub mod cpio;
mod machine;
mod outcome;
mod process;
mod programs;
pub mod python;
mod shell;

pub use machine::Devices;
pub use outcome::Outcome;
pub use shell::shell;

pub(crate) use process::peak_memory;

use machine::{
    accel, failing, inspector, kernel_line, monitor, qemu, shared_memory, socket, trace_unit,
    Counting, Size, COUNTED, PROCESSORS,
};

const INIT: &str = include_str!("../guest/init.sh");
const AUXLOAD: &str = include_str!("../guest/auxload.sh");
const BUSYBOX: &str = "/bin/busybox";

/// The auxpmu module that a guest loads at boot, before the modules under test.
const FOR_TCG: &str = "tcg_int3.ko";

/// The auxpmu module that `auxload` does not load: a test loads it to trace its code.
const TO_TRACE: &str = "traced.ko";

/// How often a guest is booted at most: see [`Outcome::met_old_breakpoint`].
const BOOTS: u32 = 3;

/// The interval at which the state of a guest is checked.
const PERIOD: Duration = Duration::from_millis(50);

/// A guest to boot.
pub struct Guest<'a> {
    kernel: &'a Kernel,
    archive: Archive,
    environment: String,
    append: String,
    timeout: Duration,
    intel: bool,
    by_words: bool,
    counting: Option<Counting>,
    disk: Option<Disk>,
    shared: bool,
    power_cut: Option<PowerCut>,
    reboots: bool,
    devices: Devices,
    /// In MiB.
    memory: u32,
    processors: u32,
    trace_log: Option<PathBuf>,
    interrupt_log: Option<PathBuf>,
}

/// A disk of a guest: `/dev/vda`.
#[derive(Debug)]
pub struct Disk {
    /// The file with the disk's content.
    pub image: PathBuf,
    /// The limit of the write rate, if there is one.
    pub bytes_per_second: Option<u64>,
    /// How many flushes of its cache succeed before each further flush fails with `EIO`. `None`: no flush fails.
    pub flushes: Option<u32>,
}

/// When a guest's power is cut: some time after the command's first line of output for which `line` returns true.
#[derive(Debug)]
pub struct PowerCut {
    /// Whether this line of the command's output starts the delay.
    pub line: fn(&str) -> bool,
    /// The delay between the line and the power cut.
    pub after: Duration,
}

impl<'a> Guest<'a> {
    /// A guest with only busybox and these modules. `auxload` loads them in this order.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn new(kernel: &'a Kernel, modules: &[PathBuf]) -> Result<Self> {
        let mut archive = Archive::new();
        archive.program_from("bin/busybox", Path::new(BUSYBOX))?;
        archive.program("init", INIT.as_bytes());
        archive.program("bin/auxload", AUXLOAD.as_bytes());
        for path in kernel.guest_modules()? {
            archive.program_from(&format!("guest-modules/{}", name_of(&path)), &path)?;
        }
        let mut order = String::new();
        for path in modules {
            let name = name_of(path);
            if name == FOR_TCG {
                archive.program_from(&format!("guest-modules/{name}"), path)?;
                continue;
            }
            archive.program_from(&format!("modules/{name}"), path)?;
            if name == TO_TRACE {
                continue;
            }
            order += &name;
            order.push('\n');
        }
        archive.file("modules/order", order.as_bytes());
        let environment = format!("export AUXPMU_KERNEL={}\n", kernel.kind);
        Ok(Self {
            kernel,
            archive,
            environment,
            append: String::new(),
            timeout: Duration::from_secs(120),
            intel: false,
            by_words: false,
            counting: None,
            disk: None,
            shared: false,
            power_cut: None,
            reboots: false,
            devices: Devices::Plain,
            memory: machine::memory(kernel),
            processors: PROCESSORS,
            trace_log: None,
            interrupt_log: None,
        })
    }

    /// Sets the processor's vendor to Intel: perf supports `intel_pt` on no other.
    #[must_use]
    pub fn intel(mut self) -> Self {
        self.intel = true;
        self
    }

    /// Makes the kernel copy memory by words if the processor is emulated, as this is the fastest way there.
    #[must_use]
    pub fn by_words(mut self) -> Self {
        self.by_words = true;
        self
    }

    /// Shares the folder `shared` of the run's folder with the guest, over 9p with the tag `shared`.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Adds a script as `/bin/NAME`.
    #[must_use]
    pub fn script(mut self, name: &str, text: &str) -> Self {
        self.archive
            .program(&format!("bin/{name}"), text.as_bytes());
        self
    }

    /// Sets a variable for the command.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment += &format!("export {name}='{}'\n", value.replace('\'', "'\\''"));
        self
    }

    /// Adds to the kernel's command line.
    #[must_use]
    pub fn append(mut self, text: &str) -> Self {
        self.append = format!("{} {text}", self.append);
        self
    }

    /// Emulates one processor, with a clock that counts instructions.
    #[must_use]
    pub fn counting(mut self) -> Self {
        self.counting = Some(Counting {
            processors: 1,
            plugin: None,
        });
        self
    }

    /// Emulates this number of processors, and observes them with a QEMU plugin. `plugin` is its file and its options. A single processor
    /// has a clock that counts instructions.
    #[must_use]
    pub fn observed(mut self, processors: u32, plugin: &str) -> Self {
        self.counting = Some(Counting {
            processors,
            plugin: Some(plugin.to_owned()),
        });
        self.append("nokaslr")
    }

    /// Sets the number of processors, and adds memory for them.
    #[must_use]
    pub fn processors(mut self, processors: u32) -> Self {
        self.processors = processors;
        self.memory += processors.saturating_mul(16);
        self
    }

    /// Adds a disk.
    #[must_use]
    pub fn disk(mut self, disk: Disk) -> Self {
        self.disk = Some(disk);
        self
    }

    /// Cuts the guest's power as `cut` describes.
    #[must_use]
    pub fn power_cut(mut self, cut: PowerCut) -> Self {
        self.power_cut = Some(cut);
        self
    }

    /// Lets the guest reboot, with the content of its memory kept. Other guests end at a reboot.
    #[must_use]
    pub fn reboots(mut self) -> Self {
        self.reboots = true;
        self
    }

    /// Makes the trace unit log each instruction that it traces, into `PREFIX.cpuN.log`.
    #[must_use]
    pub fn logged(mut self, prefix: &Path) -> Self {
        self.trace_log = Some(prefix.to_owned());
        self
    }

    /// Makes QEMU log each interrupt and exception into this file.
    #[must_use]
    pub fn interrupts_logged(mut self, file: &Path) -> Self {
        self.interrupt_log = Some(file.to_owned());
        self
    }

    /// Sets the guest's devices.
    #[must_use]
    pub fn devices(mut self, devices: Devices) -> Self {
        self.devices = devices;
        self
    }

    /// Adds memory, in MiB. Half of a guest's memory is for the files in `/out`.
    #[must_use]
    pub fn more_memory(mut self, more: u32) -> Self {
        self.memory = self.memory.saturating_add(more);
        self
    }

    /// Sets how long the guest may run.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Boots the guest, runs `command` (shell text) and waits until the guest ends. Logs go to `dir`, the guest's files to `dir/out`.
    /// `live` gets each line of the command's output as it arrives.
    ///
    /// # Errors
    ///
    /// When the guest cannot be started. Failures inside the guest are part of the outcome.
    pub fn run(
        mut self,
        cache: &Cache,
        dir: &Path,
        command: &str,
        mut live: impl FnMut(&str),
    ) -> Result<Outcome> {
        self.archive.file("etc/command", command.as_bytes());
        // The limit is in time of the host. A clock that counts instructions runs at another speed.
        if self.counting.is_none() {
            let soon = self.timeout - self.timeout / 10;
            self = self.variable("AUXPMU_SOON", &soon.as_secs().to_string());
        }
        self.archive
            .file("etc/environment", self.environment.as_bytes());
        let archive = std::mem::take(&mut self.archive).finish();

        for _ in 1..BOOTS {
            let outcome = self.boot(cache, dir, &archive, &mut live)?;
            if !outcome.met_old_breakpoint() {
                return Ok(outcome);
            }
            crate::out!(
                "a guest has met a breakpoint that is no longer there before tcg_int3.ko was loaded; it boots once more: {}",
                dir.display()
            );
        }
        self.boot(cache, dir, &archive, &mut live)
    }

    fn boot(
        &self,
        cache: &Cache,
        dir: &Path,
        archive: &[u8],
        live: &mut impl FnMut(&str),
    ) -> Result<Outcome> {
        cache::remove(dir)?;
        let files = dir.join("out");
        fs::create_dir_all(&files).on("make", &files)?;
        let console = dir.join("console.log");
        let tar = dir.join("out.tar");
        fs::write(&console, "").on("write", &console)?;
        let initramfs = dir.join("initramfs");
        fs::write(&initramfs, archive).on("write", &initramfs)?;
        let socket = socket();

        let mut qemu = qemu(
            cache,
            self.kernel,
            &console,
            &format!("{}{}", kernel_line(self.kernel), self.append),
            self.counting.as_ref(),
            self.devices,
            Size {
                memory: self.memory,
                processors: self.processors,
            },
        )?;
        qemu.arg("-initrd").arg(&initramfs);
        if self.intel || self.by_words {
            // Overrides the earlier -cpu.
            let model = match self.counting {
                Some(_) => COUNTED,
                None => match accel(cache, self.kernel, self.devices)? {
                    Accel::Tcg if self.by_words => COUNTED,
                    accel => accel.model(),
                },
            };
            // perf reads the ratio of TSC and crystal clock from CPUID leaf 0x15, even if there is no such leaf. A processor of
            // Intel's then returns the data of its highest leaf. So the highest leaf must be at least 0x15, which is 21.
            let vendor = if self.intel {
                ",vendor=GenuineIntel,level=21"
            } else {
                ""
            };
            qemu.args(["-cpu", &format!("{model}{vendor}")]);
        }
        if self.reboots {
            // Overrides -no-reboot.
            qemu.args(["-action", "reboot=reset"]);
        }
        if let Some(disk) = &self.disk {
            let image = disk.image.display();
            let mut drive = match disk.flushes {
                None => format!("if=virtio,format=raw,file={image}"),
                Some(flushes) => {
                    let fails = failing(flushes);
                    format!("if=virtio,format=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={image}{fails}")
                }
            };
            if let Some(bytes) = disk.bytes_per_second {
                drive += &format!(",throttling.bps-write={bytes}");
            }
            qemu.args(["-drive", &drive]);
        }
        // Not stdio: QEMU closes that port when its standard input ends, and the guest would block for ever in writing to it.
        qemu.args([
            "-device",
            "virtio-serial-pci",
            "-chardev",
            "file,id=said,path=/dev/stdout",
        ]);
        qemu.args([
            "-device",
            "virtserialport,chardev=said,nr=1,name=ktap",
            "-chardev",
        ]);
        qemu.arg(format!("file,id=out,path={}", tar.display()));
        qemu.args(["-device", "virtserialport,chardev=out,nr=2,name=out"]);
        // After the ports above, which init identifies by their number.
        if self.devices == Devices::Pluggable {
            qemu.args(monitor(&socket));
        }
        if self.shared {
            let folder = dir.join("shared");
            fs::create_dir_all(&folder).on("make", &folder)?;
            qemu.arg("-virtfs").arg(format!(
                "local,path={},mount_tag=shared,security_model=mapped-file",
                folder.display()
            ));
        }
        let trace_socket = machine::socket();
        if self.devices.have_trace_unit() {
            let plugin = plugin::build(cache, "traceunit")?;
            let log = self.trace_log.as_deref();
            qemu.args(shared_memory(self.memory));
            qemu.args(trace_unit(&plugin, &trace_socket, self.devices, log));
        }
        if let Some(file) = &self.interrupt_log {
            qemu.args(["-d", "int", "-D"]).arg(file);
        }
        let inspected = machine::socket();
        qemu.args(inspector(&inspected));
        let errors = dir.join("qemu.log");
        let error_file = fs::File::create(&errors).on("write", &errors)?;
        let start = Instant::now();
        let mut child = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(error_file)
            .spawn()
            .map_err(|source| Error::Spawn {
                program: "qemu-system-x86_64".to_owned(),
                source,
            })?;
        process::limit_files(&child);
        let (lines, received) = std::sync::mpsc::sync_channel::<String>(256);
        let reader = child.stdout.take().map(|out| {
            std::thread::spawn(move || {
                let mut out = BufReader::new(out);
                let mut line = Vec::new();
                while out.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                    if lines
                        .send(String::from_utf8_lossy(&line).into_owned())
                        .is_err()
                    {
                        return;
                    }
                    line.clear();
                }
            })
        });
        let mut said = String::new();
        let mut cut_at = None;
        let mut take = |line: String, cut_at: &mut Option<Instant>| {
            live(line.trim_end());
            let cut = self.power_cut.as_ref();
            if let Some(cut) = cut.filter(|cut| cut_at.is_none() && (cut.line)(&line)) {
                *cut_at = Some(Instant::now() + cut.after);
            }
            said += &line;
        };
        let (mut timed_out, mut cut);
        let mut ended = None;
        let mut peak_kib = 0;
        let mut looked = start;
        loop {
            cut = cut_at.is_some_and(|at| at <= Instant::now());
            timed_out = !cut && start.elapsed() > self.timeout;
            if cut || timed_out {
                let shown = timed_out.then(|| process::inspect(&inspected, self.processors));
                let _ = child.kill();
                let _ = child.wait();
                if let Some(shown) = shown {
                    let shown = shown.unwrap_or_else(|e| format!("QEMU does not answer: {e}\n"));
                    let path = dir.join(outcome::CPUS);
                    fs::write(&path, shown).on("write", &path)?;
                }
                break;
            }
            match received.recv_timeout(PERIOD) {
                Ok(line) => take(line, &mut cut_at),
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(PERIOD),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if looked.elapsed() < PERIOD {
                continue;
            }
            looked = Instant::now();
            peak_kib = peak_kib.max(peak_memory(&child));
            match child.try_wait() {
                Ok(None) => {}
                other => {
                    ended = other.ok().flatten();
                    break;
                }
            }
        }
        received.iter().for_each(|line| take(line, &mut cut_at));
        if let Some(reader) = reader {
            let _ = reader.join();
        }
        let elapsed = start.elapsed();
        let ktap_log = dir.join("said.log");
        fs::write(&ktap_log, &said).on("write", &ktap_log)?;
        let complaint = fs::read_to_string(&errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&fs::read(&console).on("read", &console)?).into_owned();
        if text.is_empty() && said.is_empty() && !complaint.trim().is_empty() {
            return Err(Error::Other(format!(
                "QEMU cannot start the guest: {}. Its log is {}.",
                process::ended(&complaint),
                errors.display()
            )));
        }
        // tar unpacks an incomplete stream as far as it goes. The exit status is also in the stream, so it is then missing.
        let _ = Command::new("tar")
            .args(["--no-same-owner", "-xf"])
            .arg(&tar)
            .arg("-C")
            .arg(&files)
            .stderr(Stdio::null())
            .status();
        for path in [&tar, &initramfs, &socket, &trace_socket, &inspected] {
            let _ = fs::remove_file(path);
        }
        let status_file = files.join(".status");
        let status = fs::read_to_string(&status_file)
            .ok()
            .and_then(|s| s.trim().parse().ok());
        let _ = fs::remove_file(&status_file);
        Ok(Outcome {
            said,
            status,
            timed_out,
            cut,
            failed: process::too_long(ended).or_else(|| process::failed(&complaint)),
            splats: splat::scan(&text),
            console,
            files,
            process: child.id(),
            elapsed,
            peak_kib,
        })
    }
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
