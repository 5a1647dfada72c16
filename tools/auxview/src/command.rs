// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands that read recordings: their options, what they do, and their exit status. `auxview` has them, and `auxrec` under
//! the same names.

mod calls;
mod end;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;

use crate::error::Error;
use crate::{check, convert, dump, flamegraph, json, recover, report, source};

pub use end::{failed, pretty, print, ALL, FAILED, LOST, USAGE};

/// The end of the text of `--help`.
pub const EXIT: &str =
    "Exit status: 0 all was recorded, 1 an error, 2 bad usage, 3 finished but trace was lost.";

/// A command with its options.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Verify the structure of a recording, and report losses
    Check {
        /// The recording; all its files in their order, if it has several
        #[arg(default_value = "perf.data")]
        files: Vec<PathBuf>,
        /// Write the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a recording: a line for each AUX record, and a summary
    Report {
        /// The recording
        #[arg(default_value = "perf.data")]
        file: PathBuf,
        /// Draw head, tail and fill of each AUX area over time into this file
        #[arg(long, value_name = "OUT.svg")]
        svg: Option<PathBuf>,
        /// Draw the calls in a trace of Intel PT's format (intel_pt, soft_pt) into this file
        #[arg(long, value_name = "OUT.svg")]
        flamegraph: Option<PathBuf>,
        /// Write these calls as folded stacks, for other tools
        #[arg(long, value_name = "OUT.txt")]
        folded: Option<PathBuf>,
        /// Root directory for the files of the programs
        #[arg(long, value_name = "DIR", default_value = "/")]
        symfs: PathBuf,
        /// Also follow the kernel's code, from the files kcore and kallsyms in this directory
        /// [default: kcore_dir of a recording that is a directory]
        #[arg(long, value_name = "DIR")]
        kernel: Option<PathBuf>,
        /// Write the summary as JSON instead
        #[arg(long)]
        json: bool,
    },
    /// Write the calls in a trace of Intel PT's format, with their times, for viewers
    Export(calls::Export),
    /// Print these calls for tools: a line for each begin and end
    Script(calls::Script),
    /// Write a finished copy of a file whose recorder, auxrec or perf, was killed
    Recover {
        /// The recording
        #[arg(default_value = "perf.data")]
        file: PathBuf,
        /// The file to write [default: FILE.recovered]
        #[arg(short, long, value_name = "FILE", conflicts_with = "in_place")]
        output: Option<PathBuf>,
        /// Change the recording itself, without a copy: cut off an incomplete record at its end. If the
        /// recorder's threads have written files of their own, these are joined into it and removed
        #[arg(long)]
        in_place: bool,
    },
    /// Decompress the trace of a recording
    Convert {
        /// The recording
        from: PathBuf,
        /// The file to write
        to: PathBuf,
    },
    /// Print the records of a file: a line for each
    Dump {
        /// The recording
        #[arg(default_value = "perf.data")]
        file: PathBuf,
    },
}

impl Command {
    /// Runs the command. Returns the exit status.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn run(&self) -> anyhow::Result<u8> {
        match self {
            Self::Check { files, json } => {
                let names: Vec<_> = files
                    .iter()
                    .map(|file| file.display().to_string())
                    .collect();
                let parts = files
                    .iter()
                    .map(|file| source::open(file))
                    .collect::<Result<Vec<_>, Error>>()?;
                let findings = check::check_parts(&parts).with_context(|| names.join(", "))?;
                if *json {
                    print(&pretty(&json::findings(&findings)))?;
                } else {
                    print(&findings.to_string())?;
                }
                Ok(if !findings.problems.is_empty() {
                    FAILED
                } else if findings.lost() {
                    LOST
                } else {
                    ALL
                })
            }
            Self::Report {
                file,
                svg,
                flamegraph,
                folded,
                symfs,
                kernel,
                json,
            } => {
                let recording = source::open(file)?;
                let named = || file.display().to_string();
                if *json {
                    print(&pretty(&json::report(&recording).with_context(named)?))?;
                } else {
                    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
                    report::report(&recording, &mut out).with_context(named)?;
                }
                if let Some(svg) = svg {
                    let picture = report::timeline(&recording).with_context(named)?;
                    fs::write(svg, picture)
                        .with_context(|| format!("cannot write {}", svg.display()))?;
                }
                if flamegraph.is_some() || folded.is_some() {
                    let kernel = source::kernel(file, kernel.as_deref());
                    let places = flamegraph::Places {
                        root: symfs,
                        kernel: kernel.as_deref(),
                    };
                    let calls = flamegraph::calls(&recording, places).with_context(named)?;
                    let save = |path: &PathBuf, text| {
                        fs::write(path, text)
                            .with_context(|| format!("cannot write {}", path.display()))
                    };
                    if *json {
                        // The reader may have closed the pipe.
                        let _ = std::io::stderr().write_all(calls.summary().as_bytes());
                    } else {
                        print(&calls.summary())?;
                    }
                    if let Some(path) = folded {
                        let mut text = Vec::new();
                        calls.fold(&mut text).with_context(named)?;
                        save(path, text)?;
                    }
                    if let Some(path) = flamegraph {
                        save(path, calls.draw().with_context(named)?)?;
                    }
                }
                Ok(ALL)
            }
            Self::Export(export) => export.run(),
            Self::Script(script) => script.run(),
            Self::Recover {
                file,
                output,
                in_place,
            } => {
                let out = match (output, in_place) {
                    (Some(output), _) => output.clone(),
                    (None, true) => file.clone(),
                    (None, false) => recover::beside(file),
                };
                let joined = match in_place {
                    true => recover::in_place(file)?,
                    false => recover::recover(file, &out)?,
                };
                let (found, name) = (joined.found, out.display());
                for remark in &joined.remarks {
                    print(&format!("{remark}\n"))?;
                }
                print(&if found.was_finished {
                    format!(
                        "{} is complete: there is nothing to recover\n",
                        file.display()
                    )
                } else {
                    let of = match joined.parts {
                        0 => String::new(),
                        parts => format!(" joined of {parts} files"),
                    };
                    format!(
                    "{name}:{of} {} records, {} bytes of trace in {} pieces; {} bytes at the end were no whole record, and are left out\n",
                    found.records, found.trace, found.pieces, found.dropped
                )
                })?;
                Ok(ALL)
            }
            Self::Dump { file } => {
                let recording = source::open(file)?;
                let mut out = std::io::BufWriter::new(std::io::stdout().lock());
                dump::dump(&recording, &mut out).with_context(|| file.display().to_string())?;
                Ok(ALL)
            }
            Self::Convert { from, to } => {
                convert::convert_file(from, to)?;
                Ok(ALL)
            }
        }
    }
}
