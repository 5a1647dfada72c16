// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The threads that drain rings, whichever files they write into.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use rustix::event::epoll;

use crate::drain::{Again, Drain, Sink};
use crate::error::{Error, Result};
use crate::session::{Mode, Rings};
use crate::watch::Beat;

/// How often a thread drains its rings without a wakeup, and the writer updates the header.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(250);

/// Where a thread writes what it drains.
pub(crate) trait Lane {
    /// The sink of its rings.
    type To: Sink;
    /// Begins a pass over all rings of the thread.
    fn begin(&mut self) -> Result<&mut Self::To>;
    /// Ends the pass. `any`: the rings were not empty. `due`: a heartbeat was due.
    fn end(&mut self, any: bool, due: bool) -> Result<()>;
}

/// Number of rings of each thread, if this number of threads drains this number of rings.
pub(crate) fn share(rings: usize, threads: usize) -> usize {
    rings.div_ceil(threads.max(1)).max(1)
}

fn cannot(e: &std::io::Error) -> Error {
    let advice = match rustix::io::Errno::from_io_error(e) {
        Some(rustix::io::Errno::MFILE) => "; use --threads 1, or raise the limit (`ulimit -n`)",
        _ => "",
    };
    Error::failed(format!("cannot start a thread: {e}{advice}"))
}

/// Two ends of a stream. A byte that is written to the first, or closing it, signals the second that the recording is over.
pub(crate) fn bell() -> Result<(UnixStream, UnixStream)> {
    let (over, finished) = UnixStream::pair().map_err(|e| cannot(&e))?;
    // Threads write to it again and again, also when the reader has ended.
    over.set_nonblocking(true).map_err(|e| cannot(&e))?;
    Ok((over, finished))
}

/// The threads that drain.
pub(crate) struct Crew<'scope> {
    /// Closing one of these stops a thread.
    stops: Vec<UnixStream>,
    workers: Vec<ScopedJoinHandle<'scope, Result<()>>>,
}

impl<'scope> Crew<'scope> {
    /// Starts a thread for each lane. It drains its share of these rings into the lane.
    pub fn start<'env, L: Lane>(
        scope: &'scope Scope<'scope, 'env>,
        rings: impl Iterator<Item = (&'scope mut [Rings], &'scope mut [Drain])>,
        mode: Mode,
        lanes: Vec<impl FnOnce() -> L + Send + 'scope>,
        over: &'scope UnixStream,
        wakeups: &'scope AtomicU64,
    ) -> Result<Self> {
        let mut crew = Self {
            stops: Vec::new(),
            workers: Vec::new(),
        };
        for ((rings, drains), lane) in rings.zip(lanes) {
            let (stop, stopped) = UnixStream::pair().map_err(|e| cannot(&e))?;
            crew.stops.push(stop);
            crew.workers.push(scope.spawn(move || {
                let result = drain(rings, drains, mode, lane(), over, &stopped, wakeups);
                if result.is_err() {
                    let _ = { over }.write(&[1]);
                }
                result
            }));
        }
        Ok(crew)
    }

    /// Stops and joins the threads. Returns the first error of `before`, of the threads, and `waited`,
    /// in this order; but an error of writing a file comes first.
    pub fn end(
        self,
        before: impl FnOnce() -> Option<Result<()>>,
        waited: Result<()>,
    ) -> Result<()> {
        drop(self.stops);
        // Joins all threads, also after an error.
        let workers: Vec<_> = self.workers.into_iter().map(joined).collect();
        let mut results: Vec<_> = before().into_iter().chain(workers).collect();
        results.push(waited);
        // An error of writing names the cause. Other threads only report that they cannot continue.
        let why = |result: &Result<()>| {
            matches!(result, Err(Error::File(perfdata::Error::Output { .. })))
        };
        let why = results.iter().position(why).unwrap_or(0);
        results.swap(0, why);
        results.into_iter().collect()
    }
}

/// The result of a thread.
pub(super) fn joined(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    let died = |_| Err(Error::failed("a thread of the recorder died"));
    thread.join().unwrap_or_else(died)
}

/// A thread: drains its rings whenever one of them wakes it, until its stream is closed.
fn drain(
    rings: &mut [Rings],
    drains: &mut [Drain],
    mode: Mode,
    mut lane: impl Lane,
    mut over: &UnixStream,
    stop: &UnixStream,
    wakeups: &AtomicU64,
) -> Result<()> {
    const STOP: u64 = u64::MAX;
    const BEAT: u64 = u64::MAX - 1;
    let cannot = |e: rustix::io::Errno| Error::failed(format!("cannot wait for the rings: {e}"));
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cannot)?;
    let add = |fd: BorrowedFd<'_>, token: u64| {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&poll, fd, data, epoll::EventFlags::IN).map_err(cannot)
    };
    add(stop.as_fd(), STOP)?;
    let mut beat = Beat::new(HEARTBEAT)?;
    add(beat.as_fd(), BEAT)?;
    for (token, opened) in (0..).zip(rings.iter().flat_map(Rings::events)) {
        add(opened.event.as_fd(), token)?;
    }
    let mut ready = Vec::with_capacity(16);
    let mut stopped = false;
    while !stopped {
        ready.clear();
        let spare = rustix::buffer::spare_capacity(&mut ready);
        match epoll::wait(&poll, spare, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(cannot(e)),
        }
        wakeups.fetch_add(1, Ordering::Relaxed);
        let due = beat.is_due()?;
        for event in &ready {
            let token = { event.data }.u64();
            let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            if token == STOP {
                stopped = true;
            } else if token != BEAT && { event.flags }.intersects(gone) {
                // The event of a thread that has ended reports a hangup for ever. It is not polled any
                // more; its rings are still read with the others.
                let mut all = rings.iter().flat_map(Rings::events);
                if let Some(opened) = usize::try_from(token).ok().and_then(|n| all.nth(n)) {
                    let _ = epoll::delete(&poll, &opened.event);
                }
            }
        }
        let again = match (stopped, due) {
            (true, _) => Again::Never,
            (false, true) => Again::All,
            (false, false) => Again::Drained,
        };
        let to = lane.begin()?;
        let mut any = false;
        for (rings, drain) in rings.iter_mut().zip(drains.iter_mut()) {
            let pass = drain.pass(rings, mode, again, to)?;
            any |= pass.any();
            if pass.over {
                let _ = over.write(&[1]);
            }
        }
        lane.end(any, due)?;
    }
    Ok(())
}
