// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where a file that is written has trace.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::bytes::to_u64;
use crate::feature::IndexEntry;

/// Entries that stay in memory, and starts of parts.
const NEWEST: usize = 4096;

/// Bytes of an entry, in the index of a file and aside.
const ENTRY: usize = 16;

/// A file for the older entries of an index: nobody else reads or writes it.
pub trait Aside: Read + Write + Seek + Send {}

impl<T: Read + Write + Seek + Send> Aside for T {}

/// Makes such a file. It is called once, when the index has become long.
pub type MakeAside = Box<dyn FnOnce() -> io::Result<Box<dyn Aside>> + Send>;

/// Where the older entries are.
#[derive(Default)]
enum Older {
    /// There is no place for them: all are in memory.
    #[default]
    Nowhere,
    /// In a file that is made when it is needed.
    Unmade(MakeAside),
    /// In this file, from its beginning on.
    Aside {
        file: Box<dyn Aside>,
        entries: u64,
        /// Whether the file takes no more.
        full: bool,
    },
}

/// The AUXTRACE records of a file, in its order.
///
/// The newest are in memory, at least one if there is one. The older ones are in a file aside, if there is one and it takes them.
#[derive(Default)]
pub(crate) struct Index {
    older: Older,
    newest: Vec<IndexEntry>,
}

impl Index {
    /// Has a place for its older entries.
    pub(crate) fn keep_aside(&mut self, make: MakeAside) {
        if matches!(self.older, Older::Nowhere) {
            self.older = Older::Unmade(make);
        }
    }

    fn older(&self) -> u64 {
        match self.older {
            Older::Aside { entries, .. } => entries,
            _ => 0,
        }
    }

    /// How many.
    pub(crate) fn entries(&self) -> u64 {
        self.older() + to_u64(self.newest.len())
    }

    /// How long its section is, if there are entries.
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

    /// Copies the newest entries behind the older ones. Whether that went well.
    fn spill(&mut self) -> bool {
        self.older = match std::mem::take(&mut self.older) {
            Older::Unmade(make) => make().map_or(Older::Nowhere, |file| Older::Aside {
                file,
                entries: 0,
                full: false,
            }),
            older => older,
        };
        let Older::Aside {
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

    /// Brings some of the older entries back into memory. Whether there were any.
    fn bring_back(&mut self) -> io::Result<bool> {
        let Older::Aside { file, entries, .. } = &mut self.older else {
            return Ok(false);
        };
        let first = entries.saturating_sub(to_u64(NEWEST));
        let mut some = read(file.as_mut(), first, *entries)?;
        *entries = first;
        some.append(&mut self.newest);
        self.newest = some;
        Ok(true)
    }

    /// Has in memory what is at `at` or before it, if there is such an entry.
    fn reach(&mut self, at: u64) -> io::Result<()> {
        while self.older() != 0 && self.newest.first().is_none_or(|e| e.offset > at) {
            self.bring_back()?;
        }
        Ok(())
    }

    /// Where the last record begins that begins at `at` or before it.
    pub(crate) fn before(&mut self, at: u64) -> io::Result<Option<u64>> {
        self.reach(at)?;
        let count = self.newest.partition_point(|entry| entry.offset <= at);
        let last = count.checked_sub(1).and_then(|n| self.newest.get(n));
        Ok(last.map(|entry| entry.offset))
    }

    /// Takes what begins at `end` or behind it out.
    pub(crate) fn cut(&mut self, end: u64) -> io::Result<Vec<IndexEntry>> {
        if let Some(before) = end.checked_sub(1) {
            self.reach(before)?;
        }
        let kept = self.newest.partition_point(|entry| entry.offset < end);
        Ok(self.newest.split_off(kept))
    }

    /// Hands its section to `each`, piece by piece, if it has entries. `failed` says that the older ones cannot be read.
    pub(crate) fn section<E>(
        &mut self,
        failed: impl Fn(io::Error) -> E,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.entries() == 0 {
            return Ok(());
        }
        each(&self.entries().to_le_bytes())?;
        if let Older::Aside { file, entries, .. } = &mut self.older {
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

/// Reads entries of the file aside.
fn read(file: &mut dyn Aside, first: u64, end: u64) -> io::Result<Vec<IndexEntry>> {
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

/// Where parts of compressed trace begin: the first one and the newest. Who looks for one between these gets the first.
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

    /// Where one begins that begins at `at` or before it: the last, or an older one.
    pub(crate) fn before(&self, at: u64) -> Option<u64> {
        let count = self.newest.partition_point(|&part| part <= at);
        let newest = count.checked_sub(1).and_then(|n| self.newest.get(n));
        newest.copied().or(self.first.filter(|&first| first <= at))
    }

    /// Takes what begins at `end` or behind it out.
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

    /// A file that takes so many bytes.
    struct Small(Cursor<Vec<u8>>, usize);

    impl Read for Small {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.0.read(bytes)
        }
    }

    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.1.saturating_sub(self.0.get_ref().len());
            match bytes.get(..room.min(bytes.len())) {
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

    /// Places for older entries: none, one that cannot be made, full ones, and one with room.
    fn places() -> Vec<Index> {
        let small = |room: usize| -> MakeAside {
            Box::new(move || Ok(Box::new(Small(Cursor::default(), room))))
        };
        let mut places: Vec<_> = [0, 1000, NEWEST * ENTRY, 3 * NEWEST * ENTRY + 5, usize::MAX]
            .into_iter()
            .map(|room| Some(small(room)))
            .collect();
        places.push(None);
        places.push(Some(Box::new(|| Err(io::ErrorKind::NotFound.into()))));
        let index = |make: Option<MakeAside>| {
            let mut index = Index::default();
            if let Some(make) = make {
                index.keep_aside(make);
            }
            index
        };
        places.into_iter().map(index).collect()
    }

    /// The section of these.
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
        let most = to_u64(NEWEST) * 5 + 3;
        for count in [0, 1, to_u64(NEWEST), to_u64(NEWEST) + 1, most] {
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
