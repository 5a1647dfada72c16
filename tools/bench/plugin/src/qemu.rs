// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The functions that QEMU calls.

use crate::calls::{Calls, Functions, Place};
use crate::record::{Block, Marker, Recorder};
use qemuplugin::registers::{Register, Registers};
use qemuplugin::{
    Counter, Discontinuities, Discontinuity, Executes, Instruction, Machine, Options, Plugin, Sees,
    Translation, VirtualCpu, Writes, LEN_MAX,
};
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Kernel addresses have this bit, and user addresses do not.
const KERNEL: u64 = 1 << 63;

struct Bench {
    file: Mutex<File>,
    what: What,
}

/// What is recorded in a window.
enum What {
    /// Blocks, and the lines that the instructions between two addresses write.
    Blocks {
        recorder: Recorder,
        from: u64,
        to: u64,
    },
    /// Calls of a function.
    Calls {
        calls: Calls,
        instructions: Counter,
        registers: OnceLock<Option<Known>>,
    },
}

/// QEMU's names of registers.
#[derive(Clone, Copy)]
struct Known {
    rsp: Register,
    rdi: Register,
    rsi: Register,
}

qemuplugin::plugin!(Bench, "bench-plugin", ["out", "what", "from", "to"]);

impl Plugin for Bench {
    fn new(options: &Options, _machine: &Machine) -> Result<Self, String> {
        let what = match options.get("what") {
            None => What::Blocks {
                recorder: Recorder::new(),
                from: options.address("from")?,
                to: options.address("to")?,
            },
            Some("interrupts") => What::Calls {
                calls: Calls::new(),
                instructions: Counter::new(),
                registers: OnceLock::new(),
            },
            Some(other) => return Err(format!("what={other} is not what=interrupts")),
        };
        let out = options.need("out")?;
        let file = File::create(out).map_err(|e| format!("cannot create {out}: {e}"))?;
        Ok(Self {
            file: Mutex::new(file),
            what,
        })
    }

    fn translated(&'static self, translation: &Translation<'_>) {
        if translation.address() & KERNEL == 0 {
            for instruction in translation.instructions() {
                self.look_for_marker(&instruction);
            }
            return;
        }
        match &self.what {
            What::Blocks { recorder, from, to } => {
                let len = u64::try_from(translation.len()).unwrap_or(u64::MAX);
                translation.on_execution(leak(Executed {
                    recorder,
                    block: recorder.block(translation.address(), len),
                }));
                for instruction in translation.instructions() {
                    let at = instruction.address();
                    if (*from..*to).contains(&at) {
                        instruction.on_write(leak(Written { recorder, at }));
                    }
                }
            }
            What::Calls { instructions, .. } => {
                translation.on_execution_with_registers(leak(Entered {
                    bench: self,
                    at: translation.address(),
                }));
                // Each instruction is counted separately: QEMU leaves a block where an instruction accesses a device, and executes the rest
                // of it as another block.
                for instruction in translation.instructions() {
                    instruction.counts(*instructions);
                }
            }
        }
    }

    fn discontinuities(&'static self) -> Option<&'static dyn Discontinuities> {
        match &self.what {
            What::Blocks { .. } => None,
            What::Calls { .. } => Some(self),
        }
    }
}

impl Discontinuities for Bench {
    fn discontinuity(&self, cpu: &mut VirtualCpu, _kind: Discontinuity, _from: u64, _to: u64) {
        if let What::Calls { calls, .. } = &self.what {
            calls.is_interrupted(cpu.index());
        }
    }
}

impl Bench {
    fn look_for_marker(&'static self, instruction: &Instruction<'_>) {
        let mut buffer = [0; LEN_MAX];
        if let Some(marker) = Marker::decode(instruction.bytes(&mut buffer)) {
            instruction.on_execution_with_registers(leak(Marked {
                bench: self,
                marker,
            }));
        }
    }
}

/// Allocates a value that QEMU may use as long as it runs.
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl Known {
    /// Finds the registers at the first call.
    fn of(known: &OnceLock<Option<Self>>, registers: &Registers<'_>) -> Option<Self> {
        *known.get_or_init(|| {
            let find = |name| {
                let found = registers.find(name);
                if found.is_none() {
                    eprintln!("bench-plugin: this QEMU has no register {name}");
                }
                found
            };
            Some(Self {
                rsp: find("rsp")?,
                rdi: find("rdi")?,
                rsi: find("rsi")?,
            })
        })
    }
}

struct Executed {
    recorder: &'static Recorder,
    block: Arc<Block>,
}

impl Executes for Executed {
    fn executes(&'static self, cpu: &mut VirtualCpu) {
        self.recorder.executed(&self.block, cpu.index());
    }
}

struct Written {
    recorder: &'static Recorder,
    /// The address of the instruction.
    at: u64,
}

impl Writes for Written {
    fn is_on(&'static self) -> bool {
        self.recorder.is_open()
    }

    fn wrote(&'static self, cpu: &mut VirtualCpu, address: u64, len: u64) {
        self.recorder.wrote(cpu.index(), self.at, address, len);
    }
}

struct Entered {
    bench: &'static Bench,
    /// The address of the block.
    at: u64,
}

impl Sees for Entered {
    fn executes(&'static self, cpu: &mut VirtualCpu, registers: &Registers<'_>) {
        let What::Calls {
            calls,
            instructions,
            registers: known,
        } = &self.bench.what
        else {
            return;
        };
        if !calls.is_open() {
            return;
        }
        let stack = Known::of(known, registers).and_then(|known| registers.read(known.rsp));
        let Some(stack) = stack else {
            return;
        };
        let place = Place {
            at: self.at,
            stack,
            instructions: instructions.get(cpu.index()),
        };
        calls.executes(cpu.index(), place);
    }
}

struct Marked {
    bench: &'static Bench,
    marker: Marker,
}

impl Sees for Marked {
    fn executes(&'static self, _cpu: &mut VirtualCpu, registers: &Registers<'_>) {
        let report = match &self.bench.what {
            What::Blocks { recorder, .. } => recorder.mark(self.marker),
            What::Calls {
                calls,
                registers: known,
                ..
            } => {
                let functions = Known::of(known, registers).and_then(|known| {
                    Some(Functions {
                        outer: registers.read(known.rdi)?,
                        inner: registers.read(known.rsi)?,
                    })
                });
                calls.mark(self.marker, functions.unwrap_or_default())
            }
        };
        let Some(report) = report else {
            return;
        };
        let file = self.bench.file.lock();
        let mut file = file.unwrap_or_else(PoisonError::into_inner);
        // A reader of the reports detects a report that lacks its end.
        if let Err(error) = file.write_all(report.as_bytes()) {
            eprintln!("bench-plugin: cannot write the report: {error}");
        }
    }
}
