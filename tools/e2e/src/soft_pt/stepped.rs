// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The instructions of a traced program that `soft_pt` single-steps, by the tracepoint `rust_stepping:rust_stepping_step`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxrec::pmu::Pmus;
use auxrec::ring::{DataArea, Reader};
use auxrec::sys::{page_size, Event, Mapping};
use perfdata::{Attr, Event as Record, Flags, Read, RecordType, Records, SampleType};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::events::probe::{bytes, Probe};
use crate::soft_pt;

/// The name of that tracepoint.
pub const TRACEPOINT: &str = "rust_stepping:rust_stepping_step";

/// Pages of the data ring. It holds the steps of some 10 ms.
const DATA_PAGES: usize = 2048;

/// Pages of the AUX area. It must hold the whole trace of a program, because nothing reads it.
const AUX_PAGES: usize = 1024;

/// The longest instruction, in bytes.
pub const TEXT_MAX: usize = 15;

/// A record of the tracepoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The instruction's address.
    pub address: u64,
    /// How many instructions the event counts for it.
    pub instructions: u32,
    /// Instructions that were interpreted since the last step.
    pub interpreted: u64,
    /// Why it was stepped.
    pub reason: u32,
    /// The memory at `address`, up to the first byte that could not be read.
    pub text: [u8; TEXT_MAX],
    /// How many bytes of `text` could be read.
    pub len: usize,
}

impl Step {
    /// Parses the body of a sample that has only raw data.
    fn parse(body: &[u8]) -> Option<Self> {
        let half = |at| Some(u32::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let word = |at| Some(u64::from_le_bytes(*body.get(at..)?.first_chunk()?));
        // The raw data begins with its length and the common fields of all tracepoints.
        Some(Self {
            address: word(12)?,
            interpreted: word(20)?,
            instructions: half(28)?,
            reason: half(32)?,
            len: usize::try_from(half(36)?).ok()?,
            text: *body.get(40..)?.first_chunk()?,
        })
    }
}

/// A mapped part of a file that the program executes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Its first address.
    pub address: u64,
    /// Its length.
    pub len: u64,
    /// Its offset in the file.
    pub offset: u64,
    /// The path of the file.
    pub path: String,
}

/// Starts a shell that waits, and executes the program when its input is closed.
pub fn waiting(program: &[&str]) -> Result<Child> {
    let child = shell(program)?;
    let path = format!("/proc/{}/stat", child.id());

    // spawn() may return before the shell's own exec is complete. That exec would enable the event.
    while !fs::read_to_string(&path)
        .with_context(|| format!("cannot read {path}"))?
        .contains("(busybox) S ")
    {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(child)
}

fn shell(program: &[&str]) -> Result<Child> {
    Command::new("/bin/busybox")
        .args(["sh", "-c", "read line; exec \"$@\"", "sh"])
        .args(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start a shell")
}

/// The results of a stepped program.
#[derive(Default, Debug)]
pub struct Stepped {
    /// Instructions that the event counted.
    pub counted: u64,
    /// How many of them were interpreted.
    pub interpreted: u64,
    /// The executable mappings, in the order in which they were made.
    pub maps: Vec<Mapped>,
}

impl Stepped {
    /// Traces a program that a shell executes when its input is closed, and passes the steps to `each`, in order. No record may be lost.
    /// The stepped and the interpreted instructions must be as many as the event counted.
    pub fn run(mut child: Child, mut each: impl FnMut(&Step)) -> Result<Self> {
        let id = i32::try_from(child.id())?;
        let mut attr = soft_pt::traced()?;
        attr.flags |= Flags::ENABLE_ON_EXEC;
        let trace = Probe::open(&attr, id, -1, AUX_PAGES, false)?;
        let mut ring = Ring::open(id)?;
        let mut stepped = Self::default();
        let mut instructions = 0;
        let mut see = |step: &Step| {
            instructions += u64::from(step.instructions);
            each(step);
        };

        drop(child.stdin.take());
        let status = loop {
            // The ring is drained once more after the program has ended, so that no step is left.
            let status = child.try_wait().context("cannot wait for the program")?;
            ring.drain(&mut stepped, &mut see)?;
            match status {
                Some(status) => break status,
                None => ring.wait()?,
            }
        };
        ensure!(status.success(), "the program ended with {status}");
        ensure!(trace.head() < bytes(AUX_PAGES), "the AUX area is full");
        ring.complete()?;
        stepped.counted = trace.generated()?;
        ensure!(
            instructions + stepped.interpreted == stepped.counted,
            "{} instructions were counted: {instructions} were stepped and {} interpreted",
            stepped.counted,
            stepped.interpreted
        );
        Ok(stepped)
    }
}

/// The tracepoint's event and its data ring. The fields are dropped in their order: the ring is unmapped before the event is closed.
struct Ring {
    base: Mapping,
    event: Event,
    attr: Attr,
    data: Reader,
    steps: u64,
}

impl Ring {
    fn open(tid: i32) -> Result<Self> {
        let pmus = Pmus::at(Path::new("/sys/bus/event_source/devices"));
        let attr = Attr {
            sample_type: SampleType::RAW,
            read_format: Read::FORMAT,
            // Enabled by the exec.
            flags: Flags::DISABLED
                | Flags::ENABLE_ON_EXEC
                | Flags::MMAP
                | Flags::MMAP2
                | Flags::WATERMARK,
            wakeup: u32::try_from(bytes(DATA_PAGES) / 8)?,
            ..pmus.event(TRACEPOINT)?.attr()
        };
        let event = Event::open(&attr, tid, -1).context("cannot open the tracepoint")?;
        let len = (1 + DATA_PAGES) * page_size();
        let base = Mapping::new(&event, 0, len, true).context("cannot map the data ring")?;
        let data = Reader::new(base.len() - page_size())?;
        Ok(Self {
            base,
            event,
            attr,
            data,
            steps: 0,
        })
    }

    fn wait(&self) -> Result<()> {
        let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: 5_000_000,
        };
        poll(&mut fds, Some(&time)).context("cannot poll")?;
        Ok(())
    }

    fn drain(&mut self, stepped: &mut Stepped, each: &mut impl FnMut(&Step)) -> Result<()> {
        let area = DataArea {
            base: &self.base,
            page: page_size(),
        };
        let mut bytes = Vec::new();
        self.data.drain(&area, &mut bytes)?;
        for record in Records::new(&bytes, 0) {
            let record = record?;
            if record.kind == RecordType::SAMPLE {
                let step = Step::parse(record.body).context("a sample that is too short")?;
                self.steps += 1;
                stepped.interpreted += step.interpreted;
                each(&step);
                continue;
            }
            match record.event(&self.attr)? {
                Record::Lost(lost) => bail!("{} steps are lost", lost.lost),
                Record::Mmap2(map) => stepped.maps.push(Mapped {
                    address: map.addr,
                    len: map.len,
                    offset: map.pgoff,
                    path: String::from_utf8_lossy(map.filename)
                        .trim_end_matches('\0')
                        .to_owned(),
                }),
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that all steps were read: the last ones may be lost without a record.
    fn complete(&self) -> Result<()> {
        let count = self.event.count()?.context("the event does not count")?;
        ensure!(
            count.value == self.steps,
            "{} steps were reported, and {} were read",
            count.value,
            self.steps
        );
        Ok(())
    }
}
