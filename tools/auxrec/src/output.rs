// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The file that is written, or the row of files.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Cursor, IoSlice, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::thread;
use std::time::Duration;

use perfdata::{
    Auxtrace, AuxtraceInfo, ClockData, EventDesc, Features, FinishedInit, FinishedRound, IdIndex,
    IdIndexEntry, Writer,
};

use crate::convert::NOTE;
use crate::drain::{Sink, Tape, Times};
use crate::error::{Error, Result};
use crate::host;
use crate::intel_pt;
use crate::join::{part_of, Apart};
use crate::pack::Pack;
use crate::pmu::Pmus;
use crate::session::{Mode, Plan};
use crate::size::bytes;
use crate::sys::{self, Mapping};
use crate::target::{descendants, process_of, processes, threads, Target};

/// What every file of a recording says of it.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    pub plan: Plan,
    /// The events with their ids.
    pub events: Vec<EventDesc>,
    /// Which event has which id.
    pub index: Vec<IdIndexEntry>,
    /// The recorder's arguments.
    pub cmdline: Vec<String>,
    /// How many CPUs are online.
    pub online: usize,
    pub target: Target,
    /// The process of the command that is run.
    pub workload: Option<u32>,
    /// What perf's decoder of Intel PT wants to know, if that is what the trace is.
    pub intel_pt: Option<Vec<u64>>,
    /// Of a recording that is apart: which, and whose file this is.
    pub apart: Option<Apart>,
}

/// How long files get, and how many are kept.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// The recording ends when all its files together have so many bytes.
    pub all: Option<u64>,
    /// Whether there are several files, numbered.
    pub parts: bool,
    /// A new one is begun when one has so many bytes.
    pub part: Option<u64>,
    /// So many are kept.
    pub keep: Option<usize>,
    /// How often a file is brought to its disk; zero: never.
    pub sync: Duration,
    /// Says on standard error how much of it is there.
    pub verbose: bool,
    /// How hard trace is compressed; [`None`]: not.
    pub level: Option<i32>,
}

/// The file that is written now.
pub(crate) struct Output {
    pub file: Writer<File>,
    what: Description,
    limits: Limits,
    /// The name that was asked for.
    base: PathBuf,
    /// The name of the file that is written.
    path: PathBuf,
    /// Where the file went that had the name before.
    old: Option<PathBuf>,
    /// The number of the file, where there are several.
    part: u32,
    /// Those before it that are kept.
    kept: VecDeque<PathBuf>,
    /// Bytes in those before it.
    before: u64,
    times: Option<Times>,
    /// Bytes of records and trace since the file began.
    content: u64,
    /// For `recover` and readers, beside what is always noted.
    pub notes: Vec<(&'static str, String)>,
    sync: Option<Sync>,
    pack: Option<Pack>,
    /// Bytes in the files of all threads, of a recording that is apart; and how many of these are counted in it.
    together: Option<(Arc<AtomicU64>, u64)>,
    /// Where the counters begin, when they are written.
    pub counters: Option<u64>,
}

/// `FILE.0001` and so on.
fn name_of(base: &Path, part: u32) -> PathBuf {
    let mut name = base.as_os_str().to_owned();
    name.push(format!(".{part:04}"));
    name.into()
}

impl Output {
    /// Moves a file of this name out of the way, as perf does, and makes a new one.
    pub fn create(base: &Path, what: Description, limits: Limits) -> Result<Self> {
        if what.apart.is_some() && fs::metadata(base).is_ok_and(|meta| !meta.is_file()) {
            return Err(Error::usage(format!(
                "--apart makes files beside {}, which is none itself: leave one of them out",
                base.display()
            )));
        }
        let path = if limits.parts {
            name_of(base, 1)
        } else {
            base.to_owned()
        };
        let cannot = |e: io::Error| cannot_create(&path, &e);
        let mut old = None;
        if fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() != 0) {
            let mut name = path.as_os_str().to_owned();
            name.push(".old");
            fs::rename(&path, &name).map_err(cannot)?;
            old = Some(PathBuf::from(name));
        }
        let file = create(&path).map_err(cannot)?;
        let together = what.apart.as_ref().map(|_| (Arc::default(), 0));
        let mut new = Self::open(file, path, what, limits, together)?;
        new.base = base.to_owned();
        new.old = old;
        Ok(new)
    }

    /// The file of this thread, which has these of the rings, beside one that was begun.
    pub fn apart(&self, thread: usize, rings: &Range<usize>) -> Result<Self> {
        let path = part_of(&self.path, thread);
        let new = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let file = new.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Error::failed(format!(
                "{} is there already, a part of a recording that was not joined: `auxrec recover {}` joins it, or move it away",
                path.display(),
                self.path.display()
            )),
            _ => cannot_create(&path, &e),
        })?;
        let mut what = self.what.clone();
        let ours =
            |entry: &IdIndexEntry| usize::try_from(entry.idx).is_ok_and(|n| rings.contains(&n));
        what.index.retain(ours);
        what.apart = what.apart.map(|apart| Apart {
            thread: Some(thread),
            ..apart
        });
        let together = self.together.as_ref().map(|(sum, _)| (sum.clone(), 0));
        Self::open(file, path, what, self.limits, together)
    }

    fn open(
        file: File,
        path: PathBuf,
        what: Description,
        limits: Limits,
        together: Option<(Arc<AtomicU64>, u64)>,
    ) -> Result<Self> {
        let (file, sync) = open(file, &path, &what, limits, 1)?;
        Ok(Self {
            file,
            what,
            limits,
            base: path.clone(),
            path,
            old: None,
            part: 1,
            kept: VecDeque::new(),
            before: 0,
            times: None,
            content: 0,
            notes: Vec::new(),
            sync: Some(sync),
            pack: limits.level.map(Pack::new).transpose()?,
            together,
            counters: None,
        })
    }

    /// Nothing was recorded: leaves things as they were.
    pub fn discard(self) {
        // What is no file, as a device, stays.
        if fs::metadata(&self.path).is_ok_and(|meta| meta.is_file()) {
            let _ = fs::remove_file(&self.path);
        }
        if let Some(old) = &self.old {
            let _ = fs::rename(old, &self.path);
        }
    }

    /// The name of the file that is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many files there are with this one.
    pub fn parts(&self) -> u32 {
        self.part
    }

    /// Bytes in all files of the recording, those included that were not kept.
    pub fn total(&self) -> u64 {
        match &self.together {
            Some((sum, _)) => sum.load(Ordering::Relaxed),
            None => self.before.saturating_add(self.file.position()),
        }
    }

    /// How many threads have files beside it, of a recording that is apart.
    pub fn threads(&self) -> Option<usize> {
        self.what.apart.as_ref().map(|apart| apart.threads)
    }

    /// Whether it is the file of one thread, of a recording that is apart.
    fn is_part(&self) -> bool {
        let apart = self.what.apart.as_ref();
        apart.is_some_and(|apart| apart.thread.is_some())
    }

    /// What stands before the first record of the kernel: which event has which id, and what ran already.
    pub fn begin(&mut self) -> Result<()> {
        for entries in self.what.index.chunks(IdIndex::MAX) {
            self.file.record(&IdIndex(entries), None)?;
        }
        // It names a decoder that perf has, and perf has none for most PMUs.
        if let Some(private) = &self.what.intel_pt {
            self.file.record(
                &AuxtraceInfo {
                    kind: intel_pt::DECODER,
                    private,
                },
                None,
            )?;
        }
        // What ran already stands in the file that all are joined into.
        let alone = !self.is_part();
        if alone {
            host::kernel(
                &self.what.plan.tracking_attr(),
                self.tracking_id(),
                &mut self.file,
            )?;
        }
        // The command has not begun.
        if alone && (self.what.target != Target::Command || self.part != 1) {
            self.processes()?;
        }
        self.file.record(&FinishedInit, None)?;
        self.file.flush()?;
        self.content = 0;
        Ok(())
    }

    fn tracking_id(&self) -> u64 {
        self.what
            .events
            .last()
            .and_then(|tracking| tracking.ids.first().copied())
            .unwrap_or(0)
    }

    /// Makes up the names and mappings of what runs now.
    fn processes(&mut self) -> Result<()> {
        let (attr, id) = (self.what.plan.tracking_attr(), self.tracking_id());
        let pids = match &self.what.target {
            Target::Processes(pids) => pids.clone(),
            Target::Threads(threads) => {
                let mut pids: Vec<u32> =
                    threads.iter().filter_map(|t| process_of(*t).ok()).collect();
                pids.dedup();
                pids
            }
            Target::All | Target::System(_) => processes(),
            Target::Command => self.what.workload.map_or(Vec::new(), descendants),
        };
        let mut build_ids = host::BuildIds::default();
        for pid in pids {
            // One that has ended meanwhile is none to tell of.
            let all = threads(pid).unwrap_or_default();
            host::process(pid, &all, &attr, id, &mut build_ids, &mut self.file)?;
        }
        Ok(())
    }

    /// The sections behind the data.
    pub fn features(&self, ended: &str) -> Features {
        let mut features = features(&self.what, self.limits, self.part, ended, &self.notes);
        if let Some((first, last)) = self.times {
            features.sample_time(first, last);
        }
        features
    }

    /// Ends this file and begins the next.
    fn next(&mut self) -> Result<()> {
        let features = self.features("rotated");
        self.file.try_finish(&features)?;
        // Brings the file to its disk.
        self.sync = None;
        self.before = self.total();
        self.kept.push_back(self.path.clone());
        while self.limits.keep.is_some_and(|keep| self.kept.len() >= keep) {
            if let Some(oldest) = self.kept.pop_front() {
                // It may have been taken away already.
                let _ = fs::remove_file(oldest);
            }
        }
        self.part += 1;
        self.path = name_of(&self.base, self.part);
        let file = create(&self.path).map_err(|e| cannot_create(&self.path, &e))?;
        let (file, sync) = open(file, &self.path, &self.what, self.limits, self.part)?;
        self.file = file;
        self.sync = Some(sync);
        self.times = None;
        self.begin()
    }

    /// Has everything on its disk that was written until now.
    pub fn durable(&mut self) -> Result<()> {
        self.file.checkpoint()?;
        to_disk(self.file.get_ref(), &self.path)
    }

    /// Ends a file that cannot be written any more: it is cut at the end of the last whole record. There may be room for the rest
    /// again then; else the last records make room, as without its index and its counters the whole trace is worth less. What
    /// it does then, as the end of a sentence.
    pub fn salvage(
        &mut self,
        counts: impl Fn(&mut Writer<Cursor<Vec<u8>>>) -> Result<()>,
    ) -> String {
        // Of one of several that can be written, and is only not to be gone on with, nothing is cut: the rings do not have any more what
        // it has only collected.
        let _ = self.file.checkpoint();
        let features = self.features("cut");
        let most = self.counters.unwrap_or(u64::MAX);
        let file = &mut self.file;
        let cut = |file: &mut File, len| file.set_len(len);
        let mut saved = file.salvage(most, cut);
        let mut finished = false;
        if let (&Ok(at), Ok(counters)) = (&saved, collected(counts)) {
            let whole = file
                .raw(&counters)
                .and_then(|()| file.try_finish(&features))
                .map(|()| at)
                .or_else(|_| file.finish_over(at, &counters, &features, cut));
            finished = whole.is_ok();
            // What `recover` finishes has no counters: they are for a file that says that it was cut.
            saved = whole.or_else(|_| file.salvage(at, cut));
        }
        match (&saved, finished) {
            (Ok(len), true) => format!("holds what was recorded until then ({})", bytes(*len)),
            (Ok(len), false) => format!(
                "holds what was recorded until then ({}), without the sections that describe the machine: \
                 `auxrec recover` writes them when there is room",
                bytes(*len)
            ),
            (Err(_), _) => "holds what cannot be told".to_owned(),
        }
    }
}

/// The records that `counts` writes.
fn collected(counts: impl Fn(&mut Writer<Cursor<Vec<u8>>>) -> Result<()>) -> Result<Vec<u8>> {
    let mut records = Writer::resume(Cursor::default(), 0, 0)?;
    counts(&mut records)?;
    records.flush()?;
    Ok(records.into_inner().into_inner())
}

/// An empty file that can also be read, for when it is full.
fn create(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
}

/// Has all of a file on its disk.
pub(crate) fn to_disk(file: &File, path: &Path) -> Result<()> {
    // What cannot be synchronised, as a pipe, is as safe as it gets.
    match rustix::fs::fdatasync(file) {
        Err(e) if e != rustix::io::Errno::INVAL && e != rustix::io::Errno::ROFS => Err(
            Error::failed(format!("cannot write {} to its disk: {e}", path.display())),
        ),
        _ => Ok(()),
    }
}

fn cannot_create(path: &Path, e: &io::Error) -> Error {
    Error::failed(format!("cannot create {}: {e}", path.display()))
}

fn open(
    file: File,
    path: &Path,
    what: &Description,
    limits: Limits,
    part: u32,
) -> Result<(Writer<File>, Sync)> {
    let said = match &what.apart {
        Some(_) => format!("{}: ", path.display()),
        None => String::new(),
    };
    let sync = Sync::start(&file, limits.sync, limits.verbose.then_some(said));
    let events: Vec<_> = what
        .events
        .iter()
        .map(|event| (event.attr.clone(), event.ids.clone()))
        .collect();
    // For `recover`, should this recorder be killed.
    let spare = features(what, limits, part, "killed", &[]);
    let file = Writer::with_spare(file, &events, &spare)
        .map_err(|e| Error::failed(format!("cannot write {}: {e}", path.display())))?;
    Ok((file, sync))
}

impl Sink for Output {
    fn records(&mut self, bytes: &[u8], times: Option<Times>) -> Result<()> {
        self.times = merge(self.times, times);
        self.content += u64::try_from(bytes.len()).unwrap_or(0);
        Ok(self.file.raw(bytes)?)
    }

    fn piece_limit(&self) -> usize {
        Sink::piece_limit(&self.file)
    }

    fn piece(&mut self, aux: &Auxtrace) -> Result<()> {
        self.content += aux.size;
        match &mut self.pack {
            Some(pack) => pack.piece(aux),
            None => self.file.auxtrace(aux)?,
        }
        Ok(())
    }

    fn payload(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.pack {
            Some(pack) => pack.payload(bytes, &mut self.file),
            None => Ok(Writer::payload(&mut self.file, bytes)?),
        }
    }

    fn payload_from(&mut self, aux: &Mapping, run: Range<usize>) -> Result<bool> {
        if self.pack.is_some() {
            return Ok(false);
        }
        payload_at(
            &mut self.file,
            run,
            |file, front, at, len| aux.write_out(front, at, len, &*file),
            |at, copy| aux.copy_out(at, copy),
        )?;
        Ok(true)
    }
}

impl Tape for Output {
    fn round(&mut self) -> Result<()> {
        // What came is handed on now. That it was all is nothing to hurry with: it goes with what comes next, or the header.
        self.file.flush()?;
        Ok(self.file.record(&FinishedRound, None)?)
    }

    fn describe(&mut self) -> Result<()> {
        self.processes()
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.file.flush()?)
    }

    fn checkpoint(&mut self) -> Result<()> {
        Ok(self.file.checkpoint()?)
    }

    fn is_over(&self) -> bool {
        self.limits.all.is_some_and(|limit| self.total() >= limit)
    }

    fn turn(&mut self) -> Result<()> {
        if let Some((sum, counted)) = &mut self.together {
            let now = self.file.position();
            sum.fetch_add(now.saturating_sub(*counted), Ordering::Relaxed);
            *counted = now;
            return Ok(());
        }
        let long = |limit| self.file.position() >= limit;
        // A file that holds nothing but its beginning would be followed by another such, for ever.
        if self.limits.part.is_some_and(long) && self.content != 0 && !self.is_over() {
            self.next()?;
        }
        Ok(())
    }

    fn rotate(&mut self) -> Result<()> {
        if self.limits.parts {
            self.next()?;
        }
        Ok(())
    }

    fn takes_all(&self) -> bool {
        !self.limits.parts && self.pack.is_none()
    }
}

/// Writes some of the payload of a piece with `straight`, which is given what goes before it, where it is, and its length, and gives how
/// much it has written of both. A file that takes nothing so, as some file systems do from a mapping of a driver's (9p), gets a copy.
fn payload_at<W: Write + Seek>(
    file: &mut Writer<W>,
    run: Range<usize>,
    mut straight: impl FnMut(&mut W, &[u8], usize, usize) -> io::Result<usize>,
    copy_out: impl Fn(usize, &mut [u8]) -> Option<()>,
) -> perfdata::Result<()> {
    let mut copy = Vec::new();
    file.payload_by(run.len(), |file, front, done| {
        let (at, len) = (run.start + done, run.len() - done);
        match straight(file, front, at, len) {
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => {
                copy.resize(len, 0);
                copy_out(at, &mut copy).ok_or(io::ErrorKind::InvalidInput)?;
                file.write_vectored(&[IoSlice::new(front), IoSlice::new(&copy)])
            }
            other => other,
        }
    })
}

/// The span of both.
pub(crate) fn merge(a: Option<Times>, b: Option<Times>) -> Option<Times> {
    match (a, b) {
        (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
        (a, b) => a.or(b),
    }
}

fn features(
    what: &Description,
    limits: Limits,
    part: u32,
    ended: &str,
    more: &[(&'static str, String)],
) -> Features {
    let plan = &what.plan;
    let mut features = Features::new();
    host::describe(&mut features, what.online);
    let mode = match plan.mode {
        Mode::Linear => "linear",
        Mode::Overwrite => "overwrite",
    };
    let mut notes = vec![
        ("aux_size", plan.aux.to_string()),
        ("data_size", plan.data.to_string()),
        ("mode", mode.to_owned()),
        ("ended", ended.to_owned()),
    ];
    if limits.parts {
        notes.push(("part", part.to_string()));
    }
    if let Some(apart) = &what.apart {
        notes.extend(apart.notes());
    }
    if limits.level.is_some() {
        notes.push((NOTE, "zstd".to_owned()));
    }
    notes.extend(more.iter().cloned());
    features
        .cmdline(&what.cmdline)
        .events(&what.events)
        .pmu_mappings(&Pmus::default().mappings())
        .notes(&notes);
    if what.plan.has_own_clock() {
        features.clock(
            sys::clock_resolution(),
            ClockData {
                clockid: u32::try_from(sys::CLOCK).unwrap_or(0),
                wall: sys::wall(),
                clock: sys::now(),
            },
        );
    }
    features
}

/// Has the file on its disk every now and then, beside the recording: writing to a disk takes long.
struct Sync {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Sync {
    fn start(file: &File, period: Duration, said: Option<String>) -> Self {
        let file = if period.is_zero() {
            None
        } else {
            file.try_clone().ok()
        };
        let (stop, stopped) = mpsc::channel();
        let thread = file.map(|file| {
            thread::spawn(move || {
                while stopped.recv_timeout(period) == Err(mpsc::RecvTimeoutError::Timeout) {
                    // What cannot be synchronised (a pipe, a full disk) shows when it is written.
                    // Its length only if somebody is told.
                    let len = said
                        .as_ref()
                        .map(|_| file.metadata().map_or(0, |meta| meta.len()));
                    if let (Ok(()), Some(name), Some(len)) = (file.sync_data(), &said, len) {
                        eprintln!("auxrec: {name}{len} bytes are on the disk");
                    }
                }
                let _ = file.sync_all();
            })
        });
        Self {
            stop: Some(stop),
            thread,
        }
    }
}

impl Drop for Sync {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::FileExt;

    use perfdata::{Attr, Feature, RecordType};

    use super::*;

    const PAGES: usize = 4;

    /// A record of 16 bytes.
    const RECORD: [u8; 16] = [14, 0, 0, 0, 0, 0, 16, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    fn to_u64(n: usize) -> u64 {
        u64::try_from(n).unwrap()
    }

    /// Writes records of `told` bytes, and behind them an area from its byte 8 on; how often that had to be copied. A call takes `most`
    /// bytes, or as much as this file system takes, or (`all`) all or nothing as 9p does; until one has failed there is nothing in the
    /// area from page `missing` on.
    fn copied(told: usize, missing: usize, most: usize, all: bool) -> usize {
        let len = PAGES * sys::page_size();
        let missing = missing * sys::page_size();
        let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
        let source = tempfile::tempfile().unwrap();
        source.write_all_at(&bytes, 0).unwrap();
        let area = Mapping::new(&source, 0, len, false).unwrap();
        source.set_len(to_u64(missing)).unwrap();

        let output = tempfile::NamedTempFile::new().unwrap();
        let events = [(Attr::default(), vec![1])];
        let mut file = Writer::new(output.reopen().unwrap(), &events).unwrap();
        let begin = usize::try_from(file.position()).unwrap();
        let told = RECORD.repeat(told / RECORD.len());
        file.raw(&told).unwrap();
        file.auxtrace(&Auxtrace {
            size: to_u64(len - 8),
            ..Auxtrace::default()
        })
        .unwrap();
        let payload = usize::try_from(file.position()).unwrap();
        let mut copied = 0;
        let straight = |file: &mut File, front: &[u8], at: usize, len: usize| {
            let front = front.get(..most).unwrap_or(front);
            let len = len.min(most - front.len());
            let result = if all && copied == 0 && at + len > missing {
                Err(io::Error::from_raw_os_error(libc::EFAULT))
            } else {
                area.write_out(front, at, len, &*file)
            };
            if result.is_err() {
                source
                    .write_all_at(&bytes[missing..], to_u64(missing))
                    .unwrap();
                copied += 1;
            }
            result
        };
        payload_at(&mut file, 8..len, straight, |at, copy| {
            area.copy_out(at, copy)
        })
        .unwrap();

        let there = fs::read(output.path()).unwrap();
        assert!(there[begin..].starts_with(&told));
        assert!(there[payload..] == bytes[8..]);
        copied
    }

    /// A call may end anywhere, and one may fail after others have written a part: each byte is in the file once.
    #[test]
    fn straight_from_an_area_in_parts() {
        for told in [0, 16, 4096, 16384] {
            for most in [1000, 4096, 5001, usize::MAX] {
                for all in [false, true] {
                    for missing in 0..PAGES {
                        assert_eq!(copied(told, missing, most, all), 1);
                    }
                    assert_eq!(copied(told, PAGES, most, all), 0);
                }
            }
        }
    }

    fn description() -> Description {
        Description {
            plan: Plan::default(),
            events: vec![EventDesc {
                attr: Attr::default(),
                ids: vec![1],
                name: "pattern//".to_owned(),
            }],
            index: Vec::new(),
            cmdline: Vec::new(),
            online: 1,
            target: Target::Command,
            workload: None,
            intel_pt: None,
            apart: Some(Apart {
                id: "1-2".to_owned(),
                threads: 2,
                thread: None,
            }),
        }
    }

    /// The disk is full for the file of one thread. That of another can be written, and has records that were read from the ring and not
    /// written yet: they are in it before it is ended.
    #[test]
    fn what_was_collected_is_in_a_file_that_is_not_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf.data");
        let what = description();
        let whole = Output::create(&path, what, Limits::default()).unwrap();
        let mut part = whole.apart(0, &(0..1)).unwrap();
        part.begin().unwrap();
        let aux = Auxtrace {
            size: 8,
            ..Auxtrace::default()
        };
        Sink::piece(&mut part, &aux).unwrap();
        Sink::payload(&mut part, &[7; 8]).unwrap();
        Sink::records(&mut part, &RECORD.repeat(3), None).unwrap();
        // Some of the counters were written: they do not stand there twice.
        part.counters = Some(part.file.position());
        part.file.record(&FinishedRound, None).unwrap();
        let said = part.salvage(|file| Ok(file.record(&FinishedRound, None)?));
        assert!(
            said.starts_with("holds what was recorded until then"),
            "{said}"
        );

        let bytes = fs::read(part.path()).unwrap();
        let file = perfdata::File::parse(&bytes).unwrap();
        let kinds = file.records().map(|record| record.unwrap().kind);
        let (told, trace) = (RecordType::SWITCH, RecordType::AUXTRACE);
        let counter = RecordType::FINISHED_ROUND;
        let want = [RecordType::FINISHED_INIT, trace, told, told, told, counter];
        assert_eq!(kinds.collect::<Vec<_>>(), want);
        let notes = file.feature(Feature::NOTES).unwrap().notes().unwrap();
        assert!(notes.contains(&("ended".to_owned(), "cut".to_owned())));
    }

    /// The last records make room for the end of a file, which is read for that, also that of one thread.
    #[test]
    fn the_end_of_a_file_in_the_place_of_records() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf.data");
        let whole = Output::create(&path, description(), Limits::default()).unwrap();
        let part = whole.apart(0, &(0..1)).unwrap();
        for mut file in [whole, part] {
            Sink::records(&mut file, &RECORD.repeat(4000), None).unwrap();
            file.flush().unwrap();
            let full = file.file.position();
            let features = file.features("cut");
            let at = file
                .file
                .finish_over(full, &RECORD, &features, |file, len| file.set_len(len))
                .unwrap();
            let bytes = fs::read(file.path()).unwrap();
            assert!(to_u64(bytes.len()) <= full && full < to_u64(bytes.len() + RECORD.len()));
            let there = perfdata::File::parse(&bytes).unwrap();
            assert!(there.is_finished());
            let last = there.records().last().unwrap().unwrap();
            assert_eq!(last.offset, at);
        }
    }
}
