// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Formatting, lints, the tests of the tools, and the rules of the tree.

use super::check;
use crate::cache::Cache;
use crate::error::Result;
use crate::results::coverage;
use crate::results::ktap::Case;
use crate::results::libtest;
use crate::step::{Log, Progress};
use crate::suites::contract;
use crate::suites::install;
use crate::tools;
use crate::verify::mutants;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates of both sides: kbuild builds them into modules, and cargo builds them as members of the tools' workspace.
const SHARED: [&str; 4] = [
    "rust/auxcore",
    "rust/intel_pt",
    "rust/interpreter",
    "samples/pattern/codec",
];

/// The folders whose code is built for kernels only, except for the [`SHARED`] crates.
const KERNEL_SIDE: [&str; 3] = ["rust", "samples", "Documentation/template"];

/// Runs all checks, or only the tests of `crates`, if there are any. If `few` is set, skips clippy, which compiles all crates once more.
pub(super) fn run(cache: &Cache, dir: &Path, crates: &[String], few: bool) -> Result<Case> {
    let dir = dir.join("host");
    let workspace = cache.checkout().join("tools");
    let cargo = |args: &[&str]| {
        let mut command = Command::new("cargo");
        command.current_dir(&workspace).args(args);
        command
    };
    if !crates.is_empty() {
        return Ok(Case::suite("host", vec![tests(cargo(&[]), &dir, crates)?]));
    }
    let files = project_files(cache)?;
    let mut cases = vec![
        rule("SPDX", cache, &files, lacks_spdx),
        rule("no unsafe", cache, &files, has_unsafe),
        contract::check(cache.checkout(), &files),
        coverage::check(cache.checkout()),
        mutants::check(cache.checkout()),
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
    // The shared crates are next to the kernel side's clippy configuration, but the tools' configuration applies to them.
    let mut clippy = cargo(&clippy);
    clippy.env("CLIPPY_CONF_DIR", &workspace);
    if !few {
        cases.push(check(&dir, "clippy", &mut clippy)?);
    }

    cases.push(tests(cargo(&[]), &dir, crates)?);
    cases.push(packages(cargo(&[]), &dir)?);
    let here = |program: &Path| Command::new(program);
    tools::pages(cache, &tools::build(cache)?, here)?;
    cases.push(install::check(cache, &dir, "x86_64", here)?);
    Ok(Case::suite("host", cases))
}

/// Runs the tests of these crates, or of all.
fn tests(mut cargo: Command, dir: &Path, crates: &[String]) -> Result<Case> {
    let progress = Progress::begin("cargo test");
    let log = Log::create(&dir.join("cargo-test.log"))?;

    cargo.args(["test", "--locked", "--no-fail-fast"]);
    match crates {
        [] => cargo.arg("--workspace"),
        _ => cargo.args(crates.iter().map(|name| format!("--package={name}"))),
    };
    let good = log
        .status(cargo.env("CARGO_TERM_COLOR", "never"))?
        .success();
    let case = libtest::parse(&log.text(), good);
    progress.end(&case.counts().summary());
    Ok(case)
}

/// The crates that can be published on crates.io, with those that they need.
const PUBLISHED: [&str; 8] = [
    "auxcore",
    "auxrec",
    "auxview",
    "intel_pt",
    "interpreter",
    "pattern_codec",
    "perfdata",
    "tracering",
];

/// Checks that cargo can package these crates, with the packages of the others as dependencies. Does not build the packages.
fn packages(mut cargo: Command, dir: &Path) -> Result<Case> {
    const NAME: &str = "packages for crates.io";

    // The option -Zpackage-workspace is not stable in the cargo of the build root.
    cargo.env("RUSTC_BOOTSTRAP", "1").args([
        "package",
        "-Zpackage-workspace",
        "--no-verify",
        "--offline",
        "--locked",
        "--allow-dirty",
    ]);
    for name in PUBLISHED {
        cargo.args(["-p", name]);
    }
    check(dir, NAME, &mut cargo)
}

/// The files of the project: those that git tracks, or would add.
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

/// Whether the file belongs to a [`SHARED`] crate, which is formatted with the workspace.
fn is_shared(path: &Path) -> bool {
    SHARED.iter().any(|dir| path.starts_with(dir))
}

/// Checks that every file keeps a rule. `broken` returns how a file breaks it, or `None`.
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
    // proptest writes the regressions, patches are mails, and a fuzzer made the corpus.
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

/// Samples show that drivers need no `unsafe`. Hostile drivers show that misuse in safe code is harmless. Kernel side and tools both rely
/// on the shared crates.
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

#[cfg(test)]
mod tests;
