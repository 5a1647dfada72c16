// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds the programs for guests and for other machines. They are linked statically, as a guest has no libraries.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::step::{Log, Progress};
use std::path::{Path, PathBuf};
use std::process::Command;

pub mod aarch64;

use aarch64::Aarch64;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Links the C library statically. If `--target` is given, cargo does not apply this flag to build scripts and procedural macros.
pub(crate) const STATIC: &str = "-Ctarget-feature=+crt-static";

/// The programs that guests run: the package and the program of each.
const PROGRAMS: [(&str, &str); 6] = [
    ("auxrec", "auxrec"),
    ("auxview", "auxview"),
    ("conform", "conform"),
    ("e2e", "auxe2e"),
    ("steptrace", "steptrace"),
    ("tracering", "tracering"),
];

/// The [`PROGRAMS`] that do not need an x86-64 processor.
pub(crate) const PORTABLE: [&str; 4] = ["auxrec", "auxview", "conform", "tracering"];

/// What programs are built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    /// This machine and the guests.
    #[value(name = "x86_64", alias = "x86")]
    X86_64,
    /// 64-bit Arm.
    #[value(alias = "arm64")]
    Aarch64,
}

/// Builds the programs for guests whose packages the checkout has. Returns the name and path of each.
///
/// # Errors
///
/// When one does not compile.
pub fn build(cache: &Cache) -> Result<Vec<(String, PathBuf)>> {
    let tools = cache.checkout().join("tools");
    let manifest = tools.join("Cargo.toml");
    let members = std::fs::read_to_string(&manifest).on("read", &manifest)?;
    let present: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|(package, _)| members.contains(&format!("\"{package}\"")))
        .collect();
    if present.is_empty() {
        return Ok(Vec::new());
    }
    let place = cache.build();
    std::fs::create_dir_all(&place).on("make", &place)?;
    // Suites that run in parallel must not write the programs at the same time.
    let _lock = Cache::new(&place, cache.checkout(), "").lock("tools")?;
    let log = Log::create(&place.join("tools.log"))?;
    let progress = Progress::begin("building the tools for guests");
    let mut cargo = Command::new("cargo");
    cargo.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS", STATIC);
    let mut built = compile(cache, &log, cargo, TARGET, &present)?;
    let source = tools.join("e2e/watch.c");
    if source.is_file() {
        let path = cache.build().join("watch");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"])
            .arg("-o")
            .args([&path, &source]);
        log.run("building watch", &mut gcc)?;
        built.push(("watch".to_owned(), path));
    }
    progress.end("done");
    Ok(built)
}

/// Builds the [`PORTABLE`] programs for 64-bit Arm. Returns the name and path of each.
///
/// # Errors
///
/// When one does not compile.
pub fn build_aarch64(cache: &Cache, machine: &Aarch64) -> Result<Vec<(String, PathBuf)>> {
    let log = Log::create(&cache.build().join("tools-aarch64.log"))?;
    let progress = Progress::begin("building the tools for aarch64");
    let mut cargo = Command::new("cargo");
    machine.configure(&mut cargo);
    let programs = PORTABLE.map(|name| (name, name));
    let built = compile(cache, &log, cargo, Aarch64::TARGET, &programs)?;
    progress.end("done");
    Ok(built)
}

/// Builds programs with cargo. `programs` holds the package and the program of each.
fn compile(
    cache: &Cache,
    log: &Log,
    mut cargo: Command,
    target: &str,
    programs: &[(&str, &str)],
) -> Result<Vec<(String, PathBuf)>> {
    cargo.current_dir(cache.checkout().join("tools")).args([
        "build",
        "--locked",
        "--release",
        "--target",
        target,
    ]);
    for (package, _) in programs {
        cargo.args(["-p", package]);
    }
    log.run("building the tools", &mut cargo)?;
    let dir = cache.build().join("target").join(target).join("release");
    let place = |&(package, program): &(&str, &str)| {
        let path = dir.join(program);
        match path.is_file() {
            true => Ok((program.to_owned(), path)),
            false => Err(Error::Other(format!(
                "the package {package} built no program {program}: see tools/{package}/Cargo.toml"
            ))),
        }
    };
    programs.iter().map(place).collect()
}

/// The programs that write their own man pages and shell completions.
pub(crate) const DESCRIBED: [&str; 2] = ["auxrec", "auxview"];

/// Runs the recorder and the reader so that they write their man pages and shell completions to `build/tools`. Returns that folder.
/// `start` makes the command that runs a program.
///
/// # Errors
///
/// When it cannot write them.
pub fn pages(
    cache: &Cache,
    built: &[(String, PathBuf)],
    start: impl Fn(&Path) -> Command,
) -> Result<Option<PathBuf>> {
    let described = |(name, _): &&(String, PathBuf)| DESCRIBED.contains(&name.as_str());
    let mut programs = built.iter().filter(described).peekable();
    if programs.peek().is_none() {
        return Ok(None);
    }
    let dir = cache.build().join("tools");
    let log = Log::create(&cache.build().join("pages.log"))?;
    for (_, program) in programs {
        log.run("writing man pages", start(program).arg("pages").arg(&dir))?;
    }
    Ok(Some(dir))
}
