// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The file that is written, or the series of files.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Cursor};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use auxview::file::{create_new, options, spill_file, to_disk};
use auxview::join::{part_of, SplitFiles};
use auxview::pack::Pack;
use perfdata::{AuxtraceInfo, Features, FinishedInit, IdIndex, IdIndexEntry, Writer};

use crate::drain::Times;
use crate::error::{Error, Result};
use crate::host;

use crate::session::Clock;
use crate::sys;
use crate::target::{descendants, process_of, processes, threads, Target};
use auxview::size::bytes;

mod description;
mod sink;
mod sync;
#[cfg(test)]
mod tests;

pub(crate) use description::{Description, Limits};

use description::features;
use sync::Sync;

/// The file that is being written, and the state of the series of files before it.
pub(crate) struct Output {
    pub file: Writer<File>,
    what: Description,
    limits: Limits,
    /// The name that the user gave.
    base: PathBuf,
    /// The name of the file that is written.
    path: PathBuf,
    /// The files that had these names before, and their new names.
    old: Vec<(PathBuf, PathBuf)>,
    /// Number of the file, if there are several.
    part: u32,
    /// The earlier files that are kept.
    kept: VecDeque<PathBuf>,
    /// Bytes in the earlier files.
    before: u64,
    times: Option<Times>,
    /// Bytes of records and trace since the file began.
    content: u64,
    /// Notes for `recover` and readers, beyond those that each file has.
    pub notes: Vec<(&'static str, String)>,
    sync: Option<Sync>,
    pack: Option<Pack>,
    /// If each thread writes a file: the bytes in all of these, and how many of this file it includes.
    together: Option<(Arc<AtomicU64>, u64)>,
    /// Offset of the counters, when they are written.
    pub counters: Option<u64>,
}

/// `FILE.0001` and so on.
fn name_of(base: &Path, part: u32) -> PathBuf {
    let mut name = base.as_os_str().to_owned();
    name.push(format!(".{part:04}"));
    name.into()
}

/// The numbers of the files with such names that are there.
fn parts_of(base: &Path) -> io::Result<Vec<u32>> {
    let directory = match base.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut parts = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number = Path::new(&name).extension().and_then(OsStr::to_str);
        let part = number.and_then(|number| number.parse().ok());
        parts.extend(part.filter(|part| name_of(base, *part).file_name() == Some(&name)));
    }
    Ok(parts)
}

/// Renames the files of an earlier recording to `FILE-old.0001` and so on, so that they are a series of their own, which `FILE.*`
/// does not match. If there is one of that name, it is `FILE-old2`. Returns old and new names.
fn set_aside(base: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let parts = parts_of(base)?;
    let mut renamed = Vec::new();
    if parts.is_empty() {
        return Ok(renamed);
    }
    let mut number = 1_u32;
    let old = loop {
        let mut name = base.as_os_str().to_owned();
        name.push("-old");
        if number != 1 {
            name.push(number.to_string());
        }
        let name = PathBuf::from(name);
        if parts_of(&name)?.is_empty() {
            break name;
        }
        number += 1;
    };
    for part in parts {
        let names = (name_of(base, part), name_of(&old, part));
        fs::rename(&names.0, &names.1)?;
        renamed.push(names);
    }
    Ok(renamed)
}

impl Output {
    /// Creates the file. Renames files that have the name already, as perf does.
    pub fn create(base: &Path, what: Description, limits: Limits) -> Result<Self> {
        if what.split_files.is_some() && fs::metadata(base).is_ok_and(|meta| !meta.is_file()) {
            return Err(Error::usage(format!(
                "--split-files writes files next to the output, and {} is not a regular file: give another -o, or leave --split-files out",
                base.display()
            )));
        }
        let path = if limits.parts {
            name_of(base, 1)
        } else {
            base.to_owned()
        };
        let cannot = |e: io::Error| cannot_create(&path, &e);
        let mut old = Vec::new();
        if limits.parts {
            old = set_aside(base).map_err(cannot)?;
        } else if fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() != 0) {
            let mut name = path.as_os_str().to_owned();
            name.push(".old");
            fs::rename(&path, &name).map_err(cannot)?;
            old.push((path.clone(), PathBuf::from(name)));
        }
        let file = match limits.parts {
            true => create_new(&path),
            false => create(&path),
        };
        let file = file.map_err(cannot)?;
        let together = what.split_files.as_ref().map(|_| (Arc::default(), 0));
        let mut new = Self::open(file, path, what, limits, together)?;
        new.base = base.to_owned();
        new.old = old;
        Ok(new)
    }

    /// Creates the split file of a thread, which drains these rings, beside the main file.
    pub fn part(&self, thread: usize, rings: &Range<usize>) -> Result<Self> {
        let path = part_of(&self.path, thread);
        let file = create_new(&path).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Error::failed(format!(
                "{} is there already, a part of a recording that was not joined: `auxrec recover --in-place {}` joins it, or move it away",
                path.display(),
                self.path.display()
            )),
            _ => cannot_create(&path, &e),
        })?;
        let mut what = self.what.clone();
        let ours =
            |entry: &IdIndexEntry| usize::try_from(entry.idx).is_ok_and(|n| rings.contains(&n));
        what.index.retain(ours);
        what.split_files = what.split_files.map(|split| SplitFiles {
            thread: Some(thread),
            ..split
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
            old: Vec::new(),
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

    /// Removes the file, and gives a renamed file its name back. Called when nothing was recorded.
    pub fn discard(self) {
        // A device or pipe stays.
        if fs::metadata(&self.path).is_ok_and(|meta| meta.is_file()) {
            let _ = fs::remove_file(&self.path);
        }
        for (path, old) in &self.old {
            let _ = fs::rename(old, path);
        }
    }

    /// The name of the file that is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of files, this one included.
    pub fn parts(&self) -> u32 {
        self.part
    }

    /// Bytes in all files of the recording, including those that were not kept.
    pub fn total(&self) -> u64 {
        match &self.together {
            Some((sum, _)) => sum.load(Ordering::Relaxed),
            None => self.before.saturating_add(self.file.position()),
        }
    }

    /// Number of threads with files of their own; [`None`] if the threads have none.
    pub fn threads(&self) -> Option<usize> {
        self.what.split_files.as_ref().map(|split| split.threads)
    }

    /// Whether it is the file of one thread.
    fn is_part(&self) -> bool {
        let split = self.what.split_files.as_ref();
        split.is_some_and(|split| split.thread.is_some())
    }

    /// Writes the records before the first record of the kernel: the ids of the events, and the names and mappings of the processes that
    /// run already.
    pub fn begin(&mut self) -> Result<()> {
        if let (Some(clock), false) = (&self.what.clock, self.is_part()) {
            self.file.record(clock, None)?;
        }
        for entries in self.what.index.chunks(IdIndex::MAX) {
            self.file.record(&IdIndex(entries), None)?;
        }
        // The record names a decoder of perf's, and perf has none for most PMUs.
        if let Some(info) = &self.what.info {
            self.file.record(
                &AuxtraceInfo {
                    kind: info.kind,
                    private: &info.words,
                },
                None,
            )?;
        }
        // The main file, into which the others are joined, describes the running processes.
        let alone = !self.is_part();
        if alone {
            host::kernel(
                &self.what.plan.tracking_attr(),
                self.tracking_id(),
                &mut self.file,
            )?;
        }
        // In the first file of a command there is nothing to describe: the command has not begun.
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

    /// Synthesises the names and mappings of the processes that run now.
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
            // A process that has ended meanwhile has no threads.
            let all = threads(pid).unwrap_or_default();
            host::process(pid, &all, &attr, id, &mut build_ids, &mut self.file)?;
        }
        Ok(())
    }

    /// The current time by the clock of the records. If it is not known, the time of the newest record; without one, the time of the
    /// recorder's clock.
    pub fn time(&self, clock: Clock) -> u64 {
        let newest = self.times.map(|(_, newest)| newest);
        clock.now().or(newest).unwrap_or_else(sys::now)
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
        self.synced()?;
        self.before = self.total();
        self.kept.push_back(self.path.clone());
        while self.limits.keep.is_some_and(|keep| self.kept.len() >= keep) {
            if let Some(oldest) = self.kept.pop_front() {
                // The user may have removed it already.
                let _ = fs::remove_file(oldest);
            }
        }
        let part = self.part + 1;
        let path = name_of(&self.base, part);
        // The file did not exist when the recording began. If it exists now, it is not the recorder's, and is not replaced.
        let file = create_new(&path).map_err(|e| cannot_create(&path, &e))?;
        let (file, sync) = open(file, &path, &self.what, self.limits, part)?;
        self.part = part;
        self.path = path;
        self.file = file;
        self.sync = Some(sync);
        self.times = None;
        self.begin()
    }

    /// Ends the synchronising of the file with its disk.
    ///
    /// # Errors
    /// The error that the disk reported, unless [`turn`](crate::drain::FileSink::turn) has returned it.
    pub fn synced(&mut self) -> Result<()> {
        self.sync.take().map_or(Ok(()), |mut sync| sync.stop())
    }

    /// Waits until everything that was written so far is on the disk.
    pub fn durable(&mut self) -> Result<()> {
        self.file.checkpoint()?;
        to_disk(self.file.get_ref(), &self.path)
    }

    /// Finishes a file that cannot be written any more. Returns the file's state, as the end of a
    /// sentence.
    ///
    /// The file is cut at the end of the last whole record. If that leaves no space for the counters and
    /// the features, they replace the last records: the trace is worth more with its index and its
    /// counters.
    pub fn salvage(
        &mut self,
        counts: impl Fn(&mut Writer<Cursor<Vec<u8>>>) -> Result<()>,
    ) -> String {
        // Writes the records that were collected, if this file has space: of several files only another
        // one may be full. The rings do not have these records any more.
        let _ = self.file.checkpoint();
        let features = self.features("cut");
        let max = self.counters.unwrap_or(u64::MAX);
        let file = &mut self.file;
        let cut = |file: &mut File, len| file.set_len(len);
        let mut saved = file.salvage(max, cut);
        let mut finished = false;
        if let (&Ok(at), Ok(counters)) = (&saved, collected(counts)) {
            let whole = file
                .raw(&counters)
                .and_then(|()| file.try_finish(&features))
                .map(|()| at)
                .or_else(|_| file.finish_over(at, &counters, &features, cut));
            finished = whole.is_ok();
            // If the features cannot be written, the counters are removed, too: only a file whose notes say `cut` has them.
            saved = whole.or_else(|_| file.salvage(at, cut));
        }
        match (&saved, finished) {
            (Ok(len), true) => format!("holds what was recorded until then ({})", bytes(*len)),
            (Ok(len), false) => format!(
                "holds what was recorded until then ({}), without the sections that describe the machine: \
                 `auxrec recover --in-place` writes them when there is space",
                bytes(*len)
            ),
            (Err(_), _) => "has unknown content".to_owned(),
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

/// An empty file.
fn create(path: &Path) -> io::Result<File> {
    options().create(true).truncate(true).open(path)
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
    let said = match &what.split_files {
        Some(_) => format!("{}: ", path.display()),
        None => String::new(),
    };
    let cannot = |e: &dyn Display| Error::failed(format!("cannot write {}: {e}", path.display()));
    let sync = Sync::start(
        file.try_clone().map_err(|e| cannot(&e))?,
        path,
        limits.sync,
        limits.verbose.then_some(said),
    );
    let events: Vec<_> = what
        .events
        .iter()
        .map(|event| (event.attr.clone(), event.ids.clone()))
        .collect();
    // For `recover`, if the recorder is killed.
    let spare = features(what, limits, part, "killed", &[]);
    let mut file = Writer::with_spare(file, &events, &spare).map_err(|e| cannot(&e))?;
    file.spill_index_to(spill_file(path));
    Ok((file, sync))
}
