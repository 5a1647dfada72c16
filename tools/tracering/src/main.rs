// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command `tracering`.

#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;

use anyhow::{anyhow, bail, Context as _, Result};
use clap::{Args, Parser, Subcommand};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use tracering::dat::Head;
use tracering::{Event, Instance, Map, Missed, Named, Recorder, Ring, Tracefs};

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
  tracering record -e sched:* -- make        what happens while a command runs, for trace-cmd and KernelShark
  tracering stat";

#[derive(Debug, Subcommand)]
enum Command {
    /// Print events, a line each, until interrupted; they are then gone from the buffer
    Cat(Cat),
    /// Write events to a trace.dat, until interrupted or a command has ended; they are then gone from the buffer
    Record(Record),
    /// Print the numbers of each CPU's buffer; nothing is consumed
    Stat,
}

#[derive(Debug, Args)]
struct Asked {
    /// Trace these events, all of a system with SYSTEM:*, in an instance made for that
    #[arg(
        short,
        long = "event",
        value_name = "SYSTEM:EVENT",
        conflicts_with = "instance"
    )]
    events: Vec<String>,
}

#[derive(Debug, Args)]
struct Cat {
    #[command(flatten)]
    asked: Asked,
    /// End when the buffers are empty
    #[arg(long)]
    drain: bool,
}

#[derive(Debug, Args)]
struct Record {
    #[command(flatten)]
    asked: Asked,
    /// Where to write
    #[arg(short, long, value_name = "FILE", default_value = "trace.dat")]
    output: PathBuf,
    /// How large each CPU's buffer is, KiB [default: the kernel's]
    #[arg(short = 'b', long, value_name = "KIB", requires = "events")]
    buffer_size: Option<u32>,
    /// The clock of the events, such as mono [default: the kernel's]
    #[arg(long, value_name = "NAME", requires = "events")]
    clock: Option<String>,
    /// End when the buffers are empty
    #[arg(long, conflicts_with = "command")]
    drain: bool,
    /// Record while this runs
    #[arg(last = true)]
    command: Vec<OsString>,
}

impl Record {
    /// Records events of an instance. If the user names events, the instance is this process's own.
    fn run(&self, top: &Tracefs, tracefs: &Tracefs, cpus: &[u32]) -> Result<()> {
        let own = !self.asked.events.is_empty();
        let events = tracefs.events(&self.asked.events)?;
        let cpus = chosen(tracefs, cpus)?;
        if let Some(size) = self.buffer_size {
            tracefs.write("buffer_size_kb", &size.to_string())?;
        }
        if let Some(clock) = &self.clock {
            tracefs.write("trace_clock", clock)?;
        }
        let end = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&end))?;
        }
        let mut recorder = Recorder::new(tracefs, &cpus, &self.output)?;
        recorder.reserve(&Head::new(
            top,
            tracefs,
            events.values(),
            tracefs.page_header()?,
        )?)?;
        if own {
            events
                .values()
                .filter(|event| event.system != "ftrace")
                .try_for_each(|event| tracefs.enable(event))?;
        }
        let mut run = || recorder.run(&end, self.drain);
        let status = match self.command.split_first() {
            None => {
                run()?;
                None
            }
            Some((program, arguments)) => {
                let mut child = std::process::Command::new(program)
                    .args(arguments)
                    .spawn()
                    .with_context(|| format!("cannot run {}", Path::new(program).display()))?;
                let stop = || {
                    if own {
                        tracefs.write("tracing_on", "0")
                    } else {
                        Ok(())
                    }
                };
                thread::scope(|scope| -> Result<_> {
                    let waiting = scope.spawn(|| {
                        let status = child.wait();
                        let stopped = stop();
                        end.store(true, Ordering::Release);
                        stopped.map(|()| status)
                    });
                    let done = run();
                    let status = waiting.join();
                    let status = status.map_err(|_| anyhow!("a thread panicked"))??;
                    done?;
                    Ok(Some(status?))
                })?
            }
        };
        let recorded = recorder.stop()?;
        recorded.write_dat(top, events.values(), &self.output)?;
        let summary = recorded.summary();
        writeln!(
            io::stderr(),
            "tracering: {} events of {} CPUs written to {}, {} lost",
            summary.events,
            cpus.len(),
            self.output.display(),
            summary.lost
        )?;
        match status {
            Some(status) if !status.success() => bail!("the command has failed: {status}"),
            _ => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        // A closed pipe is no error: the reader of the output has ended.
        Err(e)
            if e.downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
        Err(e) => {
            // If standard error is closed, the error cannot be reported.
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
        Command::Cat(cat) if cat.asked.events.is_empty() => {
            let events = tracefs.events(&[])?;
            let cpus = chosen(&tracefs, &cli.cpus)?;
            print(&tracefs, &cpus, &events, cat.drain, &mut out)?;
        }
        Command::Cat(cat) => {
            let made = Instance::new(&top, "tracering")?;
            let events = made.tracefs().events(&cat.asked.events)?;
            made.enable(events.values())?;
            let cpus = chosen(made.tracefs(), &cli.cpus)?;
            print(made.tracefs(), &cpus, &events, cat.drain, &mut out)?;
        }
        Command::Record(record) if record.asked.events.is_empty() => {
            record.run(&top, &tracefs, &cli.cpus)?;
        }
        Command::Record(record) => {
            let made = Instance::new(&top, "tracering")?;
            record.run(&top, made.tracefs(), &cli.cpus)?;
        }
    }
    out.flush()?;
    Ok(())
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

/// Events by number: the value of `common_type`.
type Formats = BTreeMap<u16, Named>;

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

/// Prints all events until a signal comes; with `drain`, until the buffers are empty.
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
        // A signal just before `poll` does not end it, so the timeout limits the delay.
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

/// Prints the events of a CPU, but only a limited number of sub-buffers, so that the other CPUs get their turn. Returns whether there may
/// be more.
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
    let Some(Named { system, format, .. }) = formats.get(&id) else {
        writeln!(out, "an event of type {id}")?;
        return Ok(());
    };
    write!(out, "{system}:{}", format.name)?;
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
