// SPDX-License-Identifier: GPL-2.0

//! `shared_sink`: many sources share one sink, and the last source to stop copies the trace.
//!
//! Each CPU has a source, and all of them write to one sink with its own memory, as CoreSight's
//! ETMs do to an ETR. perf has an event and an AUX area for each CPU. Events of several CPUs cannot
//! share an AUX area: `perf_event_set_output()` refuses that. So the transactions of the sources
//! commit nothing, except that of the last source to stop. It copies all that the sink holds into
//! its own AUX area. Each frame names its source.
//!
//! The events that a process opens are a session. Each session has its own memory for the sink. The
//! sink collects for one session at a time; events of other sessions do not start meanwhile. A
//! process ID can be reused, and then two processes can share a session. This reveals nothing to
//! them: the events are per CPU, so both processes are allowed to trace whole CPUs.
//!
//! Here the sources and the sink are software. A frame is a word of 64 bits: the CPU of its source
//! in the upper 16, and the number of the frame in the lower 48.
//!
//! ```text
//! # insmod rust_perf.ko; insmod shared_sink.ko
//! $ auxrec record -a -e shared_sink// -o trace.data -- sleep 0.1
//! ```

use auxcore::ring::{
    Pos,
    Size, //
};
use kernel::{
    current,
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::Delta, //
};
use perf::{
    aux,
    pmu::{
        Context,
        Description, //
    },
    Attr,
    AuxPmu,
    Event,
    Pmu, //
};

mod users;

#[cfg(CONFIG_RUST_PERF_TESTING)]
mod tests;

use users::Users;

perf::module_pmu! {
    type: SharedSink,
    // Each CPU has a source. Otherwise `Scope::Cpus` would name the CPUs that have one.
    pmu: Description::new(c"shared_sink").context(Context::CpuOnly),
    driver: SharedSink::new()?,
    name: "shared_sink",
    authors: ["The auxpmu authors"],
    description: "A perf PMU whose sources share a sink",
    license: "GPL",
}

perf::format! {
    /// Configuration of an event.
    struct Config {
        /// Frames per tick; 0: 1.
        burst: config[0..=7],
    }
}

/// Length of a frame, in bytes.
const FRAME: u64 = 8;

/// Maximum memory of a session, in bytes. The driver copies it with interrupts off.
const MAX: usize = 1 << 20;

/// The driver.
struct SharedSink {
    sink: Arc<Sink>,
}

/// The sink, which all sources share.
#[pin_data]
struct Sink {
    /// The sources, as [`Users`]. Callbacks take no lock: a source may stop in NMI.
    users: Atomic<u64>,
    /// The sessions that have an AUX area. Locked in task context only.
    #[pin]
    sessions: Mutex<KVec<Session>>,
}

/// The events of a process.
struct Session {
    id: u32,
    /// Number of AUX areas.
    areas: usize,
    memory: Arc<Memory>,
}

/// The memory of a session, which the sink writes to.
struct Memory {
    bounce: aux::Bounce,
    /// Bytes that the memory holds.
    held: Atomic<u64>,
}

/// State of an AUX area: a reference to its session's memory.
struct Area {
    sink: Arc<Sink>,
    session: u32,
    memory: Arc<Memory>,
}

/// An event.
struct Source {
    session: u32,
    /// The number of the next frame.
    next: Atomic<u64>,
}

/// State of a transaction.
struct Trace {
    /// Bytes that the sink did not accept.
    lost: u64,
}

impl SharedSink {
    fn new() -> Result<Self> {
        let sink = Arc::pin_init(
            pin_init!(Sink {
                users: Atomic::new(Users::NONE.into()),
                sessions <- new_mutex!(KVec::new()),
            }),
            GFP_KERNEL,
        )?;

        Ok(Self { sink })
    }
}

impl Sink {
    /// The state of a new AUX area of a session. The first one allocates the session's memory.
    fn area(this: &Arc<Self>, id: u32, pages: &aux::Pages) -> Result<Area> {
        let mut sessions = this.sessions.lock();

        let memory = match sessions.iter_mut().find(|session| session.id == id) {
            Some(session) => {
                session.areas = session.areas.saturating_add(1);
                session.memory.clone()
            }
            None => {
                let size = Size::new(pages.size().get().min(MAX)).ok_or(EINVAL)?;
                let memory = Memory {
                    bounce: pages.bounce_scattered(size)?,
                    held: Atomic::new(0),
                };
                let memory = Arc::new(memory, GFP_KERNEL)?;
                let session = Session {
                    id,
                    areas: 1,
                    memory: memory.clone(),
                };
                sessions.push(session, GFP_KERNEL)?;
                memory
            }
        };
        drop(sessions);
        Ok(Area {
            sink: this.clone(),
            session: id,
            memory,
        })
    }

    /// The session that uses the sink, and its sources.
    fn users(&self) -> Users {
        // Acquire: a source that finds the sink collecting also finds the memory emptied.
        self.users.load(Acquire).into()
    }

    /// Replaces the users by the result of `change`, unless that is [`None`]. Returns the old
    /// users: as [`Ok`] if they were replaced, otherwise as [`Err`].
    ///
    /// Fully ordered: the last source sees the frames of the others, and sources that start later
    /// see the memory that it has emptied.
    fn update(&self, change: impl Fn(Users) -> Option<Users>) -> Result<Users, Users> {
        let mut old = self.users.load(Relaxed);

        loop {
            let new = change(old.into()).ok_or(Users::from(old))?;
            match self.users.cmpxchg(old, new.into(), Full) {
                Ok(_) => return Ok(old.into()),
                Err(now) => old = now,
            }
        }
    }

    /// Adds a source of `session`. Fails with [`EBUSY`] if the sink collects for another session.
    fn join(&self, session: u32) -> Result {
        self.update(|users| users.joined(session))
            .map_err(|_| EBUSY)?;
        Ok(())
    }

    /// Removes a source. Returns true if it is the last one, which then has to empty the sink.
    fn leave(&self) -> bool {
        self.update(|users| Some(users.left()))
            .is_ok_and(Users::is_one)
    }

    /// Removes the last source after it has emptied the sink. Sources that have started meanwhile
    /// use the sink from now on.
    fn emptied(&self, memory: &Memory) {
        memory.held.store(0, Relaxed);
        // The closure always returns new users, so this cannot fail.
        let _ = self.update(|users| Some(users.emptied()));
    }
}

impl Memory {
    /// Stores a frame. Returns false if the memory is full.
    fn put(&self, frame: u64) -> bool {
        let size = self.bounce.size().len();
        let mut old = self.held.load(Relaxed);

        while let Some(end) = old.checked_add(FRAME).filter(|&end| end <= size) {
            match self.held.cmpxchg(old, end, Relaxed) {
                Ok(_) => return self.bounce.store_word(Pos::new(old), frame).is_ok(),
                Err(now) => old = now,
            }
        }
        false
    }

    /// Copies the frames for which the region has space. Returns the number of bytes not copied.
    fn copy(&self, region: &mut aux::Region<'_>) -> u64 {
        let held = self.held.load(Relaxed);
        let space = region.space().unwrap_or(region.size().len());
        // Only whole frames.
        let len = held.min(space) & !(FRAME - 1);
        let copied = usize::try_from(len).is_ok_and(|len| {
            region
                .reserve(len)
                .and_then(|mut writer| {
                    writer.copy(&self.bounce, Pos::new(0), len)?;
                    writer.commit();
                    Ok(())
                })
                .is_ok()
        });

        match copied {
            true => held.saturating_sub(len),
            false => held,
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let mut sessions = self.sink.sessions.lock();

        // The last AUX area of a session removes the session, and frees its memory.
        sessions.retain(|session| {
            if session.id == self.session {
                session.areas = session.areas.saturating_sub(1);
            }
            session.areas != 0
        });
    }
}

/// The loss of this many bytes for this cause; no loss if it is 0.
fn loss(bytes: u64, cause: impl FnOnce(Option<u64>) -> aux::Loss) -> aux::Loss {
    match bytes {
        0 => aux::Loss::None,
        bytes => cause(Some(bytes)),
    }
}

#[vtable]
impl Pmu for SharedSink {
    type Config = Config;
    type Event = Source;
    type Count = ();

    fn event_init(&self, _attr: &Attr<'_, Config>) -> Result<Source> {
        Ok(Source {
            session: u32::try_from(current!().tgid())?,
            next: Atomic::new(0),
        })
    }
}

#[vtable]
impl AuxPmu for SharedSink {
    type Buffer = Area;
    type Trace = Trace;

    fn setup_aux(&self, event: &Event<'_, Self>, pages: &aux::Pages) -> Result<Area> {
        Sink::area(&self.sink, event.session, pages)
    }

    fn start(&self, transaction: &mut aux::Transaction<'_, Self>) -> Result<Trace> {
        self.sink.join(transaction.event().session)?;
        transaction.set_timer(Delta::from_millis(1));
        Ok(Trace { lost: 0 })
    }

    fn tick(&self, transaction: &mut aux::Transaction<'_, Self>, trace: &mut Trace) -> aux::Next {
        let source = u64::from(transaction.cpu().id()) << 48;

        for _ in 0..transaction.event().config().burst().max(1) {
            let frame = source | transaction.event().next.fetch_add(1, Relaxed);
            // The sink accepts no frames while the last source empties it.
            let taken = !self.sink.users().is_emptying() && transaction.buffer().memory.put(frame);

            transaction.count(FRAME);
            if !taken {
                trace.lost = trace.lost.saturating_add(FRAME);
            }
        }
        // There is nothing to commit before all sources have stopped.
        aux::Next::Continue
    }

    fn quiesce(&self, transaction: &mut aux::Transaction<'_, Self>, trace: Trace) -> aux::Commit {
        let mut left = 0;

        if self.sink.leave() {
            let aux::Parts {
                buffer, mut region, ..
            } = transaction.parts();

            left = buffer.memory.copy(&mut region);
            self.sink.emptied(&buffer.memory);
        }
        // The sink did not accept these frames, even if the AUX area had space.
        let gap = loss(trace.lost, |bytes| aux::Loss::Gap { bytes });
        let full = loss(left, |bytes| aux::Loss::NoSpace { bytes });

        aux::Commit::written(transaction, gap).and_lost(full)
    }
}
