// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command `auxview`: options in, exit status out. Everything else is in the library.

#![deny(clippy::print_stderr, clippy::print_stdout)]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use auxview::command::{failed, Command, ALL, EXIT, USAGE};
use auxview::pages;
use clap::{CommandFactory as _, Parser, Subcommand};

/// Reads recordings of AUX area trace, by auxrec or perf: checks, shows and converts them.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    #[command(flatten)]
    Read(Command),
    /// Write man pages and shell completions into a directory
    #[command(hide = true)]
    Pages {
        /// Where to
        directory: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // clap returns help and version as errors, too.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { USAGE } else { ALL });
        }
    };
    let status = match &cli.what {
        What::Read(command) => command.run(),
        What::Pages { directory } => {
            pages::write(Cli::command(), "auxview", directory).map(|()| ALL)
        }
    };
    ExitCode::from(status.unwrap_or_else(|e| {
        // The reader may have closed the pipe.
        let _ = writeln!(std::io::stderr(), "auxview: {e:#}");
        failed(&e)
    }))
}
