// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compresses trace on its way into the file. [`convert`](mod@crate::convert) decompresses it.

use std::io::{Seek, Write};

use perfdata::{Auxtrace, AuxtraceZstd, Writer};
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use crate::error::{Error, Result};

/// The compression levels of zstd.
pub const LEVELS: std::ops::RangeInclusive<i32> = 1..=22;

/// Length of a part in bytes. Each part is compressed by itself.
const PART: usize = 60 * 1024;

/// Compresses each piece of trace as a series of parts.
pub struct Pack {
    zstd: Compressor<'static>,
    piece: Auxtrace,
    /// How much of the piece was written, in bytes before compression.
    at: u64,
    /// The next bytes, which are still too few for a part.
    part: Vec<u8>,
}

impl Pack {
    /// Creates a compressor of this level.
    ///
    /// # Errors
    /// If there is no such level, or no memory.
    pub fn new(level: i32) -> Result<Self> {
        let mut zstd = Compressor::new(level).map_err(|e| cannot(&e))?;
        // A checksum of four bytes, which detects damage.
        zstd.set_parameter(CParameter::ChecksumFlag(true))
            .map_err(|e| cannot(&e))?;
        Ok(Self {
            zstd,
            piece: Auxtrace::default(),
            at: 0,
            part: Vec::with_capacity(PART),
        })
    }

    /// Begins a piece. Its bytes follow through [`payload`](Self::payload).
    pub fn piece(&mut self, aux: &Auxtrace) {
        self.piece = *aux;
        self.at = 0;
        self.part.clear();
    }

    /// Compresses the next bytes of the piece, and writes the parts that are complete.
    ///
    /// # Errors
    /// If it cannot be compressed, or the file cannot be written.
    pub fn payload<W: Write + Seek>(
        &mut self,
        mut bytes: &[u8],
        file: &mut Writer<W>,
    ) -> Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PART - self.part.len()));
            self.part.extend_from_slice(now);
            bytes = later;
            let len = u64::try_from(self.part.len()).unwrap_or(0);
            if self.part.len() < PART && self.at + len < self.piece.size {
                continue;
            }
            let frame = self.zstd.compress(&self.part).map_err(|e| cannot(&e))?;
            let part = AuxtraceZstd {
                aux: self.piece,
                at: self.at,
                len: u32::try_from(len).unwrap_or(0),
                frame: &frame,
            };
            file.record(&part, None)?;
            self.at += len;
            self.part.clear();
        }
        Ok(())
    }
}

fn cannot(e: &std::io::Error) -> Error {
    Error::failed(format!("cannot compress: {e}"))
}
