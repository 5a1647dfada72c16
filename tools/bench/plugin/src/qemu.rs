// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What QEMU calls.

use crate::record::{Block, Marker, Recorder};
use qemuplugin::{
    Executes, Instruction, Machine, Options, Plugin, Translation, VirtualCpu, Writes, LEN_MAX,
};
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Kernel addresses have this bit, and user addresses do not.
const KERNEL: u64 = 1 << 63;

struct Bench {
    recorder: Recorder,
    file: Mutex<File>,
    from: u64,
    to: u64,
}

qemuplugin::plugin!(Bench, "bench-plugin", ["out", "from", "to"]);

impl Plugin for Bench {
    fn new(options: &Options, _machine: &Machine) -> Result<Self, String> {
        let out = options.need("out")?;
        let file = File::create(out).map_err(|e| format!("cannot create {out}: {e}"))?;
        Ok(Self {
            recorder: Recorder::new(),
            file: Mutex::new(file),
            from: options.address("from")?,
            to: options.address("to")?,
        })
    }

    fn translated(&'static self, translation: &Translation<'_>) {
        if translation.address() & KERNEL == 0 {
            for instruction in translation.instructions() {
                self.look_for_marker(&instruction);
            }
            return;
        }
        let len = u64::try_from(translation.len()).unwrap_or(u64::MAX);
        translation.on_execution(leak(Executed {
            bench: self,
            block: self.recorder.block(translation.address(), len),
        }));
        for instruction in translation.instructions() {
            let at = instruction.address();
            if (self.from..self.to).contains(&at) {
                instruction.on_write(leak(Written { bench: self, at }));
            }
        }
    }
}

impl Bench {
    fn look_for_marker(&'static self, instruction: &Instruction<'_>) {
        let mut buffer = [0; LEN_MAX];
        if let Some(marker) = Marker::decode(instruction.bytes(&mut buffer)) {
            instruction.on_execution(leak(Marked {
                bench: self,
                marker,
            }));
        }
    }
}

/// What QEMU may use as long as it runs.
fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

struct Executed {
    bench: &'static Bench,
    block: Arc<Block>,
}

impl Executes for Executed {
    fn executes(&'static self, cpu: &mut VirtualCpu) {
        self.bench.recorder.executed(&self.block, cpu.index());
    }
}

struct Written {
    bench: &'static Bench,
    /// The address of the instruction.
    at: u64,
}

impl Writes for Written {
    fn is_on(&'static self) -> bool {
        self.bench.recorder.is_open()
    }

    fn wrote(&'static self, cpu: &mut VirtualCpu, address: u64, len: u64) {
        self.bench
            .recorder
            .wrote(cpu.index(), self.at, address, len);
    }
}

struct Marked {
    bench: &'static Bench,
    marker: Marker,
}

impl Executes for Marked {
    fn executes(&'static self, _cpu: &mut VirtualCpu) {
        let Some(report) = self.bench.recorder.mark(self.marker) else {
            return;
        };
        let file = self.bench.file.lock();
        let mut file = file.unwrap_or_else(PoisonError::into_inner);
        // A report that lacks its end is an error to who reads it.
        if let Err(error) = file.write_all(report.as_bytes()) {
            eprintln!("bench-plugin: cannot write the report: {error}");
        }
    }
}
