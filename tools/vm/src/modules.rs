// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds the auxpmu kernel modules, out of tree, with the kernel's own build system.

use crate::cache::{self, Cache};
use crate::error::{Error, OnFile, Result};
use crate::kernel::Kernel;
use crate::step::{Log, Progress};
use serde_json::{json, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which checks a build makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As `make` builds by default.
    Plain,
    /// With clippy and the kernel's extra warnings. It has its own output folder, as other flags cause a rebuild.
    Strict,
    /// With the defect of this name in the `pattern` driver.
    Broken(&'static str),
}

/// The result of a build of the modules.
#[derive(Debug)]
pub struct Built {
    /// The modules, in the order in which they are to be loaded.
    pub files: Vec<PathBuf>,
    /// The modules that hold only KUnit suites, to be loaded after `files`.
    pub tests: Vec<PathBuf>,
    /// The compiler's warnings.
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
    // make would take objects that were built against another kernel for up to date.
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
    if let Mode::Broken(defect) = mode {
        make.arg(format!("AUXPMU_BREAK={defect}"));
    }
    make.arg("modules");
    log.run(
        &format!("building the modules for the {} kernel", kernel.kind),
        &mut make,
    )?;
    drop(lock);
    let order = dir.join("modules.order");
    let listed = fs::read_to_string(&order).on("read", &order)?;
    let (tests, files): (Vec<PathBuf>, Vec<PathBuf>) = listed
        .lines()
        .map(|l| module_path(&dir, l))
        .filter(|path| !is_only_built(path))
        .partition(|path| is_test(path));
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
        tests,
        warnings,
        log: log.path().to_owned(),
    })
}

/// The command that runs `make` in the kernel's build folder for the checkout. The caller adds the targets.
#[must_use]
pub fn command(cache: &Cache, kernel: &Kernel) -> Command {
    let jobs = std::thread::available_parallelism().map_or(2, usize::from);
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(kernel.build_dir())
        .arg(format!("M={}", cache.checkout().display()));
    make.args(kernel.make_args()).arg(format!("-j{jobs}"));
    // The driver with panics in it, which the check for panics must find.
    make.arg("CONFIG_RUST_PERF_PANICS=y");
    // The modules for guests only: `tcg_int3`, `traced` and `hostile`.
    make.arg("CONFIG_AUXPMU_GUEST=y");
    // The kernels that are built here have KUnit, so the drivers' tests are built for them, too.
    if !kernel.kind.debians() {
        make.arg("CONFIG_RUST_PERF_TESTING=y");
    }
    make
}

/// The object files that the compilers have made of the checkout's code, without the `.mod.o` files of the module loader.
///
/// # Errors
///
/// When a folder cannot be read.
pub fn objects(cache: &Cache, kernel: &Kernel) -> Result<Vec<PathBuf>> {
    let dir = output_dir(cache, kernel, Mode::Plain);
    let mut objects = Vec::new();
    for folder in ["rust", "samples"] {
        find_objects(&dir.join(folder), &mut objects)?;
    }
    objects.sort();
    Ok(objects)
}

fn find_objects(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).on("read", folder)? {
        let path = entry.on("read", folder)?.path();
        if path.is_dir() {
            find_objects(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "o")
            && !path.display().to_string().ends_with(".mod.o")
        {
            found.push(path);
        }
    }
    Ok(())
}

/// Writes `rust-project.json` for editors into the checkout, and returns its path.
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
    let generated = dir.join("rust-project.json");
    let text = fs::read_to_string(&generated).on("read", &generated)?;
    let complete = complete_project(&text, cache.checkout(), &dir).map_err(|e| {
        Error::Other(format!(
            "{} is not what rust-analyzer wants: {e}",
            generated.display()
        ))
    })?;
    let project = cache.checkout().join("rust-project.json");
    fs::write(&project, complete).on("write", &project)?;
    Ok(project)
}

/// The library crates that modules link, each with its root file. No library uses another. The framework uses only `auxcore`;
/// `stepping` uses only `interpreter`.
const LIBRARIES: [(&str, &str); 4] = [
    ("auxcore", "rust/auxcore/auxcore.rs"),
    ("intel_pt", "rust/intel_pt/intel_pt.rs"),
    ("interpreter", "rust/interpreter/interpreter.rs"),
    ("pattern_codec", "samples/pattern/codec/pattern_codec.rs"),
];

/// Adds to `rust-project.json` what the kernel's generator does not know: the dependencies between the crates of the modules, and the
/// folders of the generated bindings.
///
/// # Errors
///
/// When `text` is no such file, or lacks a crate of the framework.
fn complete_project(text: &str, checkout: &Path, built: &Path) -> Result<String, String> {
    let mut project: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let crates = project
        .get_mut("crates")
        .and_then(Value::as_array_mut)
        .ok_or("it has no crates")?;
    let place = |root: &str| {
        let path = Path::new(root);
        // The path is relative to the folder of the modules' source, which is the checkout.
        checkout.join(path.strip_prefix("./").unwrap_or(path))
    };
    let root_of = |c: &Value| c.get("root_module").and_then(Value::as_str).map(place);
    let index = |crates: &[Value], root: &str| {
        let root = checkout.join(root);
        crates
            .iter()
            .position(|c| root_of(c).as_ref() == Some(&root))
            .ok_or_else(|| format!("it has no crate {}", root.display()))
    };
    let perf = index(crates, "rust/perf/perf.rs")?;
    let mut libraries = Vec::new();
    for (name, root) in LIBRARIES {
        libraries.push((index(crates, root)?, name));
    }
    // `stepping` exists only on x86.
    let stepping = index(crates, "rust/stepping/stepping.rs").ok();
    libraries.extend(stepping.map(|i| (i, "stepping")));
    for (i, c) in crates.iter_mut().enumerate() {
        let Some(root) = root_of(c).filter(|root| root.starts_with(checkout)) else {
            continue;
        };
        c["root_module"] = json!(root);
        let is_library = libraries.iter().any(|(library, _)| *library == i);
        let uses = |name: &str| match name {
            "auxcore" if i == perf => true,
            "interpreter" if Some(i) == stepping => true,
            _ => !is_library && i != perf,
        };
        let mut deps: Vec<Value> = libraries
            .iter()
            .filter(|(_, name)| uses(name))
            .map(|(library, name)| json!({"crate": library, "name": name}))
            .collect();
        if !is_library && i != perf {
            deps.push(json!({"crate": perf, "name": "perf"}));
        }
        if let Some(list) = c.get_mut("deps").and_then(Value::as_array_mut) {
            list.append(&mut deps);
        }
        if i == perf {
            c["env"]["RUST_PERF_OBJTREE"] = json!(built.join("rust"));
        }
        if Some(i) == stepping {
            c["env"]["RUST_STEPPING_OBJTREE"] = json!(built.join("rust/stepping"));
        }
    }
    serde_json::to_string_pretty(&project).map_err(|e| e.to_string())
}

/// The folder in which the modules of a kernel are built.
#[must_use]
pub fn output_dir(cache: &Cache, kernel: &Kernel, mode: Mode) -> PathBuf {
    let name = match mode {
        Mode::Plain => kernel.kind.to_string(),
        Mode::Strict => format!("{}-strict", kernel.kind),
        // One folder for all defects: their builds differ in one module only.
        Mode::Broken(_) => format!("{}-broken", kernel.kind),
    };
    cache.build().join("modules").join(name)
}

/// The path of a module. `line` is from `modules.order`: the module's object file, relative to the output folder `dir`.
fn module_path(dir: &Path, line: &str) -> PathBuf {
    dir.join(line.trim()).with_extension("ko")
}

/// Whether a module contains only tests, so that only `make kunit` loads it.
fn is_test(path: &Path) -> bool {
    path.file_stem()
        .and_then(|stem| stem.to_str())
        .is_some_and(|stem| stem.ends_with("_doctests"))
}

/// Whether a module is built only to be inspected, and must never be loaded.
fn is_only_built(path: &Path) -> bool {
    path.file_stem()
        .is_some_and(|stem| stem == "hostile_panics")
}

/// The warnings in a build log, without the harmless ones that the kernel's build system prints for each out-of-tree build.
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
    fn project_is_completed() {
        let text = r#"{"crates": [
            {"display_name": "kernel", "root_module": "/k/rust/kernel/lib.rs", "deps": [], "env": {}},
            {"display_name": "perf", "root_module": "rust/perf/perf.rs", "deps": [{"crate": 0, "name": "kernel"}], "env": {}},
            {"display_name": "pattern", "root_module": "samples/pattern/pattern.rs", "deps": [], "env": {}},
            {"display_name": "auxcore", "root_module": "rust/auxcore/auxcore.rs", "deps": [], "env": {}},
            {"display_name": "intel_pt", "root_module": "rust/intel_pt/intel_pt.rs", "deps": [], "env": {}},
            {"display_name": "interpreter", "root_module": "rust/interpreter/interpreter.rs", "deps": [], "env": {}},
            {"display_name": "pattern_codec", "root_module": "samples/pattern/codec/pattern_codec.rs", "deps": [], "env": {}},
            {"display_name": "stepping", "root_module": "rust/stepping/stepping.rs", "deps": [], "env": {}}
        ]}"#;
        let done = complete_project(text, Path::new("/c"), Path::new("/c/build/m")).unwrap();
        let done: Value = serde_json::from_str(&done).unwrap();
        let names = |i: usize| -> Vec<String> {
            let deps = done["crates"][i]["deps"].as_array().unwrap();
            deps.iter()
                .map(|d| d["name"].as_str().unwrap().to_owned())
                .collect()
        };
        assert!(names(0).is_empty());
        assert_eq!(names(1), ["kernel", "auxcore"]);
        assert_eq!(
            names(2),
            [
                "auxcore",
                "intel_pt",
                "interpreter",
                "pattern_codec",
                "stepping",
                "perf"
            ]
        );
        assert!(names(3).is_empty());
        assert!(names(4).is_empty());
        assert_eq!(names(7), ["interpreter"]);
        assert_eq!(
            done["crates"][7]["env"]["RUST_STEPPING_OBJTREE"],
            "/c/build/m/rust/stepping"
        );
        assert_eq!(
            done["crates"][2]["root_module"],
            "/c/samples/pattern/pattern.rs"
        );
        assert_eq!(
            done["crates"][1]["env"]["RUST_PERF_OBJTREE"],
            "/c/build/m/rust"
        );
        assert_eq!(done["crates"][0]["root_module"], "/k/rust/kernel/lib.rs");

        for bad in ["", "{}", r#"{"crates": []}"#] {
            assert!(
                complete_project(bad, Path::new("/c"), Path::new("/m")).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn order_names_modules() {
        assert_eq!(
            module_path(Path::new("/o"), "rust/rust_perf.o"),
            Path::new("/o/rust/rust_perf.ko")
        );
        assert!(is_test(Path::new("/o/rust/rust_perf_doctests.ko")));
        assert!(!is_test(Path::new("/o/rust/rust_perf.ko")));
        assert!(is_only_built(Path::new("/o/rust/hostile_panics.ko")));
        assert!(!is_only_built(Path::new("/o/rust/hostile.ko")));
    }
}
