// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The files that programs have mapped: their text, and where their functions are.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ObjectSymbol, SymbolKind};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Maximum length of a file that is read: a recording can name any file.
const LONGEST: u64 = 4 << 30;

/// Pseudo file systems of the kernel, by their numbers in `uapi/linux/magic.h`. A read there may block for ever (`/proc/kmsg`), or have
/// side effects. None has programs.
const KERNELS_OWN: [(u32, &str); 19] = [
    (0x0000_9fa0, "procfs"),
    (0x6265_6572, "sysfs"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x7363_6673, "securityfs"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x0765_5821, "resctrl"),
    (0xcafe_4a11, "bpf"),
    (0x6265_6570, "configfs"),
    (0x6165_676c, "pstore"),
    (0xde5e_81e4, "efivarfs"),
    (0xf97c_ff8c, "selinuxfs"),
    (0x4341_5d53, "smackfs"),
    (0x4249_4e4d, "binfmt_misc"),
    (0x6573_5543, "fusectl"),
    (0x6759_6969, "rpc_pipefs"),
    (0x6e73_6673, "nsfs"),
    (0x1980_0202, "mqueue"),
];

/// A file's text. Offsets count from the beginning of the file.
#[derive(Debug)]
pub(super) struct Image {
    /// Name, for people.
    pub(super) name: String,
    /// Where its segments are, in the file and in memory.
    segments: Vec<(Range<u64>, u64)>,
    text: Vec<(u64, Vec<u8>)>,
    /// Sorted and without overlap.
    functions: Vec<(Range<u64>, String)>,
    /// Whether it is of a file in no format: what stands behind a piece that is mapped need not belong to it.
    pieces: bool,
}

impl Image {
    /// Reads the file `path` below `root`. `build_id` is the one that the kernel has recorded, if any.
    pub(super) fn read(path: &[u8], root: &Path, build_id: Option<&[u8]>) -> Result<Self> {
        let root_name = root.as_os_str().as_bytes();
        let root_name = root_name.strip_suffix(b"/").unwrap_or(root_name);
        let shown = shown(&[root_name, path].concat());
        let why = |e: &dyn std::fmt::Display| {
            Error::failed(format!(
                "the trace needs the code of {shown}, which cannot be read: {e}; report where it was recorded, or give --symfs a directory that has it"
            ))
        };
        let bytes = contents(root, path).map_err(|e| why(&e))?;
        let base = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let image = Self::parse(&String::from_utf8_lossy(base), &bytes).map_err(|e| why(&e))?;
        let Some(traced) = build_id else {
            return Ok(image);
        };
        let other = |what: &str| {
            let traced = hex(traced);
            Err(Error::failed(format!(
                "{shown} is not the file that was traced: {what}, that was {traced}; give --symfs a directory that has it"
            )))
        };
        let Ok(file) = object::File::parse(bytes.as_slice()) else {
            return other("it has no build-id");
        };
        // The build-id in a record of the kernel may be cut or padded.
        let same = |a: &[u8], b: &[u8]| a.iter().zip(b).all(|(a, b)| a == b);
        match file.build_id().ok().flatten() {
            Some(found) if !same(traced, found) => {
                other(&format!("its build-id is {}", hex(found)))
            }
            _ => Ok(image),
        }
    }

    /// This kernel's vDSO, which has no file.
    pub(super) fn vdso() -> Option<Self> {
        // Names of other files in it need not be UTF-8.
        let maps = fs::read("/proc/self/maps").ok()?;
        let maps = String::from_utf8_lossy(&maps);
        let (start, end) = maps
            .lines()
            .find(|line| line.ends_with("[vdso]"))?
            .split_once(' ')?
            .0
            .split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        let mut bytes = vec![0; usize::try_from(end.checked_sub(start)?).ok()?];
        let mut memory = fs::File::open("/proc/self/mem").ok()?;
        memory.seek(SeekFrom::Start(start)).ok()?;
        memory.read_exact(&mut bytes).ok()?;
        Self::parse("[vdso]", &bytes).ok()
    }

    /// An image of memory, whose offsets are addresses. `functions` must be sorted and without overlap.
    pub(super) fn of_memory(
        name: String,
        text: Vec<(u64, Vec<u8>)>,
        functions: Vec<(Range<u64>, String)>,
    ) -> Self {
        let place = |(at, bytes): &(u64, Vec<u8>)| {
            let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            (*at..at.saturating_add(len), *at)
        };
        Self {
            name,
            segments: text.iter().map(place).collect(),
            text,
            functions,
            pieces: false,
        }
    }

    /// Whether code ends where its mapping ends.
    pub(super) fn is_in_pieces(&self) -> bool {
        self.pieces
    }

    /// Whether it has no text.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The addresses of its text.
    pub(super) fn places(&self) -> impl Iterator<Item = &Range<u64>> {
        self.segments.iter().map(|(place, _)| place)
    }

    fn parse(name: &str, bytes: &[u8]) -> object::Result<Self> {
        let segments = match object::FileKind::parse(bytes) {
            Ok(object::FileKind::Elf32) => {
                segments::<elf::FileHeader32<object::Endianness>>(bytes)?
            }
            Ok(object::FileKind::Elf64) => {
                segments::<elf::FileHeader64<object::Endianness>>(bytes)?
            }
            // Code as it was mapped: what the recorder has saved of a JIT, or a program of another system.
            _ => {
                let text = vec![(0, bytes.to_vec())];
                return Ok(Self {
                    pieces: true,
                    ..Self::of_memory(name.to_owned(), text, Vec::new())
                });
            }
        };
        let file = object::File::parse(bytes)?;
        let mut functions: Vec<_> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| {
                // Symbols of assembly code often have no type.
                matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown)
                    && symbol.is_definition()
            })
            .filter_map(|symbol| {
                let at = segments
                    .iter()
                    .find_map(|segment| segment.offset(symbol.address()))?;
                let name = symbol.name().ok().filter(|name| !name.is_empty())?;
                Some((
                    at..at.saturating_add(symbol.size()),
                    symbol.is_global(),
                    name,
                ))
            })
            .collect();
        // Of several names for one place, takes one with a length, then a global one, then the shortest.
        functions.sort_by_key(|(at, global, name)| {
            (at.start, at.is_empty(), !global, name.len(), *name)
        });
        functions.dedup_by_key(|(at, ..)| at.start);
        let ends: Vec<_> = functions.iter().skip(1).map(|(at, ..)| at.start).collect();
        let functions = functions
            .iter()
            .zip(ends.into_iter().map(Some).chain([None]))
            .map(|((at, _, name), next)| {
                let next = next.unwrap_or(u64::MAX);
                let end = if at.is_empty() {
                    next
                } else {
                    at.end.min(next)
                };
                (at.start..end, readable(name))
            })
            .collect();
        // Overlapping segments could have any total length: limit it.
        let mut left = bytes.len();
        let text = segments
            .iter()
            .filter(|segment| segment.executable)
            .filter_map(|segment| {
                let start = usize::try_from(segment.file.start).ok()?;
                let end = usize::try_from(segment.file.end).ok()?.min(bytes.len());
                let text = bytes.get(start..end)?;
                left = left.checked_sub(text.len())?;
                Some((segment.file.start, text.to_vec()))
            })
            .collect();
        Ok(Self {
            name: name.to_owned(),
            segments: segments
                .into_iter()
                .map(|segment| (segment.file, segment.address))
                .collect(),
            text,
            functions,
            pieces: false,
        })
    }

    /// The address of the byte at `offset`, as the file has it.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|(file, address)| {
            let at = offset.checked_sub(file.start)?;
            file.contains(&offset).then(|| address.wrapping_add(at))
        })
    }

    /// The text from `offset` to the end of the segment.
    pub(super) fn text(&self, offset: u64) -> Option<&[u8]> {
        self.text.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(at..).filter(|rest| !rest.is_empty())
        })
    }

    /// The function at `offset`, and its range.
    pub(super) fn function(&self, offset: u64) -> Option<(&Range<u64>, &str)> {
        let after = self.functions.partition_point(|(at, _)| at.start <= offset);
        let (at, name) = self.functions.get(after.checked_sub(1)?)?;
        at.contains(&offset).then_some((at, name))
    }

    /// Where the next function after `offset` begins.
    pub(super) fn next_function(&self, offset: u64) -> Option<u64> {
        let after = self.functions.partition_point(|(at, _)| at.start <= offset);
        self.functions.get(after).map(|(at, _)| at.start)
    }
}

/// A segment, as its program header describes it.
pub(super) struct Segment {
    pub(super) file: Range<u64>,
    pub(super) address: u64,
    executable: bool,
}

impl Segment {
    fn offset(&self, address: u64) -> Option<u64> {
        let at = self
            .file
            .start
            .checked_add(address.checked_sub(self.address)?)?;
        self.file.contains(&at).then_some(at)
    }
}

pub(super) fn segments<F: FileHeader<Endian = object::Endianness>>(
    bytes: &[u8],
) -> object::Result<Vec<Segment>> {
    let header = F::parse(bytes)?;
    let endian = header.endian()?;
    Ok(header
        .program_headers(endian, bytes)?
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
        .map(|segment| {
            let start: u64 = segment.p_offset(endian).into();
            Segment {
                file: start..start.saturating_add(segment.p_filesz(endian).into()),
                address: segment.p_vaddr(endian).into(),
                executable: segment.p_flags(endian) & elf::PF_X != 0,
            }
        })
        .collect())
}

/// The content of the regular file `path` below `root`. The name comes from a recording of unknown
/// origin.
pub(crate) fn contents(root: &Path, path: &[u8]) -> io::Result<Vec<u8>> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    // This does not open the file: opening a device has side effects, and opening a FIFO blocks.
    let place = below(root, path)?;
    let stat = rustix::fs::fstat(&place)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(refused("it is no regular file".to_owned()));
    }
    let kind = u32::try_from(rustix::fs::fstatfs(&place)?.f_type).ok();
    let own = KERNELS_OWN.iter().find(|(magic, _)| Some(*magic) == kind);
    if let Some((_, name)) = own {
        return Err(refused(format!("it is in {name}, which has no programs")));
    }
    let len = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if len == 0 {
        return Err(refused("it is empty".to_owned()));
    }
    if len > LONGEST {
        return Err(refused(format!("it has more than {LONGEST} bytes")));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX))?;
    // This opens the same file, and does not wait for a lease of another process.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", place.as_raw_fd()))?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Resolves `path` as for a process whose root directory is `root`: neither `..` nor a symbolic link leads out of it.
fn below(root: &Path, path: &[u8]) -> io::Result<OwnedFd> {
    let path = Path::new(OsStr::from_bytes(path));
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let directory = rustix::fs::open(root, flags | OFlags::DIRECTORY, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    // `EAGAIN`: something was renamed meanwhile, so the kernel cannot tell whether `..` leads out.
    for _ in 0..100 {
        match rustix::fs::openat2(&directory, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            Err(Errno::NOSYS) if root == Path::new("/") => {
                let path = path.strip_prefix("/").unwrap_or(path);
                return Ok(rustix::fs::openat(&directory, path, flags, Mode::empty())?);
            }
            Err(Errno::NOSYS) => {
                let why = "--symfs needs openat2(), which Linux has since 5.6";
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            result => return Ok(result?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Escapes a path for people, so that it is always one line.
pub(super) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string()
}

/// Demangles a name to that in the program's source.
pub(crate) fn readable(name: &str) -> String {
    if let Ok(name) = rustc_demangle::try_demangle(name) {
        return format!("{name:#}");
    }
    // Other names could be demangled as types.
    name.starts_with("_Z")
        .then(|| {
            cpp_demangle::Symbol::new(name)
                .ok()?
                .demangle(&Default::default())
                .ok()
        })
        .flatten()
        .unwrap_or_else(|| name.to_owned())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Paths that a recording can have, and which of them are read.
    #[test]
    fn only_programs_below_the_root_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("dir")).unwrap();
        fs::write(dir.path().join("outside"), "outside").unwrap();
        fs::write(root.join("file"), "file").unwrap();
        fs::write(root.join("empty"), "").unwrap();
        for (link, to) in [
            ("out", Path::new("../outside")),
            ("far", &dir.path().join("outside")),
            ("up", Path::new("/")),
            ("in", Path::new("/file")),
            ("loop", Path::new("loop")),
        ] {
            symlink(to, root.join(link)).unwrap();
        }
        let fifo = root.join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        let _socket = UnixListener::bind(root.join("socket")).unwrap();
        let large = fs::File::create(root.join("large")).unwrap();
        large.set_len(LONGEST + 1).unwrap();

        let gone = "No such file";
        let special = "no regular file";
        let top = Path::new("/");
        for (root, path, want) in [
            (&*root, "/file", Ok("file")),
            (&root, "file", Ok("file")),
            (&root, "/dir/../file", Ok("file")),
            (&root, "/in", Ok("file")),
            (&root, "/up/file", Ok("file")),
            // The root is its own parent, as for a process.
            (&root, "/../file", Ok("file")),
            (&root, "/../outside", Err(gone)),
            (&root, "/dir/../../outside", Err(gone)),
            (&root, "/out", Err(gone)),
            (&root, "/far", Err(gone)),
            (&root, "/up/../outside", Err(gone)),
            (&root, "/none", Err(gone)),
            (&root, "", Err(gone)),
            (&root, "/file/x", Err("Not a directory")),
            (&root, "/loop", Err("symbolic links")),
            (&root, "/fi\0le", Err("Invalid argument")),
            (&root, "/", Err(special)),
            (&root, "/dir", Err(special)),
            (&root, "/fifo", Err(special)),
            (&root, "/socket", Err(special)),
            (&root, "/empty", Err("empty")),
            (&root, "/large", Err("more than 4294967296 bytes")),
            (top, "/dev/null", Err(special)),
            (top, "/proc/kmsg", Err("procfs")),
            (top, "/proc/self/mem", Err("procfs")),
            (top, "/sys/devices/system/cpu/online", Err("sysfs")),
            // The kernel follows such a link wherever it leads.
            (top, "/proc/self/exe", Err("symbolic links")),
            (top, "/proc/self/root/proc/kmsg", Err("symbolic links")),
        ] {
            let found = contents(root, path.as_bytes()).map_err(|e| e.to_string());
            match want {
                Ok(text) => assert_eq!(found, Ok(text.as_bytes().to_vec()), "{path}"),
                Err(why) => assert!(
                    found.as_ref().is_err_and(|e| e.contains(why)),
                    "{path}: {found:?}"
                ),
            }
        }
    }
}
