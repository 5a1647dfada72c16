// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Split files: several threads drain the rings, each into a file of its own. [`join`](mod@auxview::join) joins the files at the end.
//!
//! A thread never waits for another one, not even for the kernel's lock of a file. The threads share only the number of a step. The next
//! step begins when each thread has begun a pass in the current one, so no thread skips a step. A thread that enters an even step writes
//! `FINISHED_ROUND`. So all threads write it equally often, and between the same steps.
//!
//! Why this keeps the promise of `FINISHED_ROUND`: records after it are not older than records before the previous one. Step s begins at
//! T(s). Whatever a thread reads in passes that begin in step s was written
//!
//! - before T(s+2): the last of these passes ends before the thread begins a pass in step s+1, and T(s+2) is not before all threads have
//!   done so;
//! - after T(s-1): otherwise the thread's first pass in step s-1 would have read it.
//!
//! Round r is the steps 2r and 2r+1. So records before the end of round r-1 were written before T(2r+1), and records after the end of round
//! r were written after T(2r+1). Rounds of one step would not suffice: records before the end of step s-1 may be as new as T(s+1), and
//! records after the end of step s as old as T(s).

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::thread::{sched_setaffinity, CpuSet};

use auxview::join::{part_of, Whole};

use crate::drain::{Drain, FileSink};
use crate::error::{Error, Result};
use crate::message::say;
use crate::parallel::{bell, share, Crew, Lane};
use crate::session::{Mode, Rings};

/// The steps that the threads take together.
struct Steps {
    threads: usize,
    step: AtomicU64,
    /// Number of threads that have not begun a pass in this step.
    left: AtomicUsize,
}

impl Steps {
    fn new(threads: usize) -> Self {
        Self {
            threads,
            step: AtomicU64::new(1),
            left: AtomicUsize::new(threads),
        }
    }

    /// Begins a pass of a thread that was in step `last`. Returns the step that it is in now.
    fn enter(&self, last: u64) -> u64 {
        // Pairs with the release below: a thread enters a step after all threads have entered the step before.
        let now = self.step.load(Ordering::Acquire);
        if now != last && self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            // No thread counts itself twice in one step.
            self.left.store(self.threads, Ordering::Relaxed);
            self.step.store(now + 1, Ordering::Release);
        }
        now
    }
}

/// Writes to the file of one thread.
struct Own<'a, T> {
    file: &'a mut T,
    steps: &'a Steps,
    step: u64,
    over: &'a UnixStream,
}

impl<T: FileSink> Lane for Own<'_, T> {
    type To = T;

    fn begin(&mut self) -> Result<&mut T> {
        let now = self.steps.enter(self.step);
        if now != self.step && now % 2 == 0 {
            self.file.round()?;
        }
        self.step = now;
        Ok(self.file)
    }

    fn end(&mut self, any: bool, due: bool) -> Result<()> {
        if due {
            self.file.checkpoint()?;
        } else if any {
            self.file.flush()?;
        }
        self.file.turn()?;
        if self.file.is_over() {
            let _ = self.over.write(&[1]);
        }
        Ok(())
    }
}

/// The CPUs of rings, if all of them have one. The thread that drains these rings runs on these CPUs. So it restarts an event without an
/// interrupt to another CPU, and no two of these threads share a CPU while another one is idle. perf's threads (`record --threads`) stay on
/// their CPUs, too.
fn cpus(rings: &[Rings]) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for ring in rings {
        let cpu = usize::try_from(ring.cpu?).ok();
        set.set(cpu.filter(|cpu| *cpu < CpuSet::MAX_CPU)?);
    }
    Some(set)
}

/// Starts a thread for each file, which drains its share of the rings into the file, and runs `wait`. Ends the threads when `wait` returns.
/// Returns the number of wakeups.
///
/// # Errors
/// An error of writing a file comes first, then an error of a thread, then the error of `wait`.
pub(crate) fn run(
    rings: &mut [Rings],
    drains: &mut [Drain],
    mode: Mode,
    files: &mut [impl FileSink + Send],
    wait: impl FnOnce(BorrowedFd<'_>) -> Result<()>,
) -> Result<u64> {
    let each = share(rings.len(), files.len());
    let (over, finished) = bell()?;
    let over = &over;
    let steps = &Steps::new(files.len());
    let wakeups = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let shares = rings.chunks(each).map(cpus).collect::<Vec<_>>();
        let own = |(file, cpus): (_, Option<CpuSet>)| {
            move || {
                if let Some(cpus) = cpus {
                    // A thread that may not run there runs on any CPU.
                    let _ = sched_setaffinity(None, &cpus);
                }
                Own {
                    file,
                    steps,
                    step: 0,
                    over,
                }
            }
        };
        let lanes = files.iter_mut().zip(shares).map(own).collect();
        let rings = rings.chunks_mut(each).zip(drains.chunks_mut(each));
        let crew = Crew::start(scope, rings, mode, lanes, over, &wakeups)?;
        let waited = wait(finished.as_fd());
        crew.end(|| None, waited)
    })?;
    Ok(wakeups.load(Ordering::Relaxed))
}

/// Joins the files of the threads. Returns the length of the joined file.
pub(crate) fn joined(path: &Path, sync: bool) -> Result<u64> {
    let name = path.display();
    let joined = Whole::open(path).and_then(|file| {
        let gone = || Error::failed("it is another file now");
        file.ok_or_else(gone)?.join(false, sync)
    });
    let joined = joined.map_err(|e| {
        Error::failed(format!(
            "cannot join the files of the threads, {} and so on, to {name}: {e}. They hold all that was recorded: make space for as much \
             again, and `auxrec recover --in-place {name}` joins them",
            part_of(path, 0).display()
        ))
    })?;
    for remark in joined.remarks {
        say(format_args!("{remark}"));
    }
    Ok(joined.len)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Cursor;

    use perfdata::{
        Attr, Comm, File, FinishedInit, Flags, Record, RecordType, SampleId, SampleType, Stream,
        TimePlace, Writer,
    };
    use proptest::prelude::*;

    use super::*;
    use auxview::join;

    type Memory = Writer<Cursor<Vec<u8>>>;

    fn attr() -> Attr {
        Attr {
            flags: Flags::SAMPLE_ID_ALL,
            sample_type: SampleType::TIME | SampleType::IDENTIFIER,
            ..Attr::default()
        }
    }

    fn file() -> Memory {
        let mut file = Writer::new(Cursor::new(Vec::new()), &[(attr(), vec![1])]).unwrap();
        file.record(&FinishedInit, None).unwrap();
        file
    }

    fn write(file: &mut Memory, time: u64) {
        let comm = Comm {
            pid: 1,
            tid: 1,
            exec: false,
            comm: b"x",
        };
        let id = SampleId {
            id: Some(1),
            time: Some(time),
            ..SampleId::default()
        };
        file.record(&comm, Some((&id, &attr()))).unwrap();
    }

    /// Checks what perf relies on (`ordered_events__flush()`): at the end of a round it delivers all records that are not newer than the
    /// newest one at the end of the previous round. Returns the time of a record that comes after its delivery, if there is one.
    fn late(file: &[u8]) -> Option<u64> {
        let (mut newest, mut next, mut flushed) = (0, 0, 0);
        for record in File::parse(file).unwrap().records() {
            let record: Record<'_> = record.unwrap();
            if record.kind == RecordType::FINISHED_ROUND {
                (flushed, next) = (next, newest);
            } else if let Some(time) = record.time(TimePlace::of(&attr())) {
                if time < flushed {
                    return Some(time);
                }
                newest = newest.max(time);
            }
        }
        None
    }

    /// State of a thread: before a pass, or before it reads this ring.
    #[derive(Clone, Copy)]
    enum At {
        Outside,
        Ring(usize),
    }

    const RINGS: usize = 2;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Threads are delayed anywhere, also between two rings, while records arrive. In the joined file no record comes too late.
        #[test]
        fn no_record_comes_too_late(
            threads in 2_usize..5,
            moves in prop::collection::vec((0_usize..5, 0_usize..5, 0_usize..RINGS), 0..600),
        ) {
            let (over, _finished) = bell().unwrap();
            let steps = Steps::new(threads);
            let mut files: Vec<Memory> = (0..threads).map(|_| file()).collect();
            let mut lanes: Vec<_> = files
                .iter_mut()
                .map(|file| Own { file, steps: &steps, step: 0, over: &over })
                .collect();
            let mut at = vec![At::Outside; threads];
            let mut rings = vec![[const { Vec::new() }; RINGS]; threads];
            let mut clock = 0;
            for (thread, other, ring) in moves {
                let (thread, other) = (thread % threads, other % threads);
                clock += 1;
                rings[other][ring].push(clock);
                let lane = &mut lanes[thread];
                at[thread] = match at[thread] {
                    At::Outside => {
                        lane.begin().unwrap();
                        At::Ring(0)
                    }
                    At::Ring(ring) => {
                        for time in rings[thread][ring].drain(..) {
                            write(lane.file, time);
                        }
                        if ring + 1 < RINGS {
                            At::Ring(ring + 1)
                        } else {
                            lane.end(true, false).unwrap();
                            At::Outside
                        }
                    }
                };
            }
            // At the end the thread that stops the others reads all rings, and no round follows.
            for (lane, rings) in lanes.iter_mut().zip(&rings) {
                rings.iter().flatten().for_each(|time| write(lane.file, *time));
                lane.file.checkpoint().unwrap();
            }
            let parts = files.into_iter().map(|file| Stream::open(file.into_inner()).unwrap());
            let mut whole = file();
            join::append_all(parts, &mut whole).unwrap();
            whole.checkpoint().unwrap();
            let whole = whole.into_inner().into_inner();
            let all = File::parse(&whole).unwrap().records().filter(|record| {
                record.as_ref().unwrap().kind == RecordType::COMM
            });
            prop_assert_eq!(u64::try_from(all.count()).unwrap(), clock);
            prop_assert_eq!(late(&whole), None);
        }
    }

    /// Each thread sees each step once, however fast it is.
    #[test]
    fn steps_are_taken_together() {
        const THREADS: usize = 3;
        const STEPS: u64 = 2000;
        let steps = Steps::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < STEPS {
                        let now = steps.enter(last);
                        assert!(now == last || now == last + 1, "{now} after {last}");
                        if now == last {
                            std::thread::yield_now();
                        }
                        last = now;
                    }
                });
            }
        });
        assert_eq!(steps.step.load(Ordering::Relaxed), STEPS + 1);
    }
}
