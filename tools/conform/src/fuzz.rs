// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random programs of perf system calls, and a [model](model::Model) that predicts their outcome.
//!
//! A seed makes the same program each time. A program that fails is shortened as long as it fails for the same reason, and is printed, a
//! step a line. Such a file can be [executed](Args::programs) again.

mod child;
mod model;
mod op;
mod play;
mod times;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

pub use child::{obey, Child};
use model::{Model, Unit};
use op::Op;
use play::Play;
use times::Times;

use crate::discover;
use crate::kernel::Watch;
use crate::module::Module;
use crate::pmu::{Place, Pmu};
use crate::rig::patience;

/// What is executed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The PMU, with terms of its format if it needs any. Without this option: all PMUs with AUX areas.
    #[arg(long = "pmu", value_name = "NAME[/TERMS/]")]
    pmus: Vec<String>,
    /// Seed of the first program. Default: from the clock.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// End after this many steps. Default, without a limit of operations or seconds: 10000.
    #[arg(long, value_name = "NUMBER")]
    steps: Option<u64>,
    /// End after this many operations. A step that repeats a call counts each call.
    #[arg(long, value_name = "NUMBER")]
    operations: Option<u64>,
    /// End after this time.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// How long a program waits for an expected event before it fails.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    patience: u64,
    /// How often a program that fails is executed again, to shorten it.
    #[arg(long, value_name = "TIMES", default_value_t = 400)]
    attempts: u32,
    /// Some parts of a program are one event and up to this many cheap calls.
    #[arg(long, value_name = "CALLS", default_value_t = 0)]
    burst: usize,
    /// Reload unused drivers in the middle of a program: unload each and load DIRECTORY/MODULE.ko.
    #[arg(long, value_name = "DIRECTORY")]
    modules: Option<PathBuf>,
    /// Also redirect events to rings with the AUX area of another PMU. A driver that does not check whose area it is may corrupt the
    /// memory of the kernel.
    #[arg(long)]
    foreign_areas: bool,
    /// Execute these programs only: a step a line, as a failure prints them.
    programs: Vec<PathBuf>,
}

/// A program that takes this long hangs: it may wait in vain only once, and then it has failed.
const HUNG: Duration = Duration::from_secs(600);

/// The maximum number of steps, or of stretches of steps, in a program.
const LONGEST: usize = 80;

/// Examines a PMU. A unit for all CPUs is moved to CPU 0, which no program takes offline. From another CPU it would move during a program.
fn settled(name: &str) -> Result<Pmu> {
    let pmu = discover::named(name)?;
    let Some(home) = pmu.home.filter(|home| *home != 0) else {
        return Ok(pmu);
    };
    let cpu = usize::try_from(home)?;
    play::online_is(cpu, false).with_context(|| format!("taking CPU {cpu} off"))?;
    play::online_is(cpu, true)?;
    let pmu = discover::named(name)?;
    ensure!(
        pmu.home == Some(0),
        "the events of {name} do not leave CPU {cpu}"
    );
    Ok(pmu)
}

/// Executes programs until one fails.
pub fn run(args: &Args) -> Result<ExitCode> {
    crate::rig::set_patience(args.patience);
    let names = match args.pmus.as_slice() {
        [] => discover::all().into_iter().map(|pmu| pmu.name).collect(),
        named => named.to_vec(),
    };
    let pmus: Vec<_> = names
        .iter()
        .map(|name| settled(name))
        .collect::<Result<_>>()?;
    if let Some(code) = crate::none(&pmus) {
        return Ok(code);
    }
    for pmu in &pmus {
        println!("# {pmu}");
    }
    let mut fuzzer = Fuzzer::begin(&pmus, args.modules.as_deref());
    fuzzer.foreign_areas = args.foreign_areas;
    if !args.programs.is_empty() {
        for path in &args.programs {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| path.display().to_string())?;
            let program = parse(&text).with_context(|| path.display().to_string())?;
            match fuzzer.play(&program) {
                Ok(steps) => println!("# {}: {steps} steps, as foreseen", path.display()),
                Err(error) => {
                    fuzzer.without_steps(program, error, args.attempts).print();
                    bail!("{} does not do what is foreseen", path.display());
                }
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let end = args
        .seconds
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let first = args.seed.unwrap_or_else(auxrec::sys::wall);
    let max = match (args.seconds, args.operations) {
        (None, None) => 10_000,
        _ => u64::MAX,
    };
    let max = args.steps.unwrap_or(max);
    let operations = args.operations.unwrap_or(u64::MAX);
    let (mut seed, mut done) = (first, 0);
    while done < max && fuzzer.operations < operations && end.is_none_or(|end| Instant::now() < end)
    {
        fuzzer.seed.store(seed, Ordering::Relaxed);
        match fuzzer.program(seed, args) {
            Ok(steps) => done += steps,
            Err(failure) => {
                failure.print();
                bail!("the program of seed {seed} does not do what is foreseen");
            }
        }
        seed = seed.wrapping_add(1);
    }
    let count = seed.wrapping_sub(first);
    println!(
        "# {}",
        fuzzer.times.to_string().trim_end().replace('\n', "\n# ")
    );
    let operations = fuzzer.operations;
    println!("# {operations} operations, {done} steps of {count} programs, from seed {first} on: as foreseen");
    Ok(ExitCode::SUCCESS)
}

/// Parses a program.
pub fn parse(text: &str) -> Result<Vec<Op>> {
    let lines = text.lines().enumerate();
    let steps = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let step = |(number, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("line {}", number + 1))
    };
    steps.map(step).collect()
}

/// Executes a program on one PMU.
pub fn replay(pmu: &Pmu, text: &str) -> Result<u64> {
    Fuzzer::begin(std::slice::from_ref(pmu), None).play(&parse(text)?)
}

struct Failure {
    reason: String,
    program: Vec<Op>,
    shorter: u32,
}

impl Failure {
    fn print(&self) {
        println!("# {}", self.reason.replace('\n', "\n# "));
        println!("# made shorter {} times:", self.shorter);
        for op in &self.program {
            println!("{op}");
        }
    }
}

struct Fuzzer<'a> {
    pmus: &'a [Pmu],
    /// The modules of their drivers.
    modules: Vec<Option<Module>>,
    foreign_areas: bool,
    watch: Watch,
    times: Times,
    operations: u64,
    /// The seed of the program that is being executed.
    seed: Arc<AtomicU64>,
    /// Number of programs that were executed.
    count: Arc<AtomicU64>,
}

impl<'a> Fuzzer<'a> {
    fn begin(pmus: &'a [Pmu], modules: Option<&Path>) -> Self {
        let module = |pmu| {
            let module = Module::of(pmu).ok()?;
            Some(match modules {
                Some(modules) => module.with_file_in(modules),
                None => module,
            })
        };
        let fuzzer = Self {
            pmus,
            modules: pmus.iter().map(module).collect(),
            foreign_areas: false,
            watch: Watch::begin(),
            times: Times::default(),
            operations: 0,
            seed: Arc::default(),
            count: Arc::default(),
        };
        let (seed, count) = (Arc::downgrade(&fuzzer.seed), Arc::clone(&fuzzer.count));
        // A call that never returns cannot report which call it is.
        std::thread::spawn(move || {
            let mut last = 0;
            loop {
                std::thread::sleep(HUNG.max(patience() * 2));
                let Some(seed) = seed.upgrade() else { return };
                let now = count.load(Ordering::Relaxed);
                if now == last {
                    eprintln!(
                        "error: the program of seed {} hangs",
                        seed.load(Ordering::Relaxed)
                    );
                    std::process::exit(1);
                }
                last = now;
            }
        });
        fuzzer
    }

    fn program(&mut self, seed: u64, args: &Args) -> Result<u64, Failure> {
        let mut bytes = [0; 32];
        for (to, from) in bytes.iter_mut().zip(seed.to_le_bytes()) {
            *to = from;
        }
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let strategy = op::program(self.pmus.len(), LONGEST, args.burst);
        let mut tree = match strategy.new_tree(&mut runner) {
            Ok(tree) => tree,
            Err(reason) => {
                return Err(Failure {
                    reason: reason.to_string(),
                    program: Vec::new(),
                    shorter: 0,
                })
            }
        };
        let mut program = tree.current();
        let mut error = match self.play(&program) {
            Ok(steps) => return Ok(steps),
            Err(error) => error,
        };
        // Reported before the program is shortened, which takes long if the program fails by a timeout.
        println!("# the program of seed {seed} fails: {error:#}");
        let cause = cause(&error);
        let (mut shorter, mut attempts) = (0, 0);
        let mut more = tree.simplify();
        while more && attempts < args.attempts {
            attempts += 1;
            let candidate = tree.current();
            more = match self.play(&candidate) {
                Err(other) if self::cause(&other) == cause => {
                    (program, error) = (candidate, other);
                    shorter += 1;
                    tree.simplify()
                }
                _ => tree.complicate(),
            };
        }
        // So far the steps of a stretch were only removed together.
        let left = args.attempts.saturating_sub(attempts);
        let mut failure = self.without_steps(program, error, left);
        failure.shorter += shorter;
        Err(failure)
    }

    /// Removes the steps without which a program still fails.
    fn without_steps(
        &mut self,
        mut program: Vec<Op>,
        mut error: anyhow::Error,
        max: u32,
    ) -> Failure {
        let cause = cause(&error);
        let (mut shorter, mut attempts, mut at) = (0, 0, 0);
        while at < program.len() && attempts < max {
            attempts += 1;
            let mut candidate = program.clone();
            candidate.remove(at);
            match self.play(&candidate) {
                Err(other) if self::cause(&other) == cause => {
                    (program, error) = (candidate, other);
                    shorter += 1;
                }
                _ => at += 1,
            }
        }
        Failure {
            reason: format!("{error:#}"),
            program,
            shorter,
        }
    }

    fn play(&mut self, program: &[Op]) -> Result<u64> {
        self.count.fetch_add(1, Ordering::Relaxed);
        crate::rig::pin(0)?;
        let unit = |(pmu, module): (&Pmu, &Option<Module>)| Unit {
            module: module
                .as_ref()
                .map(|module| module.directory().display().to_string()),
            reloads: module.as_ref().is_some_and(Module::reloads),
            name: pmu.name.clone(),
            cpus: pmu
                .places
                .iter()
                .any(|place| matches!(place, Place::Cpu(_))),
            tasks: pmu.places.contains(&Place::Task),
            home: pmu.home.and_then(|home| usize::try_from(home).ok()),
            commits: pmu.commits,
            exclusive: pmu.exclusive,
            samples: pmu.attr().sample_period > 0,
            normal: pmu.normal,
            overwrite: pmu.overwrite,
        };
        let units = self.pmus.iter().zip(&self.modules).map(unit).collect();
        let hotplug = std::fs::exists("/sys/devices/system/cpu/cpu1/online").unwrap_or(false);
        let mut before = Vec::new();
        for module in self.modules.iter().flatten() {
            before.push((module.references()?, module));
        }
        let model = Model::new(units, cpus(), hotplug).with_foreign_areas(self.foreign_areas);
        let mut play = Play::new(self.pmus, &self.modules, model);
        let played = play.run(program, &mut self.times);
        self.operations += play.operations();
        drop(play);
        crate::rig::unpin()?;
        let complaints = self.watch.complaints();
        if complaints.is_empty() {
            let done = played?;
            let begin = Instant::now();
            for (before, module) in before {
                module.returns_to(before)?;
            }
            self.times.add_other("references", begin);
            return Ok(done);
        }
        Err(anyhow!("the kernel says: {}", complaints.join("\n")))
    }
}

/// The number of CPUs, all of which are online when no program is executed.
fn cpus() -> usize {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let last = online
        .trim()
        .rsplit(['-', ','])
        .next()
        .and_then(|last| last.parse().ok());
    last.map_or(1, |last: usize| last + 1)
}

/// The reason for a failure, without numbers.
fn cause(error: &anyhow::Error) -> String {
    let text = error.root_cause().to_string();
    text.chars()
        .filter(|letter| !letter.is_ascii_digit())
        .collect()
}
