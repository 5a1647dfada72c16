// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the offsets of the events in a `trace.dat`, with a head that fits into the reserved space or does not.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{symlink, MetadataExt as _};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use tracering::dat::Head;
use tracering::{Recorder, SubBuffer, Tracefs};

/// A directory that looks like tracefs with three CPUs. The last two have these sub-buffers.
fn tracefs(dir: &Path, pages: &[Vec<u8>; 2]) -> Tracefs {
    fs::create_dir_all(dir.join("events/ftrace")).unwrap();
    let write = |file: &str, text: &str| fs::write(dir.join(file), text).unwrap();
    write(
        "events/header_page",
        "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n",
    );
    write(
        "events/header_event",
        "type_len : 5 bits\ntime_delta : 27 bits\narray : 32 bits\npadding : type == 29\n\
        time_extend : type == 30\ntime_stamp : type == 31\ndata max type_len == 28\n",
    );
    write("trace_clock", "[local]\n");
    for (cpu, pages) in [&vec![], &pages[0], &pages[1]].into_iter().enumerate() {
        let dir = dir.join(format!("per_cpu/cpu{cpu}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("trace_pipe_raw"), pages).unwrap();
        let stats =
            "entries: 0\noverrun: 0\ncommit overrun: 0\ndropped events: 0\nread events: 0\n";
        fs::write(dir.join("stats"), stats).unwrap();
    }
    Tracefs::at(dir)
}

/// Offset and length of each CPU's events, from the file.
fn table(bytes: &[u8]) -> Vec<(usize, usize)> {
    let name = b"flyrecord\0";
    let at = bytes.windows(name.len()).position(|part| part == name);
    let table = &bytes[at.unwrap() + name.len()..][..48];
    let number = |bytes: &[u8]| usize::try_from(u64::from_ne_bytes(bytes.try_into().unwrap()));
    let row = |row: &[u8]| (number(&row[..8]).unwrap(), number(&row[8..]).unwrap());
    table.chunks(16).map(row).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    New,
    Old,
    Link,
}

#[test]
fn events_are_where_the_table_says() {
    // Each sub-buffer has one event, of 4 bytes: the number of the sub-buffer.
    let page = |n: u32| {
        let event = if cfg!(target_endian = "little") {
            1_u32
        } else {
            1 << 27
        };
        let mut page = [u64::from(n).to_ne_bytes(), 8_u64.to_ne_bytes()].concat();
        page.extend(event.to_ne_bytes());
        page.extend(n.to_ne_bytes());
        page.resize(4096, 0);
        page
    };
    let pages = [(0..300), (300..303)].map(|numbers| numbers.flat_map(page).collect::<Vec<_>>());
    for (reserved, grown, kind, in_place) in [
        (true, 0, There::New, true),
        (true, 0, There::Old, true),
        // The head does not fit, or the output is not a regular file: all events are copied.
        (true, 1 << 20, There::New, false),
        (true, 0, There::Link, false),
        (false, 0, There::New, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let tracefs = tracefs(&dir.path().join("tracefs"), &pages);
        let (path, target) = (dir.path().join("trace.dat"), dir.path().join("target"));
        match kind {
            There::New => {}
            There::Old => fs::write(&path, "old").unwrap(),
            There::Link => symlink(&target, &path).unwrap(),
        }
        let mut recorder = Recorder::new(&tracefs, &[1, 2], &path).unwrap();
        if reserved {
            let header = tracefs.page_header().unwrap();
            let head = Head::new(&tracefs, &tracefs, [], header).unwrap();
            recorder.reserve(&head).unwrap();
        }
        let of_first = |entry: &fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            name.starts_with("trace.dat.cpu1.")
        };
        let mut entries = fs::read_dir(dir.path()).unwrap().map(Result::unwrap);
        let first = entries.find(of_first).unwrap().metadata().unwrap();
        assert_eq!(first.mode() & 0o777, 0o600);
        recorder.run(&AtomicBool::new(false), true).unwrap();
        let names = "a task\n".repeat(grown / 7);
        fs::write(tracefs.path().join("saved_cmdlines"), &names).unwrap();
        let recorded = recorder.stop().unwrap();
        recorded.write_dat(&tracefs, [], &path).unwrap();

        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.ino() == first.ino(), in_place);
        assert_eq!(metadata.mode() & 0o777, 0o600);
        assert_eq!(path.is_symlink(), kind == There::Link);
        let bytes = fs::read(&path).unwrap();
        let rows = table(&bytes);
        assert_eq!(rows[0].1, 0);
        for ((at, len), pages) in rows[1..].iter().zip(&pages) {
            assert_eq!(at % 4096, 0);
            assert!(bytes[*at..][..*len] == **pages);
        }
        let names = names.as_bytes();
        assert!(names.is_empty() || bytes.windows(names.len()).any(|part| part == names));
        // The events can still be read, in order.
        let mut numbers = Vec::new();
        for taken in recorded.cpus() {
            let mut each = |sub: SubBuffer<'_>| {
                let event = sub.events().next().unwrap()?;
                numbers.push(event.data.u32(0).unwrap());
                Ok::<_, tracering::Error>(())
            };
            taken.each(&mut each).unwrap();
        }
        assert!(numbers.into_iter().eq(0..303));
        drop(recorded);
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.retain(|name| name != "target" && name != "tracefs");
        assert_eq!(left, ["trace.dat"]);
    }
}
