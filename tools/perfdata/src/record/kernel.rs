// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The records that the kernel writes into its rings.

use super::{Encode, RecordType};
use crate::attr::{ReadFormat, SampleType};
use crate::bytes::{padding, until_nul, Cursor};
use crate::Result;

/// `misc` of a record about the kernel.
pub const MISC_KERNEL: u16 = 1;
/// `misc` of a COMM record that an exec caused.
pub const MISC_COMM_EXEC: u16 = 1 << 13;
/// `misc` of a context switch away from a thread.
pub const MISC_SWITCH_OUT: u16 = 1 << 13;
/// `misc` of a record about user space.
pub const MISC_USER: u16 = 2;
/// `misc` of an MMAP2 that has a build-id.
pub const MISC_BUILD_ID: u16 = 1 << 14;

bitflags::bitflags! {
    /// `flags` of [`Aux`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AuxFlags: u64 {
        /// The AUX area had no space for all of the trace.
        const TRUNCATED = 1 << 0;
        /// The AUX area is mapped in overwrite mode.
        const OVERWRITE = 1 << 1;
        /// The trace has gaps.
        const PARTIAL = 1 << 2;
        /// The sample collided with another.
        const COLLISION = 1 << 3;
        /// The format of the PMU's trace.
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

fn put_str(out: &mut Vec<u8>, text: &[u8]) {
    let text = until_nul(text);
    out.extend(text);
    // The text ends with at least one NUL, and the next field is aligned to 8 bytes.
    let pad = padding(text.len());
    out.resize(out.len() + if pad == 0 { 8 } else { pad }, 0);
}

/// The driver wrote a piece of trace into the AUX area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aux {
    /// Where the piece begins, in bytes since the first byte that was written into the area. With
    /// [`AuxFlags::OVERWRITE`]: the head after the piece.
    pub offset: u64,
    /// Length of the piece.
    pub size: u64,
    /// Losses and format of the piece.
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

/// Records that the kernel dropped because the data ring was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// Id of the event.
    pub id: u64,
    /// Number of records.
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
    /// Whether an exec set the name.
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

/// A mapping of kernel code: its own text, or a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelMmap<'a> {
    /// First address.
    pub addr: u64,
    /// Length.
    pub len: u64,
    /// For the kernel's own text the address of the symbol in `filename`; else 0.
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
        // For mappings of the kernel, perf uses pid -1 and tid 0.
        out.extend(u32::MAX.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.addr.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend(self.pgoff.to_le_bytes());
        put_str(out, self.filename);
    }
}

/// A change of kernel text: the bytes at an address before and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPoke<'a> {
    /// Address of the change.
    pub addr: u64,
    /// The bytes before the change, fewer than 64 KiB.
    pub old: &'a [u8],
    /// The bytes after the change, fewer than 64 KiB.
    pub new: &'a [u8],
}

impl Encode for TextPoke<'_> {
    const KIND: RecordType = RecordType::TEXT_POKE;
    fn misc(&self) -> u16 {
        MISC_KERNEL
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let len = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let start = out.len();
        out.extend(self.addr.to_le_bytes());
        out.extend(len(self.old).to_le_bytes());
        out.extend(len(self.new).to_le_bytes());
        out.extend(self.old);
        out.extend(self.new);
        let end = start + (out.len() - start).next_multiple_of(8);
        out.resize(end, 0);
    }
}

/// A symbol that the kernel adds or removes: a BPF program, or out-of-line code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ksymbol<'a> {
    /// Address of the symbol.
    pub addr: u64,
    /// Its length.
    pub len: u32,
    /// `PERF_RECORD_KSYMBOL_TYPE_*`: 1 is a BPF program, 2 is out-of-line code, such as that of kprobes.
    pub kind: u16,
    /// Whether the kernel removes the symbol.
    pub gone: bool,
    /// Its name.
    pub name: &'a [u8],
}

impl Encode for Ksymbol<'_> {
    const KIND: RecordType = RecordType::KSYMBOL;
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.addr.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend(self.kind.to_le_bytes());
        out.extend(u16::from(self.gone).to_le_bytes());
        put_str(out, self.name);
    }
}

/// How a record identifies the mapped file.
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
    /// By its build-id: the number of bytes that are valid, and the bytes.
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
    /// Offset in the file.
    pub pgoff: u64,
    /// Identity of the file.
    pub file: FileId,
    /// Protection.
    pub prot: u32,
    /// Flags of mmap.
    pub flags: u32,
    /// Path of the file; it ends at the first NUL.
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

/// A thread's start ([`RecordType::FORK`]) or end ([`RecordType::EXIT`]).
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
    /// Time of the start or end, ns.
    pub time: u64,
}

/// A counter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The counter's value.
    pub value: u64,
    /// How long the event was enabled, ns.
    pub enabled: u64,
    /// How long the event ran, ns.
    pub running: u64,
    /// Id of the event.
    pub id: u64,
}

impl Read {
    /// The `read_format` of events whose READ records have all fields of [`Read`].
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

/// A sample of a tracepoint, of an event whose samples have `IDENTIFIER`, `TID`, `TIME`, `CPU` and `RAW`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracepoint<'a> {
    /// Id of the event.
    pub id: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Time of the event's clock, ns.
    pub time: u64,
    /// CPU.
    pub cpu: u32,
    /// The fields that the event's format describes. In a decoded sample, up to 7 bytes of padding follow them.
    pub data: &'a [u8],
}

impl Encode for Tracepoint<'_> {
    const KIND: RecordType = RecordType::SAMPLE;
    fn misc(&self) -> u16 {
        MISC_KERNEL
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.id.to_le_bytes());
        out.extend(self.pid.to_le_bytes());
        out.extend(self.tid.to_le_bytes());
        out.extend(self.time.to_le_bytes());
        out.extend(self.cpu.to_le_bytes());
        out.extend([0; 4]);
        // As in the kernel, the length includes the padding: the length word and the data are together a multiple of 8.
        let pad = padding(self.data.len() + 4);
        let len = u32::try_from(self.data.len() + pad).unwrap_or(u32::MAX);
        out.extend(len.to_le_bytes());
        out.extend(self.data);
        out.resize(out.len() + pad, 0);
    }
}

impl<'a> Tracepoint<'a> {
    /// Reads a sample of an event with this sample type. [`None`] without raw data, or if fields of unknown length precede it.
    pub(super) fn decode(kind: SampleType, c: &mut Cursor<'a>) -> Result<Option<Self>> {
        if !kind.contains(SampleType::RAW)
            || kind.intersects(SampleType::READ | SampleType::CALLCHAIN)
        {
            return Ok(None);
        }
        let mut out = Self {
            id: 0,
            pid: u32::MAX,
            tid: u32::MAX,
            time: 0,
            cpu: u32::MAX,
            data: &[],
        };
        if kind.contains(SampleType::IDENTIFIER) {
            out.id = c.u64("SAMPLE.id")?;
        }
        if kind.contains(SampleType::IP) {
            c.u64("SAMPLE.ip")?;
        }
        if kind.contains(SampleType::TID) {
            out.pid = c.u32("SAMPLE.pid")?;
            out.tid = c.u32("SAMPLE.tid")?;
        }
        if kind.contains(SampleType::TIME) {
            out.time = c.u64("SAMPLE.time")?;
        }
        if kind.contains(SampleType::ADDR) {
            c.u64("SAMPLE.addr")?;
        }
        if kind.contains(SampleType::ID) {
            out.id = c.u64("SAMPLE.id")?;
        }
        if kind.contains(SampleType::STREAM_ID) {
            c.u64("SAMPLE.stream_id")?;
        }
        if kind.contains(SampleType::CPU) {
            out.cpu = c.u32("SAMPLE.cpu")?;
            c.u32("SAMPLE.res")?;
        }
        if kind.contains(SampleType::PERIOD) {
            c.u64("SAMPLE.period")?;
        }
        let len = usize::try_from(c.u32("SAMPLE.raw_size")?).unwrap_or(usize::MAX);
        out.data = c.take(len, "SAMPLE.raw")?;
        Ok(Some(out))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{Attr, Event, Records};

    fn with(sample_type: SampleType) -> Attr {
        Attr {
            kind: 2,
            sample_type,
            ..Attr::default()
        }
    }

    /// A sample that is written can be read. Padding to a multiple of 8 follows its data, and their length includes it.
    #[test]
    fn tracepoints_of_each_length() {
        let kind = SampleType::IDENTIFIER
            | SampleType::TID
            | SampleType::TIME
            | SampleType::CPU
            | SampleType::RAW;
        for len in 0..20 {
            let data: Vec<u8> = (1..=len).collect();
            let sample = Tracepoint {
                id: 1 << 62,
                pid: u32::MAX,
                tid: 7,
                time: 1_234_567_890,
                cpu: 3,
                data: &data,
            };
            let mut bytes = Vec::new();
            crate::append(&sample, None, &mut bytes).unwrap();
            assert_eq!(bytes.len() % 8, 0);
            let record = Records::new(&bytes, 0).next().unwrap().unwrap();
            let Event::Tracepoint(read) = record.event(&with(kind)).unwrap() else {
                panic!("{len}: another event");
            };
            let (front, padding) = read.data.split_at(data.len());
            assert_eq!(
                Tracepoint {
                    data: front,
                    ..read
                },
                sample
            );
            assert!(padding.len() < 8 && padding.iter().all(|byte| *byte == 0));
            // Samples that perf records may have more fields. The decoder does not look for raw data after a callchain.
            let other = record.event(&with(kind | SampleType::CALLCHAIN)).unwrap();
            assert_eq!(other, Event::Other(RecordType::SAMPLE));
            assert!(record
                .event(&with(kind | SampleType::PERIOD | SampleType::IP))
                .is_err());
        }
    }

    #[test]
    fn a_length_that_leaves_the_sample_is_an_error() {
        let kind = SampleType::RAW;
        for len in [5, 0xffff_ffff_u32] {
            let mut bytes = vec![9, 0, 0, 0, 0, 0, 16, 0];
            bytes.extend(len.to_le_bytes());
            bytes.extend([0; 4]);
            let record = Records::new(&bytes, 0).next().unwrap().unwrap();
            assert!(record.event(&with(kind)).is_err(), "{len}");
        }
    }
}
