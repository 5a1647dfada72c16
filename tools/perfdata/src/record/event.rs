// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fields of a record, decoded by its type.

use super::kernel::{
    Aux, AuxFlags, Comm, FileId, ItraceStart, KernelMmap, Lost, Mmap2, Read, Task, Tracepoint,
    MISC_BUILD_ID, MISC_COMM_EXEC, MISC_SWITCH_OUT,
};
use super::user::{Auxtrace, AuxtraceZstd, TimeConv};
use super::{Record, RecordType};
use crate::attr::{Attr, ReadFormat};
use crate::Result;

/// `PERF_TYPE_TRACEPOINT`.
const TRACEPOINT: u32 = 2;

/// The fields of a record, if this crate knows its type.
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
    /// See [`KernelMmap`]. Only old kernels write it for a process.
    Mmap(KernelMmap<'a>),
    /// See [`Mmap2`].
    Mmap2(Mmap2<'a>),
    /// See [`Aux`].
    Aux(Aux),
    /// See [`ItraceStart`].
    ItraceStart(ItraceStart),
    /// A context switch: `true` if the thread is switched out. [`RecordType::SWITCH_CPU_WIDE`] also
    /// has the process and thread that run next, or ran before.
    Switch(bool, Option<(u32, u32)>),
    /// A symbol of the kernel was added, or (`true`) removed: address, length, name.
    Ksymbol(bool, u64, u32, &'a [u8]),
    /// See [`Tracepoint`].
    Tracepoint(Tracepoint<'a>),
    /// A change of kernel text: address, old bytes, new bytes.
    TextPoke(u64, &'a [u8], &'a [u8]),
    /// Hardware id of an AUX output.
    AuxOutputHwId(u64),
    /// Number of lost samples.
    LostSamples(u64),
    /// See [`TimeConv`].
    TimeConv(TimeConv),
    /// See [`AuxtraceInfo`](super::AuxtraceInfo): kind, and the private words as bytes.
    AuxtraceInfo(u32, &'a [u8]),
    /// See [`Auxtrace`], with the payload.
    Auxtrace(Auxtrace, &'a [u8]),
    /// See [`AuxtraceZstd`].
    AuxtraceZstd(AuxtraceZstd<'a>),
    /// A record of a type that this crate does not decode.
    Other(RecordType),
}

impl<'a> Record<'a> {
    /// The record's fields. `attr` is the event that it belongs to.
    ///
    /// # Errors
    /// If the record is too short for its type, or a field has an impossible value.
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
            RecordType::SAMPLE if attr.kind == TRACEPOINT => {
                match Tracepoint::decode(attr.sample_type, &mut c)? {
                    Some(tracepoint) => Event::Tracepoint(tracepoint),
                    None => Event::Other(self.kind),
                }
            }
            RecordType::TIME_CONV => Event::TimeConv(TimeConv::decode(&mut c)?),
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
