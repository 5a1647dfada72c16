// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What QEMU calls.

use crate::flow::{Block, Flow, Traced};
use crate::image::Image;
use crate::serve;
use intel_pt::insn::{Insn, Mode};
use intel_pt::{Config, Encoder, Full, Output};
use qemuplugin::{
    Discontinuities, Discontinuity, Executes, Machine, Options, Plugin, Translation, LEN_MAX,
};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

extern "C" {
    /// The time that guests read as `TSC`. It is no part of the interface for plugins, which has no
    /// clock; QEMU exports it nevertheless.
    fn cpus_get_elapsed_ticks() -> i64;
}

/// Bytes of trace from one `PSB` to the next.
const PSB_PERIOD: u64 = 4096;

struct Unit {
    prefix: String,
    cpus: Vec<Mutex<Cpu>>,
    image: Mutex<Image>,
    /// Whether the kernel has executed anything where it lives.
    up: AtomicBool,
    /// Whether the trace has begun.
    begun: AtomicBool,
    log: bool,
}

/// A virtual CPU.
struct Cpu {
    flow: Flow,
    /// Whether the last instruction of its block was reached.
    whole: bool,
    /// Whether the next discontinuity is an exception.
    raised: bool,
    trace: Trace,
    log: Option<Log>,
}

struct Trace {
    file: BufWriter<File>,
    /// Whether something could not be written. The trace ends there.
    failed: bool,
}

impl Output for Trace {
    fn write(&mut self, bytes: &[u8], _keep: usize) -> Result<(), Full> {
        if self.failed {
            return Err(Full);
        }
        self.file.write_all(bytes).map_err(|error| {
            eprintln!("traceunit: the trace ends early: {error}");
            self.failed = true;
            Full
        })
    }

    fn tsc(&mut self) -> u64 {
        // SAFETY: It takes nothing, and reads the clock under a lock of its own, on any thread.
        let ticks = unsafe { cpus_get_elapsed_ticks() };
        u64::from_ne_bytes(ticks.to_ne_bytes())
    }
}

/// What was executed.
struct Log {
    file: BufWriter<File>,
    /// The instruction that was begun last.
    begun: Option<u64>,
}

impl Log {
    /// An instruction begins, so the one before was executed. A repeated one counts once.
    fn begins(&mut self, address: u64) -> io::Result<()> {
        if self.begun != Some(address) {
            self.executed()?;
        }
        self.begun = Some(address);
        Ok(())
    }

    fn executed(&mut self) -> io::Result<()> {
        match self.begun.take() {
            Some(address) => writeln!(self.file, "{address:x}"),
            None => Ok(()),
        }
    }
}

/// The plugin: it writes files, or is a device.
enum TraceUnit {
    Files(Unit),
    Device {
        /// The guest's way to it.
        _served: serve::Shared,
    },
}

qemuplugin::plugin!(TraceUnit, "traceunit", ["out", "log", "from", "device"]);

impl Plugin for TraceUnit {
    fn new(options: &Options, machine: &Machine) -> Result<Self, String> {
        match (options.get("out"), options.get("device")) {
            (Some(_), None) => Ok(Self::Files(Unit::new(options, machine)?)),
            (None, Some(socket)) => match ["log", "from"]
                .iter()
                .find(|name| options.get(name).is_some())
            {
                Some(name) => Err(format!("{name}= goes with out=, not with device=")),
                None => Ok(Self::Device {
                    _served: serve::serve(Path::new(socket), machine.cpus)?,
                }),
            },
            _ => {
                Err("it takes out=PREFIX for files, or device=SOCKET for vfio-user-pci".to_owned())
            }
        }
    }

    fn translated(&'static self, translation: &Translation<'_>) {
        if let Self::Files(unit) = self {
            unit.translated(translation);
        }
    }

    fn discontinuities(&'static self) -> Option<&'static dyn Discontinuities> {
        match self {
            Self::Files(unit) => Some(unit),
            Self::Device { .. } => None,
        }
    }

    fn exits(&'static self) {
        if let Self::Files(unit) = self {
            unit.exits();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Unit {
    fn new(options: &Options, machine: &Machine) -> Result<Self, String> {
        let prefix = options.need("out")?.to_owned();
        let flag = |name: &str, value: &str| match options.get(name) {
            None => Ok(false),
            Some(found) if found == value => Ok(true),
            Some(found) => Err(format!(
                "{name}={found} is unknown: it can be {name}={value}"
            )),
        };
        let log = flag("log", "yes")?;
        let from_user = flag("from", "user")?;
        let create = |what: &str| {
            let path = format!("{prefix}.{what}");
            match File::create(&path) {
                Ok(file) => Ok(BufWriter::with_capacity(1 << 18, file)),
                Err(e) => Err(format!("cannot create {path}: {e}")),
            }
        };
        let cpu = |index| -> Result<Mutex<Cpu>, String> {
            let encoder = Encoder::new(Config {
                tsc: true,
                psb_period: PSB_PERIOD,
                ..Config::default()
            });
            let traced = Traced {
                kernel: true,
                user: false,
            };
            Ok(Mutex::new(Cpu {
                flow: Flow::new(encoder, traced),
                whole: false,
                raised: false,
                trace: Trace {
                    file: create(&format!("cpu{index}.pt"))?,
                    failed: false,
                },
                log: match log {
                    true => Some(Log {
                        file: create(&format!("cpu{index}.log"))?,
                        begun: None,
                    }),
                    false => None,
                },
            }))
        };
        Ok(Self {
            cpus: (0..machine.cpus).map(cpu).collect::<Result<_, _>>()?,
            image: Mutex::default(),
            up: AtomicBool::new(false),
            begun: AtomicBool::new(!from_user),
            prefix,
            log,
        })
    }

    fn translated(&'static self, translation: &Translation<'_>) {
        let mut image = lock(&self.image);
        let mut last = None;
        for instruction in translation.instructions() {
            let mut buffer = [0; LEN_MAX];
            let bytes = instruction.bytes(&mut buffer);
            let insn = Insn::decode(bytes, Mode::Bits64).unwrap_or(Insn::UNKNOWN);
            let address = instruction.address();
            if address >> 63 != 0 {
                image.add(address, bytes);
            }
            last = Some((address, insn));
            if self.log && address >> 63 != 0 {
                instruction.on_execution(leak(Begun {
                    unit: self,
                    address,
                }));
            }
        }
        let Some((last, insn)) = last else {
            return;
        };
        let block = Block {
            first: translation.address(),
            last,
            insn,
        };
        translation.on_execution(leak(Begins { unit: self, block }));
        if let Some(instruction) = translation.instructions().next_back() {
            instruction.on_execution(leak(Ends { unit: self }));
        }
    }

    fn exits(&'static self) {
        for cpu in &self.cpus {
            let Cpu {
                flow,
                whole,
                trace,
                log,
                ..
            } = &mut *lock(cpu);
            let _ = flow.ends(*whole, trace);
            complain(trace.file.flush());
            if let Some(log) = log {
                // What was begun last has not ended.
                complain(log.file.flush());
            }
        }
        let image = lock(&self.image);
        let create = |what: &str| File::create(format!("{}.{what}", self.prefix));
        complain(
            create("image").and_then(|pages| {
                image.write(BufWriter::new(pages), BufWriter::new(create("list")?))
            }),
        );
        eprintln!("traceunit: {} instructions have changed", image.changes);
    }
}

fn complain(result: io::Result<()>) {
    if let Err(error) = result {
        eprintln!("traceunit: cannot write: {error}");
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl Unit {
    fn cpu(&self, index: usize) -> Option<MutexGuard<'_, Cpu>> {
        if !self.begun.load(Ordering::Relaxed) {
            return None;
        }
        self.cpus.get(index).map(lock)
    }
}

impl Discontinuities for Unit {
    fn discontinuity(&self, cpu: usize, kind: Discontinuity, from: u64, to: u64) {
        let Some(mut cpu) = self.cpu(cpu) else {
            return;
        };
        let Cpu {
            flow,
            whole,
            raised,
            trace,
            log,
        } = &mut *cpu;
        // On x86 QEMU reports an exception twice: as one that leads nowhere, with an address that may
        // be stale, and then as an interrupt.
        if kind == Discontinuity::Exception && from == to {
            *raised = true;
            return;
        }
        let kind = match std::mem::take(raised) {
            true => Discontinuity::Exception,
            false => kind,
        };
        if let Some(log) = log {
            // It was not executed, or not to its end.
            if log.begun == Some(from) {
                log.begun = None;
            }
        }
        let _ = flow.discontinuity(kind, from, to, *whole, trace);
        *whole = false;
    }
}

/// A block begins.
struct Begins {
    unit: &'static Unit,
    block: Block,
}

impl Executes for Begins {
    fn executes(&'static self, cpu: usize) {
        if !self.unit.begun.load(Ordering::Relaxed) {
            match self.block.first >> 63 {
                0 if self.unit.up.load(Ordering::Relaxed) => {
                    self.unit.begun.store(true, Ordering::Relaxed);
                }
                0 => return,
                _ => return self.unit.up.store(true, Ordering::Relaxed),
            }
        }
        let Some(mut cpu) = self.unit.cpu(cpu) else {
            return;
        };
        let Cpu {
            flow, whole, trace, ..
        } = &mut *cpu;
        let _ = flow.executes(&self.block, *whole, trace);
        *whole = false;
    }
}

/// The last instruction of a block begins.
struct Ends {
    unit: &'static Unit,
}

impl Executes for Ends {
    fn executes(&'static self, cpu: usize) {
        if let Some(mut cpu) = self.unit.cpu(cpu) {
            cpu.whole = true;
        }
    }
}

/// An instruction begins.
struct Begun {
    unit: &'static Unit,
    address: u64,
}

impl Executes for Begun {
    fn executes(&'static self, cpu: usize) {
        let Some(mut cpu) = self.unit.cpu(cpu) else {
            return;
        };
        let Cpu { flow, log, .. } = &mut *cpu;
        if let Some(log) = log.as_mut().filter(|_| flow.is_begun()) {
            complain(log.begins(self.address));
        }
    }
}
