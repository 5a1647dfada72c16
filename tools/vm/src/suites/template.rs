// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that a copy of the template for drivers, `Documentation/template`, builds against the framework and loads.

use crate::cache::{self, Cache};
use crate::error::{Error, OnFile, Result};
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use crate::step::{Log, Progress};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The template's folder in the checkout.
const TEMPLATE: &str = "Documentation/template";

/// Time allowed for a guest that loads two modules.
const TIME: Duration = Duration::from_secs(300);

/// Copies the template, builds the copy with its own Makefile, and loads it in a guest.
///
/// # Errors
///
/// When the framework cannot be built, or a file cannot be copied.
pub fn run(cache: &Cache, dir: &Path, kernel: &Kernel) -> Result<Case> {
    let name = format!("template on {}", kernel.kind);
    let framework = modules::build(cache, kernel, Mode::Plain)?;
    let copy = dir.join("kbuild/template").join(kernel.kind.to_string());
    copy_template(&cache.checkout().join(TEMPLATE), &copy)?;

    let progress = Progress::begin(&name);
    let log = Log::create(&copy.with_extension("log"))?;
    let output = modules::output_dir(cache, kernel, Mode::Plain);
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(&copy)
        .arg(format!("KDIR={}", kernel.build_dir().display()))
        .arg(format!("AUXPMU={}", output.display()))
        .args(kernel.make_args())
        .args(["CLIPPY=1", "W=1"])
        .env_remove("MAKEFLAGS");
    if !kernel.kind.debians() {
        make.arg("CONFIG_RUST_PERF_TESTING=y");
    }
    let built = log.status(&mut make)?.success();
    let text = log.text();
    let warnings = modules::warnings(&text);
    if !built || !warnings.is_empty() {
        progress.end("failed");
        let reason = if built {
            format!("{} warnings", warnings.len())
        } else {
            "it does not build".to_owned()
        };
        let lines = text.lines().map(str::to_owned).collect();
        return Ok(Case::fail(&name, &reason).with_log(lines));
    }

    let library = framework
        .files
        .iter()
        .find(|path| path.ends_with("rust/rust_perf.ko"))
        .ok_or_else(|| Error::Other("the build made no rust_perf.ko".to_owned()))?;
    let guest = Guest::new(kernel, &[library.clone(), copy.join("blink.ko")])?
        .timeout(TIME)
        .script("run", include_str!("../../guest/template.sh"));
    let outcome = guest.run(cache, &copy.with_extension("guest"), "run", |_| {})?;
    let suite = outcome.suite(&name);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// Copies the files of `from` to a new directory `to`.
fn copy_template(from: &Path, to: &Path) -> Result<()> {
    cache::remove(to)?;
    fs::create_dir_all(to).on("make", to)?;
    for entry in fs::read_dir(from).on("read", from)? {
        let path = entry.on("read", from)?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            fs::copy(&path, to.join(name)).on("copy", &path)?;
        }
    }
    Ok(())
}
