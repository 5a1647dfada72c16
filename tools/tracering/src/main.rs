// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command `tracering`: options in, exit status out.

#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use anyhow::{bail, Context as _, Result};
use clap::{Args, Parser, Subcommand};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use tracering::format::Format;
use tracering::{Event, Map, Missed, Ring, Tracefs};

/// Reads the tracefs ring buffer, mapped where the kernel can map it.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// The instance to read [default: the buffer at the top]
    #[arg(short, long, global = true, value_name = "NAME")]
    instance: Option<String>,
    /// Where tracefs is [default: where it usually is mounted]
    #[arg(long, global = true, value_name = "DIR")]
    tracefs: Option<PathBuf>,
    /// Only these CPUs [default: all]
    #[arg(
        short = 'C',
        long = "cpu",
        global = true,
        value_name = "N",
        value_delimiter = ','
    )]
    cpus: Vec<u32>,
}

const EXAMPLES: &str = "Examples:
  tracering cat -e sched:sched_switch        an instance of its own, removed at the end
  tracering cat -i mine --drain              what the instance `mine` has now
  tracering stat";

#[derive(Debug, Subcommand)]
enum Command {
    /// Print events, a line each, until interrupted; they are then gone from the buffer
    Cat(Cat),
    /// Print the numbers of each CPU's buffer; nothing is consumed
    Stat,
}

#[derive(Debug, Args)]
struct Cat {
    /// Trace these events, all of a system with SYSTEM:*, in an instance made for that
    #[arg(
        short,
        long = "event",
        value_name = "SYSTEM:EVENT",
        conflicts_with = "instance"
    )]
    events: Vec<String>,
    /// End when the buffers are empty
    #[arg(long)]
    drain: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough is no error.
        Err(e)
            if e.downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
        Err(e) => {
            // Nothing is left to do where standard error is closed.
            let _ = writeln!(io::stderr(), "tracering: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let top = match &cli.tracefs {
        Some(dir) => Tracefs::at(dir),
        None => Tracefs::find()?,
    };
    let tracefs = match &cli.instance {
        Some(name) => top.instance(name)?,
        None => top.clone(),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match &cli.command {
        Command::Stat => stat(&tracefs, &chosen(&tracefs, &cli.cpus)?, &mut out)?,
        Command::Cat(cat) if cat.events.is_empty() => {
            let formats = formats(&tracefs, &[])?;
            print(
                &tracefs,
                &chosen(&tracefs, &cli.cpus)?,
                &formats,
                cat.drain,
                &mut out,
            )?;
        }
        Command::Cat(cat) => {
            let made = Made::new(&top)?;
            let formats = formats(&made.tracefs, &cat.events)?;
            for name in formats.values().map(|(name, _)| name) {
                let file = format!("events/{}/enable", name.replacen(':', "/", 1));
                made.tracefs.write(file, "1")?;
            }
            print(
                &made.tracefs,
                &chosen(&made.tracefs, &cli.cpus)?,
                &formats,
                cat.drain,
                &mut out,
            )?;
        }
    }
    out.flush()?;
    Ok(())
}

/// An instance of this process's own.
struct Made {
    tracefs: Tracefs,
}

impl Made {
    fn new(top: &Tracefs) -> Result<Self> {
        let dir = top
            .path()
            .join(format!("instances/tracering.{}", std::process::id()));
        fs::create_dir(&dir)
            .with_context(|| format!("cannot make the instance {}", dir.display()))?;
        Ok(Self {
            tracefs: Tracefs::at(dir),
        })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let dir = self.tracefs.path();
        if let Err(e) = fs::remove_dir(dir) {
            let _ = writeln!(
                io::stderr(),
                "tracering: cannot remove the instance {}: {e}",
                dir.display()
            );
        }
    }
}

/// The CPUs to read.
fn chosen(tracefs: &Tracefs, asked: &[u32]) -> Result<Vec<u32>> {
    let all = tracefs.cpus()?;
    if let Some(cpu) = asked.iter().find(|cpu| !all.contains(cpu)) {
        bail!(
            "no CPU {cpu} in {}: it has {all:?}",
            tracefs.path().display()
        );
    }
    Ok(if asked.is_empty() {
        all
    } else {
        asked.to_vec()
    })
}

/// The formats of these events, or of all, with their names, by their numbers.
type Formats = BTreeMap<u16, (String, Format)>;

fn formats(tracefs: &Tracefs, names: &[String]) -> Result<Formats> {
    let events = tracefs.path().join("events");
    let mut found = Formats::new();
    let mut add = |system: &str, event: &str| -> Result<()> {
        let path = events.join(system).join(event).join("format");
        if !path.exists() {
            bail!(
                "no event {system}:{event}: {} lists those that there are",
                tracefs.path().join("available_events").display()
            );
        }
        let text = tracefs.read(&path)?;
        let format = Format::parse(&text).with_context(|| path.display().to_string())?;
        found.insert(format.id, (format!("{system}:{event}"), format));
        Ok(())
    };
    for name in names {
        let parts = name.split_once(':');
        let part = |text: &str| !text.is_empty() && !text.contains(['/', '.']);
        let (system, event) = parts
            .filter(|(system, event)| part(system) && part(event))
            .with_context(|| {
                format!("{name} is no event: give SYSTEM:EVENT, such as sched:sched_switch")
            })?;
        if event == "*" {
            let all = directories(&events.join(system));
            for event in all.with_context(|| format!("no system {system}"))? {
                add(system, &event)?;
            }
        } else {
            add(system, event)?;
        }
    }
    if names.is_empty() {
        for system in directories(&events)? {
            for event in directories(&events.join(&system))? {
                // Some directories have no format: those of events that cannot be turned on.
                if events.join(&system).join(&event).join("format").exists() {
                    add(&system, &event)?;
                }
            }
        }
    }
    Ok(found)
}

/// The names of the directories in one.
fn directories(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut names: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            entry
                .file_type()
                .ok()?
                .is_dir()
                .then(|| entry.file_name().into_string().ok())?
        })
        .collect();
    names.sort();
    Ok(names)
}

fn stat(tracefs: &Tracefs, cpus: &[u32], out: &mut impl Write) -> Result<()> {
    let header = tracefs.page_header()?;
    for cpu in cpus {
        let map = match Map::open(tracefs.cpu_file(*cpu, "trace_pipe_raw"), header) {
            Ok(map) => map,
            Err(e @ tracering::Error::NoMapping(_)) => {
                let stats = tracefs.stats(*cpu)?;
                writeln!(out, "CPU {cpu}: not mapped: {e}")?;
                writeln!(
                    out,
                    "  entries {} overrun {} read {} dropped {}",
                    stats.entries, stats.overrun, stats.read_events, stats.dropped_events
                )?;
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        let meta = map.meta()?;
        writeln!(out, "CPU {cpu}:")?;
        for (name, value) in [
            ("meta_page_size", u64::from(meta.meta_page_size)),
            ("meta_struct_len", u64::from(meta.meta_struct_len)),
            ("subbuf_size", u64::from(meta.subbuf_size)),
            ("nr_subbufs", u64::from(meta.nr_subbufs)),
            ("reader.lost_events", meta.reader.lost_events),
            ("reader.id", u64::from(meta.reader.id)),
            ("reader.read", u64::from(meta.reader.read)),
            ("flags", meta.flags),
            ("entries", meta.entries),
            ("overrun", meta.overrun),
            ("read", meta.read),
            ("pages_lost", meta.pages_lost),
            ("pages_touched", meta.pages_touched),
        ] {
            writeln!(out, "  {name:<18} {value}")?;
        }
    }
    Ok(())
}

/// Prints all events, until a signal comes, or until there are no more.
fn print(
    tracefs: &Tracefs,
    cpus: &[u32],
    formats: &Formats,
    drain: bool,
    out: &mut impl Write,
) -> Result<()> {
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&end))?;
    }
    let header = tracefs.page_header()?;
    let rings: tracering::Result<Vec<_>> = cpus
        .iter()
        .map(|cpu| Ring::open(tracefs.cpu_file(*cpu, "trace_pipe_raw"), header))
        .collect();
    let mut rings = rings?;
    if let Some(Ring::Read(_, why)) = rings.first() {
        writeln!(io::stderr(), "tracering: {why}")?;
    }
    loop {
        let mut more = false;
        for (cpu, ring) in cpus.iter().zip(&mut rings) {
            more |= batch(*cpu, ring, formats, out)?;
        }
        out.flush()?;
        if end.load(Ordering::Relaxed) || (drain && !more) {
            return Ok(());
        }
        if more {
            continue;
        }
        let mut fds: Vec<_> = rings
            .iter()
            .map(|ring| PollFd::new(ring, PollFlags::IN))
            .collect();
        // A signal that comes just before the wait is seen after it.
        match poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 200_000_000,
            }),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(io::Error::from(e)).context("cannot wait for events"),
        }
    }
}

/// Prints what a CPU has, but no more than some sub-buffers of it: others wait. Whether there may be more.
fn batch(cpu: u32, ring: &mut Ring, formats: &Formats, out: &mut impl Write) -> Result<bool> {
    const SUBBUFS: usize = 64;
    for _ in 0..SUBBUFS {
        let Some(mut reader) = ring.reader()? else {
            return Ok(false);
        };
        match reader.missed() {
            Missed::No => {}
            Missed::Events(n) => writeln!(out, "CPU {cpu}: {n} events lost")?,
            Missed::Unknown => writeln!(out, "CPU {cpu}: events lost")?,
        }
        for event in reader.by_ref() {
            line(cpu, &event?, formats, out)?;
        }
        reader.verify()?;
    }
    Ok(true)
}

fn line(cpu: u32, event: &Event<'_>, formats: &Formats, out: &mut impl Write) -> Result<()> {
    let Event { time, data } = *event;
    write!(out, "{time} [{cpu:03}] ")?;
    let Some(id) = data.u16(0) else {
        writeln!(out, "an event of {} bytes", data.len())?;
        return Ok(());
    };
    let Some((name, format)) = formats.get(&id) else {
        writeln!(out, "an event of type {id}")?;
        return Ok(());
    };
    write!(out, "{name}")?;
    let pid = format.field("common_pid").and_then(|pid| pid.signed(data));
    if let Some(pid) = pid {
        write!(out, " common_pid={pid}")?;
    }
    for field in format.own() {
        match field.value(data) {
            Ok(value) => write!(out, " {}={value}", field.name)?,
            Err(e) => write!(out, " {}=<{e}>", field.name)?,
        }
    }
    writeln!(out)?;
    Ok(())
}
