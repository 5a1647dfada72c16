// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An event with its two rings, read in this process.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::module::counter;
use crate::wait::PATIENCE;
use anyhow::{bail, ensure, Context, Result};
use auxrec::ring::{AuxArea, DataArea, Reader};
use auxrec::sys::{page_size, Event, Field, Mapping};
use perfdata::{Attr, Aux, AuxFlags, Event as Record, RecordType, Records};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// Records of so many bytes find room: the reader of a row may never look at them until the end.
const DATA_PAGES: usize = 64;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Nothing happens for so long only when the event is off.
const SILENCE: Duration = Duration::from_millis(300);

/// An event and its rings. Unmapped before it is closed, as the fields are.
pub struct Probe {
    aux: Mapping,
    base: Mapping,
    /// The event.
    pub event: Event,
    attr: Attr,
    data: Reader,
    area: Reader,
    overwrite: bool,
    /// The AUX records so far.
    pub records: Vec<Aux>,
    /// Records that found no room.
    pub lost_records: u64,
    /// How often perf has throttled the event.
    pub throttles: u64,
    /// The trace so far, in its order. Of a ring that is overwritten: the last snapshot.
    pub trace: Vec<u8>,
    /// The position of the first byte of `trace`.
    pub from: u64,
}

/// Bytes of pages.
pub fn bytes(pages: usize) -> u64 {
    u64::try_from(pages * page_size()).unwrap_or(u64::MAX)
}

impl Probe {
    /// Opens an event for a thread (-1: any) on a CPU (-1: any), and maps its rings.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(attr: &Attr, tid: i32, cpu: i32, pages: usize, overwrite: bool) -> Result<Self> {
        let event = Event::open(attr, tid, cpu)
            .with_context(|| format!("cannot open an event of thread {tid}, CPU {cpu}"))?;
        Self::on(event, attr, pages, overwrite)
    }

    /// Maps the rings of an event that is open.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn on(event: Event, attr: &Attr, pages: usize, overwrite: bool) -> Result<Self> {
        let (base, aux) = map(&event, pages, overwrite)?;
        Self::of(event, attr, base, aux, overwrite)
    }

    /// Reads rings that are mapped. The records have the layout that `attr` asks for.
    ///
    /// # Errors
    /// If one has no length that a ring has.
    pub fn of(
        event: Event,
        attr: &Attr,
        base: Mapping,
        aux: Mapping,
        overwrite: bool,
    ) -> Result<Self> {
        Ok(Self {
            data: Reader::new(base.len() - page_size())?,
            area: Reader::new(aux.len())?,
            aux,
            base,
            event,
            attr: attr.clone(),
            overwrite,
            records: Vec::new(),
            lost_records: 0,
            throttles: 0,
            trace: Vec::new(),
            from: 0,
        })
    }

    /// How far the kernel has written the trace.
    pub fn head(&self) -> u64 {
        self.base.load(Field::AuxHead, Ordering::Acquire)
    }

    /// Where the records end. They follow each other, none was lost, and `aux_head` is there, too.
    pub fn end(&self) -> Result<u64> {
        ensure!(self.lost_records == 0, "{} records lost", self.lost_records);
        let mut end = 0;
        for record in &self.records {
            ensure!(
                record.offset == end,
                "a record from {:#x} on, where the last ended at {end:#x}",
                record.offset
            );
            end += record.size;
        }
        let head = self.head();
        ensure!(
            head == end,
            "aux_head is {head:#x}, and the last record ends at {end:#x}"
        );
        Ok(end)
    }

    /// What the event has counted: bytes generated.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn generated(&self) -> Result<u64> {
        let count = self.event.count()?;
        Ok(count.context("the event does not count")?.value)
    }

    /// How often a record has said TRUNCATED, of those that were read.
    pub fn truncations(&self) -> usize {
        let cut = |r: &&Aux| r.flags.contains(AuxFlags::TRUNCATED);
        self.records.iter().filter(cut).count()
    }

    /// Waits for the kernel to wake the reader, but not for long.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&self) -> Result<()> {
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        poll(&mut fds, Some(&time)).context("cannot poll")?;
        Ok(())
    }

    /// Reads the records that there are.
    ///
    /// # Errors
    /// If they are none.
    pub fn read_records(&mut self) -> Result<()> {
        let mut bytes = Vec::new();
        let area = DataArea {
            base: &self.base,
            page: page_size(),
        };
        self.data.drain(&area, &mut bytes)?;
        for record in Records::new(&bytes, 0) {
            match record?.event(&self.attr)? {
                Record::Aux(aux) => self.records.push(aux),
                Record::Lost(lost) => self.lost_records += lost.lost,
                Record::Other(RecordType::THROTTLE) => self.throttles += 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads at most so many bytes of trace and gives their room back; how many there were.
    ///
    /// # Errors
    /// If the driver has lost its place.
    pub fn read_trace(&mut self, most: u64) -> Result<u64> {
        let area = AuxArea {
            base: &self.base,
            aux: Some(&self.aux),
        };
        let range = self.area.pending(&area)?;
        let end = range.end.min(range.start.saturating_add(most));
        let len = end - range.start;
        if len == 0 {
            return Ok(0);
        }
        let old = self.trace.len();
        self.trace.resize(old + usize::try_from(len)?, 0);
        if let Some(place) = self.trace.get_mut(old..) {
            self.area.copy(&area, range.start, place);
        }
        self.area.release(&area, end);
        Ok(len)
    }

    /// Takes what a ring that is overwritten holds. The event must be off.
    ///
    /// # Errors
    /// If the ring is no such ring.
    pub fn snapshot(&mut self) -> Result<()> {
        ensure!(self.overwrite, "the ring is read in order");
        let area = AuxArea {
            base: &self.base,
            aux: Some(&self.aux),
        };
        let range = self.area.snapshot(&area, u64::MAX);
        self.trace.clear();
        self.trace
            .resize(usize::try_from(range.end - range.start)?, 0);
        self.area.copy(&area, range.start, &mut self.trace);
        self.from = range.start;
        Ok(())
    }

    /// What the ring still holds, without giving it back: from which position on.
    ///
    /// # Errors
    /// If the driver has lost its place.
    pub fn peek(&self) -> Result<(u64, Vec<u8>)> {
        let area = AuxArea {
            base: &self.base,
            aux: Some(&self.aux),
        };
        let head = self.head();
        // The tail is another's.
        let tail = self.base.load(Field::AuxTail, Ordering::Acquire);
        let held = head.wrapping_sub(tail);
        ensure!(
            held <= self.area.size(),
            "a head at {head:#x} and a tail at {tail:#x}"
        );
        let mut out = vec![0; usize::try_from(held)?];
        self.area.copy(&area, tail, &mut out);
        Ok((tail, out))
    }

    /// Waits until `done`, looking every now and then. An event that falls silent is enabled again: what had turned it off may
    /// have taken effect late; and perf can leave an inherited event off. `inherit_event()` reads the state of the forking
    /// task's event before it takes the original's `child_mutex`; `PERF_EVENT_IOC_ENABLE`, which holds that and the `ctx->mutex`
    /// of the original's context, can enable the whole family in between. The clone then starts with the old state, and
    /// its own clones after it. The mutex that is to keep the two apart is that of the forking task's context: another one where that
    /// is a clone itself, as it is once perf has swapped the contexts of the traced task and a child.
    ///
    /// # Errors
    /// When it takes too long.
    pub fn until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        let begun = self.generated()?;
        let (mut last, mut silent) = (begun, Instant::now());
        while !done(self)? {
            let now = Instant::now();
            if now > end {
                bail!(
                    "waited {} s for {what}: {} bytes generated, {begun} of them before, head at {:#x}, {} records; {}",
                    PATIENCE.as_secs(),
                    self.generated()?,
                    self.head(),
                    self.records.len(),
                    begins()
                );
            }
            if now > silent + SILENCE {
                let generated = self.generated()?;
                if generated == last {
                    self.event.enable()?;
                }
                (last, silent) = (generated, now);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// A descriptor of the event for another process.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        Ok(self.event.try_clone()?.into())
    }
}

/// The control page with the data ring, and the AUX area.
///
/// # Errors
/// What the kernel says.
pub fn map(event: impl AsFd, pages: usize, overwrite: bool) -> Result<(Mapping, Mapping)> {
    let data = (1 + DATA_PAGES) * page_size();
    let offset = bytes(1 + DATA_PAGES);
    let base = Mapping::new(&event, 0, data, true).context("cannot map the data ring")?;
    base.store(Field::AuxOffset, offset, Ordering::Release);
    base.store(Field::AuxSize, bytes(pages), Ordering::Release);
    let aux = Mapping::new(&event, offset, pages * page_size(), !overwrite)
        .with_context(|| format!("cannot map an AUX ring of {pages} pages"))?;
    Ok((base, aux))
}

/// The counters of `pattern`'s begins, for a message.
pub fn begins() -> String {
    [
        "begins",
        "begin_no_space",
        "begin_not_mapped",
        "begin_in_use",
        "begin_foreign",
        "begin_refused",
        "begin_offline",
        "add_busy",
    ]
    .map(|name| format!("{name} {}", counter("pattern", name).unwrap_or(0)))
    .join(", ")
}
