// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads a file as if its trace were not compressed: undoes [`Pack`](crate::pack::Pack).

use std::io::{self, Read, Seek};

use perfdata::{
    Auxtrace, AuxtraceZstd, Event, Feature, Features, Record, RecordType, Section, Stream, Writer,
};
use zstd::bulk::Decompressor;

use crate::error::{Error, Result};
use crate::source::{Reader, Source};

/// Key of the note in a file whose trace is compressed.
pub const NOTE: &str = "compressed";
/// How many bytes of uncompressed trace are read at once.
const PORTION: usize = 64 << 10;
/// Length of an AUXTRACE record.
const AUXTRACE: u64 = 48;

/// A piece of trace in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// File offset of its record; of its first part, if it is compressed.
    pub at: u64,
    /// Its length.
    pub size: u64,
    pub packed: bool,
}

/// The next item of a file.
pub(crate) enum Next {
    /// A record, which is [`Stream::last`] of the stream.
    Record,
    /// A piece of trace. The size of a compressed piece is that of the parts in the file: a recorder that was killed may not have written
    /// all of them.
    Piece(Auxtrace, Place),
}

/// A file that is read as if its trace were not compressed.
pub(crate) struct Plain<'a, S: Source + ?Sized> {
    pub stream: Stream<Reader<'a, S>>,
    unpack: Unpack,
    /// If the trace is compressed: the offset of the next item in the decompressed file.
    moved: Option<u64>,
    /// The offset of the last item in the decompressed file.
    pub at: u64,
}

impl<'a, S: Source + ?Sized> Plain<'a, S> {
    pub fn open(source: &'a S) -> Result<Self> {
        let mut stream = Stream::open(Reader::new(source))?;
        let spare = stream.front()?.spare().iter().any(is_packed);
        let packed = stream
            .feature(Feature::NOTES)?
            .as_ref()
            .is_some_and(is_packed);
        let moved = if spare || packed {
            Some(begin(&stream, io::Cursor::new(Vec::new()))?.position())
        } else {
            None
        };
        Ok(Self {
            stream,
            unpack: Unpack::default(),
            moved,
            at: 0,
        })
    }

    /// Reads the next item; [`None`] at the end.
    pub fn next(&mut self) -> Result<Option<Next>> {
        let finished = self.stream.is_finished();
        let record = match self.stream.record() {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(None),
            // The file was cut off inside the last record.
            Err(e) if self.moved.is_some() && !finished && !is_input(&e) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let at = record.offset;
        self.at = self.moved.unwrap_or(at);
        let mut len = length(&record);
        let is_part = record.kind == RecordType::AUXTRACE_ZSTD;
        let found = match self.stream.decode() {
            Ok((Event::Auxtrace(aux, _), _)) => {
                len += aux.size;
                let size = aux.size;
                let packed = false;
                Next::Piece(aux, Place { at, size, packed })
            }
            Ok((Event::AuxtraceZstd(part), _)) => {
                if part.at != 0 {
                    return Err(damaged(at, "does not follow the one before it"));
                }
                let aux = part.aux;
                let size = self.parts(aux, part.len.into())?;
                len = AUXTRACE + size;
                let packed = true;
                Next::Piece(Auxtrace { size, ..aux }, Place { at, size, packed })
            }
            // Without this part the piece is incomplete.
            Err(e) if is_part => return Err(Error::failed(e.to_string())),
            _ => Next::Record,
        };
        self.moved = self.moved.map(|moved| moved.saturating_add(len));
        Ok(Some(found))
    }

    /// Reads over all parts of a piece after the first, and returns the size of the piece. The stream continues after it.
    fn parts(&mut self, aux: Auxtrace, first: u64) -> Result<u64> {
        let mut size = first;
        let mut end = self.stream.position();
        loop {
            // An invalid record after the piece is reported when it is read as the next item.
            match self.stream.record() {
                Err(e) if is_input(&e) => return Err(e.into()),
                Ok(Some(_)) => {}
                _ => break,
            }
            match self.stream.decode() {
                Ok((Event::AuxtraceZstd(part), _)) if part.aux == aux && part.at == size => {
                    size += u64::from(part.len);
                }
                _ => break,
            }
            end = self.stream.position();
        }
        self.stream.go_to(end)?;
        Ok(size)
    }

    /// Calls `each` with the bytes of a piece, in portions. The stream continues after the piece.
    pub fn bytes(&mut self, place: Place, each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.unpack
            .bytes(&mut self.stream, place, 0..place.size, each)
    }

    /// Number of zeros at the end of a piece, at most 7.
    pub fn zeros(&mut self, place: Place) -> Result<u8> {
        let mut tail = [1; 8];
        let mut put = |bytes: &[u8]| {
            // Keeps the last 8 bytes of the piece.
            let new = bytes.len().min(tail.len());
            tail.rotate_left(new);
            let at = tail.len() - new;
            tail[at..].copy_from_slice(&bytes[bytes.len() - new..]);
            Ok(())
        };
        if place.packed {
            // Reads the whole piece, which finds damaged parts.
            self.bytes(place, put)?;
        } else {
            let mut last = [0; 8];
            self.stream.skip(place.size.saturating_sub(8))?;
            let len = self.stream.payload(&mut last)?;
            put(&last[..len])?;
        }
        let zeros = tail.iter().rev().take(7).take_while(|byte| **byte == 0);
        Ok(u8::try_from(zeros.count()).unwrap_or(0))
    }
}

fn length(record: &Record<'_>) -> u64 {
    u64::try_from(8 + record.body.len()).unwrap_or(u64::MAX)
}

fn is_input(e: &perfdata::Error) -> bool {
    matches!(e, perfdata::Error::Input { .. })
}

fn is_packed(section: &Section<'_>) -> bool {
    let notes = (section.feature == Feature::NOTES).then(|| section.notes());
    notes.is_some_and(|notes| notes.is_ok_and(|notes| notes.iter().any(|(key, _)| key == NOTE)))
}

/// Begins the decompressed file, with the same events and spare features.
pub(crate) fn begin<R: Read + Seek, W: io::Write + Seek>(
    stream: &Stream<R>,
    out: W,
) -> Result<Writer<W>> {
    let front = stream.front()?;
    let mut spare = Features::new();
    for section in front.spare() {
        // The writer makes a new index.
        if section.feature != Feature::AUXTRACE {
            spare.raw(section.feature, section.bytes.to_vec());
        }
    }
    Ok(Writer::with_spare(out, front.events(), &plain(spare))?)
}

/// The same features, without the note that the trace is compressed.
pub(crate) fn plain(mut features: Features) -> Features {
    let notes = features.get(Feature::NOTES).map(|notes| notes.notes());
    if let Some(Ok(mut notes)) = notes {
        notes.retain(|(key, _)| key != NOTE);
        features.notes(&notes);
    }
    features
}

fn damaged(offset: u64, why: &str) -> Error {
    Error::failed(format!(
        "the compressed trace at file offset {offset:#x} is damaged: it {why}"
    ))
}

/// Reads the bytes of pieces, which may be compressed. It needs the memory of one part of [`AuxtraceZstd::MAX`] bytes.
#[derive(Default)]
pub(crate) struct Unpack {
    zstd: Option<Decompressor<'static>>,
    portion: Vec<u8>,
    /// The piece that was read last, a file offset, and the matching offset in the piece. These offsets are those of the last part that was
    /// read; in a piece that is not compressed, those where reading stopped.
    last: Option<(u64, u64, u64)>,
}

impl Unpack {
    /// Calls `each` with the bytes `range` of a piece, in portions.
    pub fn bytes<R: Read + Seek>(
        &mut self,
        stream: &mut Stream<R>,
        place: Place,
        range: std::ops::Range<u64>,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if place.packed {
            return self.packed(stream, place, range, each);
        }
        if self.last != Some((place.at, stream.position(), range.start)) {
            stream.go_to(place.at)?;
            stream.record()?;
            stream.skip(range.start)?;
        }
        let mut left = range.end.saturating_sub(range.start);
        while left != 0 {
            let some = usize::try_from(left).unwrap_or(usize::MAX).min(PORTION);
            self.portion.resize(some, 0);
            let len = stream.payload(&mut self.portion)?;
            if len == 0 {
                return Err(changed(place.at));
            }
            each(&self.portion[..len])?;
            left -= u64::try_from(len).unwrap_or(left).min(left);
        }
        self.last = Some((place.at, stream.position(), range.end));
        Ok(())
    }

    fn packed<R: Read + Seek>(
        &mut self,
        stream: &mut Stream<R>,
        place: Place,
        range: std::ops::Range<u64>,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        // Sequential reads continue at the last part, and do not step through all parts each time.
        let mut at = match self.last {
            Some((piece, part, begin)) if piece == place.at && begin <= range.start => part,
            _ => place.at,
        };
        let mut here = range.start;
        while here < range.end {
            stream.go_to(at)?;
            stream.record()?;
            let Ok((Event::AuxtraceZstd(part), _)) = stream.decode() else {
                return Err(changed(at));
            };
            let end = part.at + u64::from(part.len);
            if here < part.at {
                return Err(changed(at));
            }
            if here < end {
                self.last = Some((place.at, at, part.at));
                let plain = unpack(&mut self.zstd, &mut self.portion, &part, at)?;
                let within = |at: u64| usize::try_from(at.min(end) - part.at).unwrap_or(usize::MAX);
                let bytes = plain.get(within(here)..within(range.end));
                each(bytes.unwrap_or_default())?;
                here = end.min(range.end);
            }
            at = stream.position();
        }
        Ok(())
    }
}

fn changed(at: u64) -> Error {
    Error::failed(format!(
        "the trace at file offset {at:#x} is gone: the file has changed while it was read"
    ))
}

fn unpack<'a>(
    zstd: &mut Option<Decompressor<'static>>,
    plain: &'a mut Vec<u8>,
    part: &AuxtraceZstd<'_>,
    offset: u64,
) -> Result<&'a [u8]> {
    let zstd = match zstd {
        Some(zstd) => zstd,
        None => {
            let new = Decompressor::new();
            zstd.insert(new.map_err(|e| Error::failed(format!("cannot decompress: {e}")))?)
        }
    };
    // One byte more than the part should have, to detect a longer one.
    let len = usize::try_from(part.len).unwrap_or(0);
    plain.resize(len + 1, 0);
    match zstd.decompress_to_buffer(part.frame, &mut plain[..]) {
        Ok(n) if n == len => Ok(&plain[..len]),
        Ok(n) => {
            let why = format!("says that it has {len} bytes, and has {n}");
            Err(damaged(offset, &why))
        }
        Err(e) => Err(damaged(offset, &format!("cannot be decompressed ({e})"))),
    }
}
