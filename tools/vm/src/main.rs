// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `auxvm`: the program that the Makefile runs inside the build root.

use anyhow::{bail, Result};
use clap::{Parser, Subcommand};
use std::process::{Command, ExitCode};
use std::time::Duration;
use vm::bench;
use vm::cache::Cache;
use vm::demo;
use vm::fuzz;
use vm::guest::{self, Devices, Guest};
use vm::kernel::{self, Kernel, Kind};
use vm::modules::{self, Mode};
use vm::results::figures;
use vm::results::{comparison, coverage};
use vm::suites::conform::{self, End};
use vm::suites::{self, Plan, Suite};
use vm::tools::{self, aarch64::Aarch64, Arch};
use vm::trace;
use vm::verify::{self, mutants};

/// Kernels, guests and test runs for auxpmu.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Prepare kernels, and print where they are
    Kernel {
        /// Which: stock, lean, debug, rt
        #[arg(required = true)]
        kinds: Vec<Kind>,
    },
    /// Build the modules
    Modules {
        /// Against which kernel: stock, lean, debug, rt
        #[arg(long, env = "KERNEL")]
        kernel: Option<Kind>,
    },
    /// Write rust-project.json for rust-analyzer
    RustAnalyzer {
        /// Against which kernel: stock, lean, debug, rt
        #[arg(long, env = "KERNEL")]
        kernel: Option<Kind>,
    },
    /// Build the tools, and print where they are
    Tools {
        /// For which processor; those for x86_64 go into guests
        #[arg(long, value_enum, default_value = "x86_64")]
        arch: Arch,
    },
    /// Run the tests
    Test {
        /// Only these layers, such as host or e2e
        #[arg(long)]
        suite: Vec<Suite>,
        /// Only this kernel: stock, lean, debug, rt
        #[arg(long, env = "KERNEL")]
        kernel: Option<Kind>,
        /// Only cases with this in their names, or, behind a bar, with that
        #[arg(long, value_delimiter = '|')]
        case: Vec<String>,
    },
    /// Run a command in a guest with the modules in /modules (load them with auxload), and give its exit status
    Guest {
        /// Which kernel: stock, lean, debug, rt
        #[arg(long, env = "KERNEL")]
        kernel: Option<Kind>,
        /// How many seconds it may take
        #[arg(long, default_value_t = 120)]
        timeout: u64,
        /// A program to take along, with its libraries: a path of the build root, or of a copy below build/with
        #[arg(long = "with")]
        with: Vec<std::path::PathBuf>,
        /// Let the processor be Intel's, as perf wants it for intel_pt
        #[arg(long)]
        intel: bool,
        /// Let its clock count instructions: a nanosecond each, of one processor
        #[arg(long)]
        counting: bool,
        /// Give it the trace unit
        #[arg(long)]
        trace: bool,
        /// How many CPUs it has, if not two
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=255))]
        cpus: Option<u32>,
        /// More of the kernel's command line
        #[arg(long, default_value = "")]
        append: String,
        /// The command, as shell text
        #[arg(required = true)]
        command: Vec<String>,
    },
    /// Record a guest from outside, from its kernel's first instruction on: build/trace/perf.data
    Trace {
        /// Which kernel: stock, lean, debug, rt
        #[arg(long, env = "KERNEL")]
        kernel: Option<Kind>,
        /// Your own kernel: its bzImage
        #[arg(long, conflicts_with = "kernel")]
        image: Option<std::path::PathBuf>,
        /// How many seconds it may take
        #[arg(long, default_value_t = 900)]
        timeout: u64,
        /// A program to take along, with its libraries: a path of the build root, or of a copy below build/with
        #[arg(long = "with")]
        with: Vec<std::path::PathBuf>,
        /// More of the kernel's command line
        #[arg(long, default_value = "")]
        append: String,
        /// How many CPUs it has
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=255))]
        cpus: u32,
        /// Show it as a virtual machine of a host, too: build/trace/vm.data
        #[arg(long)]
        vm: bool,
        /// Draw the first call of this function that returns without a context switch: build/trace/FUNCTION.svg
        #[arg(long, conflicts_with = "vm", value_name = "FUNCTION")]
        draw: Option<String>,
        /// The command, as shell text
        #[arg(required = true)]
        command: Vec<String>,
    },
    /// Execute random programs on all units at once until one does not do what a model foresees
    Adversary {
        /// On which kernel: stock, lean, debug, rt
        #[arg(long, env = "KERNEL", default_value = "debug")]
        kernel: Kind,
        /// How long
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// Until so many operations, on units whose events start and stop at once
        #[arg(long)]
        operations: Option<u64>,
        /// What the programs are made from
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Make lines wrong, one at a time, and see that a suite finds each
    Mutants {
        /// Only those with this in their names, or, behind a bar, with that
        #[arg(long, value_delimiter = '|')]
        case: Vec<String>,
    },
    /// Run everything that has not passed on this tree yet, and write a page about it: build/verify/report.html
    Verify {
        /// Only these parts
        part: Vec<String>,
        /// What has passed on this commit or a later one counts, too
        #[arg(long)]
        since: Option<String>,
    },
    /// Boot a guest on the terminal, with the modules loaded
    Shell {
        /// Which kernel: stock, lean, debug, rt
        #[arg(long, env = "KERNEL")]
        kernel: Option<Kind>,
        /// Give it the trace unit
        #[arg(long)]
        trace: bool,
    },
    /// Record a trace in a guest, check it and draw it: build/demo/
    Demo {
        /// In which kernel: stock, lean, debug, rt
        #[arg(long, env = "KERNEL")]
        kernel: Option<Kind>,
    },
    /// Count what a session of an event and recording cost, in guest instructions
    Bench {
        /// Only this
        #[arg(value_enum)]
        part: Option<bench::Part>,
    },
    /// Write Documentation/intel-pt-coverage.md and the table of Documentation/recorder-and-perf.md from what the tests said last
    Coverage,
    /// Write Documentation/figures.md from what was measured, and Documentation/campaign.md from what `verify` ran
    Figures,
    /// Run the fuzz targets: parsers, the trace unit, the interpreter
    Fuzz {
        /// How long, for each target
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Only targets with this in their names, or, behind a bar, with that
        #[arg(long, value_delimiter = '|')]
        case: Vec<String>,
    },
    /// Forget which kernel was chosen, so that the next run takes the newest of the archive
    Update,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            // Not `{:#}`: the message of an error already contains its cause.
            vm::err!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<ExitCode> {
    let cache = Cache::from_env()?;
    match args.command {
        Verb::Kernel { kinds } => {
            for kind in kinds {
                vm::out!("{}", Kernel::prepare(&cache, kind)?.dir.display());
            }
        }
        Verb::Modules { kernel } => {
            for kind in kinds(kernel) {
                let kernel = Kernel::prepare(&cache, kind)?;
                let built = modules::build(&cache, &kernel, Mode::Plain)?;
                for warning in &built.warnings {
                    vm::err!("{warning}");
                }
                for file in &built.files {
                    vm::out!("{}", file.display());
                }
            }
        }
        Verb::RustAnalyzer { kernel } => {
            let kernel = Kernel::prepare(&cache, kernel.unwrap_or(Kind::Stock))?;
            vm::out!("{}", modules::rust_analyzer(&cache, &kernel)?.display());
        }
        Verb::Tools { arch } => build_tools(&cache, arch)?,
        Verb::Test {
            suite,
            kernel,
            case,
        } => {
            let plan = Plan {
                suites: if suite.is_empty() {
                    Suite::usual()
                } else {
                    suite
                },
                kernels: kinds(kernel),
                cases: case,
            };
            let counts = suites::run(&cache, &plan)?;
            vm::out!("{}", counts.summary());
            if !counts.good() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Guest {
            kernel,
            timeout,
            with,
            intel,
            counting,
            trace,
            cpus,
            append,
            command,
        } => {
            let kernel = Kernel::prepare(&cache, kernel.unwrap_or(Kind::Stock))?;
            let built = modules::build(&cache, &kernel, Mode::Plain)?;
            let mut guest = Guest::new(&kernel, &built.files)?
                .timeout(Duration::from_secs(timeout))
                // Else the suites of the drivers would run whenever the command loads them.
                .append("kunit.enable=0")
                .append(&append);
            for program in with {
                guest = guest.taken(&cache, &program)?;
            }
            if intel {
                guest = guest.intel();
            }
            if counting {
                guest = guest.counting();
            }
            if trace {
                guest = guest.devices(Devices::TraceUnit);
            }
            if let Some(cpus) = cpus {
                guest = guest.processors(cpus);
            }
            return in_guest(&cache, guest, &command.join(" "));
        }
        Verb::Trace {
            kernel,
            image,
            timeout,
            with,
            append,
            cpus,
            vm,
            draw,
            command,
        } => {
            let kernel = match image {
                Some(image) => Kernel::given(&image)?,
                None => Kernel::prepare(&cache, kernel.unwrap_or(Kind::Stock))?,
            };
            let mut guest = Guest::new(&kernel, &[])?
                .timeout(Duration::from_secs(timeout))
                .append(&append);
            for program in with {
                guest = guest.taken(&cache, &program)?;
            }
            return traced(
                &cache,
                guest,
                &command.join(" "),
                trace::Plan {
                    cpus,
                    log: None,
                    vm,
                    cyc: draw.is_some(),
                },
                draw.as_deref(),
            );
        }
        Verb::Shell { kernel, trace } => {
            let kernel = Kernel::prepare(&cache, kernel.unwrap_or(Kind::Stock))?;
            let built = modules::build(&cache, &kernel, Mode::Plain)?;
            guest::shell(&cache, &kernel, &built.files, &tools::build(&cache)?, trace)?;
        }
        Verb::Demo { kernel } => {
            let (summary, traced) = demo::run(&cache, kernel.unwrap_or(Kind::Stock))?;
            let complaints = [summary.complaint(), traced.complaint()];
            for complaint in complaints.iter().flatten() {
                vm::err!("error: {complaint}");
            }
            vm::out!("{}\n{}", summary.line(), traced.line());
            if complaints.iter().any(Option::is_some) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Bench { part } => {
            let report = bench::run(&cache, part)?;
            for line in report.lines() {
                vm::out!("{line}");
            }
            if report.misses() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Adversary {
            kernel,
            seconds,
            operations,
            seed,
        } => {
            let end = operations.map_or(End::After(seconds), End::Operations);
            return adversary(&cache, kernel, end, seed);
        }
        Verb::Mutants { case } => {
            let counts = mutants::run(&cache, &case)?;
            vm::out!("{}", counts.summary());
            if !counts.good() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Verify { part, since } => {
            let (page, good) = verify::run(&cache, &part, since.as_deref())?;
            vm::out!("{}", page.display());
            if !good {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Coverage => {
            vm::out!("{}", coverage::write(&cache)?.display());
            vm::out!("{}", comparison::write(&cache)?.display());
        }
        Verb::Figures => {
            let documents = [figures::write(&cache)?, verify::document(&cache)?];
            if documents.iter().all(Option::is_none) {
                bail!("nothing is measured here: run make bench or make verify first");
            }
            for path in documents.iter().flatten() {
                vm::out!("{}", path.display());
            }
        }
        Verb::Fuzz { seconds, case } => {
            for line in fuzz::run(&cache, seconds, &case)? {
                vm::out!("{line}");
            }
        }
        Verb::Update => kernel::forget(&cache)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn build_tools(cache: &Cache, arch: Arch) -> Result<()> {
    let (built, pages) = match arch {
        Arch::X86_64 => {
            let built = tools::build(cache)?;
            let pages = tools::pages(cache, &built, |program| Command::new(program))?;
            (built, pages)
        }
        Arch::Aarch64 => {
            let machine = Aarch64::prepare(cache)?;
            let built = tools::build_aarch64(cache, &machine)?;
            let pages = tools::pages(cache, &built, |program| machine.command(program))?;
            (built, pages)
        }
    };
    for path in built.iter().map(|(_, path)| path).chain(&pages) {
        vm::out!("{}", path.display());
    }
    Ok(())
}

fn traced(
    cache: &Cache,
    guest: Guest<'_>,
    command: &str,
    plan: trace::Plan,
    draw: Option<&str>,
) -> Result<ExitCode> {
    let dir = cache.build().join("trace");
    let recorded = trace::record(cache, &dir, guest, command, plan, |line| vm::out!("{line}"))?;
    let faults = recorded.outcome.faults();
    for fault in &faults {
        vm::err!("error: {}: {}", fault.name, fault.reason);
    }
    match recorded.outcome.status {
        Some(0) | None => {}
        Some(status) => vm::err!("The command ended with status {status}."),
    }
    vm::err!(
        "The guest ran {:.1} s. To see what it executed:",
        recorded.outcome.elapsed.as_secs_f64()
    );
    for data in std::iter::once(&recorded.data).chain(&recorded.vm) {
        vm::err!("  perf script -i {} --call-trace", data.display());
    }
    if let Some(function) = draw {
        let picture = dir.join(format!("{}.svg", function.replace('/', "_")));
        vm::err!("{}", trace::draw(&recorded, function, &picture)?);
    }
    let status = recorded.outcome.status.and_then(|s| u8::try_from(s).ok());
    Ok(ExitCode::from(match faults.is_empty() {
        true => status.unwrap_or(1),
        false => 1,
    }))
}

fn adversary(cache: &Cache, kind: Kind, end: End, seed: Option<u64>) -> Result<ExitCode> {
    let kernel = Kernel::prepare(cache, kind)?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let guest = Guest::new(&kernel, &built.files)?
        .timeout(end.timeout())
        .append("kunit.enable=0")
        .devices(Devices::TraceUnit);
    let command = conform::adversary(end, seed);
    in_guest(cache, guest, &command)
}

fn in_guest(cache: &Cache, mut guest: Guest<'_>, command: &str) -> Result<ExitCode> {
    for (name, path) in tools::build(cache)? {
        guest = guest.program(&name, &path)?;
    }
    let dir = cache.build().join("guest");
    let outcome = guest.run(cache, &dir, command, |line| vm::out!("{line}"))?;
    let faults = outcome.faults();
    for fault in &faults {
        vm::err!("error: {}: {}", fault.name, fault.reason);
    }
    vm::err!(
        "The guest ran {:.1} s and took {} MiB; its files are in {}, its console is {}.",
        outcome.elapsed.as_secs_f64(),
        outcome.peak_kib / 1024,
        outcome.files.display(),
        outcome.console.display()
    );
    let status = outcome
        .status
        .and_then(|s| u8::try_from(s).ok())
        .unwrap_or(1);
    Ok(ExitCode::from(if faults.is_empty() { status } else { 1 }))
}

fn kinds(one: Option<Kind>) -> Vec<Kind> {
    one.map_or_else(|| Kind::USUAL.to_vec(), |kind| vec![kind])
}
