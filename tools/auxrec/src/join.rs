// SPDX-License-Identifier: GPL-2.0 OR MIT

//! From the files that the threads of a recorder have written, each its own, to the one that was asked for.
//!
//! Of a recording to FILE that is apart FILE has what stands before the first record of the kernel, up to `FINISHED_INIT`, and
//! FILE.t0, FILE.t1 and so on have the rest. Round by round they are appended to FILE. Each is removed when FILE is ended and
//! on its disk; until then they are as they were, and FILE can be cut where it began to be joined, and be joined again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use perfdata::{
    Attr, Event, Feature, Features, FinishedRound, RecordType, Recovered, Section, Stream, Writer,
};

use crate::error::{Error, Result};
use crate::output::{merge, to_disk};
use crate::recover;

/// So much trace is copied at once.
const COPY: usize = 1 << 20;

/// No recorder has more threads.
const MOST: usize = 1 << 16;

/// What the notes of a file say of it: that its recording is apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Apart {
    /// No other recording has this.
    pub id: String,
    /// How many threads there are.
    pub threads: usize,
    /// Whose file it is; that which they are joined into has none.
    pub thread: Option<usize>,
}

impl Apart {
    const ID: &str = "apart";
    const THREADS: &str = "threads";
    const THREAD: &str = "thread";
    /// The threads whose files are in the one that has this.
    const JOINED: &str = "joined";

    pub fn notes(&self) -> Vec<(&'static str, String)> {
        let mut notes = vec![
            (Self::ID, self.id.clone()),
            (Self::THREADS, self.threads.to_string()),
        ];
        notes.extend(self.thread.map(|n| (Self::THREAD, n.to_string())));
        notes
    }

    /// From the front of a file; [`None`] of a file that is in no way apart.
    fn of<R: Read + Seek>(file: &Stream<R>) -> Result<Option<Self>> {
        let front = file.front()?;
        let section = front.spare().iter().find(|s| s.feature == Feature::NOTES);
        let notes = notes_of(section.copied())?;
        let note = |key: &str| find(&notes, key);
        let number = |key| note(key).and_then(|text| text.parse().ok());
        Ok(note(Self::ID)
            .zip(number(Self::THREADS).filter(|threads| *threads <= MOST))
            .map(|(id, threads)| Self {
                id,
                threads,
                thread: number(Self::THREAD),
            }))
    }
}

type Notes = Vec<(String, String)>;

fn notes_of(section: Option<Section<'_>>) -> Result<Notes> {
    let notes = section.map(|section| section.notes()).transpose()?;
    Ok(notes.unwrap_or_default())
}

fn find(notes: &Notes, key: &str) -> Option<String> {
    let mut notes = notes.iter();
    notes.find_map(|(known, value)| (known == key).then(|| value.clone()))
}

/// The file of a thread.
pub(crate) fn part_of(file: &Path, thread: usize) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".t{thread}"));
    name.into()
}

/// The file of a thread, from behind its `FINISHED_INIT` on.
struct Part<R: Read + Seek> {
    name: String,
    stream: Stream<R>,
}

impl<R: Read + Seek> Part<R> {
    /// Goes behind what stands before the first record of the kernel, which FILE has.
    fn new(name: String, mut stream: Stream<R>) -> Result<Self> {
        while let Some(record) = stream.record()? {
            if record.kind == RecordType::FINISHED_INIT {
                break;
            }
        }
        Ok(Self { name, stream })
    }

    /// Appends what there is of a round; whether there was anything, and whether another follows.
    fn round<W: Write + Seek>(
        &mut self,
        out: &mut Writer<W>,
        buffer: &mut [u8],
        sum: &mut Recovered,
    ) -> Result<(bool, bool)> {
        let mut any = false;
        let name = &self.name;
        let wrong = |e: perfdata::Error| Error::failed(format!("{name}: {e}"));
        let stream = &mut self.stream;
        while let Some(record) = stream.record().map_err(wrong)? {
            if record.kind == RecordType::FINISHED_ROUND {
                return Ok((any, true));
            }
            any = true;
            sum.records += 1;
            // What this is about is of the kinds that end with nothing.
            let event = if record.kind.is_user() {
                Some(record.event(&Attr::default()).map_err(wrong)?)
            } else {
                None
            };
            if let Some(Event::Auxtrace(aux, _)) = event {
                sum.pieces += 1;
                sum.trace += aux.size;
                out.auxtrace(&aux)?;
                loop {
                    let len = stream.payload(buffer).map_err(wrong)?;
                    if len == 0 {
                        break;
                    }
                    out.payload(&buffer[..len])?;
                }
                continue;
            }
            if let Some(Event::AuxtraceZstd(part)) = event {
                sum.trace += u64::from(part.len);
            }
            out.raw(stream.bytes())?;
        }
        Ok((any, false))
    }
}

/// Appends all parts, round by round.
fn append<R: Read + Seek, W: Write + Seek>(
    parts: &mut [Part<R>],
    out: &mut Writer<W>,
) -> Result<Recovered> {
    let mut sum = Recovered::default();
    let mut buffer = vec![0; COPY];
    let mut going: Vec<_> = parts.iter_mut().collect();
    while !going.is_empty() {
        let mut any = false;
        let mut more = Vec::new();
        for part in going {
            let (came, follows) = part.round(out, &mut buffer, &mut sum)?;
            any |= came;
            if follows {
                more.push(part);
            }
        }
        if any {
            out.record(&FinishedRound, None)?;
            sum.records += 1;
        }
        going = more;
    }
    Ok(sum)
}

/// The features of the file that these are joined into: those of the first, but for what differs.
fn features<R: Read + Seek>(
    parts: &mut [Part<R>],
    missing: bool,
    joined: &str,
) -> Result<Features> {
    // The later, the worse.
    const ENDS: [&str; 4] = ["whole", "cut", "killed", recover::ENDED];
    let mut out: Option<Features> = None;
    let mut worst = if missing { ENDS.len() - 1 } else { 0 };
    let mut times = None;
    for part in parts {
        let features = part.stream.features()?;
        let notes = notes_of(features.get(Feature::NOTES))?;
        let ended = find(&notes, "ended").unwrap_or_default();
        let how = ENDS.iter().position(|end| *end == ended);
        worst = worst.max(how.unwrap_or(ENDS.len() - 1));
        if let Some(section) = features.get(Feature::SAMPLE_TIME) {
            times = merge(times, Some(section.sample_time()?));
        }
        out.get_or_insert(features);
    }
    let mut out = out.unwrap_or_default();
    let mut notes = notes_of(out.get(Feature::NOTES))?;
    notes.retain(|(key, _)| key != "ended" && key != Apart::THREAD);
    notes.push(("ended".to_owned(), ENDS[worst].to_owned()));
    notes.push((Apart::JOINED.to_owned(), joined.to_owned()));
    out.notes(&notes);
    if let Some((first, last)) = times {
        out.sample_time(first, last);
    }
    Ok(out)
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Joined {
    /// What is in the file besides what it had from the beginning.
    pub found: Recovered,
    /// How many files were joined into it.
    pub parts: usize,
    /// What is to be said of other files.
    pub remarks: Vec<String>,
    /// Length of the file.
    pub len: u64,
}

/// A file of a recording that is apart, into which the others are to be joined.
pub(crate) struct Whole {
    path: PathBuf,
    file: File,
    apart: Apart,
    /// Where its data section begins, and where its own records end.
    data: u64,
    end: u64,
    /// The threads whose files are in it already, when that was ended.
    joined: Option<String>,
}

impl Whole {
    /// Opens it; [`None`] if it is any other file.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let name = path.display();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|e| Error::failed(format!("cannot open {name}: {e}")))?;
        let mut stream = Stream::open(&file)?;
        let Some(apart) = Apart::of(&stream)?.filter(|apart| apart.thread.is_none()) else {
            return Ok(None);
        };
        let mut end = stream.data();
        while let Ok(Some(record)) = stream.record() {
            let last = record.kind == RecordType::FINISHED_INIT;
            end = stream.position();
            if last {
                break;
            }
        }
        let mut joined = None;
        if stream.is_finished() {
            let notes = notes_of(stream.features()?.get(Feature::NOTES))?;
            joined = Some(find(&notes, Apart::JOINED).unwrap_or_default());
        }
        let data = stream.data();
        Ok(Some(Self {
            path: path.to_owned(),
            file,
            apart,
            data,
            end,
            joined,
        }))
    }

    /// Finds the file of a thread; why not, if there is none.
    fn part(&self, thread: usize) -> Result<std::result::Result<(PathBuf, Stream<File>), String>> {
        let path = part_of(&self.path, thread);
        let name = path.display();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(Err(format!("{name} is not there")))
            }
            Err(e) => return Err(Error::failed(format!("cannot open {name}: {e}"))),
        };
        let stream = match Stream::open(file) {
            Err(e @ perfdata::Error::Input { .. }) => {
                return Err(Error::failed(format!("{name}: {e}")))
            }
            Err(e) => return Ok(Err(format!("{name} has nothing that was recorded: {e}"))),
            Ok(stream) => stream,
        };
        let own = Apart {
            thread: Some(thread),
            ..self.apart.clone()
        };
        Ok(if Apart::of(&stream)?.is_some_and(|apart| apart == own) {
            Ok((path, stream))
        } else {
            Err(format!(
                "{name} is of another recording, and stays as it is"
            ))
        })
    }

    /// Joins the files of all threads into it, and removes them. With `recover` each is first made as good as it gets.
    ///
    /// # Errors
    /// If one cannot be read, or this one cannot be written: then all is as it was before.
    pub fn join(self, recover: bool, sync: bool) -> Result<Joined> {
        let mut out = Joined::default();
        let (mut parts, mut paths, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        for thread in 0..self.apart.threads {
            let (path, mut stream) = match self.part(thread)? {
                Ok(part) => part,
                Err(why) => {
                    out.remarks.push(why);
                    continue;
                }
            };
            let name = path.display().to_string();
            let wrong = |e: perfdata::Error| Error::failed(format!("{name}: {e}"));
            if recover && !stream.is_finished() {
                out.found.dropped += recover::finish(&path)?.dropped;
                let again = File::open(&path);
                let again = again.map_err(|e| Error::failed(format!("cannot open {name}: {e}")))?;
                stream = Stream::open(again).map_err(wrong)?;
            }
            parts.push(Part::new(name.clone(), stream)?);
            paths.push(path);
            numbers.push(thread.to_string());
        }
        let missing = parts.len() < self.apart.threads;
        let features = features(&mut parts, missing, &numbers.join(","))?;
        let cannot = |offset| move |reason| perfdata::Error::Output { offset, reason };
        self.file.set_len(self.end).map_err(cannot(self.end))?;
        let mut writer = Writer::resume(&self.file, self.data, self.end)?;
        let written = append(&mut parts, &mut writer).and_then(|found| {
            writer.checkpoint()?;
            if sync {
                to_disk(&self.file, &self.path)?;
            }
            // From here on it is a file that needs no others.
            writer.try_finish(&features)?;
            if sync {
                to_disk(&self.file, &self.path)?;
            }
            Ok(found)
        });
        let found = match written {
            Ok(found) => found,
            Err(error) => {
                // Its header may say more than is there then; who recovers it goes by what is there.
                let _ = self.file.set_len(self.end);
                let _ = Writer::resume(&self.file, self.data, self.end)
                    .and_then(|mut writer| writer.checkpoint());
                return Err(error);
            }
        };
        out.found = Recovered {
            dropped: out.found.dropped,
            ..found
        };
        out.len = writer.position();
        out.parts = paths.len();
        out.remarks
            .extend(paths.iter().filter_map(|path| removed(path)));
        Ok(out)
    }

    /// If it was joined before: whatever is left of the files that are in it is removed.
    pub fn tidy(&self) -> Result<Option<Joined>> {
        let Some(joined) = &self.joined else {
            return Ok(None);
        };
        let mut out = Joined::default();
        out.found.was_finished = true;
        for thread in joined.split(',').filter_map(|thread| thread.parse().ok()) {
            if let Ok((path, _)) = self.part(thread)? {
                let said = removed(&path);
                let there = format!("{} was in it already, and is removed", path.display());
                out.remarks.push(said.unwrap_or(there));
            }
        }
        Ok(Some(out))
    }
}

/// Removes a file; what is to be said, if it cannot be.
fn removed(path: &Path) -> Option<String> {
    let cannot = |e| {
        format!(
            "cannot remove {}, which is not needed any more: {e}",
            path.display()
        )
    };
    fs::remove_file(path).err().map(cannot)
}

/// Joins what the threads of a recorder have written; how long the file is then.
pub(crate) fn join(path: &Path, sync: bool) -> Result<u64> {
    let name = path.display();
    let joined = Whole::open(path).and_then(|file| {
        let gone = || Error::failed("it is another file now");
        file.ok_or_else(gone)?.join(false, sync)
    });
    let joined = joined.map_err(|e| {
        Error::failed(format!(
            "cannot join the files of the threads, {} and so on, to {name}: {e}. They hold all that was recorded: make room for as much \
             again, and `auxrec recover {name}` joins them",
            part_of(path, 0).display()
        ))
    })?;
    for remark in joined.remarks {
        eprintln!("auxrec: {remark}");
    }
    Ok(joined.len)
}

#[cfg(test)]
pub(crate) fn append_all<R: Read + Seek, W: Write + Seek>(
    parts: impl Iterator<Item = Stream<R>>,
    out: &mut Writer<W>,
) -> Result<Recovered> {
    let parts = parts.map(|stream| Part::new("a part".to_owned(), stream));
    append(&mut parts.collect::<Result<Vec<_>>>()?, out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use perfdata::{Auxtrace, FinishedInit};

    use super::*;

    const ID: &str = "1-2";

    /// Writes a file of a recording that is apart, whose pieces of trace have these lengths, a round after each.
    fn write(path: &Path, id: &str, thread: Option<usize>, pieces: &[u64], ended: Option<&str>) {
        let file = File::create(path).unwrap();
        let apart = Apart {
            id: id.to_owned(),
            threads: 2,
            thread,
        };
        let mut notes = apart.notes();
        let mut features = Features::new();
        features.string(Feature::HOSTNAME, "here").notes(&notes);
        let mut file = Writer::with_spare(file, &[(Attr::default(), vec![1])], &features).unwrap();
        file.record(&FinishedInit, None).unwrap();
        let mut offset = 0;
        for &size in pieces {
            let idx = u32::try_from(thread.unwrap()).unwrap();
            let aux = Auxtrace {
                size,
                offset,
                idx,
                ..Auxtrace::default()
            };
            file.auxtrace(&aux).unwrap();
            for at in (offset..offset + size).step_by(8) {
                file.payload(&(at ^ u64::from(idx)).to_le_bytes()).unwrap();
            }
            offset += size;
            file.record(&FinishedRound, None).unwrap();
        }
        let Some(ended) = ended else {
            return file.checkpoint().unwrap();
        };
        notes.push(("ended", ended.to_owned()));
        let first = 10 + u64::try_from(thread.unwrap()).unwrap();
        features.notes(&notes).sample_time(first, first + 10);
        file.finish(&features).unwrap();
    }

    /// FILE and the files of two threads, in a directory that goes with what keeps it.
    fn recording(ends: [Option<&str>; 2]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf.data");
        write(&path, ID, None, &[], None);
        write(&part_of(&path, 0), ID, Some(0), &[64, 4096], ends[0]);
        let long = u64::try_from(COPY).unwrap() + 8;
        write(&part_of(&path, 1), ID, Some(1), &[long, 8, 16], ends[1]);
        (directory, path)
    }

    fn there(path: &Path) -> [bool; 2] {
        [0, 1].map(|thread| part_of(path, thread).exists())
    }

    /// Offsets and lengths of the pieces of each ring; every byte is right, and every place in the index.
    fn pieces(path: &Path) -> Vec<Vec<(u64, u64)>> {
        let bytes = fs::read(path).unwrap();
        let file = perfdata::File::parse(&bytes).unwrap();
        let mut out = vec![Vec::new(); 2];
        let mut places = Vec::new();
        for record in file.records() {
            let record = record.unwrap();
            if let Event::Auxtrace(aux, payload) = file.decode(&record).unwrap().0 {
                places.push(record.offset);
                for (at, word) in (aux.offset..).step_by(8).zip(payload.chunks(8)) {
                    assert_eq!(word, (at ^ u64::from(aux.idx)).to_le_bytes());
                }
                out[usize::try_from(aux.idx).unwrap()].push((aux.offset, aux.size));
            }
        }
        let index = file.feature(Feature::AUXTRACE).unwrap().index().unwrap();
        let index: Vec<_> = index.iter().map(|entry| entry.offset).collect();
        assert_eq!(index, places);
        out
    }

    fn note(path: &Path, key: &str) -> Option<String> {
        let bytes = fs::read(path).unwrap();
        let file = perfdata::File::parse(&bytes).unwrap();
        find(&notes_of(file.feature(Feature::NOTES)).unwrap(), key)
    }

    #[test]
    fn joined_round_by_round() {
        let (_directory, path) = recording([Some("whole"); 2]);
        let joined = Whole::open(&path)
            .unwrap()
            .unwrap()
            .join(false, true)
            .unwrap();
        assert_eq!((joined.parts, joined.found.pieces), (2, 5));
        assert!(joined.remarks.is_empty());
        assert_eq!(joined.len, fs::metadata(&path).unwrap().len());
        assert_eq!(there(&path), [false; 2]);
        let bytes = fs::read(&path).unwrap();
        let file = perfdata::File::parse(&bytes).unwrap();
        let kinds = file.records().map(|record| record.unwrap().kind);
        let init = RecordType::FINISHED_INIT;
        let (trace, round) = (RecordType::AUXTRACE, RecordType::FINISHED_ROUND);
        // Three rounds of the second, two of the first.
        let want = [init, trace, trace, round, trace, trace, round, trace, round];
        assert_eq!(kinds.collect::<Vec<_>>(), want);
        let times = file.feature(Feature::SAMPLE_TIME).unwrap();
        assert_eq!(times.sample_time().unwrap(), (10, 21));
        assert_eq!(note(&path, "ended").as_deref(), Some("whole"));
        assert_eq!(note(&path, Apart::THREAD), None);
        let long = u64::try_from(COPY).unwrap() + 8;
        let rings = pieces(&path);
        assert_eq!(rings[0], [(0, 64), (64, 4096)]);
        assert_eq!(rings[1], [(0, long), (long, 8), (long + 8, 16)]);
    }

    #[test]
    fn the_worst_end_is_that_of_all() {
        for (ends, ended) in [
            ([Some("whole"), Some("cut")], "cut"),
            ([Some("recovered"), Some("cut")], "recovered"),
            ([Some("whole"), None], "recovered"),
        ] {
            let (_directory, path) = recording(ends);
            recover::recover(&path).unwrap();
            assert_eq!(note(&path, "ended").as_deref(), Some(ended), "{ends:?}");
        }
    }

    /// Killed anywhere while it joined, and recovered, it is the same file to the byte.
    #[test]
    fn a_join_that_was_interrupted_is_done_again() {
        let (_directory, path) = recording([Some("whole"); 2]);
        let parts = [0, 1].map(|thread| fs::read(part_of(&path, thread)).unwrap());
        let front = fs::read(&path).unwrap();
        recover::recover(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let middle = front.len() + (whole.len() - front.len()) / 2;
        let ends = (front.len()..front.len() + 300).step_by(7);
        for len in ends.chain([middle, middle + 4, whole.len()]) {
            for (thread, part) in parts.iter().enumerate() {
                fs::write(part_of(&path, thread), part).unwrap();
            }
            // Its header says nothing yet; and a power cut may leave zeros.
            let mut torn = [&front[..], &whole[front.len()..len]].concat();
            if len == middle {
                torn.resize(2 * whole.len(), 0);
            }
            fs::write(&path, torn).unwrap();
            let joined = recover::recover(&path).unwrap();
            assert_eq!(joined.parts, 2);
            assert!(fs::read(&path).unwrap() == whole, "cut at {len}");
            assert_eq!(there(&path), [false; 2]);
        }
        // Killed before it had removed them all.
        fs::write(part_of(&path, 1), &parts[1]).unwrap();
        let again = recover::recover(&path).unwrap();
        assert!(again.found.was_finished && again.remarks.len() == 1);
        assert!(fs::read(&path).unwrap() == whole);
        assert_eq!(there(&path), [false; 2]);
    }

    /// A recorder that was killed: of each thread what is there.
    #[test]
    fn parts_are_recovered_before() {
        let (_directory, path) = recording([None; 2]);
        let part = part_of(&path, 1);
        let all = fs::read(&part).unwrap();
        let front = fs::read(&path).unwrap();
        let first = fs::read(part_of(&path, 0)).unwrap();
        for len in (front.len()..all.len()).step_by(100_003).chain([0]) {
            fs::write(&path, &front).unwrap();
            fs::write(part_of(&path, 0), &first).unwrap();
            fs::write(&part, &all[..len]).unwrap();
            let joined = recover::recover(&path).unwrap();
            assert_eq!(note(&path, "ended").as_deref(), Some("recovered"));
            let rings = pieces(&path);
            assert_eq!(rings[0], [(0, 64), (64, 4096)]);
            let bytes: u64 = rings[1].iter().map(|(_, size)| size).sum();
            // But for headers and what is no whole word.
            let least = (len - len.min(front.len())).saturating_sub(200);
            assert!(bytes >= u64::try_from(least).unwrap(), "{bytes} of {len}");
            // One without a front has nothing, and is not taken away.
            assert_eq!(
                (joined.parts, there(&path)),
                if len == 0 {
                    (1, [false, true])
                } else {
                    (2, [false; 2])
                }
            );
        }
    }

    #[test]
    fn what_is_of_another_recording_stays() {
        let (_directory, path) = recording([Some("whole"); 2]);
        let stale = part_of(&path, 1);
        write(&stale, "3-4", Some(1), &[8], Some("whole"));
        let before = fs::read(&stale).unwrap();
        let joined = recover::recover(&path).unwrap();
        assert!(
            joined.remarks[0].contains("is of another recording"),
            "{joined:?}"
        );
        assert!(fs::read(&stale).unwrap() == before);
        assert_eq!(pieces(&path)[1], []);
        // Nobody knows what it had.
        assert_eq!(note(&path, "ended").as_deref(), Some("recovered"));
        // Once more, it stays still; so does one that comes back later.
        assert!(recover::recover(&path).unwrap().found.was_finished);
        write(&stale, ID, Some(1), &[8], Some("whole"));
        assert!(recover::recover(&path).unwrap().remarks.is_empty());
        assert_eq!(there(&path), [false, true]);
    }

    /// What is wrong with a file of a thread is told with its name; all stays as it was, and nothing loops.
    #[test]
    fn a_damaged_part_ends_the_join() {
        let (_directory, path) = recording([Some("whole"); 2]);
        let front = fs::read(&path).unwrap();
        let part = part_of(&path, 0);
        let mut bytes = fs::read(&part).unwrap();
        // The length of the record behind FINISHED_INIT.
        bytes[front.len() + 6] = 3;
        fs::write(&part, &bytes).unwrap();
        let says = recover::recover(&path).unwrap_err().to_string();
        assert!(says.contains("perf.data.t0: record header.size"), "{says}");
        assert!(fs::read(&path).unwrap() == front);
        assert_eq!(there(&path), [true; 2]);
        // One that is seen only when FILE has got trace already: that is cut off again.
        let (_directory, path) = recording([Some("whole"); 2]);
        let part = part_of(&path, 1);
        let mut bytes = fs::read(&part).unwrap();
        let file = perfdata::File::parse(&bytes).unwrap();
        let last = file.records().last().unwrap().unwrap().offset;
        bytes[usize::try_from(last).unwrap() + 6] = 3;
        fs::write(&part, &bytes).unwrap();
        let says = recover::recover(&path).unwrap_err().to_string();
        assert!(says.contains("perf.data.t1: record header.size"), "{says}");
        assert!(fs::read(&path).unwrap() == front);
        assert_eq!(there(&path), [true; 2]);
    }

    /// One that has no room says so, and none of the files is worse for it.
    #[test]
    fn no_room_is_an_error_of_the_output() {
        let (_directory, path) = recording([Some("whole"); 2]);
        let open = |thread| Stream::open(File::open(part_of(&path, thread)).unwrap()).unwrap();
        let mut room = [0; 5000];
        let out = io::Cursor::new(&mut room[..]);
        let mut out = Writer::new(out, &[(Attr::default(), vec![1])]).unwrap();
        let error = append_all([0, 1].map(open).into_iter(), &mut out).unwrap_err();
        assert!(
            matches!(error, Error::File(perfdata::Error::Output { .. })),
            "{error}"
        );
    }
}
