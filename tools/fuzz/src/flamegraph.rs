// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Flame graphs and spans of a recording that names any files and addresses. One of the files is a program.

use std::cell::RefCell;
use std::hint::black_box;
use std::io::{self, Cursor, Write};
use std::rc::Rc;
use std::sync::LazyLock;

use auxview::export::{script, Clock, Options};
use auxview::flamegraph::Places;
use intel_pt::insn::{Insn, Mode};
use intel_pt::{Config, Encoder, Step};
use perfdata::{
    Attr, Aux, AuxFlags, Auxtrace, AuxtraceInfo, Comm, Features, FileId, FinishedInit, Flags,
    IdIndex, IdIndexEntry, Ksymbol, Mmap2, SampleId, SampleType, TextPoke, Writer,
};
use tempfile::TempDir;
use testdata::program::Ring;

/// Address of the program's text. In the file it is at [`OFFSET`].
const BASE: u64 = 0x40_1000;
const OFFSET: u64 = 120;

/// The program: `call f`, `jne` back to that, `call *rax`, `ret`; and `f`: `nop`, `ret`.
const TEXT: [u8; 16] = [
    0xe8, 0x05, 0, 0, 0, 0x75, 0xf9, 0xff, 0xd0, 0xc3, 0x90, 0xc3, 0xf4, 0xf4, 0xf4, 0xf4,
];
const F: u64 = BASE + 10;

/// The addresses of a run of the program, from its beginning to its end.
const WAY: [u64; 12] = [
    BASE,
    F,
    F + 1,
    BASE + 5,
    BASE,
    F,
    F + 1,
    BASE + 5,
    BASE + 7,
    F,
    F + 1,
    BASE + 9,
];

/// Address of the same code in the kernel.
const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// Address at which the kernel generates the same code, and reports it.
const MADE: u64 = 0xffff_ffff_c000_0000;

/// The root directory of all file names.
static ROOT: LazyLock<Option<TempDir>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().ok()?;
    std::fs::write(dir.path().join("prog"), program(BASE)).ok()?;
    std::fs::write(dir.path().join("kcore"), program(KERNEL)).ok()?;
    let symbols = format!(
        "{KERNEL:x} T entry\n{:x} T __switch_to\n",
        KERNEL + F - BASE
    );
    std::fs::write(dir.path().join("kallsyms"), symbols).ok()?;
    std::os::unix::fs::symlink("/prog", dir.path().join("link")).ok()?;
    Some(dir)
});

/// An executable file for x86-64 with one segment and without sections.
fn program(at: u64) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    file.extend([at, 64, 0].map(u64::to_le_bytes).concat());
    file.extend([0, 64 | 56 << 16, 1, 0].map(u32::to_le_bytes).concat());
    // Read and execute.
    let load = [1 | 5 << 32, OFFSET, at, at, 16, 16, 1];
    file.extend(load.map(u64::to_le_bytes).concat());
    file.extend(TEXT);
    file
}

/// The output of `script`: the number of open spans, and the beginning of an incomplete line.
#[derive(Default)]
struct Balance {
    open: i64,
    line: Vec<u8>,
}

/// A shared [`Balance`]: `script` takes the writer.
#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Balance>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut balance = self.0.borrow_mut();
        for byte in bytes {
            if *byte != b'\n' {
                balance.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut balance.line);
            balance.open += match line.split(|byte| *byte == b'\t').nth(4) {
                Some(b"begin") => 1,
                _ => -1,
            };
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Follows the calls of a recording, and draws them. Each span that begins ends.
///
/// # Panics
/// If the program cannot be written.
pub fn flamegraph(input: &[u8]) {
    let Some(root) = &*ROOT else {
        panic!("there is no place for the program");
    };
    let Ok(calls) = auxview::flamegraph::calls(input, root.path()) else {
        return;
    };
    let mut folded = Vec::new();
    assert!(calls.fold(&mut folded).is_ok());
    black_box(calls.summary());
    let _ = black_box(calls.draw());
    for (clock, kernel) in [
        (Clock::Time, None),
        (Clock::Instructions, None),
        (Clock::Instructions, Some(root.path())),
    ] {
        let options = Options {
            places: Places {
                root: root.path(),
                kernel,
            },
            clock: Some(clock),
            lines: true,
        };
        let out = Shared::default();
        if script(input, &options, Box::new(out.clone())).is_ok() {
            assert_eq!(out.0.borrow().open, 0, "{clock:?}");
        }
    }
}

/// The trace of the program whose text is at `base`. [`None`] if a ring is full, which does not happen.
fn trace(ret_compression: bool, base: u64) -> Option<Vec<u8>> {
    let mut ring = Ring::default();
    let mut pt = Encoder::new(Config {
        tsc: true,
        ret_compression,
        ..Config::default()
    });
    pt.begin(false, &mut ring).ok()?;
    pt.enable(base, Mode::Bits64, &mut ring).ok()?;
    for pair in WAY.windows(2) {
        let at = usize::try_from(pair[0] - BASE).ok()?;
        let step = Step {
            insn: Insn::decode(TEXT.get(at..)?, Mode::Bits64)?,
            from: pair[0] - BASE + base,
            to: pair[1] - BASE + base,
            mode: Mode::Bits64,
        };
        pt.step(&step, &mut ring).ok()?;
    }
    pt.disable(base + 9, &mut ring).ok()?;
    Some(ring.bytes)
}

/// Recordings of one CPU, and of two threads. The last is of code that the kernel has generated.
///
/// # Errors
/// If one cannot be made.
pub fn seeds() -> perfdata::Result<Vec<Vec<u8>>> {
    let mut out = Vec::new();
    for (compression, threads, file, base) in [
        (true, false, "/prog", BASE),
        (false, false, "/../link", BASE),
        (true, true, "/prog", BASE),
        (true, false, "[vdso]", BASE),
        (true, false, "/prog", MADE),
    ] {
        let trace = trace(compression, base).unwrap_or_default();
        out.push(recording(&trace, threads, file)?);
    }
    Ok(out)
}

fn recording(trace: &[u8], threads: bool, file: &str) -> perfdata::Result<Vec<u8>> {
    let attr = Attr {
        kind: 42,
        flags: Flags::SAMPLE_ID_ALL,
        sample_type: SampleType::IDENTIFIER | SampleType::TID | SampleType::TIME | SampleType::CPU,
        ..Attr::default()
    };
    let mut out = Writer::new(Cursor::new(Vec::new()), &[(attr.clone(), vec![9])])?;
    let rings = if threads { 2 } else { 1 };
    let index: Vec<_> = (0..rings)
        .map(|n| IdIndexEntry {
            id: 9 + n,
            idx: n,
            cpu: if threads { -1 } else { 0 },
            tid: if threads {
                5 + i64::try_from(n).unwrap_or(0)
            } else {
                -1
            },
        })
        .collect();
    out.record(&IdIndex(&index), None)?;
    // The time stamp counter is perf's clock.
    let info = AuxtraceInfo {
        kind: 1,
        private: &[42, 0, 1, 0, 1],
    };
    out.record(&info, None)?;
    out.record(&FinishedInit, None)?;
    let id = |time| SampleId {
        pid: Some(5),
        tid: Some(5),
        time: Some(time),
        id: Some(9),
        stream_id: None,
        cpu: Some(0),
    };
    let comm = Comm {
        pid: 5,
        tid: 5,
        exec: true,
        comm: b"prog",
    };
    out.record(&comm, Some((&id(1), &attr)))?;
    let thread = Comm {
        tid: 6,
        exec: false,
        ..comm
    };
    out.record(&thread, Some((&id(1), &attr)))?;
    let map = Mmap2 {
        pid: 5,
        tid: 5,
        addr: BASE,
        len: 16,
        pgoff: OFFSET,
        file: FileId::Inode {
            dev: (8, 1),
            ino: 3,
            generation: 0,
        },
        prot: 5,
        flags: 2,
        filename: file.as_bytes(),
    };
    out.record(&map, Some((&id(2), &attr)))?;
    let symbol = Ksymbol {
        addr: MADE,
        len: 16,
        kind: 2,
        gone: false,
        name: b"made",
    };
    out.record(&symbol, Some((&id(2), &attr)))?;
    let poke = TextPoke {
        addr: MADE,
        old: &[],
        new: &TEXT,
    };
    out.record(&poke, Some((&id(2), &attr)))?;
    let mut bytes = trace.to_vec();
    bytes.resize(trace.len().next_multiple_of(8), 0);
    for n in 0..u32::try_from(rings).unwrap_or(0) {
        let size = u64::try_from(bytes.len()).unwrap_or(0);
        let aux = Aux {
            offset: 0,
            size,
            flags: AuxFlags::empty(),
        };
        out.record(&aux, Some((&id(3), &attr)))?;
        out.auxtrace(&Auxtrace {
            size,
            offset: 0,
            reference: 0,
            idx: n,
            tid: if threads { 5 + n } else { u32::MAX },
            cpu: if threads { u32::MAX } else { 0 },
        })?;
        out.payload(&bytes)?;
    }
    Ok(out.finish(&Features::new())?.into_inner())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Each seed whose code is available is followed to its end.
    #[test]
    fn seeds_are_right() {
        let root = ROOT.as_ref().unwrap().path();
        for (n, seed) in seeds().unwrap().iter().enumerate() {
            let places = Places {
                root,
                kernel: (n == 4).then_some(root),
            };
            let calls = auxview::flamegraph::calls(seed, places).unwrap();
            // The third has two rings. The fourth has no file.
            let rings = match n {
                2 => 2,
                3 => continue,
                _ => 1,
            };
            let found = (calls.count(), calls.losses());
            let steps = u64::try_from(WAY.len() - 1).unwrap();
            assert_eq!(found, (rings * steps, 0), "{n}: {}", calls.summary());
        }
    }
}
