// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes and reads perf.data files, including AUX area trace. The caller provides bytes or streams: the crate opens no file and makes no
//! system call.
//!
//! ```
//! use std::io::Cursor;
//! use perfdata::{Attr, Auxtrace, Event, Features, Feature, File, Writer};
//!
//! // Write: events with their ids, records, AUX trace with its payload, features.
//! let attr = Attr { kind: 42, ..Attr::default() };
//! let mut writer = Writer::new(Cursor::new(Vec::new()), &[(attr, vec![7])])?;
//! writer.auxtrace(&Auxtrace { size: 16, offset: 4096, ..Auxtrace::default() })?;
//! writer.payload(b"sixteen bytes...")?;
//! let mut features = Features::new();
//! features.string(Feature::HOSTNAME, "here").pmu_mappings(&[(42, "my_pmu")]);
//! let bytes = writer.finish(&features)?.into_inner();
//!
//! // Read what is in memory: nothing is copied; every size is checked before it is believed. `Stream` reads files of any length.
//! let file = File::parse(&bytes)?;
//! for record in file.records() {
//!     let (event, _who_and_when) = file.decode(&record?)?;
//!     if let Event::Auxtrace(aux, payload) = event {
//!         assert_eq!((aux.offset, payload), (4096, &b"sixteen bytes..."[..]));
//!     }
//! }
//! assert_eq!(file.feature(Feature::AUXTRACE).unwrap().index()?.len(), 1);
//! # Ok::<(), perfdata::Error>(())
//! ```
//!
//! # The file
//! The parts of a file are in this order: header, id arrays, attributes, spare features, data section, table of features, features. So the
//! data section can grow, and everything before it is final except two fields of the header. The index of the AUXTRACE records is the last
//! feature. If the recorder is killed, the file has all records that were flushed, and [`recover`] finishes it.
//!
//! Numbers are little endian. Files of the other byte order and files in pipe mode are refused with an error that names the reason.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod attr;
pub mod auxtrace;
mod bpf;
mod bytes;
mod error;
mod feature;
mod read;
mod record;
mod recover;
mod spare;
mod stream;
mod write;

pub use attr::{Attr, Flags, ReadFormat, SampleType};
pub use bpf::BpfFunction;
pub use error::{Error, Result};
pub use feature::{ClockData, EventDesc, Feature, Features, IndexEntry, Section};
pub use read::File;
pub use record::{
    rename, Aux, AuxFlags, Auxtrace, AuxtraceInfo, AuxtraceZstd, Comm, Encode, Event, FileId,
    FinishedInit, FinishedRound, IdIndex, IdIndexEntry, ItraceStart, KernelMmap, Ksymbol, Lost,
    Mmap2, Read, Record, RecordType, Records, SampleId, Task, TextPoke, TimeConv, TimePlace,
    Tracepoint, MISC_BUILD_ID, MISC_COMM_EXEC, MISC_KERNEL, MISC_SWITCH_OUT, MISC_USER,
};
pub use recover::{recover, Recovered};
pub use stream::Stream;
pub use write::{append, OpenSpillFile, SpillFile, Writer};

/// Magic number at the beginning of a file.
pub const MAGIC: [u8; 8] = *b"PERFILE2";
/// Length of a file's header.
pub const HEADER_LEN: u64 = 104;
