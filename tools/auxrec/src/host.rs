// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Describes the machine, and the processes that run already, in the file.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use object::Object;
use perfdata::{Attr, Comm, Feature, Features, FileId, Flags, KernelMmap, Mmap2, SampleId, Writer};

use crate::error::Result;
use crate::target::present_cpus;

fn line(path: &str) -> Option<String> {
    Some(
        fs::read_to_string(path)
            .ok()?
            .lines()
            .next()?
            .trim()
            .to_owned(),
    )
}

/// The first value of a key of `/proc/cpuinfo`.
pub(crate) fn cpuinfo(text: &str, key: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_owned())
}

/// perf's identification of the CPU: on x86 vendor, family, model and stepping.
fn cpuid(text: &str) -> Option<String> {
    let parts: Option<Vec<String>> = ["vendor_id", "cpu family", "model", "stepping"]
        .iter()
        .map(|key| cpuinfo(text, key))
        .collect();
    parts
        .map(|parts| parts.join(","))
        .or_else(|| line("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1"))
}

/// The lines of a file of proc. Names in them need not be UTF-8.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
}

/// Splits off the first word. It must not contain a name.
fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let text = rest.trim_ascii_start();
    let len = text.iter().position(|&byte| byte == b' ');
    let (word, tail) = text.split_at(len.unwrap_or(text.len()));
    *rest = tail;
    std::str::from_utf8(word).ok()
}

/// Adds the description of the machine.
pub fn describe(features: &mut Features, online: usize) {
    let uname = rustix::system::uname();
    let text = |s: &std::ffi::CStr| s.to_string_lossy().into_owned();
    features
        .string(Feature::HOSTNAME, &text(uname.nodename()))
        .string(Feature::OSRELEASE, &text(uname.release()))
        .string(Feature::ARCH, &text(uname.machine()))
        .string(
            Feature::VERSION,
            concat!("auxrec ", env!("CARGO_PKG_VERSION")),
        );
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let present = present_cpus().map_or(online, |cpus| cpus.len());
    features.nrcpus(count(present), count(online));
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if let Some(name) = cpuinfo(&info, "model name") {
        features.string(Feature::CPUDESC, &name);
    }
    if let Some(id) = cpuid(&info) {
        features.string(Feature::CPUID, &id);
    }
}

/// The build-ids of files, by device and inode number: many processes have mapped the same files.
#[derive(Debug, Default)]
pub struct BuildIds(HashMap<(u32, u32, u64), Option<FileId>>);

impl BuildIds {
    /// The build-id of a file that this process has mapped, as in the kernel's records of later mappings. If it is unknown, the inode.
    fn of(&mut self, map: &Mmap2<'_>) -> FileId {
        let FileId::Inode {
            dev: (major, minor),
            ino,
            ..
        } = map.file
        else {
            return map.file;
        };
        let read = || {
            // The path in the mount namespace of the process.
            let mut path = OsString::from(format!("/proc/{}/root", map.pid));
            path.push(OsStr::from_bytes(map.filename));
            let meta = fs::metadata(&path).ok()?;
            let dev = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
            // Another file may have the name by now. A file that is not regular may have no end.
            if !map.filename.starts_with(b"/")
                || !meta.is_file()
                || (dev, meta.ino()) != ((major, minor), ino)
            {
                return None;
            }
            let bytes = object::ReadCache::new(fs::File::open(path).ok()?);
            let file = object::File::parse(&bytes).ok()?;
            let id = file.build_id().ok()??;
            let id = id.get(..id.len().min(20))?;
            let mut out = [0; 20];
            out.get_mut(..id.len())?.copy_from_slice(id);
            Some(FileId::BuildId(u8::try_from(id.len()).ok()?, out))
        };
        if ino == 0 {
            return map.file;
        }
        let known = self.0.entry((major, minor, ino)).or_insert_with(read);
        known.unwrap_or(map.file)
    }
}

/// Writes the names of a process's threads, and its executable mappings. Writes nothing if the process has ended.
///
/// # Errors
/// If the file cannot be written.
pub fn process<W: Write + Seek>(
    pid: u32,
    threads: &[u32],
    attr: &Attr,
    id: u64,
    build_ids: &mut BuildIds,
    file: &mut Writer<W>,
) -> Result<()> {
    let who = |tid| SampleId {
        pid: Some(pid),
        tid: Some(tid),
        time: Some(0),
        id: Some(id),
        stream_id: None,
        cpu: Some(0),
    };
    for &tid in threads {
        if let Ok(name) = fs::read(format!("/proc/{pid}/task/{tid}/comm")) {
            let comm = Comm {
                pid,
                tid,
                exec: false,
                comm: name.strip_suffix(b"\n").unwrap_or(&name),
            };
            file.record(&comm, Some((&who(tid), attr)))?;
        }
    }
    let text = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    for mut map in lines(&text).filter_map(|line| parse_map(pid, line)) {
        // If the kernel reports no build-ids, readers expect none.
        if attr.flags.contains(Flags::BUILD_ID) {
            map.file = build_ids.of(&map);
        }
        file.record(&map, Some((&who(pid), attr)))?;
    }
    Ok(())
}

/// Writes the addresses of the kernel's code and of its modules, if the kernel shows them.
///
/// # Errors
/// If the file cannot be written.
pub fn kernel<W: Write + Seek>(attr: &Attr, id: u64, file: &mut Writer<W>) -> Result<()> {
    let who = SampleId {
        pid: Some(u32::MAX),
        tid: Some(0),
        time: Some(0),
        id: Some(id),
        stream_id: None,
        cpu: Some(0),
    };
    // Reading takes long, and the result is the same for every file of a recording.
    static TEXT: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let symbols = fs::File::open("/proc/kallsyms").ok()?;
        kernel_text(BufReader::with_capacity(1 << 16, symbols))
    });
    if let Some((start, end)) = *text {
        let map = KernelMmap {
            addr: start,
            len: end - start,
            pgoff: start,
            // The name says which symbol has this address.
            filename: b"[kernel.kallsyms]_text",
        };
        file.record(&map, Some((&who, attr)))?;
    }
    let modules = fs::read("/proc/modules").unwrap_or_default();
    for (name, addr, len) in lines(&modules).filter_map(parse_module) {
        let map = KernelMmap {
            addr,
            len,
            pgoff: 0,
            filename: &name,
        };
        file.record(&map, Some((&who, attr)))?;
    }
    Ok(())
}

/// The range from `_text` to `_etext`; [`None`] if the addresses are hidden (`kernel.kptr_restrict`). Reads no further than necessary.
fn kernel_text(symbols: impl BufRead) -> Option<(u64, u64)> {
    let mut start = None;
    for line in symbols.lines().map_while(std::result::Result::ok) {
        let (addr, symbol) = line.split_once(' ')?;
        // The type is one letter.
        match symbol.get(2..) {
            Some("_text") => {
                start = u64::from_str_radix(addr, 16).ok().filter(|addr| *addr != 0);
                // If one address is hidden, all are.
                start?;
            }
            Some("_etext") => {
                let end = u64::from_str_radix(addr, 16).ok()?;
                return start.filter(|start| *start < end).map(|start| (start, end));
            }
            _ => {}
        }
    }
    None
}

/// Parses a line of `/proc/modules`: name in brackets, address, length.
fn parse_module(line: &[u8]) -> Option<(Vec<u8>, u64, u64)> {
    let (name, rest) = line.split_at(line.iter().position(|&byte| byte == b' ')?);
    let mut words = std::str::from_utf8(rest).ok()?.split_whitespace();
    let len = words.next()?.parse().ok()?;
    let addr = words.nth(3)?.strip_prefix("0x")?;
    let addr = u64::from_str_radix(addr, 16)
        .ok()
        .filter(|addr| *addr != 0)?;
    Some(([b"[", name, b"]"].concat(), addr, len))
}

/// Parses a line of `/proc/PID/maps`; [`None`] if the mapping is not executable.
fn parse_map(pid: u32, line: &[u8]) -> Option<Mmap2<'_>> {
    let mut rest = line;
    let mut word = || word(&mut rest);
    let (start, end) = word()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (addr, end) = (hex(start)?, hex(end)?);
    let perms = word()?;
    let pgoff = hex(word()?)?;
    let (major, minor) = word()?.split_once(':')?;
    let dev = |text| u32::from_str_radix(text, 16).ok();
    let ino = word()?.parse().ok()?;
    let name = rest.trim_ascii_start();
    let perm = |at: usize, c: u8| perms.as_bytes().get(at) == Some(&c);
    if !perm(2, b'x') {
        return None;
    }
    Some(Mmap2 {
        pid,
        tid: pid,
        addr,
        len: end.checked_sub(addr)?,
        pgoff,
        file: FileId::Inode {
            dev: (dev(major)?, dev(minor)?),
            ino,
            generation: 0,
        },
        prot: u32::from(perm(0, b'r')) | u32::from(perm(1, b'w')) << 1 | 4,
        flags: if perm(3, b's') { 1 } else { 2 },
        filename: if name.is_empty() { b"//anon" } else { name },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Cursor;

    use perfdata::Event;

    use super::*;
    use crate::target::tests::Odd;

    #[test]
    fn maps() {
        let line = b"7f0000001000-7f0000003000 r-xp 00001000 fe:01 1234                       /usr/lib/a b.so";
        let map = parse_map(7, line).unwrap();
        assert_eq!(
            (map.addr, map.len, map.pgoff),
            (0x7f00_0000_1000, 0x2000, 0x1000)
        );
        let id = FileId::Inode {
            dev: (0xfe, 1),
            ino: 1234,
            generation: 0,
        };
        assert_eq!(map.file, id);
        assert_eq!(
            (map.filename, map.prot, map.flags),
            (&b"/usr/lib/a b.so"[..], 5, 2)
        );
        assert_eq!(parse_map(7, b"1000-2000 rw-p 0 0:0 0"), None);
        assert_eq!(
            parse_map(7, b"1000-2000 r-xs 0 0:0 0 ").unwrap().filename,
            b"//anon"
        );
        // Not UTF-8, and with a space at its end.
        let line = b"1000-2000 r-xp 0 0:0 1 /\xff ";
        assert_eq!(parse_map(7, line).unwrap().filename, b"/\xff ");
        assert_eq!(parse_map(7, b"nonsense"), None);
    }

    /// This program has a build-id, as the linker writes one by default.
    #[test]
    fn build_ids() {
        let pid = std::process::id();
        let me = std::env::current_exe().unwrap().canonicalize().unwrap();
        let bytes = fs::read(&me).unwrap();
        let file = object::File::parse(bytes.as_slice()).unwrap();
        let maps = fs::read("/proc/self/maps").unwrap();
        let maps = lines(&maps).filter_map(|line| parse_map(pid, line));
        let mut ids = BuildIds::default();
        let (mut mine, mut others) = (0, 0);
        for mut map in maps {
            let found = ids.of(&map);
            if map.filename == me.as_os_str().as_encoded_bytes() {
                assert_eq!(found.build_id(), file.build_id().unwrap());
                mine += 1;
                // Another file has the name now: then the build-id of this one is unknown.
                map.file = FileId::Inode {
                    dev: (0, 0),
                    ino: 1,
                    generation: 0,
                };
            }
            others += u32::from(ids.of(&map) == map.file);
        }
        assert!(mine != 0 && others > mine);
    }

    /// The file describes a process completely even if the name of its program is not UTF-8.
    #[test]
    fn a_name_that_is_not_utf8() {
        let mut child = Odd::start();
        let pid = child.process.id();
        let attr = Attr {
            flags: Flags::SAMPLE_ID_ALL | Flags::BUILD_ID,
            ..Attr::default()
        };
        let events = [(attr.clone(), vec![9])];
        let mut file = Writer::new(Cursor::new(Vec::new()), &events).unwrap();
        let mut ids = BuildIds::default();
        process(pid, &[pid], &attr, 9, &mut ids, &mut file).unwrap();
        let bytes = file.finish(&Features::new()).unwrap().into_inner();
        child.end();

        let program = fs::read(&child.path).unwrap();
        let program = object::File::parse(program.as_slice()).unwrap();
        let file = perfdata::File::parse(&bytes).unwrap();
        let (mut names, mut mine, mut all) = (Vec::new(), 0, 0);
        for record in file.records() {
            match file.decode(&record.unwrap()).unwrap().0 {
                Event::Comm(comm) => names.push(comm.comm.to_vec()),
                Event::Mmap2(map) => {
                    all += 1;
                    if map.filename == child.path.as_os_str().as_bytes() {
                        assert_eq!(map.file.build_id(), program.build_id().unwrap());
                        mine += 1;
                    }
                }
                _ => {}
            }
        }
        assert_eq!(names, [Odd::NAME]);
        // The libraries are mapped, too.
        assert!(mine != 0 && all > mine, "{mine} of {all} mappings");
    }

    #[test]
    fn the_kernel() {
        let text =
            "ffffffff81000000 T _text\nffffffff81000000 T startup\nffffffff82000000 T _etext\n";
        let found = (0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000);
        assert_eq!(kernel_text(text.as_bytes()), Some(found));
        assert_eq!(kernel_text(&b"0 T _text\n0 T _etext\n"[..]), None);
        assert_eq!(kernel_text(&b""[..]), None);
        let text = b"pattern 16384 0 - Live 0xffffffffc0123000 (O)\n\xff 1 0 - Live 0x3\n";
        let modules: Vec<_> = lines(text).filter_map(parse_module).collect();
        let module = |name: &[u8], addr, len| (name.to_vec(), addr, len);
        let want = [
            module(b"[pattern]", 0xffff_ffff_c012_3000, 16384),
            module(b"[\xff]", 3, 1),
        ];
        assert_eq!(modules, want);
        assert_eq!(parse_module(b"x 1 0 - Live 0x0000000000000000"), None);
        assert_eq!(parse_module(b"x"), None);
    }

    #[test]
    fn cpus() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 1\nmodel name\t: X\nstepping\t: 3\n";
        assert_eq!(cpuid(text).unwrap(), "GenuineIntel,6,1,3");
        assert_eq!(cpuinfo(text, "model name").unwrap(), "X");
    }
}
