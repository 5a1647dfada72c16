// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A program whose every instruction is known: its file, its trace and a recording of it.

use std::fs;
use std::io::{Cursor, Seek, Write};

use intel_pt::insn::{Far, Insn, Kind, Mode};
use intel_pt::{Config, Encoder, Full, Output, Step};
use perfdata::{
    Attr, Aux, AuxFlags, Auxtrace, AuxtraceInfo, Comm, Features, FileId, FinishedInit, Flags,
    IdIndex, IdIndexEntry, Mmap2, SampleId, SampleType, Writer,
};
use tempfile::TempDir;

/// Address of offset 0 of the program's file.
pub const BASE: u64 = 0x40_0000;
/// The build-id of the file.
pub const BUILD_ID: [u8; 20] = [7; 20];

/// `main`, which calls and jumps.
pub const MAIN: u64 = BASE + 0x1000;
/// `f`, which `main` calls.
pub const F: u64 = BASE + 0x1020;
/// A function without a symbol.
pub const NAMELESS: u64 = BASE + 0x1040;
/// `tail`, to which `main` jumps at its end.
pub const TAIL: u64 = BASE + 0x1060;
/// A signal handler.
pub const HANDLER: u64 = BASE + 0x1080;
/// The code to which the signal handler returns.
pub const RESTORE: u64 = BASE + 0x10a0;

/// Names, addresses and lengths of the functions.
pub const SYMBOLS: [(&str, u64, u64); 5] = [
    ("main", MAIN, 0x10),
    ("f", F, 3),
    ("tail", TAIL, 2),
    ("handler", HANDLER, 4),
    ("_ZN7restore4rateEv", RESTORE, 7),
];

/// The program's text.
#[must_use]
pub fn text() -> Vec<u8> {
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
#[must_use]
pub fn program() -> Vec<u8> {
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

    // Executable, x86-64; a program header after this one; four sections and the empty one; names in the third.
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
pub struct Ring {
    /// Its content.
    pub bytes: Vec<u8>,
    /// The time stamp counter.
    pub time: u64,
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

/// A CPU that traces.
pub struct Cpu {
    /// The ring of its trace.
    pub ring: Ring,
    /// The encoder of its trace.
    pub pt: Encoder,
}

impl Cpu {
    /// A CPU that traces nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let mut cpu = Self {
            ring: Ring::default(),
            pt: Encoder::new(config),
        };
        cpu.pt.begin(false, &mut cpu.ring).unwrap();
        cpu
    }

    /// The program executes the instructions at these addresses, except the last. It is stopped there, unless it makes a system call
    /// before.
    pub fn run(&mut self, time: u64, ips: &[u64]) {
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

/// Writes the records before those of trace: the rings of `rings` CPUs, a process, and the program.
fn begin<W: Write + Seek>(
    out: W,
    rings: u32,
    decoder: u32,
    file: &[u8],
    build_id: Option<[u8; 20]>,
) -> Writer<W> {
    let attr = attr();
    let mut out = Writer::new(out, &[(attr.clone(), vec![9])]).unwrap();
    let entries: Vec<_> = (0..rings)
        .map(|n| IdIndexEntry {
            id: 9 + u64::from(n),
            idx: n.into(),
            cpu: n.into(),
            tid: -1,
        })
        .collect();
    out.record(&IdIndex(&entries), None).unwrap();
    // The time stamp counter is perf's clock.
    let info = AuxtraceInfo {
        kind: decoder,
        private: &[42, 0, 1, 0, 1],
    };
    out.record(&info, None).unwrap();
    out.record(&FinishedInit, None).unwrap();
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
        file: match build_id {
            Some(build_id) => FileId::BuildId(20, build_id),
            None => FileId::Inode {
                dev: (0, 1),
                ino: 2,
                generation: 3,
            },
        },
        prot: 5,
        flags: 2,
        filename: file,
    };
    out.record(&map, Some((&id(0, 2), &attr))).unwrap();
    out
}

fn attr() -> Attr {
    Attr {
        kind: 42,
        flags: Flags::SAMPLE_ID_ALL,
        sample_type: SampleType::IDENTIFIER | SampleType::TID | SampleType::TIME | SampleType::CPU,
        ..Attr::default()
    }
}

fn id(cpu: u32, time: u64) -> SampleId {
    SampleId {
        pid: Some(5),
        tid: Some(5),
        time: Some(time),
        id: Some(9),
        stream_id: None,
        cpu: Some(cpu),
    }
}

/// Writes the AUX record of a piece of a CPU's trace.
fn aux<W: Write + Seek>(out: &mut Writer<W>, cpu: u32, offset: u64, size: usize) {
    let aux = Aux {
        offset,
        size: u64::try_from(size).unwrap(),
        flags: AuxFlags::empty(),
    };
    out.record(&aux, Some((&id(cpu, 3), &attr()))).unwrap();
}

/// Writes a piece that the recorder has read from a CPU's trace.
fn piece<W: Write + Seek>(out: &mut Writer<W>, cpu: u32, offset: u64, bytes: &[u8]) {
    let piece = Auxtrace {
        size: u64::try_from(bytes.len()).unwrap(),
        offset,
        reference: 0,
        idx: cpu,
        tid: u32::MAX,
        cpu,
    };
    out.auxtrace(&piece).unwrap();
    out.payload(bytes).unwrap();
}

/// A recording of rings, one for each CPU.
#[must_use]
pub fn recording(
    rings: &[&[u8]],
    decoder: u32,
    file: impl AsRef<[u8]>,
    build_id: impl Into<Option<[u8; 20]>>,
) -> Vec<u8> {
    let count = u32::try_from(rings.len()).unwrap();
    let memory = Cursor::new(Vec::new());
    let mut out = begin(memory, count, decoder, file.as_ref(), build_id.into());
    for (cpu, bytes) in (0..).zip(rings) {
        aux(&mut out, cpu, 0, bytes.len());
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        // The pieces may end within a packet.
        for (start, bytes) in (0..).step_by(24).zip(bytes.chunks(24)) {
            piece(&mut out, cpu, start, bytes);
        }
    }
    out.finish(&Features::new()).unwrap().into_inner()
}

/// Writes a recording of one CPU with `len` bytes of trace, in pieces as a recorder reads them: a loop that calls a function, and is
/// interrupted each time.
pub fn long<W: Write + Seek>(out: W, len: u64) {
    const PIECE: usize = 64 << 10;
    const LOOP: [u64; 6] = [MAIN, F, F + 1, F + 2, MAIN + 5, MAIN];

    let mut out = begin(
        out,
        1,
        perfdata::auxtrace::INTEL_PT,
        b"/prog",
        Some(BUILD_ID),
    );
    // The defaults of `intel_pt`.
    let mut cpu = Cpu::new(Config {
        tsc: true,
        psb_period: 4096,
        ..Config::default()
    });
    let size = u64::try_from(PIECE).unwrap();
    for at in (0..len).step_by(PIECE) {
        // A packet may be cut between two pieces, but not at the end, which is padded with zeros.
        let space = if len - at > size { 0 } else { 256 };
        while cpu.ring.bytes.len() < PIECE - space {
            cpu.run(10, &LOOP);
        }
        if space != 0 {
            cpu.ring.bytes.resize(PIECE, 0);
        }
        aux(&mut out, 0, at, PIECE);
        piece(&mut out, 0, at, &cpu.ring.bytes[..PIECE]);
        cpu.ring.bytes.drain(..PIECE);
    }
    out.finish(&Features::new()).unwrap();
}

/// A directory with the program.
#[must_use]
pub fn root() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("prog"), program()).unwrap();
    dir
}

/// Runs of the program: calls, a loop, a system call that a signal interrupts, a tail call.
pub const RUNS: [&[u64]; 4] = [
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

/// Configurations of the encoder.
pub fn configs() -> impl Iterator<Item = Config> {
    [(true, 0), (false, 0), (true, 1), (true, 64)]
        .into_iter()
        .map(|(ret_compression, psb_period)| Config {
            tsc: true,
            ret_compression,
            psb_period,
            ..Default::default()
        })
}
