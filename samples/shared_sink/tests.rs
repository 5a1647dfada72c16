// SPDX-License-Identifier: GPL-2.0

//! Tests of `shared_sink`: each frame of each source is read from an AUX area or reported as lost.

use super::*;

use kernel::cpu::nr_cpu_ids;
use perf::testing::{
    Bench,
    Nmi,
    Setup, //
};

const PAGE: u64 = 4096;

/// The events of a session. They share a sink, and each has a source and an AUX area.
struct Events {
    sink: Arc<Sink>,
    benches: KVec<Bench<SharedSink>>,
    /// For each source, the number after that of the last frame read.
    next: KVec<u64>,
    /// Bytes that were read.
    read: u64,
}

impl Events {
    /// Opens `count` events, distributed over the CPUs, with AUX areas of `pages` pages.
    fn open(count: u32, burst: u64, pages: usize) -> Result<Self> {
        let sink = SharedSink::new()?.sink;
        let mut benches = KVec::new();
        let mut next = KVec::new();

        for n in 0..count {
            let setup = Setup {
                config: [burst, 0, 0, 0],
                pages,
                cpu: Some(n.checked_rem(nr_cpu_ids()).ok_or(EINVAL)?),
                ..Setup::default()
            };
            let driver = SharedSink { sink: sink.clone() };

            benches.push(Bench::new(driver, &setup)?, GFP_KERNEL)?;
            next.push(0, GFP_KERNEL)?;
        }
        Ok(Self {
            sink,
            benches,
            next,
            read: 0,
        })
    }

    fn event(&mut self, n: usize) -> Result<&mut Bench<SharedSink>> {
        self.benches.get_mut(n).ok_or(EINVAL)
    }

    fn add_all(&mut self) -> Result {
        self.benches.iter_mut().try_for_each(|bench| bench.add())
    }

    /// Reads the AUX area of an event, and checks that the frames of each CPU are in order. Returns
    /// the number of frames.
    fn read(&mut self, n: usize) -> Result<u64> {
        let bytes = self.event(n)?.read()?;
        let mut words = bytes.chunks_exact(8);
        let mut frames = 0;

        for word in &mut words {
            let frame = u64::from_le_bytes(word.try_into().map_err(|_| EINVAL)?);
            let cpu = u32::try_from(frame >> 48)?;
            // Only with at most one event per CPU: two events on a CPU use the same numbers.
            if self.benches.len() <= usize::try_from(nr_cpu_ids())? {
                let source = usize::try_from(cpu)?;
                let next = self.next.get_mut(source).ok_or(EINVAL)?;
                let number = frame & ((1 << 48) - 1);

                assert!(number >= *next, "frame {number} of CPU {cpu} is not new");
                *next = number + 1;
            }
            assert!(cpu < nr_cpu_ids());
            frames += 1;
        }
        assert!(words.remainder().is_empty());
        self.read += frames * FRAME;
        Ok(frames)
    }

    /// Whether each byte that a source has counted was read or is reported as lost.
    fn is_accounted(&self) -> bool {
        let counted = self.benches.iter().map(|b| u64::try_from(b.counter()));
        let counted = counted.map(|count| count.unwrap_or(0)).sum::<u64>();
        let lost = self.benches.iter().map(Bench::lost).sum::<u64>();

        self.benches.iter().all(|b| b.violation().is_none()) && counted == self.read + lost
    }

    fn lost(&self) -> u64 {
        self.benches.iter().map(Bench::lost).sum()
    }

    /// The sink's memory.
    fn memory(&self) -> Result<Arc<Memory>> {
        let sessions = self.sink.sessions.lock();

        sessions
            .first()
            .map(|session| session.memory.clone())
            .ok_or(EINVAL)
    }

    /// Whether no source uses the sink.
    fn is_idle(&self) -> bool {
        self.sink.users() == Users::NONE
    }
}

#[kunit_tests(shared_sink)]
mod cases {
    use super::*;

    /// The AUX area of the source that stops last has all frames. The others have no record.
    #[test]
    fn last_user_copies() -> Result {
        let orders = [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ];
        let mut events = Events::open(3, 5, 4)?;

        for order in orders {
            events.add_all()?;
            for n in 0..3 {
                for _ in 0..=n {
                    assert!(events.event(n)?.tick());
                }
            }
            for (nth, n) in order.into_iter().enumerate() {
                let records = events.event(n)?.records().len();

                events.event(n)?.del();
                let frames = events.read(n)?;
                let bench = events.event(n)?;
                if nth < 2 {
                    assert!(frames == 0 && bench.records().len() == records);
                } else {
                    // The sources have written 5, 10 and 15 frames.
                    assert_eq!(frames, 30);
                    assert!(bench.records().last().is_some_and(|r| r.size == 240));
                }
            }
            assert!(events.is_idle() && events.is_accounted());
        }
        assert_eq!(events.lost(), 0);
        assert_eq!(events.read, 6 * 240);
        Ok(())
    }

    /// perf stops and starts an event while another one traces: the sink continues to collect.
    #[test]
    fn one_user_comes_and_goes() -> Result {
        let mut events = Events::open(2, 1, 4)?;

        events.add_all()?;
        for _ in 0..10 {
            let bench = events.event(1)?;
            assert!(bench.tick());
            bench.stop();
            assert!(bench.start());
            assert!(events.event(0)?.tick());
        }
        assert!(events.benches.iter().all(|bench| bench.head() == 0));

        events.event(0)?.del();
        assert_eq!(events.event(0)?.head(), 0);
        events.event(1)?.del();
        assert_eq!(events.read(1)?, 20);
        assert!(events.is_idle() && events.is_accounted());
        Ok(())
    }

    /// A source reports the frames that a full sink does not accept from it.
    #[test]
    fn full_sink_is_a_gap() -> Result {
        let mut events = Events::open(2, 64, 1)?;

        events.add_all()?;
        for _ in 0..10 {
            assert!(events.event(0)?.tick());
            assert!(events.event(1)?.tick());
        }
        events.event(0)?.del();
        let bench = events.event(0)?;
        assert!(bench.records().last().is_some_and(|r| r.is_partial()));
        assert!(!bench.is_disabled());

        // The sink is as large as the area, but perf keeps a byte free: one frame does not fit.
        events.event(1)?.del();
        assert!(events.event(1)?.is_disabled());
        let last = events.event(1)?.records().last().copied();
        assert!(last.is_some_and(|r| r.is_partial() && r.is_truncated()));
        assert_eq!(last.map_or(0, |r| r.size), PAGE - FRAME);
        assert_eq!(events.lost(), 20 * 64 * FRAME - (PAGE - FRAME));

        // Reading enables the event again. The sink is empty.
        events.read(1)?;
        events.event(1)?.del();
        assert!(events.is_idle() && events.is_accounted());
        Ok(())
    }

    /// The last user's area has less space than the sink holds.
    #[test]
    fn full_area_is_truncated() -> Result {
        let mut events = Events::open(2, 100, 1)?;

        for round in 0..3 {
            events.add_all()?;
            assert!(events.event(0)?.tick());
            assert!(events.event(1)?.tick());
            events.event(0)?.del();
            events.event(1)?.del();
            // Nothing is read meanwhile: the area fills by 1600 bytes per round.
            assert_eq!(events.event(1)?.is_disabled(), round == 2);
            assert!(events.is_idle());
        }
        assert_eq!(events.event(1)?.head(), PAGE - FRAME);
        events.read(1)?;
        events.event(1)?.del();
        assert_eq!(events.lost(), 3 * 1600 - (PAGE - FRAME));
        assert!(events.is_accounted());
        Ok(())
    }

    #[test]
    fn newest_session_survives_in_overwrite_mode() -> Result {
        let sink = SharedSink::new()?.sink;
        let setup = Setup {
            config: [100, 0, 0, 0],
            pages: 1,
            mode: aux::Mode::Overwrite,
            ..Setup::default()
        };
        let mut bench = Bench::new(SharedSink { sink }, &setup)?;

        for _ in 0..3 {
            bench.add()?;
            for _ in 0..2 {
                assert!(bench.tick());
            }
            bench.del();
        }
        assert_eq!(bench.head(), 600 * FRAME);
        assert_eq!(bench.lost(), 0);
        assert_eq!(bench.read()?.len(), 4096);
        assert!(bench.violation().is_none());
        Ok(())
    }

    #[test]
    fn other_sessions_do_not_start() -> Result {
        let mut events = Events::open(1, 1, 1)?;
        let other = 0;

        events.sink.join(other)?;
        assert!(events.event(0)?.add() == Err(EBUSY));
        assert_eq!(events.event(0)?.counter(), 0);

        // The other session stops, and then empties the sink.
        assert!(events.sink.leave());
        assert!(events.event(0)?.add() == Err(EBUSY));
        events.sink.emptied(&*events.memory()?);
        events.event(0)?.add()?;
        assert!(events.sink.join(other) == Err(EBUSY));
        assert!(events.event(0)?.tick());
        events.event(0)?.del();
        assert_eq!(events.read(0)?, 1);
        assert!(events.is_idle() && events.is_accounted());
        Ok(())
    }

    /// A source starts on another CPU while the last one empties the sink.
    #[test]
    fn source_starts_while_the_sink_is_emptied() -> Result {
        let mut events = Events::open(2, 1, 1)?;

        // The last source, in `quiesce()`: it begins to empty the sink.
        events.event(0)?.add()?;
        assert!(events.event(0)?.tick());
        assert!(events.sink.leave());

        let memory = events.memory()?;
        events.event(1)?.add()?;
        assert!(events.event(1)?.tick());
        assert_eq!(memory.held.load(Relaxed), FRAME);

        // The second source stops. It is not the last one.
        events.event(1)?.stop();
        assert_eq!(events.lost(), FRAME);
        assert!(events.event(1)?.start());

        events.sink.emptied(&memory);
        assert!(events.event(1)?.tick());
        assert_eq!(memory.held.load(Relaxed), FRAME);

        // The test has already removed the first source, so it adds it again for `del()` to remove.
        events.sink.join(u32::try_from(current!().tgid())?)?;
        events.event(0)?.del();
        events.event(1)?.del();
        assert_eq!(events.read(1)?, 1);
        assert!(events.is_idle());
        // The test has emptied the sink without copying the first frame.
        events.read += FRAME;
        assert!(events.is_accounted());
        Ok(())
    }

    #[test]
    fn memory_goes_with_the_last_area() -> Result {
        let mut events = Events::open(2, 1, 1)?;
        let areas = |events: &Events| -> usize {
            let sessions = events.sink.sessions.lock();

            sessions.iter().map(|session| session.areas).sum()
        };

        events.add_all()?;
        assert!(events.event(0)?.tick());
        assert_eq!(areas(&events), 2);
        // perf stops the event whose area is unmapped. The other one continues.
        events.event(0)?.unmap();
        assert_eq!(areas(&events), 1);
        assert!(events.event(1)?.tick());
        events.event(1)?.del();
        assert_eq!(events.read(1)?, 2);

        events.event(1)?.unmap();
        assert_eq!(areas(&events), 0);
        assert!(events.event(1)?.add().is_err());
        events.event(0)?.map()?;
        assert_eq!(areas(&events), 1);
        assert!(events.event(0)?.start());
        assert!(events.event(0)?.tick());
        events.event(0)?.del();
        assert_eq!(events.read(0)?, 1);
        assert!(events.is_idle() && events.is_accounted());
        Ok(())
    }

    /// An NMI stops an event in each callback. The sink loses exactly one source.
    #[test]
    fn nmi_stops_in_every_callback() -> Result {
        for call in 0..3 {
            let mut events = Events::open(2, 1, 1)?;

            events.event(0)?.add()?;
            for step in 0..3 {
                let bench = events.event(1)?;

                if step == call {
                    bench.interrupt(Nmi::Stop)?;
                }
                match step {
                    0 => bench.add()?,
                    1 => {
                        bench.tick();
                    }
                    _ => bench.del(),
                }
                assert!(!(step == call && bench.is_open()));
            }
            assert!(events.event(0)?.tick());
            events.event(0)?.del();
            // The frame of the second source is there, unless the NMI stopped it in `add()`.
            assert_eq!(events.read(0)?, if call == 0 { 1 } else { 2 });
            assert!(events.is_idle() && events.is_accounted());
        }
        Ok(())
    }

    /// Three sources start, stop and empty the sink in every order. Only one empties at a time, and
    /// it is the last one to stop.
    #[test]
    fn every_order_of_users() {
        const USERS: usize = 3;
        const STEPS: u32 = 8;

        for mut order in 0..USERS.pow(STEPS) {
            let mut users = Users::NONE;
            let (mut using, mut emptying) = ([false; USERS], None);

            for _ in 0..STEPS {
                let user = order % USERS;
                order /= USERS;
                let Some(uses) = using.get_mut(user) else {
                    continue;
                };

                if emptying == Some(user) {
                    users = users.emptied();
                    (emptying, *uses) = (None, false);
                } else if *uses {
                    let last = users.is_one();
                    users = users.left();
                    if last {
                        assert!(emptying.is_none());
                        emptying = Some(user);
                    } else {
                        *uses = false;
                    }
                } else {
                    users = users.joined(7).unwrap_or(Users::NONE);
                    *uses = true;
                }

                let count = using.iter().filter(|&&uses| uses).count();
                assert_eq!((users == Users::NONE), count == 0);
                assert_eq!(users.is_emptying(), emptying.is_some());
                assert_eq!(users.is_one(), count == 1 && emptying.is_none());
                assert_eq!(users.joined(8).is_some(), count == 0);
                assert_eq!(Users::from(u64::from(users)), users);
            }
        }
    }
}
