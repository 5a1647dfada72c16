// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The kernel's code: the files `kcore` and `kallsyms` of `/proc`, or the copies that `perf record --kcore` makes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use object::elf;

use super::image::{segments, Image, Segment};
use crate::error::{Error, Result};

/// First address of the kernel.
const FIRST: u64 = 1 << 63;

/// The function that switches threads: one thread calls it, and it returns in another.
const SWITCH: &str = "__switch_to";

/// Module name of the kernel itself.
const OWN: &str = "[kernel.kallsyms]";

/// Maximum length of the core file's headers, in bytes.
const HEADERS: usize = 1 << 20;

/// Maximum distance between symbols of one stretch: if they are further apart, something else is between them.
const APART: u64 = 1 << 20;

/// Maximum length of the last function of a stretch.
const LAST: u64 = 1 << 16;

const PAGE: u64 = 4096;

/// Maximum number of bytes that are read of `kallsyms`, and of all code.
const SYMBOLS: u64 = 256 << 20;
const TEXT: u64 = 512 << 20;

/// All code of the kernel that has symbols.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The image of the kernel itself, and that of each module.
    pub(super) images: Vec<Image>,
    /// Address at which threads are switched.
    pub(super) switch: Option<u64>,
}

/// Whether the address is one of the kernel's.
pub(super) fn has(address: u64) -> bool {
    address >= FIRST
}

impl Kernel {
    /// Reads the kernel's code from a directory.
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let cannot = |name: &str, why: &dyn std::fmt::Display| {
            Error::failed(format!(
                "cannot read the code of the kernel, {}: {why}; give --kernel a directory that has kcore and kallsyms, as `perf record --kcore` writes it, or /proc as root where it was recorded",
                directory.join(name).display()
            ))
        };
        let open = |name| regular(&directory.join(name)).map_err(|e| cannot(name, &e));
        let mut symbols = Vec::new();
        let mut file = open("kallsyms")?.take(SYMBOLS);
        file.read_to_end(&mut symbols)
            .map_err(|e| cannot("kallsyms", &e))?;
        let symbols = symbols_of(&String::from_utf8_lossy(&symbols));
        if symbols.is_empty() {
            // `kptr_restrict` hides them.
            return Err(cannot(
                "kallsyms",
                &"it has no addresses of the kernel's functions",
            ));
        }
        let file = open("kcore")?;
        let segments = headers(&file).map_err(|e| cannot("kcore", &e))?;
        let switch = symbols.get(OWN).and_then(|own| {
            let found = own.iter().find(|(_, name)| name == SWITCH);
            found.map(|(at, _)| *at)
        });
        let mut left = TEXT;
        let images: Vec<_> = symbols
            .into_iter()
            .map(|(module, symbols)| image(module, &symbols, &file, &segments, &mut left))
            .collect();
        if images.iter().all(Image::is_empty) {
            return Err(cannot(
                "kcore",
                &"it has nothing where kallsyms has functions",
            ));
        }
        Ok(Self { images, switch })
    }
}

/// Opens a regular file, as those of `/proc` are, too. A recording from another machine may have other files, and is not trusted.
fn regular(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}

/// Functions by module: address and name, sorted, with one name for each address.
fn symbols_of(text: &str) -> BTreeMap<String, Vec<(u64, String)>> {
    let mut found: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(at), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Ok(at) = u64::from_str_radix(at, 16) else {
            continue;
        };
        if has(at) && matches!(kind, "t" | "T" | "w" | "W") {
            let module = words.next().unwrap_or(OWN).to_owned();
            found.entry(module).or_default().push((at, name.to_owned()));
        }
    }
    for symbols in found.values_mut() {
        // Takes the shortest of several names.
        symbols
            .sort_by(|(a, name), (b, other)| (a, name.len(), name).cmp(&(b, other.len(), other)));
        symbols.dedup_by_key(|(at, _)| *at);
    }
    found
}

/// The segments of a core file.
fn headers(file: &File) -> std::result::Result<Vec<Segment>, String> {
    let mut bytes = vec![0; HEADERS];
    let mut len = 0;
    while let Some(rest) = bytes.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, u64::try_from(len).unwrap_or(u64::MAX)) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(e) => return Err(e.to_string()),
        }
    }
    bytes.truncate(len);
    segments::<elf::FileHeader64<object::Endianness>>(&bytes).map_err(|e| e.to_string())
}

/// The code of a module. Offsets are addresses.
fn image(
    module: String,
    symbols: &[(u64, String)],
    file: &File,
    segments: &[Segment],
    left: &mut u64,
) -> Image {
    let ends = symbols.iter().skip(1).map(|(at, _)| *at);
    let mut stretches: Vec<Range<u64>> = Vec::new();
    let mut functions = Vec::new();
    for ((at, name), next) in symbols.iter().zip(ends.chain([u64::MAX])) {
        let last = at.saturating_add(LAST) & !(PAGE - 1);
        let end = if next - at > APART { last } else { next };
        functions.push((*at..end, name.clone()));
        match stretches.last_mut().filter(|stretch| stretch.end >= *at) {
            Some(stretch) => stretch.end = end,
            None => stretches.push(at & !(PAGE - 1)..end),
        }
    }
    let mut text = Vec::new();
    for stretch in stretches {
        for segment in segments {
            read(file, segment, &stretch, &mut text, left);
        }
    }
    Image::of_memory(module, text, functions)
}

/// Reads the part of a stretch that is in a segment, without the pages that cannot be read, and at most `left` bytes.
fn read(
    file: &File,
    segment: &Segment,
    stretch: &Range<u64>,
    text: &mut Vec<(u64, Vec<u8>)>,
    left: &mut u64,
) {
    let len = segment.file.end - segment.file.start;
    let start = stretch.start.max(segment.address);
    let end = stretch.end.min(segment.address.saturating_add(len));
    let end = end.min(start.saturating_add(*left));
    if start >= end {
        return;
    }
    *left -= end - start;
    let mut part = |start: u64, end: u64| {
        let bytes = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
        let mut bytes = vec![0; bytes];
        let at = segment.file.start.checked_add(start - segment.address);
        let done = at.is_some_and(|at| file.read_exact_at(&mut bytes, at).is_ok());
        if done {
            text.push((start, bytes));
        }
        done
    };
    if part(start, end) {
        return;
    }
    let mut at = start;
    while at < end {
        let next = (at & !(PAGE - 1)).saturating_add(PAGE).min(end);
        part(at, next);
        at = next;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    const CODE: u64 = 0xffff_ffff_8100_0000;
    const MODULE: u64 = 0xffff_ffff_a000_0000;

    /// A core file with two pages of the kernel and one of a module, each filled with its number.
    fn kcore() -> Vec<u8> {
        let word = |value: u64| value.to_le_bytes();
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend([4, 0, 62, 0, 1, 0, 0, 0]);
        file.extend([word(0), word(64), word(0)].concat());
        file.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        for (address, offset, len) in [(CODE, PAGE, 2 * PAGE), (MODULE, 3 * PAGE, PAGE)] {
            file.extend([1, 0, 0, 0, 7, 0, 0, 0]);
            file.extend([offset, address, 0, len, len, PAGE].map(word).concat());
        }
        file.resize(4096, 0);
        for page in 1..=3 {
            file.extend([page; 4096]);
        }
        file
    }

    const KALLSYMS: &str = "0000000000000000 A fixed\n\
        ffffffff81000000 T _stext\n\
        ffffffff81000000 T startup_64\n\
        ffffffff81001000 t __switch_to\n\
        ffffffff81001800 T _etext\n\
        ffffffff82000000 D data\n\
        ffffffffa0000010 t work\t[module]\n";

    fn directory(kcore: &[u8], kallsyms: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("kcore"), kcore).unwrap();
        fs::write(directory.path().join("kallsyms"), kallsyms).unwrap();
        directory
    }

    #[test]
    fn code_and_functions() {
        let directory = directory(&kcore(), KALLSYMS);
        let kernel = Kernel::read(directory.path()).unwrap();
        assert_eq!(kernel.switch, Some(CODE + 0x1000));
        let [own, module] = kernel.images.as_slice() else {
            panic!("{kernel:?}");
        };
        assert_eq!((own.name.as_str(), module.name.as_str()), (OWN, "[module]"));
        assert_eq!(own.text(CODE + 0x1fff), Some([2].as_slice()));
        assert_eq!(own.text(CODE + 0x2000), None);
        assert_eq!(module.text(MODULE + 0x20).unwrap().len(), 4096 - 0x20);
        for (image, at, want) in [
            (own, CODE, Some("_stext")),
            (own, CODE + 0xfff, Some("_stext")),
            (own, CODE + 0x1000, Some("__switch_to")),
            (own, CODE + 0x1900, Some("_etext")),
            (module, MODULE + 0x10, Some("work")),
            (module, MODULE, None),
        ] {
            assert_eq!(image.function(at).map(|(_, name)| name), want, "{at:x}");
        }
    }

    #[test]
    fn what_is_wrong_with_it() {
        let hidden = "0000000000000000 T _stext\n";
        let elsewhere = "ffffffff91000000 T _stext\n";
        for (kcore, kallsyms, want) in [
            (kcore(), "", "no addresses"),
            (kcore(), hidden, "no addresses"),
            (kcore(), elsewhere, "it has nothing where"),
            (b"no core".to_vec(), KALLSYMS, "kcore: "),
            (kcore()[..100].to_vec(), KALLSYMS, "kcore: "),
        ] {
            let directory = directory(&kcore, kallsyms);
            let why = Kernel::read(directory.path()).unwrap_err().to_string();
            assert!(why.contains(want) && why.contains("--kernel"), "{why}");
        }
        let why = Kernel::read(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(why.contains("/nowhere/kallsyms: No such file"), "{why}");
    }

    /// Segments that are longer than the file, and files that are not regular.
    #[test]
    fn hostile_files() {
        let with = |offset: u64, len: u64| {
            let mut core = kcore();
            // Offset and length of the first segment.
            core[64 + 8..64 + 16].copy_from_slice(&offset.to_le_bytes());
            core[64 + 32..64 + 40].copy_from_slice(&len.to_le_bytes());
            core
        };
        let mut symbols = KALLSYMS.to_owned();
        for n in 1..1000 {
            symbols += &format!("{:x} T f{n}\n", CODE + n * APART);
        }
        let long = directory(&with(PAGE, 1 << 40), &symbols);
        let kernel = Kernel::read(long.path()).unwrap();
        let texts: Vec<_> = kernel.images.iter().map(|image| image.text(CODE)).collect();
        assert_eq!(texts.len(), 2);
        assert_eq!(texts[0].map(<[u8]>::len), Some(4096));
        // The image of the kernel itself has used up the limit.
        assert!(kernel.images[1].is_empty());
        for (offset, len) in [(u64::MAX - 100, 4096), (u64::MAX, u64::MAX), (0, u64::MAX)] {
            let directory = directory(&with(offset, len), KALLSYMS);
            assert!(!Kernel::read(directory.path()).unwrap().images.is_empty());
        }

        let fifo = directory(&kcore(), KALLSYMS);
        let name = fifo.path().join("kcore");
        fs::remove_file(&name).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &name, kind, mode, 0).unwrap();
        let why = Kernel::read(fifo.path()).unwrap_err().to_string();
        assert!(why.contains("no regular file"), "{why}");
    }
}
