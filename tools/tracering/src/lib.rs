// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the tracefs ring buffer of the Linux kernel.
//!
//! [`Map`] maps `trace_pipe_raw` of a CPU (Linux 6.10 and later), [`Stream`] reads or splices it, and [`Ring`] uses what the kernel
//! supports. All return [`Reader`]s: the events of a sub-buffer, and the number of events lost before them. The events of a mapped
//! sub-buffer are not copied. [`Format`](format::Format) finds the fields of an event.
//!
//! ```no_run
//! use tracering::{Map, Tracefs};
//!
//! let tracefs = Tracefs::find()?;
//! let mut map = Map::open(tracefs.cpu_file(0, "trace_pipe_raw"), tracefs.page_header()?)?;
//! while let Some(reader) = map.reader()? {
//!     for event in reader {
//!         let event = event?;
//!         println!("{}: event {:?} of {} bytes", event.time, event.data.u16(0), event.data.len());
//!     }
//! }
//! # Ok::<(), tracering::Error>(())
//! ```

#![deny(unsafe_code)]

pub mod dat;
mod error;
mod events;
pub mod format;
mod header;
mod map;
mod meta;
pub mod order;
mod record;
mod ring;
mod stream;
mod subbuf;
#[allow(unsafe_code)]
mod sys;
mod text;
mod tracefs;
mod view;

pub use error::{Error, Result};
pub use events::{Instance, Named};
pub use header::{check_event_header, PageHeader};
pub use map::{Map, Reader};
pub use meta::{Meta, Reader as MetaReader, META_STRUCT_LEN};
pub use record::{Recorded, Recorder, Summary, Taken};
pub use ring::Ring;
pub use stream::Stream;
pub use subbuf::{
    Cursor, Event, Events, Missed, SubBuffer, RB_MISSED_EVENTS, RB_MISSED_STORED,
    RINGBUF_TYPE_DATA_TYPE_LEN_MAX, RINGBUF_TYPE_PADDING, RINGBUF_TYPE_TIME_EXTEND,
    RINGBUF_TYPE_TIME_STAMP,
};
pub use sys::Bytes;
pub use tracefs::{Stats, Tracefs};
pub use view::Unread;
