// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The layers of tests, from fast to slow, and the run that joins them.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::{Devices, Guest, Outcome};
use crate::kernel::{Kernel, Kind};
use crate::ktap::{self, Case, Counts};
use crate::modules::{self, Mode};
use crate::step::{Log, Progress};
use crate::{
    broken, compile_fail, contract, disk, exact, libtest, litmus, panics, readers, template, tools,
    vng,
};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The crates that kbuild builds into modules, and cargo as members of the tools' workspace.
const SHARED: [&str; 3] = ["rust/auxcore", "rust/intel_pt", "samples/pattern/codec"];

/// What is built for kernels only.
const KERNEL_SIDE: [&str; 3] = ["rust", "samples", "Documentation/template"];

/// A layer of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Formatting, lints, the tests of the tools, rules of the tree.
    Host,
    /// The barriers of the ring, under the kernel's memory model.
    Litmus,
    /// The modules build without a warning, and against a wrong kernel they say why not.
    Kbuild,
    /// The KUnit suites of the modules, in the lean kernel.
    Kunit,
    /// Recorder, drivers and kernel together.
    E2e,
    /// Each sink of `pattern` in each mode, with rings of each size, under readers of each kind.
    Matrix,
    /// The recorder beside stock perf.
    Beside,
    /// Recordings onto a disk that is slow, or whose machine loses its power.
    Disk,
    /// Decoders show of `soft_pt`'s trace what programs executed.
    Exact,
    /// Rows of the matrix find the defects of a driver that is broken on purpose.
    Break,
}

impl Suite {
    /// All, fast first.
    pub const ALL: [Self; 10] = [
        Self::Host,
        Self::Litmus,
        Self::Kbuild,
        Self::Kunit,
        Self::E2e,
        Self::Matrix,
        Self::Beside,
        Self::Disk,
        Self::Exact,
        Self::Break,
    ];
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Litmus => "litmus",
            Self::Kbuild => "kbuild",
            Self::Kunit => "kunit",
            Self::E2e => "e2e",
            Self::Matrix => "matrix",
            Self::Beside => "beside",
            Self::Disk => "disk",
            Self::Exact => "exact",
            Self::Break => "break",
        })
    }
}

impl std::str::FromStr for Suite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|s| s.to_string() == text)
            .ok_or_else(|| {
                format!(
                    "there is no suite \"{text}\": host, litmus, kbuild, kunit, e2e, matrix, beside, disk, exact and break are"
                )
            })
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The layers, in order.
    pub suites: Vec<Suite>,
    /// The kernels of the layers that have a choice.
    pub kernels: Vec<Kind>,
    /// The only end-to-end cases to run; empty: all.
    pub cases: Vec<String>,
    /// Whether virtme-ng runs the end-to-end guests.
    pub vng: bool,
}

/// Runs the plan; writes `build/test/all.ktap`, prints what failed and the sums.
///
/// # Errors
///
/// Only when the results cannot be written: whatever else goes wrong is a failing case.
pub fn run(cache: &Cache, plan: &Plan) -> Result<Counts> {
    let dir = cache.build().join("test");
    fs::create_dir_all(&dir).on("make", &dir)?;
    let mut all = Vec::new();
    let mut kernels = Kernels {
        cache,
        made: Vec::new(),
    };
    for suite in &plan.suites {
        // Beside other layers, names of cases are those of `e2e`.
        if matches!(
            suite,
            Suite::Matrix | Suite::Beside | Suite::Disk | Suite::Exact | Suite::Break
        ) && plan.suites.len() > 1
            && !plan.cases.is_empty()
        {
            continue;
        }
        let start = Instant::now();
        let case = match suite {
            Suite::Host => host(cache, &dir),
            Suite::Litmus => litmus(cache, &mut kernels, plan),
            Suite::Kbuild => kbuild(cache, &dir, &mut kernels, plan),
            Suite::Kunit => kunit(cache, &dir, &mut kernels, plan),
            Suite::E2e => all_cases(cache, &dir, &mut kernels, plan),
            Suite::Matrix => end_to_end(cache, &dir, &mut kernels, plan, &MATRIX),
            Suite::Beside => beside(cache, &dir, &mut kernels, plan),
            Suite::Disk => kernels
                .get(Kind::Lean)
                .and_then(|kernel| disk::run(cache, &dir, &kernel)),
            Suite::Exact => kernels
                .get(exact_kernel(plan))
                .and_then(|kernel| exact::run(cache, &dir, &kernel, &exact_programs(plan))),
            Suite::Break => kernels
                .get(Kind::Lean)
                .and_then(|kernel| broken::run(cache, &dir, &kernel)),
        };
        // What keeps a suite from running at all is a failing case of it.
        let case = case.unwrap_or_else(|e| {
            Case::suite(
                &suite.to_string(),
                vec![Case::fail("start", &e.to_string())],
            )
        });
        println!(
            "{suite}: {} in {:.1} s",
            case.counts().summary(),
            start.elapsed().as_secs_f64()
        );
        all.push(case);
    }
    let path = dir.join("all.ktap");
    fs::write(&path, ktap::write(&all)).on("write", &path)?;
    let total = Case::suite("all", all);
    print_failures(&total);
    println!("All results: {}", path.display());
    Ok(total.counts())
}

/// One kernel will do, the lean one unless the other is asked for: emulated, it takes minutes.
fn exact_kernel(plan: &Plan) -> Kind {
    match plan.kernels[..] {
        [kind] => kind,
        _ => Kind::Lean,
    }
}

/// Stock kernels have no KUnit, so it is the lean one unless only the debug one is asked for.
fn kunit_kernel(plan: &Plan) -> Kind {
    match plan.kernels[..] {
        [Kind::Debug] => Kind::Debug,
        _ => Kind::Lean,
    }
}

/// By itself it runs all programs, or those asked for; beside other layers a few that are different.
fn exact_programs(plan: &Plan) -> Vec<String> {
    match plan.suites[..] {
        [_] => plan.cases.clone(),
        _ => exact::FEW.map(str::to_owned).to_vec(),
    }
}

fn print_failures(total: &Case) {
    total.for_each_failure(&mut |path, case| {
        let path = path.strip_prefix("all/").unwrap_or(path);
        let reason = if case.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", case.reason)
        };
        println!("\nFAILED {path}{reason}");
        let skip = case.log.len().saturating_sub(60);
        if skip > 0 {
            println!("    ({skip} lines more before)");
        }
        for line in &case.log[skip..] {
            println!("    {line}");
        }
    });
}

/// The kernels that were prepared in this run: each once.
struct Kernels<'a> {
    cache: &'a Cache,
    made: Vec<Kernel>,
}

impl Kernels<'_> {
    fn get(&mut self, kind: Kind) -> Result<Kernel> {
        if let Some(kernel) = self.made.iter().find(|k| k.kind == kind) {
            return Ok(kernel.clone());
        }
        let kernel = Kernel::prepare(self.cache, kind)?;
        self.made.push(kernel.clone());
        Ok(kernel)
    }
}

/// Runs one command as a case; what it said is the case's log if it fails.
fn check(dir: &Path, name: &str, command: &mut Command) -> Result<Case> {
    let progress = Progress::begin(name);
    let log = Log::create(&dir.join(format!("{}.log", name.replace(' ', "-"))))?;
    let good = log.status(command)?.success();
    progress.end(if good { "ok" } else { "failed" });
    if good {
        return Ok(Case::pass(name));
    }
    let lines = log.text().lines().map(str::to_owned).collect();
    Ok(Case::fail(name, &format!("see {}", log.path().display())).with_log(lines))
}

fn host(cache: &Cache, dir: &Path) -> Result<Case> {
    let dir = dir.join("host");
    let tools = cache.checkout().join("tools");
    let files = project_files(cache)?;
    let cargo = |args: &[&str]| {
        let mut command = Command::new("cargo");
        command.current_dir(&tools).args(args);
        command
    };
    let mut cases = vec![
        rule("SPDX", cache, &files, lacks_spdx),
        rule("no unsafe", cache, &files, has_unsafe),
        contract::check(cache.checkout(), &files),
    ];
    let scripts: Vec<_> = files
        .iter()
        .filter(|f| is_shell(&cache.checkout().join(f)))
        .collect();
    cases.push(check(
        &dir,
        "shellcheck",
        Command::new("shellcheck")
            .current_dir(cache.checkout())
            .args(scripts),
    )?);
    cases.push(check(
        &dir,
        "format of the tools",
        &mut cargo(&["fmt", "--all", "--check"]),
    )?);
    let kernel_side: Vec<_> = files.iter().filter(|f| is_kernel_rust(f)).collect();
    if !kernel_side.is_empty() {
        let mut rustfmt = Command::new("rustfmt");
        rustfmt
            .current_dir(cache.checkout())
            .args(["--check", "--edition", "2021"])
            .args(kernel_side);
        cases.push(check(&dir, "format of the kernel side", &mut rustfmt)?);
    }
    let clippy = [
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    // The shared crates lie beside the kernel's configuration, but are members of the tools.
    let mut clippy = cargo(&clippy);
    clippy.env("CLIPPY_CONF_DIR", &tools);
    cases.push(check(&dir, "clippy", &mut clippy)?);

    let progress = Progress::begin("cargo test");
    let log = Log::create(&dir.join("cargo-test.log"))?;
    let good = log
        .status(
            cargo(&["test", "--locked", "--workspace", "--no-fail-fast"])
                .env("CARGO_TERM_COLOR", "never"),
        )?
        .success();
    let case = libtest::parse(&log.text(), good);
    progress.end(&case.counts().summary());
    cases.push(case);
    Ok(Case::suite("host", cases))
}

/// The files of the project: those that git has, or would take.
fn project_files(cache: &Cache) -> Result<Vec<PathBuf>> {
    let log = Log::create(&cache.build().join("test/host/files.log"))?;
    let list = log.output(
        "listing the project's files",
        Command::new("git")
            .args(["-c", "safe.directory=*", "-C"])
            .arg(cache.checkout())
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ]),
    )?;
    let mut files: Vec<PathBuf> = list
        .split('\0')
        .filter(|f| !f.is_empty())
        .map(PathBuf::from)
        .collect();
    files.retain(|f| cache.checkout().join(f).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}

fn is_shell(path: &Path) -> bool {
    let text = fs::read(path).unwrap_or_default();
    let first = text.split(|b| *b == b'\n').next().unwrap_or_default();
    first.starts_with(b"#!") && first.ends_with(b"sh")
}

fn is_kernel_rust(path: &Path) -> bool {
    let rust = path.extension().is_some_and(|e| e == "rs");
    rust && KERNEL_SIDE.iter().any(|dir| path.starts_with(dir)) && !is_shared(path)
}

/// Whether it is of a [`SHARED`] crate, which is formatted with the workspace.
fn is_shared(path: &Path) -> bool {
    SHARED.iter().any(|dir| path.starts_with(dir))
}

/// A rule that every file must keep: `broken` says how one breaks it.
fn rule(
    name: &str,
    cache: &Cache,
    files: &[PathBuf],
    broken: fn(&Path, &str) -> Option<String>,
) -> Case {
    let mut complaints = Vec::new();
    for file in files {
        if let Ok(text) = fs::read_to_string(cache.checkout().join(file)) {
            complaints.extend(broken(file, &text).map(|c| format!("{}: {c}", file.display())));
        }
    }
    if complaints.is_empty() {
        return Case::pass(name);
    }
    Case::fail(name, &format!("{} files break the rule", complaints.len())).with_log(complaints)
}

fn lacks_spdx(path: &Path, text: &str) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let generated = name == "Cargo.lock" || name.ends_with(".svg") || path.starts_with("LICENSES");
    // proptest writes the first, with a head of its own; the second are mails; a fuzzer made the third.
    let seeds = name.ends_with(".proptest-regressions")
        || name.ends_with(".patch")
        || path.starts_with("tools/fuzz/corpus");
    if generated
        || seeds
        || text
            .lines()
            .take(2)
            .any(|l| l.contains("SPDX-License-Identifier: GPL-2.0"))
    {
        return None;
    }
    Some("the first line must be SPDX-License-Identifier: GPL-2.0 (kernel side) or GPL-2.0 OR MIT (tools)".to_owned())
}

/// Samples show that drivers need no `unsafe`, hostile drivers what safe code can do; and the shared crates are the ground that both sides trust.
fn has_unsafe(path: &Path, text: &str) -> Option<String> {
    let hostile = path.starts_with("rust/hostile") || path.starts_with("rust/hostile_panics");
    let template = path.starts_with("Documentation/template");
    if !(path.starts_with("samples") || template || hostile || is_shared(path))
        || path.extension().is_none_or(|e| e != "rs")
    {
        return None;
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.lines().zip(1..).find_map(|(line, number)| {
        let code = line.split("//").next().unwrap_or_default();
        let found = code.split(|c| !is_word(c)).any(|word| word == "unsafe");
        found.then(|| format!("line {number}: no unsafe code here"))
    })
}

/// The model is part of the kernel's source, of which one version serves for all kernels.
fn litmus(cache: &Cache, kernels: &mut Kernels<'_>, plan: &Plan) -> Result<Case> {
    let kernel = kernels.get(plan.kernels.first().copied().unwrap_or(Kind::Stock))?;
    let model = kernel.build_dir().join("source/tools/memory-model");
    litmus::run(cache, &model)
}

fn kbuild(cache: &Cache, dir: &Path, kernels: &mut Kernels<'_>, plan: &Plan) -> Result<Case> {
    let mut cases = Vec::new();
    for kind in &plan.kernels {
        let case = match kernels.get(*kind).and_then(|kernel| strict(cache, &kernel)) {
            Ok(case) => case,
            Err(e) => Case::fail(&format!("modules for {kind}"), &e.to_string()),
        };
        cases.push(case);
    }
    for kind in &plan.kernels {
        let case = kernels
            .get(*kind)
            .and_then(|kernel| panics::run(cache, &kernel));
        cases.extend(
            case.unwrap_or_else(|e| Some(Case::fail("no callback can panic", &e.to_string()))),
        );
    }
    cases.push(preflight(cache, dir)?);
    let kernel = kernels.get(plan.kernels.first().copied().unwrap_or(Kind::Stock))?;
    cases.push(rust_analyzer(cache, &kernel));
    cases.push(
        compile_fail::run(cache, &kernel)
            .unwrap_or_else(|e| Case::fail("compile-fail", &e.to_string())),
    );
    for kind in &plan.kernels {
        let case = kernels
            .get(*kind)
            .and_then(|kernel| template::run(cache, dir, &kernel));
        cases.push(
            case.unwrap_or_else(|e| Case::fail(&format!("template on {kind}"), &e.to_string())),
        );
    }
    Ok(Case::suite("kbuild", cases))
}

fn strict(cache: &Cache, kernel: &Kernel) -> Result<Case> {
    let name = format!("modules for {} with CLIPPY=1 W=1", kernel.kind);
    let built = modules::build(cache, kernel, Mode::Strict)?;
    Ok(if built.warnings.is_empty() {
        Case::pass(&name)
    } else {
        let lines = fs::read_to_string(&built.log).unwrap_or_default();
        let reason = format!(
            "{} warnings, see {}",
            built.warnings.len(),
            built.log.display()
        );
        Case::fail(&name, &reason).with_log(lines.lines().map(str::to_owned).collect())
    })
}

/// `make KDIR=` against folders that are not fit: each is refused in a sentence that names the cause.
fn preflight(cache: &Cache, dir: &Path) -> Result<Case> {
    let rustc = Command::new("rustc")
        .arg("--version")
        .output()
        .map_err(|source| Error::Spawn {
            program: "rustc".into(),
            source,
        })?;
    let version = String::from_utf8_lossy(&rustc.stdout).trim().to_owned();
    let good = format!("CONFIG_RUST=y\nCONFIG_RUSTC_VERSION_TEXT=\"{version}\"\n");
    let other = "CONFIG_RUST=y\nCONFIG_RUSTC_VERSION_TEXT=\"rustc 1.70.0 (other)\"\n";
    // The name, the configuration if any, whether there is metadata, and what the refusal must say; empty: accepted.
    let table: [(&str, Option<&str>, bool, &str); 6] = [
        ("no kernel folder", None, false, "no configured kernel"),
        (
            "kernel without Rust",
            Some("# CONFIG_RUST is not set\n"),
            false,
            "CONFIG_RUST",
        ),
        ("kernel that is too old", Some(&good), true, "is 7.2.12"),
        ("kernel without metadata", Some(&good), false, "metadata"),
        ("kernel of another rustc", Some(other), true, "rustc 1.70.0"),
        ("fit kernel", Some(&good), true, ""),
    ];
    let mut cases = Vec::new();
    for (name, config, metadata, want) in table {
        let kdir = dir.join("kbuild/kdir").join(name.replace(' ', "-"));
        fs::create_dir_all(kdir.join("rust")).on("make", &kdir)?;
        if let Some(config) = config {
            fs::write(kdir.join(".config"), config).on("write", &kdir)?;
            fs::write(kdir.join("Makefile"), "").on("write", &kdir)?;
        }
        if metadata {
            fs::write(kdir.join("rust/libkernel.rmeta"), "").on("write", &kdir)?;
        }
        let release = if name.ends_with("old") {
            "7.2.12"
        } else {
            "7.3.4"
        };
        let generated = kdir.join("include/config");
        fs::create_dir_all(&generated).on("make", &generated)?;
        fs::write(generated.join("kernel.release"), release).on("write", &kdir)?;
        let script = cache.checkout().join("tools/vm/kdir.sh");
        let output = Command::new(&script)
            .arg(&kdir)
            .output()
            .map_err(|source| Error::Spawn {
                program: "kdir.sh".into(),
                source,
            })?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let refused_well =
            !output.status.success() && text.contains(want) && text.lines().count() == 1;
        let right = if want.is_empty() {
            output.status.success() && text.is_empty()
        } else {
            refused_well
        };
        cases.push(if right {
            Case::pass(name)
        } else {
            Case::fail(name, "not the answer that was wanted").with_log(vec![
                format!("wanted: {want}"),
                format!("got: {}", text.trim()),
            ])
        });
    }
    Ok(Case::suite("KDIR", cases))
}

fn rust_analyzer(cache: &Cache, kernel: &Kernel) -> Case {
    match modules::rust_analyzer(cache, kernel) {
        Ok(_) => Case::pass("rust-analyzer"),
        Err(e) => Case::fail("rust-analyzer", &e.to_string()),
    }
}

fn kunit(cache: &Cache, dir: &Path, kernels: &mut Kernels<'_>, plan: &Plan) -> Result<Case> {
    let kernel = kernels.get(kunit_kernel(plan))?;
    let built = modules::build(cache, &kernel, Mode::Plain)?;
    let progress = Progress::begin(&format!("KUnit in the {} kernel", kernel.kind));
    let modules = [built.files, built.tests].concat();
    let guest = Guest::new(&kernel, &modules)?
        .timeout(patience(&kernel, KUNIT_TIME))
        .script("run", include_str!("../guest/kunit.sh"));
    let outcome = guest.run(cache, &dir.join("kunit"), "run", |_| {})?;
    let suite = outcome.suite("kunit");
    progress.end(&ended(&suite, &outcome));
    Ok(suite)
}

/// Time allowed for all suites of the modules.
const KUNIT_TIME: Duration = Duration::from_secs(120);

/// What takes so long at most on an ordinary kernel takes longer on one that looks at each access of memory.
fn patience(kernel: &Kernel, time: Duration) -> Duration {
    match kernel.kind {
        Kind::Stock | Kind::Lean => time,
        Kind::Debug => time * 5,
    }
}

/// A run of `auxe2e` in a guest of each kernel.
struct EndToEnd {
    name: &'static str,
    /// What `auxe2e` is called with, before the names of cases.
    command: &'static str,
    /// Time allowed on one kernel.
    timeout: Duration,
    /// Whether stock perf goes along, and the processor is one where it expects AUX areas.
    perf: bool,
    /// What else stands on the kernel's command line.
    append: &'static str,
    /// Where the guest's device is.
    devices: Devices,
}

const CASES: EndToEnd = EndToEnd {
    name: "e2e",
    command: "auxe2e",
    timeout: Duration::from_secs(1500),
    perf: false,
    append: "",
    devices: Devices::Plain,
};

/// The cases of a device behind an IOMMU, which is unplugged.
const PLUGGABLE: EndToEnd = EndToEnd {
    name: "e2e-iommu",
    command: "auxe2e device iommu",
    timeout: Duration::from_secs(600),
    append: "intel_iommu=on",
    devices: Devices::Pluggable,
    ..CASES
};

/// Those where all DMA is bounced.
const SWIOTLB: EndToEnd = EndToEnd {
    name: "e2e-swiotlb",
    command: "auxe2e device swiotlb",
    timeout: Duration::from_secs(300),
    append: "swiotlb=force",
    ..CASES
};

/// The guests with a device elsewhere, and what the names of their cases begin with.
const DEVICES: [(&str, &EndToEnd); 2] = [
    ("device, IOMMU:", &PLUGGABLE),
    ("device, swiotlb:", &SWIOTLB),
];

const MATRIX: EndToEnd = EndToEnd {
    name: "matrix",
    command: "auxe2e matrix",
    timeout: Duration::from_secs(900),
    perf: false,
    append: "",
    devices: Devices::Plain,
};

const BESIDE: EndToEnd = EndToEnd {
    name: "beside",
    command: "auxe2e beside",
    timeout: Duration::from_secs(900),
    perf: true,
    // The suites of the modules would run each time that the driver is loaded anew.
    append: "kunit.enable=0",
    devices: Devices::Plain,
};

/// The same where the kernel does not use the processor's cycle counter.
const NO_TSC: EndToEnd = EndToEnd {
    name: "beside-no-tsc",
    command: "auxe2e beside --no-tsc",
    timeout: Duration::from_secs(300),
    append: "kunit.enable=0 tsc=unstable",
    ..BESIDE
};

/// What the names of its cases begin with.
const NO_TSC_CASES: &str = "no cycle counter";

fn end_to_end(
    cache: &Cache,
    dir: &Path,
    kernels: &mut Kernels<'_>,
    plan: &Plan,
    what: &EndToEnd,
) -> Result<Case> {
    let programs = tools::build(cache)?;
    if !programs.iter().any(|(name, _)| name == "auxe2e") {
        return Ok(Case::suite(
            what.name,
            vec![Case::skip("all", "tools/e2e is not in this checkout")],
        ));
    }
    let mut ready = Vec::new();
    for kind in &plan.kernels {
        let kernel = kernels.get(*kind)?;
        let built = modules::build(cache, &kernel, Mode::Plain)?;
        ready.push((kernel, built));
    }
    // The guests run side by side; each has two processors, but waits most of the time.
    let suites = std::thread::scope(|scope| {
        let threads: Vec<_> = ready
            .iter()
            .map(|(kernel, built)| {
                scope.spawn(|| on_kernel(cache, dir, kernel, &built.files, &programs, plan, what))
            })
            .collect();
        let results = threads
            .into_iter()
            .zip(&plan.kernels)
            .map(|(thread, kind)| {
                let result = thread.join().unwrap_or_else(|_| {
                    Err(Error::Other("the guest's thread panicked".to_owned()))
                });
                result.unwrap_or_else(|e| {
                    Case::suite(&kind.to_string(), vec![Case::fail("start", &e.to_string())])
                })
            });
        results.collect()
    });
    Ok(Case::suite(what.name, suites))
}

/// The cases, then those for guests with a device elsewhere. The lean kernel has neither an IOMMU nor swiotlb.
fn all_cases(cache: &Cache, dir: &Path, kernels: &mut Kernels<'_>, plan: &Plan) -> Result<Case> {
    let all = plan.cases.is_empty();
    let of =
        |name: &String, prefix: &str| name.starts_with(prefix) || prefix.starts_with(name.as_str());
    let elsewhere = |name: &&String| name.starts_with("device, ");
    let mut suites = Vec::new();
    let here: Vec<_> = plan
        .cases
        .iter()
        .filter(|name| !elsewhere(name))
        .cloned()
        .collect();
    if all || !here.is_empty() {
        let plan = Plan {
            cases: here,
            ..plan.clone()
        };
        suites.extend(end_to_end(cache, dir, kernels, &plan, &CASES)?.children);
    }
    for (prefix, what) in DEVICES {
        let plan = Plan {
            cases: plan
                .cases
                .iter()
                .filter(|name| of(name, prefix))
                .cloned()
                .collect(),
            kernels: plan
                .kernels
                .iter()
                .copied()
                .filter(|kind| *kind != Kind::Lean)
                .collect(),
            ..plan.clone()
        };
        if (all || !plan.cases.is_empty()) && !plan.kernels.is_empty() && !plan.vng {
            suites.push(end_to_end(cache, dir, kernels, &plan, what)?);
        }
    }
    Ok(Case::suite(CASES.name, suites))
}

/// The cases, then those for a guest without a cycle counter, and then what was recorded in other readers.
fn beside(cache: &Cache, dir: &Path, kernels: &mut Kernels<'_>, plan: &Plan) -> Result<Case> {
    let all = plan.cases.is_empty();
    let names = plan.cases.iter().cloned();
    let (there, here): (Vec<_>, Vec<_>) = names.partition(|name| name.starts_with(NO_TSC_CASES));
    let mut run = |cases: Vec<String>, what| {
        let plan = Plan {
            cases,
            ..plan.clone()
        };
        end_to_end(cache, dir, kernels, &plan, what)
    };
    let mut suites = Vec::new();
    if all || !here.is_empty() {
        suites.extend(run(here, &BESIDE)?.children);
    }
    if all || !there.is_empty() {
        suites.push(run(there, &NO_TSC)?);
    }
    // That is where recordings are left.
    let kind = Kind::Lean;
    if all && plan.kernels.contains(&kind) {
        let folder = dir.join(format!("{}-{kind}/out", BESIDE.name));
        suites.push(readers::run(cache, dir, &folder)?);
    }
    Ok(Case::suite(BESIDE.name, suites))
}

fn on_kernel(
    cache: &Cache,
    dir: &Path,
    kernel: &Kernel,
    modules: &[PathBuf],
    programs: &[(String, PathBuf)],
    plan: &Plan,
    what: &EndToEnd,
) -> Result<Case> {
    let name = kernel.kind.to_string();
    let progress = Progress::begin(&format!("{} on {name}", what.name));
    let dir = dir.join(format!("{}-{name}", what.name));
    let quoted: Vec<String> = plan
        .cases
        .iter()
        .map(|c| format!("'{}'", c.replace('\'', "'\\''")))
        .collect();
    // A name may be that of a subcommand.
    let command = format!("{} -- {}", what.command, quoted.join(" "));
    let timeout = patience(kernel, what.timeout);
    // There a driver is loaded some hundred times, and its suites would run each time.
    let quiet = match kernel.kind {
        Kind::Stock | Kind::Lean => "",
        Kind::Debug => "kunit.enable=0",
    };
    let live = |line: &str| {
        if line.trim_start().starts_with("not ok") {
            println!("{name}: {}", line.trim());
        }
    };
    if plan.vng && !what.perf && kernel.kind == Kind::Stock {
        let reason = "virtme-ng wants overlay and 9p built in, and Debian's cloud kernel has them as modules";
        progress.end(reason);
        return Ok(Case::suite(&name, vec![Case::skip("all", reason)]));
    }
    let outcome = if plan.vng && !what.perf {
        vng::run(&dir, kernel, modules, programs, &command, timeout)?
    } else {
        let mut guest = Guest::new(kernel, modules)?
            .timeout(timeout)
            .append(what.append)
            .append(quiet)
            .devices(what.devices)
            .shared();
        for (program, path) in programs {
            guest = guest.program(program, path)?;
        }
        if what.perf {
            guest = guest.intel().installed(Path::new("/usr/bin/perf"))?;
        }
        guest.run(cache, &dir, &command, live)?
    };
    let suite = outcome.suite(&name);
    progress.end(&ended(&suite, &outcome));
    Ok(suite)
}

fn ended(suite: &Case, outcome: &Outcome) -> String {
    format!(
        "{}, guest of {} MiB",
        suite.counts().summary(),
        outcome.peak_kib / 1024
    )
}

#[cfg(test)]
mod tests;
