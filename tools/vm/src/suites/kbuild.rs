// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that the modules build without a warning, and that a build against a wrong kernel is refused with the reason.

use super::{Kernels, Plan};
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::kernel::{Kernel, Kind};
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use crate::suites::compile_fail;
use crate::suites::frames;
use crate::suites::panics;
use crate::suites::template;
use std::fs;
use std::path::Path;
use std::process::Command;

pub(super) fn run(cache: &Cache, dir: &Path, kernels: &Kernels<'_>, plan: &Plan) -> Result<Case> {
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
    for kind in &plan.kernels {
        let case = kernels
            .get(*kind)
            .and_then(|kernel| frames::run(cache, &kernel));
        cases.push(
            case.unwrap_or_else(|e| Case::fail("no function takes too much stack", &e.to_string())),
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

/// Checks `make KDIR=` with unsuitable folders: each must be refused with one line that names the cause.
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
    // The name, the configuration if any, whether there is metadata, and a part of the message. Without one, the folder is accepted.
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
