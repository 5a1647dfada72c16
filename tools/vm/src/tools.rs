// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds the programs that go into guests: static, as a guest has no libraries.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::step::{Log, Progress};
use std::path::PathBuf;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The packages whose programs guests run, and the programs.
const PROGRAMS: [(&str, &str); 6] = [
    ("auxrec", "auxrec"),
    ("auxview", "auxview"),
    ("conform", "conform"),
    ("e2e", "auxe2e"),
    ("steptrace", "steptrace"),
    ("tracering", "tracering"),
];

/// Builds those that the checkout has; gives the name and place of each.
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
    let log = Log::create(&cache.build().join("tools.log"))?;
    let progress = Progress::begin("building the tools for guests");
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(&tools)
        .args(["build", "--locked", "--release", "--target", TARGET]);
    // With --target, this does not reach build scripts and procedural macros, which cannot be static.
    cargo.env(
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
        "-Ctarget-feature=+crt-static",
    );
    for (package, _) in &present {
        cargo.args(["-p", package]);
    }
    log.run("building the tools", &mut cargo)?;
    let dir = cache.build().join("target").join(TARGET).join("release");
    let mut built = Vec::new();
    for (package, program) in present {
        let path = dir.join(program);
        if !path.is_file() {
            return Err(Error::Other(format!(
                "the package {package} built no program {program}: see tools/{package}/Cargo.toml"
            )));
        }
        built.push((program.to_owned(), path));
    }
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

/// The programs that write their own man pages and shell completions.
const DESCRIBED: [&str; 2] = ["auxrec", "auxview"];

/// Man pages and shell completions of recorder and reader, made by themselves in `build/tools`; gives the place.
///
/// # Errors
///
/// When it cannot write them.
pub fn pages(cache: &Cache, built: &[(String, PathBuf)]) -> Result<Option<PathBuf>> {
    let described = |(name, _): &&(String, PathBuf)| DESCRIBED.contains(&name.as_str());
    let mut programs = built.iter().filter(described).peekable();
    if programs.peek().is_none() {
        return Ok(None);
    }
    let dir = cache.build().join("tools");
    let log = Log::create(&cache.build().join("pages.log"))?;
    for (_, program) in programs {
        log.run(
            "writing man pages",
            Command::new(program).arg("pages").arg(&dir),
        )?;
    }
    Ok(Some(dir))
}
