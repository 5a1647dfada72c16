// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a recorder waits for besides its rings: signals, the end of the recorded processes, commands, and times.

use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{epoll, Timespec};
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags,
};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::flag::register_conditional_default;

use crate::control::{Command, Control};
use crate::delay::Step;
use crate::error::{Error, Result};
use crate::sys;

mod targets;

use targets::Targets;

/// The reason for a wakeup of the recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wake {
    /// SIGINT or SIGTERM.
    Stop,
    /// A child has ended.
    Child,
    /// All recorded processes have ended.
    Gone,
    /// SIGUSR2.
    Signal,
    /// Another program has sent a command.
    Command(Command),
    /// It is time for this step.
    Step(Step),
    /// It is time for the next file.
    Rotate,
    /// A ring is to be read; `true`: its event reports a hangup.
    Ring(usize, bool),
    /// Another thread reports that the recording is over.
    Over,
    /// The heartbeat: see [`Watch::beat`].
    Beat,
}

const STOP: u64 = u64::MAX;
const CHILD: u64 = u64::MAX - 1;
const SIGNAL: u64 = u64::MAX - 2;
const CONTROL: u64 = u64::MAX - 3;
const OVER: u64 = u64::MAX - 4;
const BEAT: u64 = u64::MAX - 5;
/// The tokens from here on stand for processes.
const GONE: u64 = 1 << 48;

/// Waits for everything that wakes the recorder.
pub(crate) struct Watch {
    poll: OwnedFd,
    stop: UnixStream,
    _caught: Caught,
    child: UnixStream,
    signal: Option<UnixStream>,
    control: Option<Control>,
    targets: Targets,
    /// Whether all of them had ended before the first wait.
    gone: bool,
    steps: VecDeque<(u64, Step)>,
    /// Period of the rotation, and time of the next one, ns.
    rotation: Option<(u64, u64)>,
    beat: Option<Beat>,
    /// Whether the next wait returns at once.
    soon: bool,
    ready: Vec<epoll::Event>,
}

fn cannot(e: impl Into<io::Error>) -> Error {
    Error::failed(format!("cannot wait for the rings: {}", e.into()))
}

fn no_signals(e: &io::Error) -> Error {
    Error::failed(format!("cannot wait for signals: {e}"))
}

fn signals(of: &[i32]) -> Result<UnixStream> {
    let (read, write) = UnixStream::pair().map_err(|e| no_signals(&e))?;
    read.set_nonblocking(true).map_err(|e| no_signals(&e))?;
    for &signal in of {
        let write = write.try_clone().map_err(|e| no_signals(&e))?;
        signal_hook::low_level::pipe::register(signal, write).map_err(|e| no_signals(&e))?;
    }
    Ok(read)
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

/// A periodic timer. A thread that is awake shortly before the timer expires does the periodic work at once, and the timer does not wake
/// it. (A timeout for each wait would have the same effect, but setting and cancelling it is a large part of the cost of a wakeup.)
pub(crate) struct Beat {
    timer: OwnedFd,
    period: u64,
    /// A thread that is awake after this time does the periodic work, ns.
    due: u64,
}

impl Beat {
    /// Starts the timer.
    pub fn new(period: Duration) -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let mut beat = Self {
            timer: timerfd_create(TimerfdClockId::Monotonic, flags).map_err(cannot)?,
            period: u64::try_from(period.as_nanos()).unwrap_or(u64::MAX),
            due: 0,
        };
        beat.is_due()?;
        Ok(beat)
    }

    /// Whether the periodic work is due. If so, the next period begins. Call this after each wait.
    pub fn is_due(&mut self) -> Result<bool> {
        let now = sys::now();
        if now < self.due {
            return Ok(false);
        }
        self.due = now.saturating_add(self.period / 4 * 3);
        let times = Itimerspec {
            it_interval: timespec(0),
            it_value: timespec(self.period),
        };
        // A timer that has expired does not wake a thread any more once it is set again.
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times).map_err(cannot)?;
        Ok(true)
    }
}

impl AsFd for Beat {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// The number of signals since the last call. The kernel merges signals that arrive at the same time.
fn count(mut stream: &UnixStream) -> usize {
    let mut sum = 0;
    let mut bytes = [0; 64];
    while let Ok(n @ 1..) = stream.read(&mut bytes) {
        sum += n;
    }
    sum
}

/// Keeps SIGINT and SIGTERM from ending the process. After the last recording of the process they end it again, as by default: its further
/// output may wait for its reader for ever.
struct Caught(&'static Mutex<(u32, Arc<AtomicBool>)>);

impl Caught {
    fn begin() -> Result<Self> {
        static RECORDINGS: OnceLock<Mutex<(u32, Arc<AtomicBool>)>> = OnceLock::new();
        let recordings = RECORDINGS.get_or_init(Mutex::default);
        let mut guard = recordings.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, none) = &mut *guard;
        // The first recording of the process registers the flag, for all recordings.
        if Arc::strong_count(none) == 1 {
            for signal in [SIGINT, SIGTERM] {
                register_conditional_default(signal, none.clone()).map_err(|e| no_signals(&e))?;
            }
        }
        *count += 1;
        none.store(false, Ordering::Relaxed);
        Ok(Self(recordings))
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, none) = &mut *guard;
        *count = count.saturating_sub(1);
        none.store(*count == 0, Ordering::Relaxed);
    }
}

impl Watch {
    /// Catches signals from now on. SIGUSR2 is caught only with `usr2`.
    pub fn new(usr2: bool, control: Option<Control>) -> Result<Self> {
        let watch = Self {
            poll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(cannot)?,
            stop: signals(&[SIGINT, SIGTERM])?,
            _caught: Caught::begin()?,
            child: signals(&[SIGCHLD])?,
            signal: usr2.then(|| signals(&[SIGUSR2])).transpose()?,
            control,
            targets: Targets::default(),
            gone: false,
            steps: VecDeque::new(),
            rotation: None,
            beat: None,
            soon: false,
            ready: Vec::with_capacity(64),
        };
        watch.add(watch.stop.as_fd(), STOP)?;
        watch.add(watch.child.as_fd(), CHILD)?;
        if let Some(signal) = &watch.signal {
            watch.add(signal.as_fd(), SIGNAL)?;
        }
        if let Some(control) = &watch.control {
            watch.add(control.as_fd(), CONTROL)?;
        }
        Ok(watch)
    }

    fn add(&self, fd: BorrowedFd<'_>, token: u64) -> Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.poll, fd, data, epoll::EventFlags::IN).map_err(cannot)
    }

    /// Also waits for a ring.
    pub fn ring(&self, fd: BorrowedFd<'_>, number: usize) -> Result<()> {
        self.add(fd, u64::try_from(number).unwrap_or(0))
    }

    /// Does not wait for a ring any more.
    pub fn forget(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.poll, fd);
    }

    /// Also waits for another thread.
    pub fn over(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.add(fd, OVER)
    }

    /// Also waits for the end of these processes or threads. One that has ended already counts as ending now. If the kernel does not report
    /// the end of some, they are checked at each heartbeat, and the errno is returned.
    pub fn processes(&mut self, ids: &[u32], threads: bool) -> Result<Option<rustix::io::Errno>> {
        let (targets, why) = Targets::open(ids, threads, rustix::process::pidfd_open)?;
        for (number, fd) in targets.descriptors() {
            let number = u64::try_from(number).unwrap_or(0);
            self.add(fd.as_fd(), GONE + number)?;
        }
        self.gone = targets.all_ended();
        self.targets = targets;
        Ok(why)
    }

    /// Starts the clock of the steps and of the rotation.
    pub fn start(&mut self, steps: Vec<(u64, Step)>, rotation: Option<u64>) {
        let now = sys::now();
        self.steps = steps
            .into_iter()
            .map(|(after, step)| (now.saturating_add(after), step))
            .collect();
        self.rotation = rotation.map(|period| (period, now.saturating_add(period)));
    }

    /// Wakes the recorder periodically, whatever else happens.
    pub fn beat(&mut self, period: Duration) -> Result<()> {
        let beat = Beat::new(period)?;
        self.add(beat.as_fd(), BEAT)?;
        self.beat = Some(beat);
        Ok(())
    }

    /// Makes the next wait return at once.
    pub fn soon(&mut self) {
        self.soon = true;
    }

    /// Answers a command.
    pub fn answer(&mut self) {
        if let Some(control) = &mut self.control {
            control.answer();
        }
    }

    /// Whether the controller reads acknowledgements.
    pub fn answers(&self) -> bool {
        self.control.as_ref().is_some_and(Control::answers)
    }

    /// Waits, and adds the reasons for the wakeup. Each signal and each command is a separate reason, and none is dropped.
    pub fn wait(&mut self, out: &mut Vec<Wake>) -> Result<()> {
        let next = [
            self.steps.front().map(|(at, _)| *at),
            self.rotation.map(|(_, at)| at),
        ];
        let next = next.into_iter().flatten().min();
        let wait = match std::mem::take(&mut self.soon) {
            true => Some(timespec(0)),
            false => next.map(|at| timespec(at.saturating_sub(sys::now()))),
        };
        self.ready.clear();
        let spare = rustix::buffer::spare_capacity(&mut self.ready);
        match epoll::wait(&self.poll, spare, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(cannot(e)),
        }
        if std::mem::take(&mut self.gone) {
            out.push(Wake::Gone);
        }
        for event in &self.ready {
            let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
            match { event.data }.u64() {
                STOP => {
                    count(&self.stop);
                    out.push(Wake::Stop);
                }
                CHILD => {
                    count(&self.child);
                    out.push(Wake::Child);
                }
                SIGNAL => {
                    let times = self.signal.as_ref().map_or(0, count);
                    out.extend(std::iter::repeat_n(Wake::Signal, times));
                }
                CONTROL => {
                    let Some(control) = &mut self.control else {
                        continue;
                    };
                    let commands = control
                        .receive()
                        .map_err(|e| Error::failed(format!("cannot read commands: {e}")))?;
                    if commands.is_none() {
                        let _ = epoll::delete(&self.poll, &*control);
                    }
                    out.extend(commands.into_iter().flatten().map(Wake::Command));
                }
                OVER => out.push(Wake::Over),
                BEAT => {}
                token if token >= GONE => {
                    let number = usize::try_from(token - GONE).unwrap_or(usize::MAX);
                    self.targets.ended(number);
                    if self.targets.all_ended() {
                        out.push(Wake::Gone);
                    }
                }
                token => {
                    let number = usize::try_from(token).unwrap_or(usize::MAX);
                    out.push(Wake::Ring(number, { event.flags }.intersects(gone)));
                }
            }
        }
        if let Some(beat) = &mut self.beat {
            if beat.is_due()? {
                out.push(Wake::Beat);
                if self.targets.look() && self.targets.all_ended() {
                    out.push(Wake::Gone);
                }
            }
        }
        if self.steps.is_empty() && self.rotation.is_none() {
            return Ok(());
        }
        let now = sys::now();
        while self.steps.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, step)) = self.steps.pop_front() else {
                break;
            };
            out.push(Wake::Step(step));
        }
        if let Some((period, at)) = &mut self.rotation {
            if *at <= now {
                *at = now.saturating_add(*period);
                out.push(Wake::Rotate);
            }
        }
        Ok(())
    }
}
