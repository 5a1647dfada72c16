// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Flame graphs of a program whose every instruction is known: its file, its trace and the recording are made here.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsStr;
use std::fs;
use std::io::Cursor;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use auxview::flamegraph::calls;
use intel_pt::insn::{Far, Insn, Kind, Mode};
use intel_pt::{Config, Encoder, Full, Output, Step};
use perfdata::{
    Attr, Aux, AuxFlags, Auxtrace, AuxtraceInfo, Comm, Features, FileId, FinishedInit, Flags,
    IdIndex, IdIndexEntry, Mmap2, SampleId, SampleType, Writer,
};
use tempfile::TempDir;

/// Where offset 0 of the program's file is.
const BASE: u64 = 0x40_0000;
const BUILD_ID: [u8; 20] = [7; 20];

const MAIN: u64 = BASE + 0x1000;
const F: u64 = BASE + 0x1020;
/// Without a symbol.
const NAMELESS: u64 = BASE + 0x1040;
const TAIL: u64 = BASE + 0x1060;
const HANDLER: u64 = BASE + 0x1080;
const RESTORE: u64 = BASE + 0x10a0;

const SYMBOLS: [(&str, u64, u64); 5] = [
    ("main", MAIN, 0x10),
    ("f", F, 3),
    ("tail", TAIL, 2),
    ("handler", HANDLER, 4),
    ("_ZN7restore4rateEv", RESTORE, 7),
];

/// The program's text.
fn text() -> Vec<u8> {
    let mut text = vec![0xf4; 0x100];
    let parts: [(u64, &[u8]); 6] = [
        (
            MAIN,
            &[
                0xe8, 0x1b, 0, 0, 0, // call f
                0x75, 0xf9, // jne main
                0xff, 0xd0, // call *rax
                0x0f, 0x05, // syscall
                0xe9, 0x50, 0, 0, 0, // jmp tail
            ],
        ),
        (F, &[0x90, 0x90, 0xc3]),
        (NAMELESS, &[0x90, 0xc3]),
        (TAIL, &[0x90, 0xc3]),
        (HANDLER, &[0x90, 0x90, 0x90, 0xc3]),
        (RESTORE, &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]),
    ];
    for (at, bytes) in parts {
        let at = usize::try_from(at - MAIN).unwrap();
        text[at..at + bytes.len()].copy_from_slice(bytes);
    }
    text
}

/// The program's file: one segment, symbols, a build-id.
fn program() -> Vec<u8> {
    let mut names = b"\0".to_vec();
    let mut symbols = vec![0; 24];
    for (name, at, size) in SYMBOLS {
        symbols.extend(u32::try_from(names.len()).unwrap().to_le_bytes());
        // A global function in section 1.
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend(at.to_le_bytes());
        symbols.extend(size.to_le_bytes());
        names.extend(name.bytes().chain([0]));
    }
    let mut note = [4_u32, 20, 3].map(u32::to_le_bytes).concat();
    note.extend(b"GNU\0");
    note.extend(BUILD_ID);

    let mut file = vec![0; 0x1000];
    file.extend(text());
    let mut sections = vec![[0; 8]];
    // Type, flags, address, contents, link, info, alignment, entry size.
    let mut add = |kind: u64, flags, address, bytes: &[u8], link: u64, entry| {
        let at = match address {
            0 => file.len(),
            _ => 0x1000,
        };
        if address == 0 {
            file.extend(bytes);
            file.resize(file.len().next_multiple_of(8), 0);
        }
        let size = u64::try_from(bytes.len()).unwrap();
        let at = u64::try_from(at).unwrap();
        sections.push([kind << 32, flags, address, at, size, link, 1, entry]);
    };
    add(1, 6, MAIN, &text(), 0, 0);
    add(2, 0, 0, &symbols, 3 | 1 << 32, 24);
    add(3, 0, 0, &names, 0, 0);
    add(7, 2, 0, &note, 0, 0);
    let table = u64::try_from(file.len()).unwrap();
    file.extend(
        sections
            .iter()
            .flatten()
            .flat_map(|word| word.to_le_bytes()),
    );

    // Executable, x86-64; a program header behind this one; four sections and the empty one; names in the third.
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    header.extend([MAIN, 64, table].map(u64::to_le_bytes).concat());
    header.extend(
        [0, 64 | 56 << 16, 1 | 64 << 16, 5 | 3 << 16]
            .map(u32::to_le_bytes)
            .concat(),
    );
    // Read and execute.
    let load = [1 | 5 << 32, 0x1000, MAIN, MAIN, 0x100, 0x100, 0x1000];
    header.extend(load.map(u64::to_le_bytes).concat());
    file[..header.len()].copy_from_slice(&header);
    file
}

/// A ring, and the clock of the machine.
#[derive(Default)]
struct Ring {
    bytes: Vec<u8>,
    time: u64,
}

impl Output for Ring {
    fn write(&mut self, bytes: &[u8], _: usize) -> Result<(), Full> {
        self.bytes.extend(bytes);
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        self.time += 1000;
        self.time
    }
}

/// What a CPU traces.
struct Cpu {
    ring: Ring,
    pt: Encoder,
}

impl Cpu {
    fn new(config: Config) -> Self {
        let mut cpu = Self {
            ring: Ring::default(),
            pt: Encoder::new(config),
        };
        cpu.pt.begin(false, &mut cpu.ring).unwrap();
        cpu
    }

    /// The program executes the instructions at these addresses, all but the last: it is stopped there, unless it makes a
    /// system call before.
    fn run(&mut self, time: u64, ips: &[u64]) {
        let text = text();
        self.ring.time = self.ring.time.max(time);
        self.pt
            .enable(ips[0], Mode::Bits64, &mut self.ring)
            .unwrap();
        for pair in ips.windows(2) {
            let at = usize::try_from(pair[0] - MAIN).unwrap();
            let insn = Insn::decode(&text[at..], Mode::Bits64).unwrap();
            if insn.kind == Kind::Far(Far::Syscall) {
                self.pt.far(&mut self.ring).unwrap();
                return;
            }
            let step = Step {
                insn,
                from: pair[0],
                to: pair[1],
                mode: Mode::Bits64,
            };
            self.pt.step(&step, &mut self.ring).unwrap();
        }
        self.pt.disable(ips[ips.len() - 1], &mut self.ring).unwrap();
    }
}

/// A recording of rings, a CPU each.
fn recording(rings: &[&[u8]], decoder: u32, file: impl AsRef<[u8]>, build_id: [u8; 20]) -> Vec<u8> {
    let attr = Attr {
        kind: 42,
        flags: Flags::SAMPLE_ID_ALL,
        sample_type: SampleType::IDENTIFIER | SampleType::TID | SampleType::TIME | SampleType::CPU,
        ..Attr::default()
    };
    let mut out = Writer::new(Cursor::new(Vec::new()), &[(attr.clone(), vec![9])]).unwrap();
    let number = |n: usize| u32::try_from(n).unwrap();
    let entries: Vec<_> = (0..rings.len())
        .map(|n| IdIndexEntry {
            id: 9 + u64::from(number(n)),
            idx: number(n).into(),
            cpu: number(n).into(),
            tid: -1,
        })
        .collect();
    out.record(&IdIndex(&entries), None).unwrap();
    // The processor's clock is perf's.
    let info = AuxtraceInfo {
        kind: decoder,
        private: &[42, 0, 1, 0, 1],
    };
    out.record(&info, None).unwrap();
    out.record(&FinishedInit, None).unwrap();
    let id = |cpu, time| SampleId {
        pid: Some(5),
        tid: Some(5),
        time: Some(time),
        id: Some(9),
        stream_id: None,
        cpu: Some(cpu),
    };
    let comm = Comm {
        pid: 5,
        tid: 5,
        exec: true,
        comm: b"prog",
    };
    out.record(&comm, Some((&id(0, 1), &attr))).unwrap();
    let map = Mmap2 {
        pid: 5,
        tid: 5,
        addr: MAIN,
        len: 0x1000,
        pgoff: 0x1000,
        file: FileId::BuildId(20, build_id),
        prot: 5,
        flags: 2,
        filename: file.as_ref(),
    };
    out.record(&map, Some((&id(0, 2), &attr))).unwrap();
    for (n, bytes) in rings.iter().enumerate() {
        let aux = Aux {
            offset: 0,
            size: u64::try_from(bytes.len()).unwrap(),
            flags: AuxFlags::empty(),
        };
        out.record(&aux, Some((&id(number(n), 3), &attr))).unwrap();
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        // In pieces that may be cut within a packet.
        for (start, piece) in (0..).step_by(24).zip(bytes.chunks(24)) {
            let aux = Auxtrace {
                size: u64::try_from(piece.len()).unwrap(),
                offset: start,
                reference: 0,
                idx: number(n),
                tid: u32::MAX,
                cpu: number(n),
            };
            out.auxtrace(&aux).unwrap();
            out.payload(piece).unwrap();
        }
    }
    out.finish(&Features::new()).unwrap().into_inner()
}

/// A directory with the program.
fn root() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("prog"), program()).unwrap();
    dir
}

fn folded(recording: &[u8], root: &Path) -> (String, u64) {
    let calls = calls(recording, root).unwrap();
    let mut text = Vec::new();
    calls.fold(&mut text).unwrap();
    (String::from_utf8(text).unwrap(), calls.losses())
}

/// Calls, a loop, a system call into which a signal comes, a tail call.
const RUNS: [&[u64]; 4] = [
    &[
        MAIN,
        F,
        F + 1,
        F + 2,
        MAIN + 5,
        MAIN,
        F,
        F + 1,
        F + 2,
        MAIN + 5,
        MAIN + 7,
        NAMELESS,
        NAMELESS + 1,
        MAIN + 9,
        0,
    ],
    &[
        HANDLER,
        HANDLER + 1,
        HANDLER + 2,
        HANDLER + 3,
        RESTORE,
        RESTORE + 5,
        0,
    ],
    &[MAIN + 11, TAIL],
    &[TAIL, TAIL + 1],
];

const FOLDED: &str = "\
prog;main 7
prog;main;f 6
prog;main;handler 4
prog;main;prog+0x1040 2
prog;main;restore::rate() 2
prog;tail 1
";

fn configs() -> impl Iterator<Item = Config> {
    [(true, 0), (false, 0), (true, 1), (true, 64)]
        .into_iter()
        .map(|(ret_compression, psb_period)| Config {
            tsc: true,
            ret_compression,
            psb_period,
            ..Default::default()
        })
}

#[test]
fn every_instruction_is_counted_where_it_was() {
    let root = root();
    for config in configs() {
        let mut cpu = Cpu::new(config);
        for run in RUNS {
            cpu.run(10, run);
        }
        let made = recording(&[&cpu.ring.bytes], 1, "/prog", BUILD_ID);
        let (text, losses) = folded(&made, root.path());
        assert_eq!((text.as_str(), losses), (FOLDED, 0), "{config:?}");

        let picture = calls(&made, root.path()).unwrap().draw().unwrap();
        let picture = String::from_utf8(picture).unwrap();
        assert!(picture.starts_with("<?xml") && picture.contains("restore::rate()"));
    }
}

#[test]
fn a_name_that_is_not_utf8() {
    let root = root();
    let name = OsStr::from_bytes(b"pro\xffg");
    fs::rename(root.path().join("prog"), root.path().join(name)).unwrap();
    let mut cpu = Cpu::new(configs().next().unwrap());
    for run in RUNS {
        cpu.run(10, run);
    }
    let made = recording(&[&cpu.ring.bytes], 1, b"/pro\xffg", BUILD_ID);
    let want = FOLDED.replace("prog+", "pro\u{fffd}g+");
    assert_eq!(folded(&made, root.path()), (want, 0));
}

/// A thread that is stopped after each instruction, and goes on on the other CPU.
#[test]
fn calls_are_kept_when_the_cpu_changes() {
    let root = root();
    for config in configs() {
        let mut cpus = [Cpu::new(config), Cpu::new(config)];
        let mut time = 0;
        for run in RUNS {
            for (n, pair) in run.windows(2).enumerate() {
                time += 1_000_000;
                cpus[n % 2].run(time, pair);
            }
        }
        let rings = cpus.each_ref().map(|cpu| cpu.ring.bytes.as_slice());
        let made = recording(&rings, 1, "/prog", BUILD_ID);
        let (text, losses) = folded(&made, root.path());
        assert_eq!((text.as_str(), losses), (FOLDED, 0), "{config:?}");
    }
}

/// Where only some code is traced, each visit stands where it was called, as far as that is seen.
#[test]
fn code_that_is_not_traced_is_left_out() {
    let root = root();
    let f: &[u64] = &[F, F + 1, F + 2, MAIN + 5];
    let main: [&[u64]; 4] = [
        &[MAIN, F],
        &[MAIN + 5, MAIN, F],
        &[MAIN + 5, MAIN + 7, NAMELESS],
        &[MAIN + 9, 0],
    ];
    for (runs, want) in [([f; 4], "prog;f 12\n"), (main, "prog;main 6\n")] {
        for config in configs() {
            let mut cpu = Cpu::new(config);
            for run in runs {
                cpu.run(10, run);
            }
            let made = recording(&[&cpu.ring.bytes], 1, "/prog", BUILD_ID);
            let (text, losses) = folded(&made, root.path());
            assert_eq!((text.as_str(), losses), (want, 0), "{config:?}");
        }
    }
}

/// After a part that is wrong, the next place to begin is taken.
#[test]
fn what_is_wrong_is_said_and_left_out() {
    let root = root();
    let mut good = Cpu::new(configs().next().unwrap());
    for run in RUNS {
        good.run(10, run);
    }
    let all = &good.ring.bytes;
    let (first, count) = folded(&recording(&[all], 1, "/prog", BUILD_ID), root.path());
    assert_eq!((first.as_str(), count), (FOLDED, 0));

    // What is not from the program: a long TNT in front of a bad packet, and text that is not there.
    let mut stranger = Cpu::new(configs().next().unwrap());
    stranger
        .pt
        .enable(0x1234, Mode::Bits64, &mut stranger.ring)
        .unwrap();
    // The first byte of a TSC is the last of all.
    let mut cut = all.clone();
    cut.resize(all.len().next_multiple_of(8) + 7, 0);
    cut.push(0x19);
    for (wrong, why) in [
        (
            [stranger.ring.bytes.as_slice(), all].concat(),
            "no record tells of",
        ),
        ([&all[..40], all].concat(), "packet"),
        ([all.as_slice(), &[0x02, 0xff]].concat(), "no packet"),
        (cut, "cut"),
        (vec![0xff; 64], "PSB"),
    ] {
        let made = recording(&[&wrong], 1, "/prog", BUILD_ID);
        let found = calls(&made, root.path()).unwrap();
        assert_eq!(found.losses(), 1, "{why}: {}", found.summary());
        assert!(found.summary().contains(why), "{why}: {}", found.summary());
        if why != "PSB" {
            assert!(found.count() >= 22, "{why}: {}", found.summary());
        } else {
            assert!(found
                .draw()
                .unwrap_err()
                .to_string()
                .contains("nothing to draw"));
        }
    }
}

/// A recording of somebody else's can name any file.
#[test]
fn names_of_other_files_are_refused() {
    let root = root();
    let inner = root.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let mut cpu = Cpu::new(configs().next().unwrap());
    cpu.run(10, RUNS[0]);
    for (root, file, why) in [
        (&*inner, "/../prog", "No such file"),
        (Path::new("/"), "/proc/kmsg", "it is in procfs"),
        (root.path(), "/\x1b[2J", "/\\u{1b}[2J, which cannot be read"),
    ] {
        let made = recording(&[&cpu.ring.bytes], 1, file, BUILD_ID);
        let error = calls(&made, root).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    // The way that leads to it from there.
    let made = recording(&[&cpu.ring.bytes], 1, "/inner/../../prog", BUILD_ID);
    assert!(calls(&made, root.path()).is_ok());
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    let root = root();
    fs::write(root.path().join("text"), "no program").unwrap();
    let mut cpu = Cpu::new(configs().next().unwrap());
    cpu.run(10, RUNS[0]);
    let bytes = cpu.ring.bytes.as_slice();

    for (made, why) in [
        (
            recording(&[bytes], 1, "/gone", BUILD_ID),
            "/gone, which cannot be read",
        ),
        (
            recording(&[bytes], 1, "/text", BUILD_ID),
            "/text, which cannot be read",
        ),
        (
            recording(&[bytes], 1, "/", BUILD_ID),
            "it is no regular file",
        ),
        (
            recording(&[bytes], 1, "/prog", [8; 20]),
            "its build-id is 0707",
        ),
        (
            recording(&[bytes], 2, "/prog", BUILD_ID),
            "no trace of Intel PT",
        ),
    ] {
        let error = calls(&made, root.path()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
