// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Joins the files of a split recording (`auxrec record --split-files`), in which each recorder thread has written a file of its own.
//!
//! FILE has the records before the first record of the kernel, up to `FINISHED_INIT`. The files of the threads, FILE.t0, FILE.t1 and so on,
//! have the rest. The join appends them to FILE round by round, and removes them when FILE is finished and on its disk. Until then they do
//! not change, so an interrupted join can cut FILE back to its own records and start again. The files can also be joined into a copy of
//! FILE: then they are kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use perfdata::{
    Attr, Event, Feature, Features, FinishedRound, RecordType, Recovered, Section, Stream, Writer,
};

use crate::error::{Error, Result};
use crate::file::{spill_file, to_disk};
use crate::finish::{self, Copy};

#[cfg(test)]
mod tests;

/// How many bytes of trace are copied at once.
const COPY: usize = 1 << 20;

/// Maximum number of threads of a recorder.
const MAX: usize = 1 << 16;

/// The notes of a file of a split recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitFiles {
    /// Unique id of the recording.
    pub id: String,
    /// Number of threads.
    pub threads: usize,
    /// The thread that wrote the file. [`None`] for the file that the others are joined into.
    pub thread: Option<usize>,
}

impl SplitFiles {
    /// The key is part of the file format.
    const ID: &str = "apart";
    const THREADS: &str = "threads";
    const THREAD: &str = "thread";
    /// Key of the note of a joined file that lists the threads whose files are in it.
    const JOINED: &str = "joined";

    /// The notes to write into the file.
    #[must_use]
    pub fn notes(&self) -> Vec<(&'static str, String)> {
        let mut notes = vec![
            (Self::ID, self.id.clone()),
            (Self::THREADS, self.threads.to_string()),
        ];
        notes.extend(self.thread.map(|n| (Self::THREAD, n.to_string())));
        notes
    }

    /// Reads the notes in the front of a file. [`None`] if the recording is not split.
    fn of<R: Read + Seek>(file: &Stream<R>) -> Result<Option<Self>> {
        let front = file.front()?;
        let section = front.spare().iter().find(|s| s.feature == Feature::NOTES);
        let notes = notes_of(section.copied())?;
        let note = |key: &str| find(&notes, key);
        let number = |key| note(key).and_then(|text| text.parse().ok());
        Ok(note(Self::ID)
            .zip(number(Self::THREADS).filter(|threads| *threads <= MAX))
            .map(|(id, threads)| Self {
                id,
                threads,
                thread: number(Self::THREAD),
            }))
    }
}

/// The times of the first and the last record, ns.
pub type Times = (u64, u64);

/// The span that covers both.
#[must_use]
pub fn merge(a: Option<Times>, b: Option<Times>) -> Option<Times> {
    match (a, b) {
        (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
        (a, b) => a.or(b),
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

/// Path of the file of a thread.
#[must_use]
pub fn part_of(file: &Path, thread: usize) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".t{thread}"));
    name.into()
}

/// The file of a thread, read from after its `FINISHED_INIT` on.
struct Part<R: Read + Seek> {
    name: String,
    stream: Stream<R>,
}

impl<R: Read + Seek> Part<R> {
    /// Skips the records up to `FINISHED_INIT`, which FILE has, too.
    fn new(name: String, mut stream: Stream<R>) -> Result<Self> {
        while let Some(record) = stream.record()? {
            if record.kind == RecordType::FINISHED_INIT {
                break;
            }
        }
        Ok(Self { name, stream })
    }

    /// Appends the records of a round. Returns whether there were any, and whether another round follows.
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
            // All records of interest here are user records, which have no sample id.
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

/// The features of the joined file: those of the first part, with the end, the times and the threads of all.
fn features<R: Read + Seek>(
    parts: &mut [Part<R>],
    missing: bool,
    joined: &str,
) -> Result<Features> {
    // From best to worst.
    const ENDS: [&str; 4] = ["whole", "cut", "killed", finish::ENDED];
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
    notes.retain(|(key, _)| key != "ended" && key != SplitFiles::THREAD);
    notes.push(("ended".to_owned(), ENDS[worst].to_owned()));
    notes.push((SplitFiles::JOINED.to_owned(), joined.to_owned()));
    out.notes(&notes);
    if let Some((first, last)) = times {
        out.sample_time(first, last);
    }
    Ok(out)
}

/// The result of a join.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Joined {
    /// Counts of what was added to the file.
    pub found: Recovered,
    /// Number of files that were joined into it.
    pub parts: usize,
    /// Messages to the user about other files.
    pub remarks: Vec<String>,
    /// Length of the file.
    pub len: u64,
}

/// The file of a split recording that the files of the threads are joined into.
pub struct Whole {
    path: PathBuf,
    /// If this is a copy, its original. The files of the threads are beside the original, and are kept.
    source: Option<PathBuf>,
    file: File,
    split: SplitFiles,
    /// The beginning of its data section, and the end of its own records.
    data: u64,
    end: u64,
    /// If the file is finished, the threads whose files are in it.
    joined: Option<String>,
}

impl Whole {
    /// Opens `path`, a copy of `source`. [`None`] if it is not the file of a split recording.
    pub fn copied(source: &Path, path: &Path) -> Result<Option<Self>> {
        Ok(Self::open(path)?.map(|file| Self {
            source: Some(source.to_owned()),
            ..file
        }))
    }

    /// Opens the file of a split recording. [`None`] if it is any other file.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let name = path.display();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|e| Error::failed(format!("cannot open {name}: {e}")))?;
        let mut stream = Stream::found(&file)?;
        let Some(split) = SplitFiles::of(&stream)?.filter(|split| split.thread.is_none()) else {
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
            joined = Some(find(&notes, SplitFiles::JOINED).unwrap_or_default());
        }
        let data = stream.data();
        Ok(Some(Self {
            path: path.to_owned(),
            source: None,
            file,
            split,
            data,
            end,
            joined,
        }))
    }

    /// Finds the file of a thread, or the reason why it cannot be joined.
    fn part(&self, thread: usize) -> Result<std::result::Result<(PathBuf, Stream<File>), String>> {
        let path = part_of(self.source.as_ref().unwrap_or(&self.path), thread);
        let name = path.display();
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Ok(Err(format!("{name} is not there")))
            }
            Err(e) => return Err(Error::failed(format!("cannot open {name}: {e}"))),
        };
        let stream = match Stream::found(file) {
            Err(e @ perfdata::Error::Input { .. }) => {
                return Err(Error::failed(format!("{name}: {e}")))
            }
            Err(e) => return Ok(Err(format!("{name} has nothing that was recorded: {e}"))),
            Ok(stream) => stream,
        };
        let own = SplitFiles {
            thread: Some(thread),
            ..self.split.clone()
        };
        Ok(
            if SplitFiles::of(&stream)?.is_some_and(|split| split == own) {
                Ok((path, stream))
            } else {
                Err(format!(
                    "{name} is of another recording, and stays as it is"
                ))
            },
        )
    }

    /// Joins the files of all threads into this file, and removes them unless this file is a copy. With `recover`, unfinished files are
    /// finished first; if this file is a copy, copies of them are.
    ///
    /// # Errors
    /// If a file of a thread cannot be read, or this file cannot be written. Then the files of the threads are kept, and so are this file's
    /// own records: the join can be repeated.
    pub fn join(self, recover: bool, sync: bool) -> Result<Joined> {
        let mut out = Joined::default();
        let (mut parts, mut paths, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
        let mut copies = Vec::new();
        for thread in 0..self.split.threads {
            let (mut path, mut stream) = match self.part(thread)? {
                Ok(part) => part,
                Err(why) => {
                    out.remarks.push(why);
                    continue;
                }
            };
            let name = path.display().to_string();
            let wrong = |e: perfdata::Error| Error::failed(format!("{name}: {e}"));
            if recover && !stream.is_finished() {
                if self.source.is_some() {
                    let to = part_of(&self.path, thread);
                    copies.push(Copy::of(&path, &to)?);
                    path = to;
                }
                out.found.dropped += finish::finish(&path)?.dropped;
                let again = File::open(&path);
                let again = again.map_err(|e| Error::failed(format!("cannot open {name}: {e}")))?;
                stream = Stream::found(again).map_err(wrong)?;
            }
            parts.push(Part::new(name.clone(), stream)?);
            paths.push(path);
            numbers.push(thread.to_string());
        }
        let missing = parts.len() < self.split.threads;
        let features = features(&mut parts, missing, &numbers.join(","))?;
        let cannot = |offset| move |reason| perfdata::Error::Output { offset, reason };
        self.file.set_len(self.end).map_err(cannot(self.end))?;
        let mut writer = Writer::resume(&self.file, self.data, self.end)?;
        writer.spill_index_to(spill_file(&self.path));
        let written = append(&mut parts, &mut writer).and_then(|found| {
            writer.checkpoint()?;
            if sync {
                to_disk(&self.file, &self.path)?;
            }
            // From here on, the file does not need those of the threads.
            writer.try_finish(&features)?;
            if sync {
                to_disk(&self.file, &self.path)?;
            }
            Ok(found)
        });
        let found = match written {
            Ok(found) => found,
            Err(error) => {
                // If this fails, the header may have a longer length than the file; `recover` uses the file's length.
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
        if self.source.is_none() {
            out.remarks
                .extend(paths.iter().filter_map(|path| removed(path)));
        }
        Ok(out)
    }

    /// If the file was joined before, removes the files of the threads that are in it. [`None`] if it was not.
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

/// Removes a file. Returns a message to the user if it cannot be removed.
fn removed(path: &Path) -> Option<String> {
    let cannot = |e| {
        format!(
            "cannot remove {}, which is not needed any more: {e}",
            path.display()
        )
    };
    fs::remove_file(path).err().map(cannot)
}

/// Appends all parts to a file, round by round: a join of parts that need not be files.
///
/// # Errors
/// If one cannot be read, or the output fails.
pub fn append_all<R: Read + Seek, W: Write + Seek>(
    parts: impl Iterator<Item = Stream<R>>,
    out: &mut Writer<W>,
) -> Result<Recovered> {
    let parts = parts.map(|stream| Part::new("a part".to_owned(), stream));
    append(&mut parts.collect::<Result<Vec<_>>>()?, out)
}
