// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds our kernel modules, out of tree, with the kernel's own build system.

use crate::cache::{self, Cache};
use crate::error::{Error, OnFile, Result};
use crate::kernel::Kernel;
use crate::step::{Log, Progress};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which checks a build makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As everybody builds.
    Plain,
    /// With clippy and the kernel's extra warnings, into a folder of its own: flags that change mean a rebuild.
    Strict,
}

/// Modules that were built.
#[derive(Debug)]
pub struct Built {
    /// The modules, in the order in which they are to be loaded.
    pub files: Vec<PathBuf>,
    /// What the compiler warned of.
    pub warnings: Vec<String>,
    /// The build's log.
    pub log: PathBuf,
}

/// Builds all modules of the checkout against a kernel, into `build/modules/KERNEL`.
///
/// # Errors
///
/// When the build fails, or makes no module.
pub fn build(cache: &Cache, kernel: &Kernel, mode: Mode) -> Result<Built> {
    let dir = output_dir(cache, kernel, mode);
    let parent = cache.build().join("modules");
    fs::create_dir_all(&parent).on("make", &parent)?;
    let name = dir
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let lock = Cache::new(&parent, cache.checkout(), "").lock(&name)?;
    // Objects that were built against another kernel must not be taken for up to date.
    let stamp = dir.join(".kernel");
    let made_for = fs::read_to_string(&stamp).unwrap_or_default();
    let kernel_dir = kernel.dir.display().to_string();
    if made_for != kernel_dir {
        cache::remove(&dir)?;
        fs::create_dir_all(&dir).on("make", &dir)?;
        fs::write(&stamp, kernel_dir).on("write", &stamp)?;
    }
    let log = Log::create(&parent.join(format!("{name}.log")))?;
    let progress = Progress::begin(&format!("building the modules for {name}"));
    let mut make = command(cache, kernel);
    make.arg(format!("MO={}", dir.display()));
    if mode == Mode::Strict {
        make.args(["CLIPPY=1", "W=1"]);
    }
    make.arg("modules");
    log.run(
        &format!("building the modules for the {} kernel", kernel.kind),
        &mut make,
    )?;
    drop(lock);
    let order = dir.join("modules.order");
    let listed = fs::read_to_string(&order).on("read", &order)?;
    let files: Vec<PathBuf> = listed.lines().map(|l| module_path(&dir, l)).collect();
    if files.is_empty() {
        return Err(Error::Other(format!(
            "the build for the {} kernel made no module; its log is {}",
            kernel.kind,
            log.path().display()
        )));
    }
    let warnings = warnings(&log.text());
    progress.end(&format!("{} modules", files.len()));
    Ok(Built {
        files,
        warnings,
        log: log.path().to_owned(),
    })
}

/// `make` in the kernel's folder for our checkout; the caller adds what it wants.
#[must_use]
pub fn command(cache: &Cache, kernel: &Kernel) -> Command {
    let jobs = std::thread::available_parallelism().map_or(2, usize::from);
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(kernel.build_dir())
        .arg(format!("M={}", cache.checkout().display()));
    make.args(kernel.make_args()).arg(format!("-j{jobs}"));
    make
}

/// Writes `rust-project.json` for editors, into `build/modules/KERNEL`, and gives its place.
///
/// # Errors
///
/// When the kernel's own generator fails.
pub fn rust_analyzer(cache: &Cache, kernel: &Kernel) -> Result<PathBuf> {
    let built = build(cache, kernel, Mode::Plain)?;
    let dir = output_dir(cache, kernel, Mode::Plain);
    let log = Log::create(&built.log.with_file_name("rust-analyzer.log"))?;
    let mut make = command(cache, kernel);
    make.arg(format!("MO={}", dir.display()))
        .arg("rust-analyzer");
    log.run("make rust-analyzer", &mut make)?;
    let project = dir.join("rust-project.json");
    let text = fs::read_to_string(&project).on("read", &project)?;
    if !text.contains("rust/perf.rs") {
        return Err(Error::Other(format!(
            "{} does not know rust/perf.rs",
            project.display()
        )));
    }
    Ok(project)
}

/// Where the modules of a kernel are built.
#[must_use]
pub fn output_dir(cache: &Cache, kernel: &Kernel, mode: Mode) -> PathBuf {
    let name = match mode {
        Mode::Plain => kernel.kind.to_string(),
        Mode::Strict => format!("{}-strict", kernel.kind),
    };
    cache.build().join("modules").join(name)
}

/// The module that a line of `modules.order` names, by its object file, relative to the output folder.
fn module_path(dir: &Path, line: &str) -> PathBuf {
    dir.join(line.trim()).with_extension("ko")
}

/// The lines that warn, without the kernel's own about what an out-of-tree build lacks.
#[must_use]
pub fn warnings(log: &str) -> Vec<String> {
    const HARMLESS: [&str; 2] = [
        "Skipping BTF generation",
        "the compiler differs from the one used to build the kernel",
    ];
    log.lines()
        .filter(|l| !l.starts_with("$ "))
        .filter(|l| {
            l.contains("warning:")
                || l.contains("WARNING:")
                || l.contains("Warning:")
                || l.starts_with("warning")
        })
        .filter(|l| !HARMLESS.iter().any(|h| l.contains(h)))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_found() {
        let log = "$ \"make\" \"W=1\"\n  RUSTC [M] rust/perf.o\nwarning: unused variable: `x`\nfoo.c:3:1: warning: no previous prototype\nWARNING: modpost: missing MODULE_DESCRIPTION\nSkipping BTF generation for x.ko due to unavailability of vmlinux\nwarning: the compiler differs from the one used to build the kernel\n";
        assert_eq!(warnings(log).len(), 3);
        assert!(warnings("  CC [M]  warn.o\n").is_empty());
    }

    #[test]
    fn order_names_modules() {
        assert_eq!(
            module_path(Path::new("/o"), "rust/rust_perf.o"),
            Path::new("/o/rust/rust_perf.ko")
        );
    }
}
