// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The index of the AUXTRACE records that a writer has written.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::bytes::to_u64;
use crate::feature::IndexEntry;

/// The number of entries, and of starts of compressed parts, that stay in memory.
const NEWEST: usize = 4096;

/// The length of an entry in bytes, in the index section and in the spill file.
const ENTRY: usize = 16;

/// A file to which a writer moves the older entries of the index. Only the writer uses it.
pub trait SpillFile: Read + Write + Seek + Send {}

impl<T: Read + Write + Seek + Send> SpillFile for T {}

/// Opens the spill file. The writer calls it once, when the index has become long.
pub type OpenSpillFile = Box<dyn FnOnce() -> io::Result<Box<dyn SpillFile>> + Send>;

/// Where the older entries are.
#[derive(Default)]
enum Older {
    /// The writer has no spill file.
    #[default]
    InMemory,
    /// The writer opens the spill file when the index has become long.
    Unopened(OpenSpillFile),
    /// The entries are in this file, from its beginning on.
    Spilled {
        file: Box<dyn SpillFile>,
        entries: u64,
        /// Whether a write to the file has failed: later entries stay in memory.
        full: bool,
    },
}

/// The AUXTRACE records of a file, in file order.
///
/// # Invariants
///
/// The newest entries are in memory: at least one, unless the index is empty. The spill file has all older ones.
#[derive(Default)]
pub(crate) struct Index {
    older: Older,
    newest: Vec<IndexEntry>,
}

impl Index {
    /// Moves older entries to a spill file from now on.
    pub(crate) fn spill_to(&mut self, make: OpenSpillFile) {
        if matches!(self.older, Older::InMemory) {
            self.older = Older::Unopened(make);
        }
    }

    fn older(&self) -> u64 {
        match self.older {
            Older::Spilled { entries, .. } => entries,
            _ => 0,
        }
    }

    /// The number of entries.
    pub(crate) fn entries(&self) -> u64 {
        self.older() + to_u64(self.newest.len())
    }

    /// The length of the index section in bytes. [`None`] for an index without entries, which has no section.
    pub(crate) fn len(&self) -> Option<u64> {
        let entries = self.entries();
        (entries != 0).then(|| 8 + entries * to_u64(ENTRY))
    }

    pub(crate) fn push(&mut self, entry: IndexEntry) {
        if self.newest.len() >= NEWEST && self.spill() {
            self.newest.clear();
        }
        self.newest.push(entry);
    }

    pub(crate) fn extend(&mut self, entries: Vec<IndexEntry>) {
        for entry in entries {
            self.push(entry);
        }
    }

    pub(crate) fn last(&self) -> Option<IndexEntry> {
        self.newest.last().copied()
    }

    /// Appends the newest entries to the spill file. Returns whether that succeeded.
    fn spill(&mut self) -> bool {
        self.older = match std::mem::take(&mut self.older) {
            Older::Unopened(make) => make().map_or(Older::InMemory, |file| Older::Spilled {
                file,
                entries: 0,
                full: false,
            }),
            older => older,
        };
        let Older::Spilled {
            file,
            entries,
            full: full @ false,
        } = &mut self.older
        else {
            return false;
        };
        let bytes = encode(&self.newest);
        let put = file
            .seek(SeekFrom::Start(*entries * to_u64(ENTRY)))
            .and_then(|_| file.write_all(&bytes));
        if put.is_err() {
            *full = true;
            return false;
        }
        *entries += to_u64(self.newest.len());
        true
    }

    /// Reads the last entries of the spill file back into memory.
    fn bring_back(&mut self) -> io::Result<()> {
        let Older::Spilled { file, entries, .. } = &mut self.older else {
            return Ok(());
        };
        let first = entries.saturating_sub(to_u64(NEWEST));
        let mut some = read(file.as_mut(), first, *entries)?;
        *entries = first;
        some.append(&mut self.newest);
        self.newest = some;
        Ok(())
    }

    /// Reads entries back until one at or before `at` is in memory, or the spill file is empty.
    fn reach(&mut self, at: u64) -> io::Result<()> {
        while self.older() != 0 && self.newest.first().is_none_or(|e| e.offset > at) {
            self.bring_back()?;
        }
        Ok(())
    }

    /// The offset of the last record that begins at or before `at`.
    pub(crate) fn before(&mut self, at: u64) -> io::Result<Option<u64>> {
        self.reach(at)?;
        let count = self.newest.partition_point(|entry| entry.offset <= at);
        let last = count.checked_sub(1).and_then(|n| self.newest.get(n));
        Ok(last.map(|entry| entry.offset))
    }

    /// Removes and returns the entries at or after `end`.
    pub(crate) fn cut(&mut self, end: u64) -> io::Result<Vec<IndexEntry>> {
        if let Some(before) = end.checked_sub(1) {
            self.reach(before)?;
        }
        let kept = self.newest.partition_point(|entry| entry.offset < end);
        Ok(self.newest.split_off(kept))
    }

    /// Passes the index section to `each`, piece by piece. `failed` converts an error of the spill file.
    pub(crate) fn section<E>(
        &mut self,
        failed: impl Fn(io::Error) -> E,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.entries() == 0 {
            return Ok(());
        }
        each(&self.entries().to_le_bytes())?;
        if let Older::Spilled { file, entries, .. } = &mut self.older {
            let mut first = 0;
            while first < *entries {
                let end = (first + to_u64(NEWEST)).min(*entries);
                let some = read(file.as_mut(), first, end).map_err(&failed)?;
                each(&encode(&some))?;
                first = end;
            }
        }
        for some in self.newest.chunks(NEWEST) {
            each(&encode(some))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("entries", &self.entries())
            .field("last", &self.last())
            .finish_non_exhaustive()
    }
}

fn encode(entries: &[IndexEntry]) -> Vec<u8> {
    let words = entries.iter().flat_map(|e| [e.offset, e.size]);
    words.flat_map(u64::to_le_bytes).collect()
}

/// Reads entries from the spill file.
fn read(file: &mut dyn SpillFile, first: u64, end: u64) -> io::Result<Vec<IndexEntry>> {
    let count = usize::try_from(end - first).unwrap_or(0);
    let mut bytes = vec![0; count * ENTRY];
    file.seek(SeekFrom::Start(first * to_u64(ENTRY)))?;
    file.read_exact(&mut bytes)?;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let entry = |bytes: &[u8]| {
        let (offset, size) = bytes.split_at(ENTRY / 2);
        IndexEntry {
            offset: word(offset),
            size: word(size),
        }
    };
    Ok(bytes.chunks_exact(ENTRY).map(entry).collect())
}

/// The offsets of the first and of the newest parts of compressed trace. For an offset between these, a search returns the first part.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts {
    first: Option<u64>,
    newest: VecDeque<u64>,
}

impl Parts {
    pub(crate) fn push(&mut self, at: u64) {
        self.first.get_or_insert(at);
        if self.newest.len() >= NEWEST {
            self.newest.pop_front();
        }
        self.newest.push_back(at);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The offset of a part that begins at or before `at`: the last such part, or an older one.
    pub(crate) fn before(&self, at: u64) -> Option<u64> {
        let count = self.newest.partition_point(|&part| part <= at);
        let newest = count.checked_sub(1).and_then(|n| self.newest.get(n));
        newest.copied().or(self.first.filter(|&first| first <= at))
    }

    /// Removes the parts at or after `end`.
    pub(crate) fn cut(&mut self, end: u64) {
        self.first = self.first.filter(|&first| first < end);
        let kept = self.newest.partition_point(|&part| part < end);
        self.newest.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::io::Cursor;

    fn entry(n: u64) -> IndexEntry {
        IndexEntry {
            offset: 100 + n * 64,
            size: n % 7,
        }
    }

    /// A file with space for this number of bytes.
    struct Small(Cursor<Vec<u8>>, usize);

    impl Read for Small {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.read(bytes)
        }
    }

    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let space = self.1.saturating_sub(self.0.get_ref().len());
            match bytes.get(..space.min(bytes.len())) {
                Some(some) if !some.is_empty() => self.0.write(some),
                _ => Err(io::ErrorKind::StorageFull.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Small {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    /// Indexes without a spill file, with one that cannot be opened, with full ones, and with one that has space.
    fn places() -> Vec<Index> {
        let small = |space: usize| -> OpenSpillFile {
            Box::new(move || Ok(Box::new(Small(Cursor::default(), space))))
        };
        let mut places: Vec<_> = [0, 1000, NEWEST * ENTRY, 3 * NEWEST * ENTRY + 5, usize::MAX]
            .into_iter()
            .map(|space| Some(small(space)))
            .collect();
        places.push(None);
        places.push(Some(Box::new(|| Err(io::ErrorKind::NotFound.into()))));
        let index = |make: Option<OpenSpillFile>| {
            let mut index = Index::default();
            if let Some(make) = make {
                index.spill_to(make);
            }
            index
        };
        places.into_iter().map(index).collect()
    }

    /// The expected index section of these entries.
    fn whole(entries: &[IndexEntry]) -> Vec<u8> {
        if entries.is_empty() {
            return Vec::new();
        }
        let mut out = to_u64(entries.len()).to_le_bytes().to_vec();
        out.extend(encode(entries));
        out
    }

    fn section(index: &mut Index) -> Vec<u8> {
        let mut out = Vec::new();
        index
            .section(
                |e| e,
                |bytes| {
                    out.extend(bytes);
                    Ok(())
                },
            )
            .unwrap();
        assert_eq!(index.len(), Some(to_u64(out.len())).filter(|&len| len != 0));
        out
    }

    #[test]
    fn is_the_same_wherever_its_entries_are() {
        let max = to_u64(NEWEST) * 5 + 3;
        for count in [0, 1, to_u64(NEWEST), to_u64(NEWEST) + 1, max] {
            let entries: Vec<_> = (0..count).map(entry).collect();
            let expected = whole(&entries);
            for mut index in places() {
                index.extend(entries.clone());
                assert_eq!(index.last(), entries.last().copied());
                assert!(section(&mut index) == expected, "{count}");
            }
        }
    }

    #[test]
    fn is_cut_and_goes_on_wherever_its_entries_are() {
        let count = to_u64(NEWEST) * 5 + 3;
        let entries: Vec<_> = (0..count).map(entry).collect();
        for kept in [0, 1, 5, NEWEST, NEWEST * 3 + 1, NEWEST * 5, NEWEST * 5 + 3] {
            for mut index in places() {
                index.extend(entries.clone());
                let end = entry(to_u64(kept)).offset;
                assert!(index.cut(end).unwrap() == entries[kept..], "{kept}");
                assert_eq!(index.last(), entries[..kept].last().copied());
                let begun = entries[..kept].last().map(|e| e.offset);
                assert_eq!(index.before(end).unwrap(), begun);
                index.extend(entries[kept..].to_vec());
                assert!(section(&mut index) == whole(&entries), "{kept}");
            }
        }
    }

    #[test]
    fn finds_what_begins_before() {
        for mut index in places() {
            let entries: Vec<_> = (0..to_u64(NEWEST) * 5).map(entry).collect();
            index.extend(entries.clone());
            for n in [to_u64(NEWEST) * 4, to_u64(NEWEST), 1, 0] {
                let at = entry(n).offset;
                assert_eq!(index.before(at).unwrap(), Some(at));
                assert_eq!(index.before(at + 63).unwrap(), Some(at));
            }
            assert_eq!(index.before(99).unwrap(), None);
        }
    }

    #[test]
    fn of_many_parts_the_first_is_kept() {
        let mut parts = Parts::default();
        assert!(parts.is_empty() && parts.before(1000).is_none());
        for n in 0..to_u64(NEWEST) * 2 {
            parts.push(100 + n * 64);
        }
        assert_eq!(parts.newest.len(), NEWEST);
        let last = 100 + (to_u64(NEWEST) * 2 - 1) * 64;
        assert_eq!(parts.before(last + 1), Some(last));
        assert_eq!(parts.before(200), Some(100));
        assert_eq!(parts.before(99), None);
        parts.cut(last);
        assert_eq!(parts.before(last + 1), Some(last - 64));
        parts.cut(200);
        assert_eq!(parts.before(last + 1), Some(100));
        parts.cut(100);
        assert!(parts.is_empty() && parts.before(last).is_none());
    }
}
