// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The files that a Python interpreter in a guest needs.

use crate::error::{Error, OnFile, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Modules that CPython imports when it starts. It finds its library by the first one.
const CPYTHON: [&str; 6] = [
    "os",
    "linecache",
    "encodings/__init__",
    "encodings/aliases",
    "encodings/utf_8",
    "encodings/ascii",
];

/// Folders of CPython's library that no program here needs.
const LEFT_OUT: [&str; 5] = ["__pycache__", "ensurepip", "idlelib", "pydoc_data", "test"];

/// Modules that PyPy imports when it starts. It finds its library by the first one.
const PYPY: [&str; 12] = [
    "site",
    "os",
    "abc",
    "codecs",
    "stat",
    "_collections_abc",
    "posixpath",
    "genericpath",
    "encodings/__init__",
    "encodings/aliases",
    "encodings/utf_8",
    "encodings/latin_1",
];

/// The modules that Debian's Python imports when it starts.
///
/// # Errors
///
/// When a folder cannot be read.
pub fn cpython() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for place in libraries("python3")? {
        files.extend(CPYTHON.map(|name| place.join(format!("{name}.py"))));
    }
    files.retain(|file: &PathBuf| file.exists());
    Ok(files)
}

/// All modules of Debian's Python, as sources and shared objects, without those in the folders `LEFT_OUT`.
///
/// # Errors
///
/// When a folder cannot be read.
pub fn library() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut left = libraries("python3.")?;
    while let Some(place) = left.pop() {
        for entry in fs::read_dir(&place).on("read", &place)? {
            let path = entry.on("read", &place)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match path.extension().and_then(|extension| extension.to_str()) {
                None if path.is_dir() && !LEFT_OUT.contains(&&*name) => left.push(path),
                Some("py" | "so") => files.push(path),
                _ => {}
            }
        }
    }
    Ok(files)
}

/// The modules that gdb's Python imports when gdb starts and when gdb decodes a trace, and those of [`cpython`].
///
/// # Errors
///
/// When gdb cannot be run, or names no modules.
pub fn of_gdb() -> Result<Vec<PathBuf>> {
    let list = "python import sys, gdb.ptwrite; print(*(m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)), sep='\\n')";
    let program = "gdb".to_owned();
    let output = Command::new(&program)
        .args(["-nx", "-batch", "-ex", list])
        .output()
        .map_err(|source| Error::Spawn { program, source })?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut files: Vec<_> = said.lines().map(PathBuf::from).collect();
    files.retain(|file| file.exists());
    if files.is_empty() {
        return Err(Error::Other(format!(
            "gdb names no Python modules: {}",
            String::from_utf8_lossy(&output.stderr)
        )));
    }
    files.extend(cpython()?);
    files.sort();
    files.dedup();
    Ok(files)
}

/// The program PyPy, and the modules that it imports when it starts, as source and bytecode.
///
/// # Errors
///
/// When a folder cannot be read.
pub fn pypy() -> Result<Vec<PathBuf>> {
    let mut files = vec![PathBuf::from("/usr/bin/pypy3")];
    for place in libraries("pypy3.")? {
        let tag = place.file_name().unwrap_or_default().to_string_lossy();
        let tag = tag.replace('.', "");
        for name in PYPY {
            let source = place.join(format!("{name}.py"));
            let (folder, stem) = (source.parent(), source.file_stem());
            if let (Some(folder), Some(stem)) = (folder, stem) {
                let stem = stem.to_string_lossy();
                files.push(folder.join(format!("__pycache__/{stem}.{tag}.pyc")));
            }
            files.push(source);
        }
    }
    Ok(files)
}

/// The folders in `/usr/lib` whose names begin with `name`.
fn libraries(name: &str) -> Result<Vec<PathBuf>> {
    let library = Path::new("/usr/lib");
    let entries = fs::read_dir(library).on("read", library)?;
    let mut places = Vec::new();
    for entry in entries {
        let entry = entry.on("read", library)?;
        if entry.file_name().to_string_lossy().starts_with(name) {
            places.push(entry.path());
        }
    }
    Ok(places)
}
