// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the rules.

use super::*;

#[test]
fn rules() {
    let spdx = "// SPDX-License-Identifier: GPL-2.0 OR MIT\n";
    let cases = [
        (lacks_spdx(Path::new("tools/a.rs"), spdx), false),
        (
            lacks_spdx(
                Path::new("tools/a.sh"),
                "#!/bin/sh\n# SPDX-License-Identifier: GPL-2.0 OR MIT\n",
            ),
            false,
        ),
        (lacks_spdx(Path::new("tools/a.rs"), "fn main() {}\n"), true),
        (lacks_spdx(Path::new("LICENSES/MIT.txt"), "MIT"), false),
        (lacks_spdx(Path::new("tools/Cargo.lock"), ""), false),
        (
            has_unsafe(Path::new("samples/a.rs"), "unsafe { x() }\n"),
            true,
        ),
        (
            has_unsafe(Path::new("Documentation/template/a.rs"), "unsafe { x() }\n"),
            true,
        ),
        (
            has_unsafe(
                Path::new("rust/auxcore/a.rs"),
                "fn a() { let f: unsafe fn(); }",
            ),
            true,
        ),
        (
            has_unsafe(Path::new("rust/hostile/a.rs"), "unsafe { x() }\n"),
            true,
        ),
        (
            has_unsafe(Path::new("rust/hostile_panics/a.rs"), "unsafe { x() }\n"),
            true,
        ),
        (
            has_unsafe(Path::new("rust/intel_pt/a.rs"), "unsafe { x() }\n"),
            true,
        ),
        (
            has_unsafe(
                Path::new("samples/a.rs"),
                "// unsafe\n#![deny(unsafe_code)]\nlet not_unsafe = 1;\n",
            ),
            false,
        ),
        (
            has_unsafe(Path::new("rust/perf.rs"), "unsafe { x() }\n"),
            false,
        ),
    ];
    for (i, (complaint, broken)) in cases.iter().enumerate() {
        assert_eq!(complaint.is_some(), *broken, "{i}: {complaint:?}");
    }
}

/// `cargo fmt` formats the shared crates, rustfmt the rest of the kernel side.
#[test]
fn each_file_is_formatted_once() {
    let table = [
        ("rust/perf.rs", true),
        ("samples/a/a.rs", true),
        ("Documentation/template/a.rs", true),
        ("rust/auxcore/ring.rs", false),
        ("rust/intel_pt/insn.rs", false),
        ("samples/pattern/codec/read.rs", false),
        ("tools/vm/src/main.rs", false),
        ("rust/Makefile", false),
    ];
    for (path, kernel_side) in table {
        assert_eq!(is_kernel_rust(Path::new(path)), kernel_side, "{path}");
    }
}
