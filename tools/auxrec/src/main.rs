// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command `auxrec`: options in, exit status out. Everything else is in the library.

#![deny(clippy::print_stderr, clippy::print_stdout)]

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use auxrec::control::Channel;
use auxrec::delay::{Delay, Switch};
use auxrec::live::Live;
use auxrec::message::say;
use auxrec::record::{Options, Snapshot};
use auxrec::session::OnTruncate;
use auxrec::size::{parse_rings, parse_size, RingSizes};
use auxrec::target::{parse_cpus, parse_ids, Target};
use auxrec::{doctor, json, record, Error};
use auxview::command::{failed, pretty, print, ALL, EXIT, FAILED, LOST, USAGE};
use auxview::pages;
use auxview::size::bytes;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

#[path = "main/events.rs"]
mod events;

/// Records the AUX area trace of any perf PMU, and reports each loss.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Record trace into a perf.data file
    #[command(after_long_help = EXAMPLES)]
    Record(Box<Record>),
    #[command(flatten)]
    Read(auxview::command::Command),
    /// List the PMUs of this machine with their terms, whether each has an AUX area, and how to record it
    List,
    /// Find what can be recorded here, what prevents the rest, and what to do about it
    ///
    /// Opens and maps what recordings would, and traces nothing. Exit status 0: a PMU with an AUX area can be recorded; 1: none can.
    Doctor {
        /// Write the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write man pages and shell completions into a directory
    #[command(hide = true)]
    Pages {
        /// Where to
        directory: PathBuf,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Truncated {
    /// Continue to trace
    Resume,
    /// End the recording (status 3)
    Stop,
    /// End the recording with an error (status 1)
    Fail,
}

impl From<Truncated> for OnTruncate {
    fn from(what: Truncated) -> Self {
        match what {
            Truncated::Resume => Self::Resume,
            Truncated::Stop => Self::Stop,
            Truncated::Fail => Self::Fail,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum How {
    /// On a terminal that no command writes to, unless -q is given
    Auto,
    /// Not at all
    Off,
    /// On the terminal that standard error is
    Terminal,
    /// A line of JSON each second, on standard output
    Json,
}

/// How `record --help` and its man page end.
const EXAMPLES: &str = "\
Examples:
  auxrec record -e intel_pt//u -- gzip -k FILE       a command and its children
  auxrec record -e intel_pt//u -p PID                a process, until it ends or Ctrl-C
  auxrec record -e intel_pt// -a -- sleep 1          all CPUs, with the kernel, for a second
  auxrec record -e intel_pt//u -m 512K,64M -- gzip -k FILE    with a larger AUX area
  auxrec record -S -e intel_pt//u -p PID             write the AUX areas at each SIGUSR2
  auxrec record -e intel_pt//u --switch-output=1G -p PID      files of 1 GiB

Exit status: 0 all was recorded, 1 an error, 2 bad usage, 3 finished but trace was lost.";

#[derive(Debug, Args)]
struct Record {
    /// Events, as pmu/term=value,…/modifiers or name:modifiers, in lists a,b and groups {a,b}
    #[arg(
        help_heading = "Events",
        short,
        long,
        value_name = "EVENT",
        required_unless_present = "sideband"
    )]
    event: Vec<String>,
    /// Record no trace, only what a decoder needs to know about this machine: names, mappings and context switches. For trace that
    /// is recorded elsewhere, such as by the host of a virtual machine
    #[arg(help_heading = "Events", long, conflicts_with_all = ["event", "aux_sample", "filter", "aux_watermark", "snapshot", "delay", "split_files"])]
    sideband: bool,
    #[command(flatten)]
    tracepoints: events::Tracepoints,
    /// Put the newest BYTES of trace into each sample of the other events [without BYTES: 4096]
    #[arg(help_heading = "Events", long, value_name = "BYTES", num_args = 0..=1, default_missing_value = "4096")]
    aux_sample: Option<String>,
    /// Trace only this code: filter|start|stop|tracestop START[/END] [@FILE], in numbers or functions of FILE
    #[arg(help_heading = "Events", long, value_name = "FILTER")]
    filter: Option<String>,
    /// Record everything on all CPUs
    #[arg(help_heading = "Target", short, long, conflicts_with_all = ["pid", "tid"])]
    all_cpus: bool,
    /// Record everything on these CPUs
    #[arg(help_heading = "Target", short = 'C', long, value_name = "LIST", conflicts_with_all = ["all_cpus", "pid", "tid"])]
    cpu: Option<String>,
    /// Record only the tasks of this control group; needs -a or -C
    #[arg(help_heading = "Target", short = 'G', long, value_name = "NAME")]
    cgroup: Option<String>,
    /// Record these processes
    #[arg(
        help_heading = "Target",
        short,
        long,
        value_name = "LIST",
        conflicts_with = "tid"
    )]
    pid: Option<String>,
    /// Record these threads
    #[arg(help_heading = "Target", short, long, value_name = "LIST")]
    tid: Option<String>,
    /// Map rings that follow the threads; children are not recorded
    #[arg(help_heading = "Target", long)]
    per_thread: bool,
    /// Sizes of the data ring and of the AUX area: pages, or bytes with B, K, M or G
    #[arg(help_heading = "Rings", short, long, value_name = "DATA[,AUX]")]
    mmap_pages: Option<String>,
    /// Shrink the rings to fit the limit of locked memory, and report their sizes
    #[arg(help_heading = "Rings", long)]
    shrink: bool,
    /// Wake the recorder when an AUX area has this much new trace: pages, or bytes with a unit [default: 7/16 of the AUX area; a quarter for the Intel PT of a processor]
    #[arg(help_heading = "Rings", long, value_name = "SIZE")]
    aux_watermark: Option<String>,
    /// What to do when an AUX area was full and trace was lost
    #[arg(help_heading = "Rings", long, value_name = "WHAT", value_enum, default_value_t = Truncated::Resume)]
    on_truncate: Truncated,
    /// Number of threads that drain the rings [default: one for each ring, at most one for each CPU]
    #[arg(help_heading = "Rings", long, value_name = "N")]
    threads: Option<usize>,
    /// Record with this real-time priority (SCHED_FIFO); the command keeps the priority of its caller
    #[arg(help_heading = "Rings", short, long, value_name = "PRIORITY", value_parser = clap::value_parser!(i32).range(1..=99))]
    realtime: Option<i32>,
    /// Overwrite old trace with new, and write the AUX areas (or the newest SIZE bytes of each) at each SIGUSR2 or command
    /// `snapshot`; with e also when the recording ends
    #[arg(help_heading = "Snapshots", short = 'S', long, value_name = "[SIZE][e]", num_args = 0..=1, default_missing_value = "")]
    snapshot: Option<String>,
    /// With -S: also take a snapshot when the program reaches FUNCTION, FUNCTION@FILE or ADDRESS@FILE
    #[arg(help_heading = "Snapshots", long, value_name = "FUNCTION")]
    trigger: Option<String>,
    /// With -S: also overwrite old names, mappings and other sideband records, and write the newest with each snapshot
    #[arg(help_heading = "Snapshots", long)]
    overwrite: bool,
    /// Start to trace after MS milliseconds; -1: at the command `enable`; MS-MS,…: only in these ranges
    #[arg(
        help_heading = "When",
        short = 'D',
        long,
        value_name = "MS",
        allow_hyphen_values = true
    )]
    delay: Option<String>,
    /// Read commands, with perf's protocol: fifo:CTL[,ACK] or fd:CTL[,ACK]
    #[arg(help_heading = "When", long, value_name = "WHERE")]
    control: Option<String>,
    /// End the recording when its files together have this size: bytes, or with K, M or G
    #[arg(help_heading = "When", long, value_name = "SIZE")]
    max_size: Option<String>,
    /// Begin another file at each SIGUSR2 (signal), at this size (with B, K, M or G), or after this time (with s, m, h or d)
    #[arg(help_heading = "When", long, value_name = "WHEN", num_args = 0..=1, default_missing_value = "signal")]
    switch_output: Option<String>,
    /// Keep the last N of these files
    #[arg(
        help_heading = "When",
        long,
        value_name = "N",
        requires = "switch_output"
    )]
    switch_max_files: Option<usize>,
    /// The file to write
    #[arg(
        help_heading = "Files",
        short,
        long,
        value_name = "FILE",
        default_value = "perf.data"
    )]
    output: PathBuf,
    /// Let each thread write a file of its own, FILE.t0 and so on, and join these files when the recording ends: faster, as no
    /// thread waits for another, but needs twice the disk space
    #[arg(help_heading = "Files", long, alias = "apart")]
    split_files: bool,
    /// Synchronise the file with its disk every SECONDS, against a power failure; 0: never
    #[arg(
        help_heading = "Files",
        long,
        value_name = "SECONDS",
        default_value_t = 1
    )]
    sync: u64,
    /// Compress the trace with zstd; perf cannot read it then, `auxview convert` decompresses it [levels: 1 to 22; without LEVEL: 1]
    #[arg(help_heading = "Files", short = 'z', long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(i32).range(levels()))]
    compression_level: Option<i32>,
    /// Write the result, with all losses, as JSON to this file; -: to standard output
    #[arg(help_heading = "Reports", long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show the progress: rate, fill and wakeups of each ring
    #[arg(help_heading = "Reports", long, value_name = "HOW", value_enum, default_value_t = How::Auto)]
    live: How,
    /// Print errors only
    #[arg(help_heading = "Reports", short, long)]
    quiet: bool,
    /// Print more
    #[arg(help_heading = "Reports", short, long)]
    verbose: bool,
    /// The command to run; the recording ends when it ends
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn levels() -> impl std::ops::RangeBounds<i64> {
    i64::from(*auxview::pack::LEVELS.start())..=i64::from(*auxview::pack::LEVELS.end())
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // `--help` and `--version` also return an error here, but are none.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { USAGE } else { ALL });
        }
    };
    match run(&cli.command) {
        Ok(status) => ExitCode::from(status),
        Err(e) => {
            say(format_args!("{e:#}"));
            ExitCode::from(failed(&e))
        }
    }
}

fn run(command: &Command) -> anyhow::Result<u8> {
    match command {
        Command::Record(options) => options.run(),
        Command::Read(command) => command.run(),
        Command::Pages { directory } => {
            pages::write(Cli::command(), "auxrec", directory)?;
            Ok(ALL)
        }
        Command::List => {
            print(&doctor::list()?)?;
            Ok(ALL)
        }
        Command::Doctor { json } => {
            let report = doctor::Report::make()?;
            print(&match json {
                true => pretty(&json::doctor(&report)),
                false => report.to_string(),
            })?;
            Ok(if report.can_record() { ALL } else { FAILED })
        }
    }
}

/// Parses the length of the trace in a sample, in bytes.
fn parse_aux_sample(text: &str) -> Result<u32, Error> {
    let size = parse_size(text, 1)?;
    auxrec::pmu::check_aux_sample(u64::try_from(size).unwrap_or(u64::MAX))
}

/// Parses `[SIZE][e]`, with the size in bytes or with a unit.
fn parse_snapshot(text: &str) -> Result<Snapshot, Error> {
    let (size, at_exit) = match text.strip_suffix('e') {
        Some(size) => (size, true),
        None => (text, false),
    };
    let size = match (size, size.strip_prefix("0x")) {
        ("", _) => None,
        (_, Some(hex)) => usize::from_str_radix(hex, 16).ok(),
        (size, None) => parse_size(size, 1).ok(),
    };
    if size.is_none() && !text.is_empty() && text != "e" {
        return Err(Error::Usage(format!(
            "-S takes a size in bytes (or with K, M or G), and `e` for a snapshot at the end, not `{text}`"
        )));
    }
    Ok(Snapshot { size, at_exit })
}

impl Record {
    fn options(&self) -> Result<Options, Error> {
        let page = rustix::param::page_size();
        let usage = |text: &str| Err(Error::Usage(text.to_owned()));
        let target = match (&self.cpu, self.all_cpus, &self.pid, &self.tid) {
            (Some(list), ..) => Target::System(parse_cpus(list)?),
            (None, true, ..) => Target::All,
            (None, false, Some(list), _) => Target::Processes(parse_ids(list)?),
            (None, false, None, Some(list)) => Target::Threads(parse_ids(list)?),
            (None, false, None, None) if self.command.is_empty() => {
                return usage("nothing to record: give a command after --, or -a, -C, -p or -t")
            }
            (None, false, None, None) => Target::Command,
        };
        Ok(Options {
            events: self.event.clone(),
            sideband: self.sideband,
            aux_sample: self
                .aux_sample
                .as_deref()
                .map(parse_aux_sample)
                .transpose()?,
            tracepoints: self.tracepoints.wanted()?,
            filter: self.filter.clone(),
            cgroup: self.cgroup.clone(),
            sizes: match &self.mmap_pages {
                Some(text) => parse_rings(text, page)?,
                None => RingSizes::default(),
            },
            shrink: self.shrink,
            watermark: self
                .aux_watermark
                .as_deref()
                .map(|text| parse_size(text, page))
                .transpose()?,
            target,
            per_thread: self.per_thread,
            on_truncate: self.on_truncate.into(),
            snapshot: self.snapshot.as_deref().map(parse_snapshot).transpose()?,
            trigger: self.trigger.clone(),
            overwrite: self.overwrite,
            delay: self
                .delay
                .as_deref()
                .map_or(Ok(Delay::None), Delay::parse)?,
            control: self.control.as_deref().map(Channel::parse).transpose()?,
            switch_output: self
                .switch_output
                .as_deref()
                .map(Switch::parse)
                .transpose()?,
            keep_files: self.switch_max_files,
            output: self.output.clone(),
            command: self.command.clone(),
            cmdline: std::env::args_os().collect(),
            max_size: self
                .max_size
                .as_deref()
                .map(|text| parse_size(text, 1))
                .transpose()?
                .map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX)),
            threads: self.threads,
            split_files: self.split_files,
            realtime: self.realtime,
            sync: Duration::from_secs(self.sync),
            compress: self.compression_level,
            live: match self.live {
                How::Auto if !self.quiet && self.command.is_empty() => Live::Terminal,
                How::Auto | How::Off => Live::Off,
                How::Terminal => Live::Terminal,
                How::Json => Live::Json,
            },
            verbose: self.verbose,
        })
    }

    fn run(&self) -> anyhow::Result<u8> {
        let outcome = record::record(&self.options()?)?;
        let total = outcome.total();
        if let Some(path) = &self.json {
            let text = pretty(&json::outcome(&outcome));
            if path.as_os_str() == "-" {
                print(&text)?;
            } else {
                fs::write(path, text)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        if !self.quiet {
            let trace = match self.sideband {
                true => "no trace".to_owned(),
                false => format!(
                    "{} bytes of trace in {} AUX records",
                    total.read, total.records
                ),
            };
            say(format_args!(
                "{trace}, {} wakeups; {} is {} bytes",
                outcome.wakeups,
                match outcome.files {
                    1 => outcome.path.display().to_string(),
                    n => format!("{n} files to {}", outcome.path.display()),
                },
                outcome.file,
            ));
            if let Some((times, blind)) = outcome.snapshots {
                say(format_args!(
                    "{times} snapshots, nothing traced for {} us at most on a ring, {} us in all",
                    blind.max.div_ceil(1000),
                    blind.sum.div_ceil(1000),
                ));
            }
            if let (Some(hits), Some((times, _))) = (outcome.hits, outcome.snapshots) {
                say(format_args!(
                    "the trigger was reached {hits} times, and {times} snapshots were taken"
                ));
            }
            if let (Some(queue), true) = (outcome.queue, self.verbose) {
                say(format_args!(
                    "copies for the file had {} at most, and might have had {}",
                    bytes(queue.max),
                    bytes(queue.bound)
                ));
            }
            for (name, loss, wraps) in &outcome.rings {
                if self.verbose {
                    say(format_args!("{name}: {} bytes, {wraps} wraps", loss.read));
                }
                if loss.any() {
                    say(format_args!("{name}: trace was lost: {}", loss.describe()));
                }
            }
            if let Some(status @ 1..) = outcome.status {
                say(format_args!("the command ended with status {status}"));
            }
        }
        Ok(if total.any() { LOST } else { ALL })
    }
}
