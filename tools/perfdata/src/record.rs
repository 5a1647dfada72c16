// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The records of the data section: what the kernel writes into its ring, and what recorders add.
//!
//! Each record that can be written implements [`Encode`]; [`Event`] is what reading gives. A record of the kernel ends with a
//! [`SampleId`] when its event asks for one; records of user space ([`RecordType::is_user`]) never have one.

use crate::attr::{Attr, ReadFormat, SampleType};
use crate::bytes::{padding, to_u64, until_nul, Cursor};
use crate::{Error, Result};

macro_rules! record_types {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal,)*) => {
        /// `perf_event_header.type`.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct RecordType(pub u32);

        impl RecordType {
            $($(#[doc = $doc])+ pub const $name: Self = Self($value);)*

            /// The name without `PERF_RECORD_`, if it is known.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

record_types! {
    /// Executable mapping.
    MMAP = 1,
    /// Records that found no room in the data ring.
    LOST = 2,
    /// A thread's name.
    COMM = 3,
    /// A thread's end.
    EXIT = 4,
    /// Too many interrupts.
    THROTTLE = 5,
    /// The end of that.
    UNTHROTTLE = 6,
    /// A new thread.
    FORK = 7,
    /// A counter's value.
    READ = 8,
    /// A sample.
    SAMPLE = 9,
    /// Mapping with inode or build-id.
    MMAP2 = 10,
    /// Data was written into the AUX area.
    AUX = 11,
    /// Tracing of a thread began.
    ITRACE_START = 12,
    /// Samples that were lost.
    LOST_SAMPLES = 13,
    /// Context switch of the traced task.
    SWITCH = 14,
    /// Context switch of a traced CPU.
    SWITCH_CPU_WIDE = 15,
    /// Namespaces.
    NAMESPACES = 16,
    /// Kernel symbol.
    KSYMBOL = 17,
    /// BPF program.
    BPF_EVENT = 18,
    /// Cgroup.
    CGROUP = 19,
    /// Kernel text changed.
    TEXT_POKE = 20,
    /// Which hardware id an AUX output has.
    AUX_OUTPUT_HW_ID = 21,
    /// Every ring was looked at once.
    FINISHED_ROUND = 68,
    /// Which event has which id.
    ID_INDEX = 69,
    /// What a decoder must know.
    AUXTRACE_INFO = 70,
    /// A piece of the AUX area; its payload follows.
    AUXTRACE = 71,
    /// A decoder's complaint.
    AUXTRACE_ERROR = 72,
    /// Threads that are recorded.
    THREAD_MAP = 73,
    /// CPUs that are recorded.
    CPU_MAP = 74,
    /// From the cycle counter to perf's clock.
    TIME_CONV = 79,
    /// The synthesised records are all written.
    FINISHED_INIT = 82,
    /// A part of a piece of the AUX area, compressed: see [`AuxtraceZstd`]. The number is `AUXZ`, far from those of perf, which
    /// steps over records that it does not know.
    AUXTRACE_ZSTD = 0x5a58_5541,
}

impl RecordType {
    /// Whether a recorder wrote it, rather than the kernel.
    #[must_use]
    pub fn is_user(self) -> bool {
        self.0 >= 64
    }
}

impl std::fmt::Debug for RecordType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "RecordType({})", self.0),
        }
    }
}

bitflags::bitflags! {
    /// `flags` of [`Aux`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AuxFlags: u64 {
        /// The record was cut off: there was no room for all of it.
        const TRUNCATED = 1 << 0;
        /// The area was mapped for overwriting.
        const OVERWRITE = 1 << 1;
        /// There are gaps in the record.
        const PARTIAL = 1 << 2;
        /// The record collided with another.
        const COLLISION = 1 << 3;
        /// Which format the PMU wrote.
        const PMU_FORMAT = 0xff00;
        const _ = !0;
    }
}

impl AuxFlags {
    /// The names of the flags that are set, joined by `+`; `-` if none is.
    #[must_use]
    pub fn names(self) -> String {
        let mut names: Vec<String> = Vec::new();
        for (flag, name) in [
            (Self::TRUNCATED, "TRUNCATED"),
            (Self::OVERWRITE, "OVERWRITE"),
            (Self::PARTIAL, "PARTIAL"),
            (Self::COLLISION, "COLLISION"),
        ] {
            if self.contains(flag) {
                names.push(name.to_owned());
            }
        }
        let format = self.intersection(Self::PMU_FORMAT).bits() >> 8;
        if format != 0 {
            names.push(format!("FORMAT({format})"));
        }
        let rest = self.bits() & !0xff0f;
        if rest != 0 {
            names.push(format!("{rest:#x}"));
        }
        if names.is_empty() {
            "-".to_owned()
        } else {
            names.join("+")
        }
    }
}

/// A record that can be written.
pub trait Encode {
    /// Its type.
    const KIND: RecordType;

    /// `misc` of its header.
    fn misc(&self) -> u16 {
        0
    }

    /// Appends what stands between the header and the sample id.
    fn encode(&self, out: &mut Vec<u8>);
}

fn put_str(out: &mut Vec<u8>, text: &[u8]) {
    let text = until_nul(text);
    out.extend(text);
    // At least one NUL, and the next field in its place.
    let pad = padding(text.len());
    out.resize(out.len() + if pad == 0 { 8 } else { pad }, 0);
}

/// Who, when and where: the end of each record of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleId {
    /// Process.
    pub pid: Option<u32>,
    /// Thread.
    pub tid: Option<u32>,
    /// Time by the event's clock, ns.
    pub time: Option<u64>,
    /// Id of the event (of `ID` or `IDENTIFIER`).
    pub id: Option<u64>,
    /// Id of the very event.
    pub stream_id: Option<u64>,
    /// CPU.
    pub cpu: Option<u32>,
}

/// The bits of a sample type that a sample id has room for.
const IN_SAMPLE_ID: SampleType = SampleType::TID
    .union(SampleType::TIME)
    .union(SampleType::ID)
    .union(SampleType::STREAM_ID)
    .union(SampleType::CPU)
    .union(SampleType::IDENTIFIER);

impl SampleId {
    /// How long it is for events of this sample type.
    #[must_use]
    pub fn len(kind: SampleType) -> usize {
        usize::try_from((kind & IN_SAMPLE_ID).bits().count_ones() * 8).unwrap_or(0)
    }

    /// Appends it; what is asked for and not known is 0.
    pub fn encode(&self, kind: SampleType, out: &mut Vec<u8>) {
        if kind.contains(SampleType::TID) {
            out.extend(self.pid.unwrap_or(0).to_le_bytes());
            out.extend(self.tid.unwrap_or(0).to_le_bytes());
        }
        if kind.contains(SampleType::TIME) {
            out.extend(self.time.unwrap_or(0).to_le_bytes());
        }
        if kind.contains(SampleType::ID) {
            out.extend(self.id.unwrap_or(0).to_le_bytes());
        }
        if kind.contains(SampleType::STREAM_ID) {
            out.extend(self.stream_id.unwrap_or(0).to_le_bytes());
        }
        if kind.contains(SampleType::CPU) {
            out.extend(self.cpu.unwrap_or(0).to_le_bytes());
            out.extend([0; 4]);
        }
        if kind.contains(SampleType::IDENTIFIER) {
            out.extend(self.id.unwrap_or(0).to_le_bytes());
        }
    }

    fn decode(kind: SampleType, c: &mut Cursor<'_>) -> Result<Self> {
        let mut out = Self::default();
        if kind.contains(SampleType::TID) {
            out.pid = Some(c.u32("sample_id.pid")?);
            out.tid = Some(c.u32("sample_id.tid")?);
        }
        if kind.contains(SampleType::TIME) {
            out.time = Some(c.u64("sample_id.time")?);
        }
        if kind.contains(SampleType::ID) {
            out.id = Some(c.u64("sample_id.id")?);
        }
        if kind.contains(SampleType::STREAM_ID) {
            out.stream_id = Some(c.u64("sample_id.stream_id")?);
        }
        if kind.contains(SampleType::CPU) {
            out.cpu = Some(c.u32("sample_id.cpu")?);
            c.u32("sample_id.res")?;
        }
        if kind.contains(SampleType::IDENTIFIER) {
            out.id = Some(c.u64("sample_id.identifier")?);
        }
        Ok(out)
    }
}

/// A piece of trace was written into the AUX area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aux {
    /// Where, in bytes since the area began to be written. With [`AuxFlags::OVERWRITE`]: where the head is afterwards.
    pub offset: u64,
    /// How much.
    pub size: u64,
    /// How it went.
    pub flags: AuxFlags,
}

impl Encode for Aux {
    const KIND: RecordType = RecordType::AUX;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.offset.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        out.extend(self.flags.bits().to_le_bytes());
    }
}

/// Tracing of a thread began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItraceStart {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
}

impl Encode for ItraceStart {
    const KIND: RecordType = RecordType::ITRACE_START;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.pid.to_le_bytes());
        out.extend(self.tid.to_le_bytes());
    }
}

/// Records found no room in the data ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// Id of the event.
    pub id: u64,
    /// How many records.
    pub lost: u64,
}

impl Encode for Lost {
    const KIND: RecordType = RecordType::LOST;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.id.to_le_bytes());
        out.extend(self.lost.to_le_bytes());
    }
}

/// A thread's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comm<'a> {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Whether an exec gave it.
    pub exec: bool,
    /// The name; it ends at the first NUL.
    pub comm: &'a [u8],
}

impl Encode for Comm<'_> {
    const KIND: RecordType = RecordType::COMM;
    fn misc(&self) -> u16 {
        if self.exec {
            MISC_COMM_EXEC
        } else {
            0
        }
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.pid.to_le_bytes());
        out.extend(self.tid.to_le_bytes());
        put_str(out, self.comm);
    }
}

/// `misc` of a COMM that comes from an exec.
pub const MISC_COMM_EXEC: u16 = 1 << 13;
/// `misc` of a context switch away from a thread.
pub const MISC_SWITCH_OUT: u16 = 1 << 13;
/// `misc` of a record about user space.
pub const MISC_USER: u16 = 2;

/// Code of the kernel: its own text, or a module's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelMmap<'a> {
    /// First address.
    pub addr: u64,
    /// Length.
    pub len: u64,
    /// For the kernel's own text the address of the symbol that names it; else 0.
    pub pgoff: u64,
    /// `[kernel.kallsyms]_text`, or the module in brackets; it ends at the first NUL.
    pub filename: &'a [u8],
}

impl Encode for KernelMmap<'_> {
    const KIND: RecordType = RecordType::MMAP;
    fn misc(&self) -> u16 {
        MISC_KERNEL
    }
    fn encode(&self, out: &mut Vec<u8>) {
        // Of no process.
        out.extend(u32::MAX.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.addr.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend(self.pgoff.to_le_bytes());
        put_str(out, self.filename);
    }
}

/// `misc` of a record about the kernel.
pub const MISC_KERNEL: u16 = 1;

/// `misc` of an MMAP2 that has a build-id.
pub const MISC_BUILD_ID: u16 = 1 << 14;

/// Which file is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileId {
    /// By its inode.
    Inode {
        /// Device number, major and minor.
        dev: (u32, u32),
        /// Inode.
        ino: u64,
        /// Inode's generation.
        generation: u64,
    },
    /// By what its linker has written into it: so many bytes of these.
    BuildId(u8, [u8; 20]),
}

impl FileId {
    /// The build-id.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        match self {
            Self::Inode { .. } => None,
            Self::BuildId(len, bytes) => bytes.get(..usize::from(*len)),
        }
    }
}

/// An executable mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mmap2<'a> {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// First address.
    pub addr: u64,
    /// Length.
    pub len: u64,
    /// Where in the file.
    pub pgoff: u64,
    /// Which file.
    pub file: FileId,
    /// Protection.
    pub prot: u32,
    /// Flags of mmap.
    pub flags: u32,
    /// The file; it ends at the first NUL.
    pub filename: &'a [u8],
}

impl Encode for Mmap2<'_> {
    const KIND: RecordType = RecordType::MMAP2;
    fn misc(&self) -> u16 {
        match self.file {
            FileId::Inode { .. } => MISC_USER,
            FileId::BuildId(..) => MISC_USER | MISC_BUILD_ID,
        }
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.pid.to_le_bytes());
        out.extend(self.tid.to_le_bytes());
        out.extend(self.addr.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend(self.pgoff.to_le_bytes());
        match self.file {
            FileId::Inode {
                dev,
                ino,
                generation,
            } => {
                out.extend(dev.0.to_le_bytes());
                out.extend(dev.1.to_le_bytes());
                out.extend(ino.to_le_bytes());
                out.extend(generation.to_le_bytes());
            }
            FileId::BuildId(len, bytes) => {
                out.extend([len, 0, 0, 0]);
                out.extend(bytes);
            }
        }
        out.extend(self.prot.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        put_str(out, self.filename);
    }
}

/// A thread's birth ([`RecordType::FORK`]) or end ([`RecordType::EXIT`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Process.
    pub pid: u32,
    /// Parent process.
    pub ppid: u32,
    /// Thread.
    pub tid: u32,
    /// Parent thread.
    pub ptid: u32,
    /// When.
    pub time: u64,
}

/// A counter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// What was counted.
    pub value: u64,
    /// How long the event was enabled, ns.
    pub enabled: u64,
    /// How long it ran, ns.
    pub running: u64,
    /// Its id.
    pub id: u64,
}

impl Read {
    /// The `read_format` of events whose counters are to be written as [`Read`].
    pub const FORMAT: ReadFormat = ReadFormat::TOTAL_TIME_ENABLED
        .union(ReadFormat::TOTAL_TIME_RUNNING)
        .union(ReadFormat::ID);
}

impl Encode for Read {
    const KIND: RecordType = RecordType::READ;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.pid.to_le_bytes());
        out.extend(self.tid.to_le_bytes());
        out.extend(self.value.to_le_bytes());
        out.extend(self.enabled.to_le_bytes());
        out.extend(self.running.to_le_bytes());
        out.extend(self.id.to_le_bytes());
    }
}

/// Where an event's records and trace go: ring, CPU, thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdIndexEntry {
    /// Id of the event.
    pub id: u64,
    /// Number of the ring.
    pub idx: u64,
    /// CPU, or -1.
    pub cpu: i64,
    /// Thread, or -1.
    pub tid: i64,
}

/// Which event has which id. A record holds at most [`IdIndex::MAX`] entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdIndex<'a>(pub &'a [IdIndexEntry]);

impl IdIndex<'_> {
    /// As many entries as fit into a record with room for what newer layouts add to each.
    pub const MAX: usize = 1364;
}

impl Encode for IdIndex<'_> {
    const KIND: RecordType = RecordType::ID_INDEX;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(to_u64(self.0.len()).to_le_bytes());
        for entry in self.0 {
            out.extend(entry.id.to_le_bytes());
            out.extend(entry.idx.to_le_bytes());
            out.extend(entry.cpu.to_le_bytes());
            out.extend(entry.tid.to_le_bytes());
        }
    }
}

/// What a decoder must know about the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuxtraceInfo<'a> {
    /// Which decoder: 1 `intel_pt`, 2 `intel_bts`, …
    pub kind: u32,
    /// What it wants to know, in its own order.
    pub private: &'a [u64],
}

impl Encode for AuxtraceInfo<'_> {
    const KIND: RecordType = RecordType::AUXTRACE_INFO;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.kind.to_le_bytes());
        out.extend([0; 4]);
        for word in self.private {
            out.extend(word.to_le_bytes());
        }
    }
}

/// A piece of an AUX area; its payload follows the record and is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Auxtrace {
    /// Length of the payload: a multiple of 8.
    pub size: u64,
    /// Where the payload begins, in bytes since the area began to be written.
    pub offset: u64,
    /// When it was read.
    pub reference: u64,
    /// Number of the ring.
    pub idx: u32,
    /// Thread of the ring, or [`u32::MAX`].
    pub tid: u32,
    /// CPU of the ring, or [`u32::MAX`].
    pub cpu: u32,
}

impl Encode for Auxtrace {
    const KIND: RecordType = RecordType::AUXTRACE;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.size.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.reference.to_le_bytes());
        out.extend(self.idx.to_le_bytes());
        out.extend(self.tid.to_le_bytes());
        out.extend(self.cpu.to_le_bytes());
        out.extend([0; 4]);
    }
}

impl Auxtrace {
    pub(crate) fn decode(c: &mut Cursor<'_>) -> Result<Self> {
        let at = c.offset();
        let size = c.u64("AUXTRACE.size")?;
        if size % 8 != 0 {
            return Err(Error::Invalid {
                field: "AUXTRACE.size",
                offset: at,
                value: size,
                why: "not a multiple of 8",
            });
        }
        Ok(Self {
            size,
            offset: c.u64("AUXTRACE.offset")?,
            reference: c.u64("AUXTRACE.reference")?,
            idx: c.u32("AUXTRACE.idx")?,
            tid: c.u32("AUXTRACE.tid")?,
            cpu: c.u32("AUXTRACE.cpu")?,
        })
    }
}

/// A part of a piece of the AUX area, compressed by zstd.
///
/// A piece, as [`Auxtrace`] describes it, is cut into parts of at most [`MAX`](Self::MAX) bytes, and each is a frame of its own, within a
/// record of the usual kind. So a reader that knows nothing of it steps over it, and of a file that was cut off all parts but the last
/// are good. Nothing is compressed here: the frame is bytes.
///
/// The plain part is at most [`RATIO`](Self::RATIO) times as long as its record, which zeros behind the frame see to: so a file says how
/// much memory its content takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AuxtraceZstd<'a> {
    /// The whole piece: its size is that of all parts together, not compressed.
    pub aux: Auxtrace,
    /// Where in the piece this part begins: a multiple of 8.
    pub at: u64,
    /// Length of the part, not compressed: a multiple of 8.
    pub len: u32,
    /// The part, compressed.
    pub frame: &'a [u8],
}

impl<'a> AuxtraceZstd<'a> {
    /// The longest part: its frame finds room in a record even if it cannot be compressed.
    pub const MAX: u32 = 60 * 1024;
    /// No part is more than so many times as long as its record.
    pub const RATIO: u32 = 16;
    /// Header and fields.
    const FRONT: usize = 8 + 40 + 16;

    fn decode(c: &mut Cursor<'a>) -> Result<Self> {
        let aux = Auxtrace::decode(c)?;
        c.take(4, "AUXTRACE_ZSTD.reserved")?;
        let at_place = c.offset();
        let at = c.u64("AUXTRACE_ZSTD.at")?;
        let len_place = c.offset();
        let len = c.u32("AUXTRACE_ZSTD.len")?;
        let frame = usize::try_from(c.u32("AUXTRACE_ZSTD.frame")?).unwrap_or(usize::MAX);
        let room = to_u64(Self::FRONT + c.left()) * u64::from(Self::RATIO);
        let invalid = |field, offset, value, why| Error::Invalid {
            field,
            offset,
            value,
            why,
        };
        if len == 0 || len % 8 != 0 || len > Self::MAX || u64::from(len) > room {
            let why = "no multiple of 8 of the length that a part can have";
            return Err(invalid("AUXTRACE_ZSTD.len", len_place, len.into(), why));
        }
        if at % 8 != 0 || at.checked_add(len.into()).is_none_or(|end| end > aux.size) {
            let why = "the part is not within its piece";
            return Err(invalid("AUXTRACE_ZSTD.at", at_place, at, why));
        }
        let frame = c.take(frame, "AUXTRACE_ZSTD frame")?;
        Ok(Self {
            aux,
            at,
            len,
            frame,
        })
    }
}

impl Encode for AuxtraceZstd<'_> {
    const KIND: RecordType = RecordType::AUXTRACE_ZSTD;
    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        self.aux.encode(out);
        out.extend(self.at.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        let frame = u32::try_from(self.frame.len()).unwrap_or(u32::MAX);
        out.extend(frame.to_le_bytes());
        out.extend(self.frame);
        let len = out.len() - start + 8;
        let least = usize::try_from(self.len.div_ceil(Self::RATIO)).unwrap_or(0);
        let len = len.max(least).next_multiple_of(8);
        out.resize(start + len - 8, 0);
    }
}

/// How to make perf's clock from the cycle counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeConv {
    /// `time_shift` of the user page.
    pub shift: u64,
    /// `time_mult` of the user page.
    pub mult: u64,
    /// `time_zero` of the user page.
    pub zero: u64,
    /// `time_cycles` of the user page.
    pub cycles: u64,
    /// `time_mask` of the user page.
    pub mask: u64,
    /// Whether `zero` is valid.
    pub cap_zero: bool,
    /// Whether `cycles` and `mask` are.
    pub cap_short: bool,
}

impl Encode for TimeConv {
    const KIND: RecordType = RecordType::TIME_CONV;
    fn encode(&self, out: &mut Vec<u8>) {
        for word in [self.shift, self.mult, self.zero, self.cycles, self.mask] {
            out.extend(word.to_le_bytes());
        }
        out.extend([
            u8::from(self.cap_zero),
            u8::from(self.cap_short),
            0,
            0,
            0,
            0,
            0,
            0,
        ]);
    }
}

/// Every ring was looked at once: a reader may sort what it has and hand it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishedRound;

impl Encode for FinishedRound {
    const KIND: RecordType = RecordType::FINISHED_ROUND;
    fn encode(&self, _: &mut Vec<u8>) {}
}

/// The synthesised records are all written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishedInit;

impl Encode for FinishedInit {
    const KIND: RecordType = RecordType::FINISHED_INIT;
    fn encode(&self, _: &mut Vec<u8>) {}
}

/// What a record says, where it is of a kind that is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// See [`Lost`].
    Lost(Lost),
    /// See [`Comm`].
    Comm(Comm<'a>),
    /// See [`Task`].
    Fork(Task),
    /// See [`Task`].
    Exit(Task),
    /// See [`Read`].
    Read(Read),
    /// See [`KernelMmap`]; of a process only by old kernels.
    Mmap(KernelMmap<'a>),
    /// See [`Mmap2`].
    Mmap2(Mmap2<'a>),
    /// See [`Aux`].
    Aux(Aux),
    /// See [`ItraceStart`].
    ItraceStart(ItraceStart),
    /// A context switch: `true` for away from the thread (of [`RecordType::SWITCH_CPU_WIDE`] the process and thread that come next, or went before).
    Switch(bool, Option<(u32, u32)>),
    /// A symbol of the kernel has come, or (`true`) gone: address, length, name.
    Ksymbol(bool, u64, u32, &'a [u8]),
    /// Kernel text was changed: address, bytes before, bytes after.
    TextPoke(u64, &'a [u8], &'a [u8]),
    /// Which hardware id an AUX output has.
    AuxOutputHwId(u64),
    /// How many samples were lost.
    LostSamples(u64),
    /// See [`AuxtraceInfo`]: kind, and the private words as bytes.
    AuxtraceInfo(u32, &'a [u8]),
    /// See [`Auxtrace`]; the payload is the second.
    Auxtrace(Auxtrace, &'a [u8]),
    /// See [`AuxtraceZstd`].
    AuxtraceZstd(AuxtraceZstd<'a>),
    /// Of a kind whose content is not taken apart here.
    Other(RecordType),
}

/// Where the time is in the records of an event, if they have one: the length of their sample ids, and what is before it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimePlace(Option<(usize, usize)>);

impl TimePlace {
    /// Of this event.
    #[must_use]
    pub fn of(attr: &Attr) -> Self {
        let (all, kind) = (crate::Flags::SAMPLE_ID_ALL, attr.sample_type);
        let has = attr.flags.contains(all) && kind.contains(SampleType::TIME);
        let before = SampleId::len(kind & SampleType::TID);
        Self(has.then(|| (SampleId::len(kind), before)))
    }
}

/// A record as it stands in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where its header is in the file.
    pub offset: u64,
    /// Its type.
    pub kind: RecordType,
    /// `misc` of its header.
    pub misc: u16,
    /// What follows the header, sample id included.
    pub body: &'a [u8],
    /// What follows the record: only AUXTRACE has this.
    pub payload: &'a [u8],
}

impl<'a> Record<'a> {
    fn cursor(&self, body: &'a [u8]) -> Cursor<'a> {
        Cursor::new(body, self.offset.saturating_add(8))
    }

    /// The sample id, and what of the body stands before it. `attr` is the record's event.
    ///
    /// # Errors
    /// If the record is shorter than the sample id.
    pub fn sample_id(&self, attr: &Attr) -> Result<(Option<SampleId>, &'a [u8])> {
        if self.kind.is_user()
            || self.kind == RecordType::SAMPLE
            || !attr.flags.contains(crate::Flags::SAMPLE_ID_ALL)
        {
            return Ok((None, self.body));
        }
        let len = SampleId::len(attr.sample_type);
        let Some(at) = self.body.len().checked_sub(len) else {
            return Err(Error::Short {
                field: "sample_id",
                offset: self.offset,
                need: to_u64(len),
                have: to_u64(self.body.len()),
            });
        };
        let (body, tail) = self.body.split_at(at);
        let mut c = Cursor::new(
            tail,
            self.offset.saturating_add(8).saturating_add(to_u64(at)),
        );
        Ok((Some(SampleId::decode(attr.sample_type, &mut c)?), body))
    }

    /// When the kernel wrote it, if that stands in its sample id: what [`sample_id`](Self::sample_id) says too, and for less.
    #[must_use]
    #[inline]
    pub fn time(&self, place: TimePlace) -> Option<u64> {
        if self.kind.is_user() || self.kind == RecordType::SAMPLE {
            return None;
        }
        let (len, before) = place.0?;
        let at = self.body.len().checked_sub(len)?;
        let word = self.body.get(at + before..)?.first_chunk()?;
        Some(u64::from_le_bytes(*word))
    }

    /// What the record says. `attr` is its event.
    ///
    /// # Errors
    /// If it is too short for its type, or a field cannot be what it is.
    pub fn event(&self, attr: &Attr) -> Result<Event<'a>> {
        let (_, body) = self.sample_id(attr)?;
        let mut c = self.cursor(body);
        Ok(match self.kind {
            RecordType::LOST => Event::Lost(Lost {
                id: c.u64("LOST.id")?,
                lost: c.u64("LOST.lost")?,
            }),
            RecordType::COMM => Event::Comm(Comm {
                pid: c.u32("COMM.pid")?,
                tid: c.u32("COMM.tid")?,
                exec: self.misc & MISC_COMM_EXEC != 0,
                comm: c.string(),
            }),
            RecordType::FORK | RecordType::EXIT => {
                let task = Task {
                    pid: c.u32("FORK.pid")?,
                    ppid: c.u32("FORK.ppid")?,
                    tid: c.u32("FORK.tid")?,
                    ptid: c.u32("FORK.ptid")?,
                    time: c.u64("FORK.time")?,
                };
                if self.kind == RecordType::FORK {
                    Event::Fork(task)
                } else {
                    Event::Exit(task)
                }
            }
            RecordType::READ => {
                let format = attr.read_format;
                if format.contains(ReadFormat::GROUP) {
                    return Ok(Event::Other(self.kind));
                }
                let (pid, tid) = (c.u32("READ.pid")?, c.u32("READ.tid")?);
                let value = c.u64("READ.value")?;
                let mut optional = |bit, field| {
                    if format.contains(bit) {
                        c.u64(field)
                    } else {
                        Ok(0)
                    }
                };
                Event::Read(Read {
                    pid,
                    tid,
                    value,
                    enabled: optional(ReadFormat::TOTAL_TIME_ENABLED, "READ.time_enabled")?,
                    running: optional(ReadFormat::TOTAL_TIME_RUNNING, "READ.time_running")?,
                    id: optional(ReadFormat::ID, "READ.id")?,
                })
            }
            RecordType::MMAP => {
                c.u64("MMAP.pid")?;
                Event::Mmap(KernelMmap {
                    addr: c.u64("MMAP.addr")?,
                    len: c.u64("MMAP.len")?,
                    pgoff: c.u64("MMAP.pgoff")?,
                    filename: c.string(),
                })
            }
            RecordType::MMAP2 => Event::Mmap2(Mmap2 {
                pid: c.u32("MMAP2.pid")?,
                tid: c.u32("MMAP2.tid")?,
                addr: c.u64("MMAP2.addr")?,
                len: c.u64("MMAP2.len")?,
                pgoff: c.u64("MMAP2.pgoff")?,
                file: if self.misc & MISC_BUILD_ID == 0 {
                    FileId::Inode {
                        dev: (c.u32("MMAP2.maj")?, c.u32("MMAP2.min")?),
                        ino: c.u64("MMAP2.ino")?,
                        generation: c.u64("MMAP2.ino_generation")?,
                    }
                } else {
                    let bytes = c.take(24, "MMAP2.build_id")?;
                    let id = bytes.last_chunk().copied().unwrap_or_default();
                    FileId::BuildId(bytes.first().copied().unwrap_or(0).min(20), id)
                },
                prot: c.u32("MMAP2.prot")?,
                flags: c.u32("MMAP2.flags")?,
                filename: c.string(),
            }),
            RecordType::AUX => Event::Aux(Aux {
                offset: c.u64("AUX.offset")?,
                size: c.u64("AUX.size")?,
                flags: AuxFlags::from_bits_retain(c.u64("AUX.flags")?),
            }),
            RecordType::ITRACE_START => Event::ItraceStart(ItraceStart {
                pid: c.u32("ITRACE_START.pid")?,
                tid: c.u32("ITRACE_START.tid")?,
            }),
            RecordType::SWITCH => Event::Switch(self.misc & MISC_SWITCH_OUT != 0, None),
            RecordType::SWITCH_CPU_WIDE => Event::Switch(
                self.misc & MISC_SWITCH_OUT != 0,
                Some((c.u32("SWITCH.pid")?, c.u32("SWITCH.tid")?)),
            ),
            RecordType::KSYMBOL => {
                let (addr, len) = (c.u64("KSYMBOL.addr")?, c.u32("KSYMBOL.len")?);
                c.u16("KSYMBOL.ksym_type")?;
                let gone = c.u16("KSYMBOL.flags")? & 1 != 0;
                Event::Ksymbol(gone, addr, len, c.string())
            }
            RecordType::TEXT_POKE => {
                let addr = c.u64("TEXT_POKE.addr")?;
                let (old, new) = (c.u16("TEXT_POKE.old_len")?, c.u16("TEXT_POKE.new_len")?);
                let old = c.take(old.into(), "TEXT_POKE.old_bytes")?;
                Event::TextPoke(addr, old, c.take(new.into(), "TEXT_POKE.new_bytes")?)
            }
            RecordType::AUX_OUTPUT_HW_ID => Event::AuxOutputHwId(c.u64("AUX_OUTPUT_HW_ID.hw_id")?),
            RecordType::LOST_SAMPLES => Event::LostSamples(c.u64("LOST_SAMPLES.lost")?),
            RecordType::AUXTRACE_INFO => {
                let kind = c.u32("AUXTRACE_INFO.type")?;
                c.u32("AUXTRACE_INFO.reserved")?;
                let left = c.left();
                Event::AuxtraceInfo(kind, c.take(left, "AUXTRACE_INFO.priv")?)
            }
            RecordType::AUXTRACE => Event::Auxtrace(Auxtrace::decode(&mut c)?, self.payload),
            RecordType::AUXTRACE_ZSTD => Event::AuxtraceZstd(AuxtraceZstd::decode(&mut c)?),
            other => Event::Other(other),
        })
    }
}

/// Gives the events of records other ids, where `new` has one for theirs: in the sample ids, and in the records that name an event
/// themselves. For records of events with `IDENTIFIER` and `SAMPLE_ID_ALL`, as the kernel wrote them into a ring.
///
/// # Errors
/// If these are no records, or one is shorter than its type.
pub fn rename(records: &mut [u8], new: &dyn Fn(u64) -> Option<u64>) -> Result<()> {
    let mut places = Vec::new();
    for record in Records::new(records, 0) {
        let record = record?;
        if record.kind.is_user() {
            continue;
        }
        let end = record.body.len().saturating_sub(8);
        let in_body: &[usize] = match record.kind {
            RecordType::SAMPLE => &[0],
            RecordType::LOST => &[0, end],
            // Time, id, and the id of the very event, of which there is but one.
            RecordType::THROTTLE | RecordType::UNTHROTTLE => &[8, 16, end],
            _ => &[end],
        };
        for &at in in_body {
            let word = record.body.get(at..).and_then(<[u8]>::first_chunk);
            let id = word.map(|word| u64::from_le_bytes(*word));
            let id = id.ok_or(Error::Short {
                field: "sample_id.identifier",
                offset: record.offset,
                need: 8,
                have: to_u64(record.body.len()),
            })?;
            if let Some(id) = new(id) {
                places.push((
                    record.offset.saturating_add(8).saturating_add(to_u64(at)),
                    id,
                ));
            }
        }
    }
    for (at, id) in places {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if let Some(word) = records.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *word = id.to_le_bytes();
        }
    }
    Ok(())
}

/// Records one after the other, as they stand in a file or in a ring that was copied out. After an error there is no more.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    data: &'a [u8],
    pos: usize,
    base: u64,
    failed: bool,
}

impl<'a> Records<'a> {
    /// The records in `data`, whose first byte is at `base` in the file.
    #[must_use]
    pub fn new(data: &'a [u8], base: u64) -> Self {
        Self {
            data,
            pos: 0,
            base,
            failed: false,
        }
    }

    #[inline]
    fn step(&mut self) -> Result<Record<'a>> {
        let offset = self.base.saturating_add(to_u64(self.pos));
        let mut cursor = Cursor::new(&self.data[self.pos..], offset);
        // In one look: a recorder walks through all that it writes.
        let [a, b, c, d, e, f, g, h] = cursor.array("record header")?;
        let kind = RecordType(u32::from_le_bytes([a, b, c, d]));
        let misc = u16::from_le_bytes([e, f]);
        let size = u16::from_le_bytes([g, h]);
        let bad = |why| Error::Invalid {
            field: "record header.size",
            offset: offset.saturating_add(6),
            value: u64::from(size),
            why,
        };
        let Some(len) = usize::from(size).checked_sub(8) else {
            return Err(bad("shorter than the header itself"));
        };
        if len % 8 != 0 {
            return Err(bad("not a multiple of 8"));
        }
        let body = cursor.take(len, "record")?;
        let payload = if kind == RecordType::AUXTRACE {
            let aux = Auxtrace::decode(&mut Cursor::new(body, offset.saturating_add(8)))?;
            let size = usize::try_from(aux.size).unwrap_or(usize::MAX);
            cursor.take(size, "AUXTRACE payload")?
        } else {
            &[]
        };
        self.pos = self.data.len() - cursor.left();
        Ok(Record {
            offset,
            kind,
            misc,
            body,
            payload,
        })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.pos >= self.data.len() {
            return None;
        }
        let item = self.step();
        self.failed = item.is_err();
        Some(item)
    }
}
