// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Cases of the crate `tracering`: the tracefs ring buffer, mapped and read.
//!
//! The events are numbered, and a case writes them by `trace_marker` into an instance of its own. So the numbers show which events were
//! lost. The losses must be those that the sub-buffers report, and those that `stats` counts.

pub mod bench;
pub mod boot;
mod module;
mod more;
mod record;
mod text;

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use auxrec::sys::Mapping;
use nix::sys::personality::{self, Persona};
use rustix::io::Errno;
use tracering::format::Format;
use tracering::{Bytes, Error, Map, Missed, PageHeader, Reader, Ring, Stream, Tracefs};

use crate::hotplug;
use crate::ktap::Skip;
use crate::recorder::Steps;
use crate::wait::wait_for;
use crate::workload::pin;

/// The cases, with their names.
pub const ALL: [(&str, Steps); 23] = [
    ("tracefs mapped", |_| exact(How::Mapped, "1", 4, ROOM)),
    ("tracefs mapped, no space for the count", |_| {
        exact(How::Mapped, "1", 4, NO_ROOM)
    }),
    ("tracefs mapped, overwrite off", |_| {
        exact(How::Mapped, "0", 4, ROOM)
    }),
    ("tracefs mapped, sub-buffers of 16 KiB", |_| {
        exact(How::Mapped, "1", 16, ROOM)
    }),
    ("tracefs read", |_| exact(How::Read, "1", 4, ROOM)),
    ("tracefs spliced, sub-buffers of 16 KiB", |_| {
        exact(How::Spliced, "1", 16, ROOM)
    }),
    ("tracefs mapped while events come", |_| beside_a_writer()),
    ("tracefs mapped again and again while events come", |_| {
        more::mapped_again()
    }),
    ("tracefs mapped, events of a module", |_| module::commits()),
    ("tracefs spliced beside a mapping", |_| more::spliced()),
    ("tracefs times and fields as in the text", |_| text::text()),
    ("tracefs recorded, as trace-cmd reads it", |_| {
        record::complete_files()
    }),
    ("tracefs recorded, losses", |_| record::losses()),
    ("tracefs recorded, of a command", |_| record::command()),
    ("tracefs refusals while mapped", |_| refusals()),
    ("tracefs looked at, and then read", |_| more::viewed()),
    ("tracefs buffer_percent", |_| more::percent()),
    ("tracefs latency tracers", |_| more::tracers()),
    ("tracefs errors are sentences", |_| more::sentences()),
    ("tracefs two readers", |_| two_readers()),
    ("tracefs reader killed", |_| killed()),
    ("tracefs tracing turned off", |_| turned_off()),
    ("tracefs CPU taken offline", |_| offline()),
];

/// Text behind the number of an event. Such an event takes 52 bytes in the buffer. A full sub-buffer of 4 or 16 KiB then has space at its
/// end for the count of lost events.
const ROOM: &str = "............";
/// Without text, an event takes 40 bytes. 102 of them fill a sub-buffer of 4 KiB, so the count has no space.
const NO_ROOM: &str = "";

/// How a buffer is read.
#[derive(Debug, Clone, Copy)]
enum How {
    Mapped,
    Read,
    Spliced,
}

/// The size of a buffer, in KiB.
const KIB: u32 = 32;

/// A tracing instance. If a case has created it, it is removed at the end.
struct Instance {
    tracefs: Tracefs,
    header: PageHeader,
    format: Format,
    /// Must be closed before the instance can be removed.
    marker: Option<File>,
    text: &'static str,
    made: bool,
}

impl Instance {
    fn new(subbuf: u32, text: &'static str) -> Result<Self> {
        let Ok(top) = Tracefs::find() else {
            bail!(Skip("this kernel has no tracefs"));
        };
        let dir = top.path().join("instances/auxe2e");
        fs::create_dir(&dir).context("cannot make an instance")?;
        let tracefs = Tracefs::at(&dir);
        let made = || -> Result<_> {
            tracefs.write("buffer_subbuf_size_kb", &subbuf.to_string())?;
            tracefs.write("buffer_size_kb", &KIB.to_string())?;
            Self::of(tracefs, text)
        }();
        if made.is_err() {
            fs::remove_dir(&dir)?;
        }
        let mut instance = made?;
        instance.made = true;
        Ok(instance)
    }

    /// Opens an existing instance.
    fn of(tracefs: Tracefs, text: &'static str) -> Result<Self> {
        let format = Format::parse(&tracefs.read("events/ftrace/print/format")?)?;
        let marker = tracefs.path().join("trace_marker");
        Ok(Self {
            header: tracefs.page_header()?,
            format,
            marker: Some(File::options().append(true).open(marker)?),
            text,
            made: false,
            tracefs,
        })
    }

    /// Writes events with these numbers on a CPU. Returns how many of them the kernel refused.
    fn try_write(&self, cpu: u32, numbers: Range<u64>) -> Result<u64> {
        pin(usize::try_from(cpu)?)?;
        let mut marker = self.marker.as_ref().context("the marker is closed")?;
        let mut refused = 0;
        for n in numbers {
            let text = format!("number {n:08}{}\n", self.text);
            match marker.write_all(text.as_bytes()) {
                Ok(()) => {}
                // The buffer is full in non-overwrite mode, or tracing is off.
                Err(e) if Errno::from_io_error(&e) == Some(Errno::BADF) => refused += 1,
                Err(e) => return Err(e).context("cannot write an event"),
            }
        }
        Ok(refused)
    }

    /// Writes events with these numbers on a CPU. The kernel must accept all of them.
    fn write(&self, cpu: u32, numbers: Range<u64>) -> Result<()> {
        let refused = self.try_write(cpu, numbers)?;
        ensure!(refused == 0, "{refused} events could not be written");
        Ok(())
    }

    fn raw(&self, cpu: u32) -> std::path::PathBuf {
        self.tracefs.cpu_file(cpu, "trace_pipe_raw")
    }

    fn map(&self, cpu: u32) -> Result<Map> {
        Ok(Map::open(self.raw(cpu), self.header)?)
    }

    fn open(&self, cpu: u32, how: How) -> Result<Ring> {
        let not = || Error::NoMapping("the case reads".to_owned());
        let stream = |splice| Stream::open(self.raw(cpu), self.header, splice);
        Ok(match how {
            How::Mapped => Ring::Mapped(self.map(cpu)?),
            How::Read => Ring::Read(stream(false)?, not()),
            How::Spliced => Ring::Read(stream(true)?, not()),
        })
    }

    /// Reads all events that a buffer has now.
    fn drain(&self, ring: &mut Ring, log: &mut Log) -> Result<()> {
        while let Some(reader) = ring.reader()? {
            log.take(reader, &self.format)?;
        }
        Ok(())
    }

    fn drain_map(&self, map: &mut Map, log: &mut Log) -> Result<()> {
        while let Some(reader) = map.reader()? {
            log.take(reader, &self.format)?;
        }
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.marker = None;
        if self.made {
            // If this fails, the next case cannot create the instance, and reports that.
            let _ = fs::remove_dir(self.tracefs.path());
        }
    }
}

/// The number in an event.
fn number(format: &Format, event: Bytes<'_>) -> Result<u64> {
    let text = format.field("buf").and_then(|buf| buf.text(event));
    let text = String::from_utf8(text.context("an event without text")?)?;
    let number = text
        .strip_prefix("number ")
        .and_then(|n| n.trim_end_matches(['\n', '.']).parse().ok());
    number.with_context(|| format!("an event that no case wrote: {text:?}"))
}

/// What a reader has read of one CPU.
#[derive(Debug, Default)]
struct Log {
    /// The numbers of events, in order.
    numbers: Vec<u64>,
    /// The kernel's reports of losses: how many events were read before, and how many are missing.
    missed: Vec<(usize, Missed)>,
    /// The time of the last event.
    time: u64,
}

impl Log {
    fn take(&mut self, reader: Reader<'_>, format: &Format) -> Result<()> {
        self.take_by(reader, |event| number(format, event))
    }

    fn take_by(
        &mut self,
        mut reader: Reader<'_>,
        number: impl Fn(Bytes<'_>) -> Result<u64>,
    ) -> Result<()> {
        if reader.missed() != Missed::No {
            self.missed.push((self.numbers.len(), reader.missed()));
        }
        for event in reader.by_ref() {
            let event = event?;
            ensure!(
                event.time >= self.time,
                "time goes back from {} to {}",
                self.time,
                event.time
            );
            self.time = event.time;
            self.numbers.push(number(event.data)?);
        }
        reader.verify()?;
        Ok(())
    }

    /// How many numbers are missing before `end`. If `reported`, each gap must have a report of the kernel with the right count. There must
    /// be no report where no events are missing.
    fn gaps(&self, end: u64, reported: bool) -> Result<u64> {
        let (mut expected, mut lost) = (0, 0);
        let mut missed = self.missed.iter().peekable();
        for (at, &number) in self.numbers.iter().enumerate() {
            ensure!(
                number >= expected,
                "event {number} comes again, or late: {expected} is next"
            );
            let gap = number - expected;
            let report = missed
                .next_if(|(place, _)| *place == at)
                .map(|(_, missed)| *missed);
            let right = match report {
                None => gap == 0 || !reported,
                Some(Missed::Events(n)) => n == gap,
                Some(Missed::Unknown) => gap != 0,
                Some(Missed::No) => false,
            };
            ensure!(
                right,
                "{gap} events are missing before {number}, and the kernel reports {report:?}"
            );
            lost += gap;
            expected = number + 1;
        }
        ensure!(
            missed.next().is_none(),
            "a loss is reported where there is no event: {:?}",
            self.missed
        );
        ensure!(expected <= end, "event {} was not written", expected - 1);
        Ok(lost + end - expected)
    }
}

/// Checks that written = read + overwritten + dropped: by the numbers, by the sub-buffers and by `stats`.
fn accounted(
    instance: &Instance,
    cpu: u32,
    log: &Log,
    written: u64,
    reported: bool,
) -> Result<u64> {
    let lost = log.gaps(written, reported)?;
    let read = u64::try_from(log.numbers.len())?;
    ensure!(
        read + lost == written,
        "{read} read and {lost} lost of {written}"
    );
    let stats = instance.tracefs.stats(cpu)?;
    ensure!(
        stats.read_events == read
            && stats.overrun + stats.dropped_events == lost
            && (stats.entries, stats.commit_overrun) == (0, 0),
        "{read} events were read and {lost} lost: {stats:?}"
    );
    Ok(lost)
}

/// Writes bursts of events, some larger than the buffer, and reads after each burst.
fn exact(how: How, overwrite: &str, subbuf: u32, text: &'static str) -> Result<String> {
    const BURSTS: [u64; 12] = [1, 0, 3, 250, 1000, 1, 5000, 113, 114, 2, 1500, 7];
    let instance = Instance::new(subbuf, text)?;
    instance.tracefs.write("options/overwrite", overwrite)?;
    let mut said = Vec::new();
    for cpu in instance.tracefs.cpus()? {
        let mut ring = instance.open(cpu, how)?;
        let mut log = Log::default();
        let (mut written, mut refused) = (0, 0);
        for burst in BURSTS {
            refused += instance.try_write(cpu, written..written + burst)?;
            written += burst;
            instance.drain(&mut ring, &mut log)?;
        }
        let counted = |(_, missed): &(usize, Missed)| matches!(missed, Missed::Events(_));
        ensure!(
            log.missed.iter().all(|at| counted(at) == (text == ROOM)),
            "counts of lost events: {:?}",
            log.missed
        );
        let lost = accounted(&instance, cpu, &log, written, overwrite == "1")?;
        ensure!(
            lost > 4000 && log.numbers.len() > 1000,
            "{lost} lost of {written}"
        );
        let stats = instance.tracefs.stats(cpu)?;
        ensure!(
            stats.dropped_events == refused && (refused == 0) == (overwrite == "1"),
            "{refused} writes were refused: {stats:?}"
        );
        if let Ring::Mapped(map) = &ring {
            let meta = map.meta()?;
            let entries = written - stats.dropped_events;
            ensure!(
                (meta.entries, meta.overrun, meta.read)
                    == (entries, stats.overrun, stats.read_events),
                "{meta:?} and {stats:?}"
            );
        }
        said.push(format!("CPU {cpu}: {written} written, {lost} lost"));
    }
    Ok(said.join("; "))
}

/// Reads while a writer writes, so that both are on the same sub-buffer.
fn beside_a_writer() -> Result<String> {
    const EVENTS: u64 = 30_000;
    let instance = Instance::new(4, ROOM)?;
    let mut map = instance.map(1)?;
    let mut log = Log::default();
    let mut parts = 0;
    thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| instance.write(1, 0..EVENTS));
        pin(0)?;
        while !writer.is_finished() {
            map.wait(Some(Duration::from_millis(10)))?;
            while let Some(reader) = map.reader()? {
                log.take(reader, &instance.format)?;
                parts += 1;
            }
        }
        writer
            .join()
            .unwrap_or_else(|_| bail!("the writer panicked"))
    })?;
    instance.drain_map(&mut map, &mut log)?;
    let lost = accounted(&instance, 1, &log, EVENTS, true)?;
    Ok(format!(
        "{EVENTS} written, {lost} lost, read in {parts} parts"
    ))
}

/// Checks what the kernel refuses while a buffer is mapped, and allows afterwards.
fn refusals() -> Result<String> {
    let mut instance = Instance::new(4, ROOM)?;
    instance.marker = None;
    let tracefs = &instance.tracefs;
    let mut tries = vec![("buffer_size_kb", "64"), ("buffer_subbuf_size_kb", "8")];
    // Only a kernel with CONFIG_TRACER_SNAPSHOT has this file.
    if tracefs.path().join("snapshot").exists() {
        tries.push(("snapshot", "1"));
    }
    let map = instance.map(0)?;
    for (file, value) in &tries {
        let error = tracefs.write(file, value).err().map(|e| e.to_string());
        ensure!(
            error.as_ref().is_some_and(|e| e.contains("busy")),
            "{file} = {value} while it is mapped: {error:?}"
        );
    }
    let removed = fs::remove_dir(tracefs.path());
    ensure!(
        removed
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::ResourceBusy),
        "it can be removed while it is mapped: {removed:?}"
    );
    // Tries a writable mapping, and an executable one.
    let file = File::open(instance.raw(0))?;
    let both = File::options().read(true).write(true).open(instance.raw(0));
    for file in std::iter::once(&file).chain(both.as_ref()) {
        let writable = Mapping::new(file.as_fd(), 0, 4096, true).err();
        ensure!(
            writable
                .as_ref()
                .is_some_and(|e| e.kind() == ErrorKind::PermissionDenied),
            "a writable mapping: {writable:?}"
        );
    }
    let persona = personality::get()?;
    personality::set(persona | Persona::READ_IMPLIES_EXEC)?;
    let executable = Mapping::new(file.as_fd(), 0, 4096, false).err();
    personality::set(persona)?;
    ensure!(
        executable
            .as_ref()
            .is_some_and(|e| e.kind() == ErrorKind::PermissionDenied),
        "an executable mapping: {executable:?}"
    );
    drop((map, file, both));
    for (file, value) in &tries {
        tracefs
            .write(file, value)
            .with_context(|| format!("{file} = {value} afterwards"))?;
    }
    // The size of sub-buffers now differs from the header page that was read before.
    let stale = instance.map(0).err().map(|e| e.to_string());
    ensure!(
        stale
            .as_ref()
            .is_some_and(|e| e.contains("read header_page again")),
        "a header of another size: {stale:?}"
    );
    let mut snapshot = "the kernel has no snapshots".to_owned();
    if tries.len() == 3 {
        // A snapshot that is only allocated does not prevent mapping.
        let header = tracefs.page_header()?;
        drop(Map::open(instance.raw(0), header)?);
        tracefs.write("snapshot", "0")?;
        snapshot = "a snapshot is one of them".to_owned();
    }
    Ok(format!("{} refused; {snapshot}", tries.len() + 3))
}

/// Two mappings that read alternately: each event is in one of them, and none is missing.
fn two_readers() -> Result<String> {
    let instance = Instance::new(4, ROOM)?;
    let mut maps = [instance.map(0)?, instance.map(0)?];
    let mut logs = [Log::default(), Log::default()];
    let mut written = 0;
    for round in 0..400_usize {
        let burst = u64::try_from(round * 7 % 31)?;
        instance.write(0, written..written + burst)?;
        written += burst;
        let turn = usize::from(round % 3 == 0);
        if let Some(reader) = maps[turn].reader()? {
            logs[turn].take(reader, &instance.format)?;
        }
    }
    instance.drain_map(&mut maps[0], &mut logs[0])?;
    let counts = logs.each_ref().map(|log| log.numbers.len());
    let mut all: Vec<_> = logs.iter().flat_map(|log| &log.numbers).copied().collect();
    all.sort_unstable();
    ensure!(
        all.iter().copied().eq(0..written),
        "{written} events, of which the readers have {counts:?}"
    );
    ensure!(counts.iter().all(|n| *n > 1000), "{counts:?}");
    Ok(format!("{} and {} of {written}", counts[0], counts[1]))
}

/// The kernel unmaps the buffer of a killed reader. Then everything is allowed again, and the next reader is exact.
fn killed() -> Result<String> {
    let instance = Instance::new(4, ROOM)?;
    instance.write(0, 0..10)?;
    let mut child = Command::new("tracering")
        .args(["-i", "auxe2e", "-C", "0", "cat"])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start tracering")?;
    let mut first = [0; 100];
    let seen = child
        .stdout
        .as_mut()
        .context("no output")?
        .read(&mut first)?;
    let busy = instance.tracefs.write("buffer_size_kb", "64").is_err();
    child.kill()?;
    child.wait()?;
    let text = String::from_utf8_lossy(&first[..seen]);
    ensure!(
        text.contains("ftrace:print") && text.contains("[000]"),
        "{text}"
    );
    ensure!(busy, "it did not map the buffer");
    wait_for("the unmapping", || {
        Ok(instance.tracefs.write("buffer_size_kb", "16").is_ok())
    })?;
    let mut map = instance.map(0)?;
    let mut log = Log::default();
    instance.write(0, 10..2000)?;
    instance.drain_map(&mut map, &mut log)?;
    // The killed reader has read the first ten events.
    log.numbers.splice(0..0, 0..10);
    for (at, _) in &mut log.missed {
        *at += 10;
    }
    let lost = accounted(&instance, 0, &log, 2000, true)?;
    Ok(format!(
        "{} read after it, {lost} lost",
        log.numbers.len() - 10
    ))
}

/// Nothing is written while `tracing_on` is 0. A mapping continues when it is 1 again.
fn turned_off() -> Result<String> {
    let instance = Instance::new(4, ROOM)?;
    let mut map = instance.map(0)?;
    let mut log = Log::default();
    for start in [0, 10, 20] {
        instance.write(0, start..start + 10)?;
        instance.tracefs.write("tracing_on", "0")?;
        let refused = instance.try_write(0, 1000..1003)?;
        ensure!(refused == 3, "events are written while tracing is off");
        instance.drain_map(&mut map, &mut log)?;
        instance.tracefs.write("tracing_on", "1")?;
    }
    accounted(&instance, 0, &log, 30, true)?;
    Ok("30 events, none while it was off".to_owned())
}

/// When a CPU goes offline, its buffer stays mapped and keeps its events. It continues when the CPU is back.
fn offline() -> Result<String> {
    if fs::metadata(hotplug::ONLINE).is_err() {
        bail!(Skip("this kernel cannot take CPU 1 offline"));
    }
    let instance = Instance::new(4, ROOM)?;
    let mut map = instance.map(1)?;
    let mut log = Log::default();
    instance.write(1, 0..50)?;
    pin(0)?;
    hotplug::switch(false)?;
    let drained = instance.drain_map(&mut map, &mut log);
    hotplug::switch(true)?;
    drained?;
    ensure!(
        log.numbers.len() == 50,
        "{} events of a CPU that is gone",
        log.numbers.len()
    );
    instance.write(1, 50..3000)?;
    instance.drain_map(&mut map, &mut log)?;
    let lost = accounted(&instance, 1, &log, 3000, true)?;
    Ok(format!("3000 written, {lost} lost"))
}
