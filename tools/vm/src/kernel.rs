// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prepares the kernels: `stock` and `rt`, Debian's own images with their Rust metadata rebuilt, `lean`, built from the
//! same source with KUnit, and `debug`, which is lean with the kernel's checkers.

mod config;
mod maker;
pub mod release;
pub mod symbols;

use crate::archive::{mirror, Archive};
use crate::cache::{hash, Cache};
use crate::error::{Error, OnFile, Result};
use crate::kernel::release::{choose, Release, FLAVOUR, RT_FLAVOUR};
use crate::step::{Log, Progress};
use maker::Maker;
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a bzImage up to the end of its magic number.
const HEAD: u64 = 0x206;

/// The options of the lean kernel.
const LEAN_CONFIG: &str = include_str!("../lean.config");

/// The options that the debug kernel has in addition to [`LEAN_CONFIG`].
const DEBUG_CONFIG: &str = include_str!("../debug.config");

/// Patches for the mainline kernel. The kernels that are built here have them in addition to Debian's source. The debug kernel has all of
/// them, the lean kernel the first [`LEAN_PATCHES`]. The others fix defects that show only when an allocation fails, or to kmemleak.
const PATCHES: [&str; 5] = [
    include_str!("../../../Documentation/patches/0001-perf-core-Fill-up-AUX-samples-that-a-PMU-cuts-short.patch"),
    include_str!("../../../Documentation/patches/0002-perf-core-Export-perf_output_copy_aux.patch"),
    include_str!("../../../Documentation/patches/0003-perf-core-Read-the-state-to-inherit-under-child_mutex.patch"),
    include_str!("../../../Documentation/patches/0004-perf-core-Free-the-array-of-AUX-pages-if-there-is-no-page.patch"),
    include_str!("../../../Documentation/patches/0005-tracing-Free-the-event-files-of-read-only-instances.patch"),
];

/// How many of the [`PATCHES`] the lean kernel has.
const LEAN_PATCHES: usize = 3;

/// Part of the cache key. To be changed when this module makes something different of the same packages.
const RECIPE: &str = "1";

/// The compiler that Debian builds its kernels with, under the name that is in the kernel's configuration.
const STOCK_TOOLS: [&str; 2] = ["CC=x86_64-linux-gnu-gcc-14", "HOSTCC=gcc-14"];

/// The files of the kernel source that are not unpacked, as no kernel here needs them. They are most of the source.
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

/// The kernel's selftests that are run here, and the headers that they include.
const SELFTESTS: &[&str] = &[
    "*/tools/testing/selftests/kselftest.h",
    "*/tools/testing/selftests/kselftest_harness.h",
    "*/tools/testing/selftests/perf_events/*.c",
    "*/tools/testing/selftests/ring-buffer/*.c",
    "*/tools/testing/selftests/user_events/user_events_selftests.h",
];

/// Modules of the stock kernel that guests need, besides what is built in.
const GUEST_MODULES: [&str; 1] = ["overlay"];

/// The Debian release with kernel 6.1, and the prefix of the names of its kernel packages.
const OLD_SUITE: &str = "bookworm";
const OLD: &str = "linux-image-6.1.";

/// The package with the build system of kernel 6.1.
const OLD_SCRIPTS: &str = "linux-kbuild-6.1";

/// Modules that guests with kernel 6.1 need, in the order in which they are loaded.
const OLD_MODULES: [&str; 6] = [
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "drivers/char/virtio_console.ko",
];

/// The kernels that can be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Debian's image, unmodified.
    Stock,
    /// Built with LLVM, small, with KUnit and cheap debugging options.
    Lean,
    /// The lean kernel with lockdep, KASAN and the kernel's other checkers, however slow they are.
    Debug,
    /// Debian's image with `PREEMPT_RT`, unmodified: ordinary spin locks sleep there.
    Rt,
}

impl Kind {
    /// The kernels that suites run on by default.
    pub const USUAL: [Self; 2] = [Self::Stock, Self::Lean];

    /// All kernels.
    pub const ALL: [Self; 4] = [Self::Stock, Self::Lean, Self::Debug, Self::Rt];

    /// Whether Debian has built the image.
    #[must_use]
    pub fn debians(self) -> bool {
        match self {
            Self::Stock | Self::Rt => true,
            Self::Lean | Self::Debug => false,
        }
    }

    /// The suffix of the names of its packages.
    fn flavour(self) -> &'static str {
        match self {
            Self::Rt => RT_FLAVOUR,
            Self::Stock | Self::Lean | Self::Debug => FLAVOUR,
        }
    }

    /// The patches that are applied to the source; none for Debian's images.
    fn patches(self) -> &'static [&'static str] {
        match self {
            Self::Stock | Self::Rt => &[],
            Self::Lean => &PATCHES[..LEAN_PATCHES],
            Self::Debug => &PATCHES,
        }
    }

    /// The configuration options to set; none for Debian's images.
    fn options(self) -> String {
        match self {
            Self::Stock | Self::Rt => String::new(),
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
            Self::Rt => "rt",
        })
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = Self::ALL.into_iter().find(|kind| kind.to_string() == text);
        kind.ok_or_else(|| {
            let names = Self::ALL.map(|kind| kind.to_string()).join(", ");
            format!("there is no kernel \"{text}\": give one of {names}")
        })
    }
}

/// A kernel that is ready to boot and to build modules against.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Which kernel it is.
    pub kind: Kind,
    /// Its folder in the cache. The folder's name changes when anything about the kernel changes.
    pub dir: PathBuf,
    /// The release of Debian's kernel that it is, or is made from.
    pub release: Release,
    /// The image to boot, if it is not `vmlinuz` in `dir`: the user's own, or that of kernel 6.1.
    given: Option<PathBuf>,
}

impl Kernel {
    /// A kernel of the user's. Only its image is known.
    ///
    /// # Errors
    ///
    /// When there is no such file.
    pub fn given(image: &Path) -> Result<Self> {
        if !image.is_file() {
            return Err(Error::Other(format!(
                "there is no kernel {}: give the bzImage of your build",
                image.display()
            )));
        }
        let mut head = Vec::new();
        let file = fs::File::open(image).on("read", image)?;
        file.take(HEAD).read_to_end(&mut head).on("read", image)?;
        if !head.ends_with(b"HdrS") {
            return Err(Error::Other(format!(
                "{} is no bzImage: give arch/x86/boot/bzImage of your build, not vmlinux",
                image.display()
            )));
        }
        Ok(Self {
            kind: Kind::Lean,
            dir: PathBuf::new(),
            release: Release {
                version: String::new(),
                abi: String::new(),
                packages: Vec::new(),
            },
            given: Some(image.to_owned()),
        })
    }

    /// Debian's kernel 6.1, unmodified, and its headers. The auxpmu modules need a later kernel.
    ///
    /// # Errors
    ///
    /// When the archive lacks it, or cannot be read.
    pub fn old(cache: &Cache) -> Result<Self> {
        let mirror = mirror()?;
        let parts = [mirror.as_str(), OLD_SUITE, OLD, OLD_SCRIPTS, RECIPE];
        let parts = parts.into_iter().chain(OLD_MODULES);
        let name = format!("kernel-old-{}", hash(parts));
        let dir = cache.entry(&name, |temporary, place| {
            maker::old(cache, temporary, place)
        })?;
        Ok(Self {
            given: Some(dir.join("bzImage")),
            dir,
            kind: Kind::Stock,
            release: Release {
                version: String::new(),
                abi: String::new(),
                packages: Vec::new(),
            },
        })
    }

    /// The folder with the kernel's selftests that are run here, from the kernel's source package.
    ///
    /// # Errors
    ///
    /// When the archive lacks the package.
    pub fn selftests(cache: &Cache) -> Result<PathBuf> {
        let release = resolve(cache)?;
        let parts = [RECIPE, &release.version].into_iter();
        let name = hash(parts.chain(SELFTESTS.iter().copied()));
        let dir = cache.entry(&format!("selftests-{name}"), |temporary, place| {
            let maker = Maker {
                cache,
                release: &release,
                temporary,
                place,
            };
            maker.selftests()
        })?;
        Ok(dir.join("tools/testing/selftests"))
    }

    /// Takes the kernel from the cache, or makes it.
    ///
    /// # Errors
    ///
    /// When the archive lacks a package, the build fails, or the rebuilt metadata does not match Debian's build.
    pub fn prepare(cache: &Cache, kind: Kind) -> Result<Self> {
        let release = resolve(cache)?.of_flavour(kind.flavour());
        let mut parts = vec![RECIPE, cache.root_hash(), &release.version, &release.abi];
        parts.extend(NOT_UNPACKED);
        let options = kind.options();
        if kind.debians() {
            parts.extend(GUEST_MODULES);
        } else {
            parts.push(&options);
            parts.extend(kind.patches());
        }
        let name = format!("kernel-{kind}-{}", hash(parts));
        let dir = cache.entry(&name, |temporary, place| {
            let maker = Maker {
                cache,
                release: &release,
                temporary,
                place,
            };
            if kind.debians() {
                maker.debians(kind)
            } else {
                maker.built(kind)
            }
        })?;
        Ok(Self {
            kind,
            dir,
            release,
            given: None,
        })
    }

    /// The folder that modules are built against, for `make -C`.
    #[must_use]
    pub fn build_dir(&self) -> PathBuf {
        self.dir.join("build")
    }

    /// The image to boot.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        match &self.given {
            Some(image) => image.clone(),
            None => self.dir.join("vmlinuz"),
        }
    }

    /// The arguments that every `make` for this kernel needs.
    #[must_use]
    pub fn make_args(&self) -> Vec<String> {
        make_args(self.kind, &self.release)
    }

    /// The kernel's modules that a guest loads before those of auxpmu, in order.
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
    if kind.debians() {
        let mut args = STOCK_TOOLS.map(str::to_owned).to_vec();
        args.push(format!("KERNELRELEASE={}", release.abi));
        return args;
    }
    // GNU's objcopy: with llvm-objcopy, which cannot convert the x32 vDSO, Kconfig does not offer CONFIG_X86_X32_ABI.
    vec!["LLVM=1".to_owned(), "OBJCOPY=objcopy".to_owned()]
}

/// The release that this cache uses. The archive is asked only once, so that a warm cache needs no network.
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

/// The suite that kernels come from. Each mirror has its own folder, as package lists belong to a mirror.
fn archive(cache: &Cache) -> Result<Archive> {
    let dir = format!("apt-{}", hash([mirror()?.as_str()]));
    Archive::new(cache.dir().join(dir), "trixie-backports")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bzimage_is_a_kernel() {
        let path = std::env::temp_dir().join(format!("auxvm-bzimage-{}", std::process::id()));
        let said = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("the directory is writable");
            Kernel::given(&path).err().map(|error| error.to_string())
        };
        let bzimage = [&[0; 0x202][..], b"HdrS", &[0; 16]].concat();
        assert_eq!(said(&bzimage), None);
        for other in [&b"text"[..], b"\x7fELF", &[0; 0x300]] {
            assert!(said(other).is_some_and(|said| said.contains("is no bzImage")));
        }
        fs::remove_file(&path).expect("the file is there");
        for missing in [path, std::env::temp_dir()] {
            let error = Kernel::given(&missing).err().map(|error| error.to_string());
            assert!(error.is_some_and(|said| said.contains("there is no kernel")));
        }
    }

    #[test]
    fn kinds_have_names() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("other".parse::<Kind>().is_err());
    }
}
