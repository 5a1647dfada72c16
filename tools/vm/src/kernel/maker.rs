// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes a kernel: fetches, configures and builds it in a temporary folder.

use super::config::{config_changes, config_lost};
use super::{
    archive, make_args, Kind, GUEST_MODULES, NOT_UNPACKED, OLD, OLD_MODULES, OLD_SCRIPTS,
    OLD_SUITE, RECIPE, SELFTESTS,
};
use crate::archive::Archive;
use crate::cache::{hash, Cache};
use crate::error::{Error, OnFile, Result};
use crate::kernel::release::Release;
use crate::kernel::symbols;
use crate::step::{Log, Progress};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes one kernel in `temporary`. The cache then renames that folder to `place`.
pub(super) struct Maker<'a> {
    pub(super) cache: &'a Cache,
    pub(super) release: &'a Release,
    pub(super) temporary: &'a Path,
    pub(super) place: &'a Path,
}

impl Maker<'_> {
    /// Unpacks one of Debian's kernels, and rebuilds its Rust metadata.
    pub(super) fn debians(&self, kind: Kind) -> Result<()> {
        let log = Log::create(&self.cache.log(&format!("kernel-{kind}.log")))?;
        let version = &self.release.version;
        let progress = Progress::begin(&format!("fetching Debian's kernel {}", self.release.abi));
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
        self.make(&log, &source, kind, "olddefconfig")?;
        let changes = config_changes(&shipped, &read(&build.join(".config"))?);
        if !changes.is_empty() {
            return Err(Error::Other(format!(
                "Debian's kernel configuration does not survive here ({}), so structure layouts may differ: a tool of the build root is another than \
                 the one that built the kernel; choose another kernel with KVER=. The log is {}.",
                changes.join("; "),
                log.path().display()
            )));
        }
        self.make(&log, &source, kind, "prepare modules_prepare")?;
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

    /// Unpacks the modules of Debian's kernel that a guest needs. Sorted by name, they are in the order of loading.
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

    /// Builds a kernel from source.
    pub(super) fn built(&self, kind: Kind) -> Result<()> {
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

    /// The folder with the unpacked source, which all kernels of the release share.
    fn source(&self, log: &Log) -> Result<PathBuf> {
        let name = format!(
            "source-{}",
            hash(
                [RECIPE, &self.release.version]
                    .into_iter()
                    .chain(NOT_UNPACKED.iter().copied())
            )
        );
        let dir = self.cache.entry(&name, |temporary, _| {
            let progress = Progress::begin("fetching and unpacking the kernel source");
            let excluded = NOT_UNPACKED.iter().map(|p| format!("--exclude={p}"));
            self.unpack(log, temporary, &excluded.collect::<Vec<_>>())?;
            progress.end("done");
            Ok(())
        })?;
        Ok(dir)
    }

    /// Unpacks the kernel's selftests that are run here.
    pub(super) fn selftests(&self) -> Result<()> {
        let log = Log::create(&self.cache.log("selftests.log"))?;
        let progress = Progress::begin("fetching and unpacking the kernel's own tests");
        let mut wanted = vec!["--wildcards".to_owned()];
        wanted.extend(SELFTESTS.iter().map(|&pattern| pattern.to_owned()));
        self.unpack(&log, self.temporary, &wanted)?;
        progress.end("done");
        Ok(())
    }

    /// Fetches the source package and unpacks the source into a folder, with additional arguments for `tar`.
    fn unpack(&self, log: &Log, to: &Path, args: &[String]) -> Result<()> {
        let version = &self.release.version;
        let package = self
            .release
            .source()
            .ok_or_else(|| Error::Other(format!("kernel {version} has no source package")))?;
        let fetched = to.join("fetched");
        let files = fetch(self.cache, log, &[package], version, &fetched)?;
        let mut tar = Command::new("tar");
        tar.arg("-xf")
            .arg(files.join(format!("usr/src/{package}.tar.xz")))
            .arg("-C")
            .arg(to);
        tar.args(["--strip-components=1", "--wildcards-match-slash"]);
        tar.args(args);
        log.run("unpacking the kernel source", &mut tar)?;
        fs::remove_dir_all(&fetched).on("remove", &fetched)
    }

    /// A second source tree, with the patches applied. Files that no patch changes are hard links to the first tree.
    fn patched_source(&self, log: &Log, patches: &[&str]) -> Result<PathBuf> {
        let source = self.source(log)?;
        let unpatched = source.display().to_string();
        let parts = [RECIPE, &unpatched]
            .into_iter()
            .chain(patches.iter().copied());
        let name = format!("source-patched-{}", hash(parts));
        self.cache.entry(&name, |temporary, _| {
            // patch writes a new file instead of changing the linked one, so the first tree stays as it is.
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

    /// Puts the final path of the build folder into its makefile, and removes the files that external modules do not need.
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

/// Fetches packages of one version and unpacks them below `dir`. Returns the folder with their files.
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

/// Fetches the image of kernel 6.1, the modules of it that guests need, and the headers. The modules are numbered in the order of loading.
pub(super) fn old(cache: &Cache, temporary: &Path, place: &Path) -> Result<()> {
    let progress = Progress::begin("fetching Debian's kernel 6.1");
    let log = Log::create(&cache.log("kernel-old.log"))?;
    let work = temporary.join("apt");
    let archive = Archive::new(work.clone(), OLD_SUITE)?;
    archive.update(&log, true)?;
    let mut depends = archive.command("apt-cache");
    depends.args(["depends", "linux-image-amd64"]);
    let said = log.output("asking for the newest kernel of a release", &mut depends)?;
    let newest = said.lines().find_map(|line| {
        let package = line.trim().strip_prefix("Depends: ")?;
        package.starts_with(OLD).then_some(package)
    });
    let newest =
        newest.ok_or_else(|| Error::Other(format!("{OLD_SUITE} has no package {OLD}…: {said}")))?;
    let abi = newest.trim_start_matches("linux-image-");
    let common = abi.trim_end_matches("-amd64");
    let headers = format!("linux-headers-{abi}");
    let packages = [
        newest,
        &headers,
        &format!("linux-headers-{common}-common"),
        OLD_SCRIPTS,
    ];
    archive.fetch(&log, &packages, &work)?;
    let image = work.join(format!("boot/vmlinuz-{abi}"));
    let to = temporary.join("bzImage");
    fs::rename(&image, &to).on("rename", &image)?;
    let modules = temporary.join("guest-modules");
    fs::create_dir(&modules).on("make", &modules)?;
    for (number, module) in OLD_MODULES.iter().enumerate() {
        let from = work.join(format!("lib/modules/{abi}/kernel/{module}"));
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        let to = modules.join(format!("{number}-{name}"));
        fs::rename(&from, &to).on("rename", &from)?;
    }
    // The packages link each other by relative paths. Only this Makefile names an absolute one.
    let makefile = work.join(format!("usr/src/{headers}/Makefile"));
    let sources = format!("{}/usr/src/", place.display());
    let text = read(&makefile)?.replace("/usr/src/", &sources);
    fs::write(&makefile, text).on("write", &makefile)?;
    let (from, to) = (work.join("usr"), temporary.join("usr"));
    fs::rename(&from, &to).on("rename", &from)?;
    let build = temporary.join("build");
    symlink(format!("usr/src/{headers}"), &build).on("link", &build)?;
    fs::remove_dir_all(&work).on("remove", &work)?;
    progress.end(abi);
    Ok(())
}

/// Removes object files, archives and images. They take most of the space, and no module needs them to build.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
