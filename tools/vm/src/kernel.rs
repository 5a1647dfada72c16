// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prepares the kernels: `stock`, Debian's own image with its Rust metadata rebuilt, `lean`, built from the same
//! source with KUnit, and `debug`, which is lean with the kernel's checkers.

use crate::archive::{mirror, Archive};
use crate::cache::{hash, Cache};
use crate::error::{Error, OnFile, Result};
use crate::release::{choose, Release};
use crate::step::{Log, Progress};
use crate::symbols;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The options of the lean kernel.
const LEAN_CONFIG: &str = include_str!("../lean.config");

/// What the debug kernel has beyond them.
const DEBUG_CONFIG: &str = include_str!("../debug.config");

/// What kernels that are built here have beyond Debian's source: patches that are meant for the kernel itself. The last shows only
/// where allocations are made to fail.
const PATCHES: [&str; 4] = [
    include_str!("../../../Documentation/patches/0001-perf-core-Fill-up-AUX-samples-that-a-PMU-cuts-short.patch"),
    include_str!("../../../Documentation/patches/0002-perf-core-Export-perf_output_copy_aux.patch"),
    include_str!("../../../Documentation/patches/0003-perf-core-Read-the-state-to-inherit-under-child_mutex.patch"),
    include_str!("../../../Documentation/patches/0004-perf-core-Free-the-array-of-AUX-pages-if-there-is-no-page.patch"),
];

/// Changed when this file makes something else of the same packages.
const RECIPE: &str = "1";

/// The compiler that Debian builds its kernels with, under the name that is in the kernel's configuration.
const STOCK_TOOLS: [&str; 2] = ["CC=x86_64-linux-gnu-gcc-14", "HOSTCC=gcc-14"];

/// Of the source, what is never built here: two thirds of it.
const NOT_UNPACKED: &[&str] = &[
    "*/arch/alpha/*.[chS]",
    "*/arch/arc/*.[chS]",
    "*/arch/arm/*.[chS]",
    "*/arch/arm64/*.[chS]",
    "*/arch/csky/*.[chS]",
    "*/arch/hexagon/*.[chS]",
    "*/arch/loongarch/*.[chS]",
    "*/arch/m68k/*.[chS]",
    "*/arch/microblaze/*.[chS]",
    "*/arch/mips/*.[chS]",
    "*/arch/nios2/*.[chS]",
    "*/arch/openrisc/*.[chS]",
    "*/arch/parisc/*.[chS]",
    "*/arch/powerpc/*.[chS]",
    "*/arch/riscv/*.[chS]",
    "*/arch/s390/*.[chS]",
    "*/arch/sh/*.[chS]",
    "*/arch/sparc/*.[chS]",
    "*/arch/xtensa/*.[chS]",
    "*/arch/*/boot/dts/*",
    "*/Documentation/*/*",
    "*/tools/perf/*",
    "*/tools/testing/*",
    "*/sound/*.[ch]",
    "*/drivers/accel/*.[ch]",
    "*/drivers/clk/*.[ch]",
    "*/drivers/gpu/drm/*.[ch]",
    "*/drivers/infiniband/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/drivers/net/*/*.[ch]",
    "*/drivers/pinctrl/*.[ch]",
    "*/drivers/scsi/*.[ch]",
    "*/drivers/staging/*.[ch]",
];

/// Modules of the stock kernel that guests need, besides what is built in.
const GUEST_MODULES: [&str; 1] = ["overlay"];

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Debian's image, unmodified.
    Stock,
    /// Built with LLVM, small, with KUnit and cheap debugging options.
    Lean,
    /// The lean one with lockdep, KASAN and whatever else looks for faults, at any price.
    Debug,
}

impl Kind {
    /// Those that suites run on if none is asked for.
    pub const USUAL: [Self; 2] = [Self::Stock, Self::Lean];

    /// The patches of one that is built from source.
    fn patches(self) -> &'static [&'static str] {
        match self {
            Self::Stock => &[],
            Self::Lean => &PATCHES[..3],
            Self::Debug => &PATCHES,
        }
    }

    /// The options of one that is built from source.
    fn options(self) -> String {
        match self {
            Self::Stock => String::new(),
            Self::Lean => LEAN_CONFIG.to_owned(),
            Self::Debug => [LEAN_CONFIG, DEBUG_CONFIG].concat(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stock => "stock",
            Self::Lean => "lean",
            Self::Debug => "debug",
        })
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "stock" => Ok(Self::Stock),
            "lean" => Ok(Self::Lean),
            "debug" => Ok(Self::Debug),
            other => Err(format!(
                "there is no kernel \"{other}\": stock, lean and debug are"
            )),
        }
    }
}

/// A kernel that is ready to boot and to build modules against.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Which one.
    pub kind: Kind,
    /// Its place in the cache, whose name changes when anything about the kernel does.
    pub dir: PathBuf,
    /// The Debian kernel that it is, or is made from.
    pub release: Release,
}

impl Kernel {
    /// Takes it from the cache, or makes it.
    ///
    /// # Errors
    ///
    /// When the archive lacks it, or it cannot be built, or does not fit what Debian built.
    pub fn prepare(cache: &Cache, kind: Kind) -> Result<Self> {
        let release = resolve(cache)?;
        let mut parts = vec![RECIPE, cache.root_hash(), &release.version, &release.abi];
        parts.extend(NOT_UNPACKED);
        let options = kind.options();
        match kind {
            Kind::Stock => parts.extend(GUEST_MODULES),
            Kind::Lean | Kind::Debug => {
                parts.push(&options);
                parts.extend(kind.patches());
            }
        }
        let name = format!("kernel-{kind}-{}", hash(parts));
        let dir = cache.entry(&name, |temporary, place| {
            let maker = Maker {
                cache,
                release: &release,
                temporary,
                place,
            };
            match kind {
                Kind::Stock => maker.stock(),
                Kind::Lean | Kind::Debug => maker.built(kind),
            }
        })?;
        Ok(Self { kind, dir, release })
    }

    /// What `make -C` takes: the folder that modules are built against.
    #[must_use]
    pub fn build_dir(&self) -> PathBuf {
        self.dir.join("build")
    }

    /// The image to boot.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// What every `make` for this kernel must be told.
    #[must_use]
    pub fn make_args(&self) -> Vec<String> {
        make_args(self.kind, &self.release)
    }

    /// Modules that a guest loads before ours, in order.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn guest_modules(&self) -> Result<Vec<PathBuf>> {
        let dir = self.dir.join("guest-modules");
        let mut files = Vec::new();
        if dir.is_dir() {
            for entry in fs::read_dir(&dir).on("read", &dir)? {
                files.push(entry.on("read", &dir)?.path());
            }
        }
        files.sort();
        Ok(files)
    }
}

fn make_args(kind: Kind, release: &Release) -> Vec<String> {
    match kind {
        Kind::Stock => {
            let mut args = STOCK_TOOLS.map(str::to_owned).to_vec();
            args.push(format!("KERNELRELEASE={}", release.abi));
            args
        }
        // The kernel runs no x32 programs where llvm-objcopy would have to convert its vDSO.
        Kind::Lean | Kind::Debug => vec!["LLVM=1".to_owned(), "OBJCOPY=objcopy".to_owned()],
    }
}

/// Which release this cache uses: asked of the archive once, so that a warm cache needs no network.
fn resolve(cache: &Cache) -> Result<Release> {
    let wanted = std::env::var("KVER").ok().filter(|v| !v.is_empty());
    let name = format!("kver-{}", wanted.as_deref().unwrap_or("newest"));
    if name.contains('/') {
        return Err(Error::Other(format!(
            "KVER={} is not a version",
            wanted.unwrap_or_default()
        )));
    }
    let path = cache.dir().join(&name);
    let known = || {
        fs::read_to_string(&path)
            .ok()
            .and_then(|t| Release::from_text(&t))
    };
    if let Some(release) = known() {
        return Ok(release);
    }
    let lock = cache.lock("apt")?;
    if let Some(release) = known() {
        return Ok(release);
    }
    let progress = Progress::begin("asking the archive for kernels");
    let release = ask(cache, wanted.as_deref())?;
    let temporary = cache.dir().join(format!("{name}.new"));
    fs::write(&temporary, release.to_text()).on("write", &temporary)?;
    fs::rename(&temporary, &path).on("rename", &temporary)?;
    drop(lock);
    progress.end(&release.version);
    Ok(release)
}

/// Forgets which release was chosen, so that the next run takes the newest.
///
/// # Errors
///
/// When the cache cannot be changed.
pub fn forget(cache: &Cache) -> Result<()> {
    for entry in fs::read_dir(cache.dir()).on("read", cache.dir())?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("kver-") {
            fs::remove_file(entry.path()).on("remove", &entry.path())?;
        }
    }
    Ok(())
}

fn ask(cache: &Cache, wanted: Option<&str>) -> Result<Release> {
    let log = Log::create(&cache.log("apt.log"))?;
    let archive = archive(cache)?;
    archive.update(&log, true)?;
    let names = log.output(
        "listing packages",
        archive.command("apt-cache").args(["pkgnames", "linux-"]),
    )?;
    let wanted_kinds = [
        "linux-source-",
        "linux-headers-",
        "linux-image-",
        "linux-binary-",
        "linux-modules-",
    ];
    let names: Vec<&str> = names
        .lines()
        .filter(|n| wanted_kinds.iter().any(|k| n.starts_with(k)))
        .collect();
    let madison = log.output(
        "listing versions",
        archive.command("apt-cache").arg("madison").args(names),
    )?;
    choose(&madison, wanted).map_err(Error::Other)
}

/// The suite that kernels come from. Package lists belong to their mirror.
fn archive(cache: &Cache) -> Result<Archive> {
    let dir = format!("apt-{}", hash([mirror()?.as_str()]));
    Archive::new(cache.dir().join(dir), "trixie-backports")
}

/// The making of one kernel.
struct Maker<'a> {
    cache: &'a Cache,
    release: &'a Release,
    temporary: &'a Path,
    place: &'a Path,
}

impl Maker<'_> {
    fn stock(&self) -> Result<()> {
        let log = Log::create(&self.cache.log("kernel-stock.log"))?;
        let version = &self.release.version;
        let progress = Progress::begin(&format!("fetching Debian's kernel {version}"));
        let packages: Vec<&str> = self
            .release
            .packages
            .iter()
            .map(String::as_str)
            .filter(|p| !p.starts_with("linux-source-"))
            .collect();
        let files = fetch(
            self.cache,
            &log,
            &packages,
            version,
            &self.temporary.join("fetched"),
        )?;
        progress.end("done");
        let source = self.source(&log)?;

        let progress =
            Progress::begin("rebuilding the Rust metadata of Debian's kernel (about a minute)");
        let abi = &self.release.abi;
        let headers = files.join(format!("usr/src/linux-headers-{abi}"));
        let build = self.temporary.join("build");
        fs::create_dir(&build).on("make", &build)?;
        for name in [".config", "Module.symvers"] {
            fs::copy(headers.join(name), build.join(name)).on("copy", &headers.join(name))?;
        }
        let shipped = read(&build.join(".config"))?;
        self.make(&log, &source, Kind::Stock, "olddefconfig")?;
        let changes = config_changes(&shipped, &read(&build.join(".config"))?);
        if !changes.is_empty() {
            return Err(Error::Other(format!(
                "Debian's kernel configuration does not survive here ({}), so structure layouts may differ: a tool of the build root is another than \
                 the one that built the kernel; choose another kernel with KVER=. The log is {}.",
                changes.join("; "),
                log.path().display()
            )));
        }
        self.make(&log, &source, Kind::Stock, "prepare modules_prepare")?;
        let mut exports = String::new();
        for name in ["core", "helpers", "bindings", "kernel"] {
            let path = build.join(format!("rust/exports_{name}_generated.h"));
            if path.exists() {
                exports += &read(&path)?;
            }
        }
        let difference = symbols::compare(&exports, &read(&build.join("Module.symvers"))?);
        if let Some(complaint) = difference.complaint() {
            return Err(Error::Other(format!(
                "{complaint}. The log is {}.",
                log.path().display()
            )));
        }
        progress.end(&format!(
            "all {} Rust symbols agree with the shipped Module.symvers",
            difference.equal
        ));

        let places = [
            files.join(format!("usr/lib/modules/{abi}/vmlinuz")),
            files.join(format!("boot/vmlinuz-{abi}")),
        ];
        let image = places.iter().find(|p| p.is_file()).ok_or_else(|| {
            Error::Other(format!("the packages of kernel {version} hold no vmlinuz-{abi}; choose another kernel with KVER="))
        })?;
        fs::copy(image, self.temporary.join("vmlinuz")).on("copy", image)?;
        self.guest_modules(&log, &files)?;
        let fetched = self.temporary.join("fetched");
        fs::remove_dir_all(&fetched).on("remove", &fetched)?;
        self.finish(&build)
    }

    /// Unpacks those of Debian's modules that a guest needs, named so that their order is the order of loading.
    fn guest_modules(&self, log: &Log, files: &Path) -> Result<()> {
        let abi = &self.release.abi;
        let base = if files.join("usr/lib/modules").is_dir() {
            files.join("usr")
        } else {
            files.to_owned()
        };
        log.run(
            "depmod",
            Command::new("depmod").arg("-b").arg(&base).arg(abi),
        )?;
        let dir = self.temporary.join("guest-modules");
        fs::create_dir(&dir).on("make", &dir)?;
        let mut count = 0;
        for module in GUEST_MODULES {
            let plan = log.output(
                "finding Debian's modules",
                Command::new("modprobe").arg("-d").arg(&base).args([
                    "-S",
                    abi,
                    "--show-depends",
                    module,
                ]),
            )?;
            for path in plan
                .lines()
                .filter_map(|l| l.strip_prefix("insmod "))
                .map(|l| Path::new(l.trim()))
            {
                let stem = path
                    .file_name()
                    .map(|n| n.to_string_lossy().into_owned())
                    .unwrap_or_default();
                let stem = stem.trim_end_matches(".xz").trim_end_matches(".zst");
                let (tool, target) = match path.extension().and_then(|e| e.to_str()) {
                    Some("xz") => ("xz", dir.join(format!("{count:02}-{stem}"))),
                    Some("zst") => ("zstd", dir.join(format!("{count:02}-{stem}"))),
                    _ => ("cat", dir.join(format!("{count:02}-{stem}"))),
                };
                let mut command = Command::new(tool);
                if tool != "cat" {
                    command.arg("-dc");
                }
                let output = command.arg(path).output().map_err(|source| Error::Spawn {
                    program: tool.to_owned(),
                    source,
                })?;
                if !output.status.success() {
                    return Err(Error::Other(format!(
                        "{tool} cannot unpack {}",
                        path.display()
                    )));
                }
                fs::write(&target, output.stdout).on("write", &target)?;
                count += 1;
            }
        }
        Ok(())
    }

    /// Builds one from source.
    fn built(&self, kind: Kind) -> Result<()> {
        let log = Log::create(&self.cache.log(&format!("kernel-{kind}.log")))?;
        let source = self.patched_source(&log, kind.patches())?;
        let minutes = if kind == Kind::Debug { 15 } else { 8 };
        let progress = Progress::begin(&format!(
            "building the {kind} kernel ({minutes} minutes on two cores)"
        ));
        let build = self.temporary.join("build");
        fs::create_dir(&build).on("make", &build)?;
        self.make(&log, &source, kind, "tinyconfig")?;
        let options = kind.options();
        let fragment = self.temporary.join("fragment.config");
        fs::write(&fragment, &options).on("write", &fragment)?;
        log.run(
            "merging the configuration",
            Command::new(source.join("scripts/kconfig/merge_config.sh"))
                .current_dir(&source)
                .args(["-m", "-O"])
                .arg(&build)
                .arg(build.join(".config"))
                .arg(&fragment),
        )?;
        self.make(&log, &source, kind, "olddefconfig")?;
        let lost = config_lost(&options, &read(&build.join(".config"))?);
        if !lost.is_empty() {
            return Err(Error::Other(format!(
                "the options of the {kind} kernel in tools/vm ask for what kernel {} does not give: {}",
                self.release.version,
                lost.join("; ")
            )));
        }
        self.make(&log, &source, kind, "bzImage modules")?;
        let image = build.join("arch/x86/boot/bzImage");
        fs::copy(&image, self.temporary.join("vmlinuz")).on("copy", &image)?;
        self.finish(&build)?;
        progress.end("done");
        Ok(())
    }

    /// The unpacked source, which all kernels share.
    fn source(&self, log: &Log) -> Result<PathBuf> {
        let version = &self.release.version;
        let package = self
            .release
            .source()
            .ok_or_else(|| Error::Other(format!("kernel {version} has no source package")))?;
        let name = format!(
            "source-{}",
            hash(
                [RECIPE, version]
                    .into_iter()
                    .chain(NOT_UNPACKED.iter().copied())
            )
        );
        let dir = self.cache.entry(&name, |temporary, _| {
            let progress = Progress::begin("fetching and unpacking the kernel source");
            let files = fetch(
                self.cache,
                log,
                &[package],
                version,
                &temporary.join("fetched"),
            )?;
            let mut tar = Command::new("tar");
            tar.arg("-xf")
                .arg(files.join(format!("usr/src/{package}.tar.xz")))
                .arg("-C")
                .arg(temporary);
            tar.args(["--strip-components=1", "--wildcards-match-slash"]);
            tar.args(NOT_UNPACKED.iter().map(|p| format!("--exclude={p}")));
            log.run("unpacking the kernel source", &mut tar)?;
            let fetched = temporary.join("fetched");
            fs::remove_dir_all(&fetched).on("remove", &fetched)?;
            progress.end("done");
            Ok(())
        })?;
        Ok(dir)
    }

    /// A second tree of the source, with the patches; it shares the files that they leave alone.
    fn patched_source(&self, log: &Log, patches: &[&str]) -> Result<PathBuf> {
        let source = self.source(log)?;
        let unpatched = source.display().to_string();
        let parts = [RECIPE, &unpatched]
            .into_iter()
            .chain(patches.iter().copied());
        let name = format!("source-patched-{}", hash(parts));
        self.cache.entry(&name, |temporary, _| {
            // patch replaces a file by another one, so the links to the first tree stay as they are.
            log.run(
                "linking the kernel source",
                Command::new("cp")
                    .arg("-al")
                    .arg(source.join("."))
                    .arg(temporary),
            )?;
            for (number, patch) in (1..).zip(patches) {
                let file = temporary.join(format!("{number:04}.patch"));
                fs::write(&file, patch).on("write", &file)?;
                let mut command = Command::new("patch");
                command.args(["-p1", "--forward", "--fuzz=0", "-i"]);
                command.arg(&file).current_dir(temporary);
                log.run(
                    &format!("patching the kernel's source ({number:04})"),
                    &mut command,
                )?;
            }
            Ok(())
        })
    }

    fn make(&self, log: &Log, source: &Path, kind: Kind, targets: &str) -> Result<()> {
        let jobs = std::thread::available_parallelism().map_or(2, usize::from);
        let mut make = Command::new("make");
        make.arg("-C")
            .arg(source)
            .arg(format!("O={}", self.temporary.join("build").display()));
        make.args(make_args(kind, self.release))
            .arg(format!("-j{jobs}"))
            .args(targets.split(' '));
        log.run(&format!("make {targets} of the {kind} kernel"), &mut make)
    }

    /// Lets the build folder stand at its final place, and drops what external modules do not need.
    fn finish(&self, build: &Path) -> Result<()> {
        let makefile = build.join("Makefile");
        let text = read(&makefile)?;
        let (from, to) = (
            self.temporary.display().to_string(),
            self.place.display().to_string(),
        );
        if !text.contains(&from) {
            return Err(Error::Other(format!(
                "{} no longer names its folder: this kernel's build has changed",
                makefile.display()
            )));
        }
        fs::write(&makefile, text.replace(&from, &to)).on("write", &makefile)?;
        drop_objects(build)
    }
}

/// Fetches packages at a version and unpacks them all into `dir`.
fn fetch(
    cache: &Cache,
    log: &Log,
    packages: &[&str],
    version: &str,
    dir: &Path,
) -> Result<PathBuf> {
    let wanted: Vec<_> = packages.iter().map(|p| format!("{p}={version}")).collect();
    let unpacked = dir.join("files");
    let archive = archive(cache)?;
    let _lock = cache.lock("apt")?;
    archive.update(log, false)?;
    archive.fetch(log, &wanted, &unpacked)?;
    Ok(unpacked)
}

/// Removes object files and archives, which take most of the space and are not needed to build modules.
fn drop_objects(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).on("read", dir)?.flatten() {
        let path = entry.path();
        let kind = entry.file_type().on("read", &path)?;
        if kind.is_dir() {
            drop_objects(&path)?;
        } else if kind.is_file() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let object = [".o", ".a", ".ll"].iter().any(|e| name.ends_with(e))
                || [
                    "vmlinux",
                    "vmlinux.unstripped",
                    ".tmp_vmlinux1",
                    ".tmp_vmlinux2",
                    "bzImage",
                    "vmlinux.bin",
                ]
                .contains(&&*name);
            if object {
                fs::remove_file(&path).on("remove", &path)?;
            }
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).on("read", path)
}

/// The options of a configuration: what is not set counts as "n".
fn options(config: &str) -> impl Iterator<Item = (&str, &str)> {
    config
        .lines()
        .filter_map(|line| match line.strip_prefix("# ") {
            Some(rest) => rest.strip_suffix(" is not set").map(|name| (name, "n")),
            None => line.split_once('='),
        })
}

/// How the configuration changed, an option each.
fn config_changes(before: &str, after: &str) -> Vec<String> {
    let (old, new): (
        std::collections::BTreeMap<_, _>,
        std::collections::BTreeMap<_, _>,
    ) = (options(before).collect(), options(after).collect());
    let names: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let value = |map: &std::collections::BTreeMap<&str, &str>, name: &str| {
        map.get(name)
            .map_or_else(|| "absent".to_owned(), |v| (*v).to_owned())
    };
    names
        .into_iter()
        .filter(|name| old.get(**name) != new.get(**name))
        .map(|name| format!("{name}: {} became {}", value(&old, name), value(&new, name)))
        .collect()
}

/// What the fragment wants and the configuration does not have.
fn config_lost(fragment: &str, config: &str) -> Vec<String> {
    let have: std::collections::BTreeMap<_, _> = options(config).collect();
    options(fragment)
        .filter(|(name, value)| have.get(name).copied().unwrap_or("n") != *value)
        .map(|(name, value)| {
            format!(
                "{name}={value} (it is {})",
                have.get(name).copied().unwrap_or("absent")
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_listed() {
        let before = "#\n# Linux\n#\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=\"x\"\n";
        assert!(config_changes(before, &before.replace("# Linux", "# Linux 2")).is_empty());
        let after = "CONFIG_A=m\n# CONFIG_B is not set\nCONFIG_D=y\n";
        assert_eq!(
            config_changes(before, after),
            [
                "CONFIG_A: y became m",
                "CONFIG_C: \"x\" became absent",
                "CONFIG_D: absent became y"
            ]
        );
    }

    #[test]
    fn lost_wishes_are_listed() {
        let config = "CONFIG_A=y\n# CONFIG_B is not set\n";
        assert!(
            config_lost("# text\nCONFIG_A=y\nCONFIG_B=n\nCONFIG_ABSENT=n\n", config).is_empty()
        );
        assert_eq!(
            config_lost("CONFIG_B=y\nCONFIG_Q=m\nCONFIG_A=n\n", config).len(),
            3
        );
    }

    #[test]
    fn objects_go_and_the_rest_stays() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("rust")).unwrap();
        for name in [
            "vmlinux",
            "rust/core.o",
            "rust/libcore.rmeta",
            "rust/libmacros.so",
            "Module.symvers",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        drop_objects(dir.path()).unwrap();
        let left: Vec<_> = [
            "vmlinux",
            "rust/core.o",
            "rust/libcore.rmeta",
            "rust/libmacros.so",
            "Module.symvers",
        ]
        .map(|n| dir.path().join(n).exists())
        .to_vec();
        assert_eq!(left, [false, false, true, true, true]);
    }

    #[test]
    fn kinds_have_names() {
        for kind in [Kind::Stock, Kind::Lean, Kind::Debug] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("other".parse::<Kind>().is_err());
    }
}
