// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The options about events of tracefs.

use std::path::PathBuf;

use auxrec::size::parse_size;
use auxrec::tracepoints::Wanted;
use auxrec::Error;
use clap::Args;

/// The options.
#[derive(Debug, Args)]
pub struct Tracepoints {
    /// Also record these events of tracefs, on the same clock: SYSTEM:EVENT or SYSTEM:*, in lists
    #[arg(
        help_heading = "Events",
        long,
        value_name = "EVENT",
        value_delimiter = ','
    )]
    trace: Vec<String>,
    /// Write the events of tracefs to this trace.dat, for trace-cmd and KernelShark, instead of into the recording
    #[arg(help_heading = "Events", long, value_name = "FILE", requires = "trace")]
    trace_dat: Option<PathBuf>,
    /// Size of each CPU's buffer for events of tracefs, in bytes with B, K, M or G
    #[arg(help_heading = "Events", long, value_name = "SIZE", requires = "trace")]
    trace_buffer: Option<String>,
}

impl Tracepoints {
    /// What to record.
    pub fn wanted(&self) -> Result<Option<Wanted>, Error> {
        if self.trace.is_empty() {
            return Ok(None);
        }
        let size = self.trace_buffer.as_deref();
        let size = size.map(|text| parse_size(text, 1)).transpose()?;
        Ok(Some(Wanted {
            events: self.trace.clone(),
            dat: self.trace_dat.clone(),
            buffer: size.map(|bytes| bytes.div_ceil(1024)),
        }))
    }
}
