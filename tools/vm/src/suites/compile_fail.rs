// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that the framework's types forbid wrong uses: each file in `rust/compile-fail/` has one, and must not compile.
//!
//! The head of a file has the texts that the compiler must print (`//! error: …`, any number of lines), or states that the file must
//! compile (`//! compiles`). A file that compiles shows that the others do not fail for another reason. All files are built like drivers:
//! by the kernel's build system, against the crates that [`modules::build`] has made.

use crate::cache::{self, Cache};
use crate::error::{OnFile, Result};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use crate::step::{Log, Progress};
use std::collections::HashMap;
use std::fs;
use std::process::Command;

/// The folder of the files, in the checkout.
const FOLDER: &str = "rust/compile-fail";

/// Compiles each file, and checks the compiler's output.
///
/// # Errors
///
/// When the framework cannot be built, or a file cannot be read.
pub fn run(cache: &Cache, kernel: &Kernel) -> Result<Case> {
    let modules = modules::output_dir(cache, kernel, Mode::Plain);
    modules::build(cache, kernel, Mode::Plain)?;

    let sources = cache.checkout().join(FOLDER);
    let mut wanted = Vec::new();
    for entry in fs::read_dir(&sources).on("read", &sources)? {
        let path = entry.on("read", &sources)?.path();
        if path.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        if let Some(name) = path.file_stem().and_then(|n| n.to_str()) {
            let text = fs::read_to_string(&path).on("read", &path)?;
            wanted.push((name.to_owned(), Wanted::parse(&text)));
        }
    }
    wanted.sort_by(|a, b| a.0.cmp(&b.0));

    let out = cache
        .build()
        .join("test/kbuild/compile-fail")
        .join(kernel.kind.to_string());
    // make would not compile a file again that has compiled before, so there would be no output for it.
    cache::remove(&out)?;
    fs::create_dir_all(&out).on("make", &out)?;
    let progress = Progress::begin("what must not compile");
    let log = Log::create(&out.with_extension("log"))?;
    let mut make = Command::new("make");
    // One at a time, so that the compilers' outputs are not mixed.
    make.args(["-k", "-j1", "V=0", "-C"])
        .arg(kernel.build_dir())
        .arg(format!("M={}", sources.display()))
        .arg(format!("MO={}", out.display()))
        .arg(format!("RUST_PERF={}", modules.join("rust").display()))
        .args(kernel.make_args())
        .args(wanted.iter().map(|(name, _)| format!("{name}.o")))
        .env_remove("MAKEFLAGS");
    // make is expected to fail. Which files have failed is checked below.
    log.status(&mut make)?;

    let text = log.text();
    let said = by_file(&text);
    let cases = wanted
        .iter()
        .map(|(name, wanted)| {
            let built = out.join(name).with_extension("o").exists();
            wanted.judge(name, said.get(name.as_str()).map(Vec::as_slice), built)
        })
        .collect();
    let suite = Case::suite("compile-fail", cases);
    progress.end(&suite.counts().summary());
    Ok(suite)
}

/// What the compiler must do with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    Compiles,
    /// It fails, and these texts are in its output.
    Fails(Vec<String>),
}

impl Wanted {
    fn parse(source: &str) -> Self {
        let head = || source.lines().filter_map(|l| l.strip_prefix("//! "));
        if head().any(|l| l == "compiles") {
            return Self::Compiles;
        }
        Self::Fails(
            head()
                .filter_map(|l| l.strip_prefix("error: "))
                .map(str::to_owned)
                .collect(),
        )
    }

    fn judge(&self, name: &str, said: Option<&[&str]>, built: bool) -> Case {
        let Some(said) = said else {
            return Case::fail(name, "it was not compiled");
        };
        let log = || said.iter().map(|l| (*l).to_owned()).collect();
        match self {
            Self::Compiles if built => Case::pass(name),
            Self::Compiles => Case::fail(name, "it must compile").with_log(log()),
            Self::Fails(_) if built => Case::fail(name, "it compiles"),
            Self::Fails(texts) if texts.is_empty() => {
                Case::fail(name, "its head does not say which error it makes")
            }
            Self::Fails(texts) => {
                let missing = texts
                    .iter()
                    .find(|text| !said.iter().any(|line| line.contains(text.as_str())));
                missing.map_or_else(
                    || Case::pass(name),
                    |text| {
                        Case::fail(name, &format!("the compiler does not say \"{text}\""))
                            .with_log(log())
                    },
                )
            }
        }
    }
}

/// The output of a build for each file: the lines after the one with which its compilation begins.
fn by_file(log: &str) -> HashMap<&str, Vec<&str>> {
    let mut said: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut file = None;
    for line in log.lines() {
        let begun = line
            .trim_start()
            .strip_prefix("RUSTC [M]")
            .and_then(|rest| rest.trim().strip_suffix(".o"));
        if let Some(name) = begun {
            file = Some(name);
            said.entry(name).or_default();
        } else if let Some(lines) = file.and_then(|name| said.get_mut(name)) {
            lines.push(line);
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "make: Entering directory '/k'\n  RUSTC [M] good.o\n  RUSTC [M] bad.o\nerror[E0382]: use of moved value: `x`\n --> bad.rs:3:1\nmake[3]: *** [bad.o] Error 1\n";

    #[test]
    fn heads() {
        let table = [
            ("//! Fine.\n//!\n//! compiles\n", Wanted::Compiles),
            (
                "//! Wrong.\n//!\n//! error: one\n//! error: two\nfn f() {}\n",
                Wanted::Fails(vec!["one".to_owned(), "two".to_owned()]),
            ),
            ("//! Wrong.\n", Wanted::Fails(Vec::new())),
        ];
        for (text, wanted) in table {
            assert_eq!(Wanted::parse(text), wanted, "{text}");
        }
    }

    #[test]
    fn verdicts() {
        let fails = |text: &str| Wanted::Fails(vec![text.to_owned()]);
        let said = by_file(LOG);
        // The file, the expectation, whether there is an object, and whether the case passes.
        let table = [
            ("good", Wanted::Compiles, true, true),
            ("good", Wanted::Compiles, false, false),
            ("good", fails("moved value"), true, false),
            ("bad", fails("use of moved value: `x`"), false, true),
            ("bad", fails("is private"), false, false),
            ("bad", fails("moved value"), true, false),
            ("bad", Wanted::Fails(Vec::new()), false, false),
            ("bad", Wanted::Compiles, false, false),
            ("missing", fails("moved value"), false, false),
        ];
        for (name, wanted, built, right) in table {
            let case = wanted.judge(name, said.get(name).map(Vec::as_slice), built);
            assert_eq!(case.counts().failed == 0, right, "{name} {wanted:?}");
        }
    }
}
