// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that need no kernel. The cases of `tools/e2e/src/ring.rs` test the rest.

#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn only_files_of_tracefs_are_mapped() {
    let header = PageHeader::new(8, 4096);
    for path in ["/dev/null", "/proc/self/exe", "/"] {
        let error = Map::open(path, header).unwrap_err().to_string();
        assert!(error.contains("is no file of tracefs"), "{error}");
    }
    let error = Map::open("/nowhere", header).unwrap_err().to_string();
    assert!(error.contains("there is no such file"), "{error}");
}

#[test]
fn reasons_not_to_map_say_what_to_do() {
    for (errno, falls_back, says) in [
        (Errno::NODEV, true, "older than 6.10"),
        (Errno::BUSY, true, "echo 0 > snapshot"),
        (Errno::TOOBIG, true, "buffer_size_kb"),
        (
            Errno::PERM,
            false,
            "it cannot be mapped: Operation not permitted",
        ),
        (
            Errno::NOMEM,
            false,
            "it cannot be mapped: Cannot allocate memory",
        ),
    ] {
        let error = no_mapping(Path::new("/a"), &errno.into());
        assert_eq!(matches!(error, Error::NoMapping(_)), falls_back, "{error}");
        let text = error.to_string();
        assert!(text.starts_with("/a: ") && text.contains(says), "{text}");
    }
}
