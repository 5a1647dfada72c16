// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the bytes of the pieces of a recording when they are needed.

use std::ops::Range;

use perfdata::Stream;

use crate::error::{Error, Result};
use crate::source::{Reader, Source};
use crate::trace::Piece;
use crate::unpack::Unpack;

/// Reads the bytes of pieces. One file is open at a time.
pub struct Pieces<'a, S: Source> {
    files: &'a [S],
    open: Option<(u32, Stream<Reader<'a, S>>)>,
    unpack: Unpack,
}

impl<'a, S: Source> Pieces<'a, S> {
    /// Reads pieces of the files that [`Trace::read_parts`](crate::trace::Trace::read_parts) has read, in the same order.
    #[must_use]
    pub fn of(files: &'a [S]) -> Self {
        Self {
            files,
            open: None,
            unpack: Unpack::default(),
        }
    }

    /// Calls `each` with the range `bytes` of a piece, in portions.
    ///
    /// # Errors
    /// If they cannot be read, if the file has changed, or if `each` fails.
    pub fn read(
        &mut self,
        piece: &Piece,
        bytes: Range<u64>,
        each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (number, mut stream) = match self.open.take() {
            Some(open) if open.0 == piece.file => open,
            _ => {
                self.unpack = Unpack::default();
                let number = usize::try_from(piece.file).unwrap_or(usize::MAX);
                let file = self.files.get(number);
                let file =
                    file.ok_or_else(|| Error::usage("a piece of a file that was not given"))?;
                (piece.file, Stream::open(Reader::new(file))?)
            }
        };
        let read = self.unpack.bytes(&mut stream, piece.place(), bytes, each);
        self.open = Some((number, stream));
        read
    }

    /// All bytes of a piece, in memory.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn bytes(&mut self, piece: &Piece) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.read(piece, 0..piece.size, |bytes| {
            out.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(out)
    }
}
