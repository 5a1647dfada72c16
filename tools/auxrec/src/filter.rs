// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Address filters: translates perf's syntax, with names of functions, into the kernel's, with offsets in a file.

use std::ffi::CString;
use std::fs;
use std::ops::Range;
use std::path::Path;

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::error::{Error, Result};

const FORM: &str =
    "a filter is `filter|start|stop|tracestop START[/END] [@FILE]`, START a number or a function of FILE, END a length or a function; several \
     follow each other after commas";

/// One filter, split into words.
#[derive(Debug, PartialEq, Eq)]
struct Words<'a> {
    action: &'a str,
    start: &'a str,
    end: Option<&'a str>,
    file: Option<&'a str>,
}

impl<'a> Words<'a> {
    /// Takes the first filter off the front of `text`.
    fn take(text: &mut &'a str) -> Option<Self> {
        let mut word = |until: &[char]| {
            let rest = text.trim_start_matches(' ');
            let (word, rest) = rest.split_at(rest.find(until).unwrap_or(rest.len()));
            *text = rest.trim_start_matches(' ');
            (!word.is_empty()).then_some(word)
        };
        let action = word(&[' '])?;
        let start = word(&[' ', '/', '@', ','])?;
        let mut after = |mark: char, until: &[char]| match text.strip_prefix(mark) {
            None => Some(None),
            Some(rest) => {
                *text = rest;
                let rest = text.trim_start_matches(' ');
                let (word, rest) = rest.split_at(rest.find(until).unwrap_or(rest.len()));
                *text = rest.trim_start_matches(' ');
                (!word.is_empty()).then_some(Some(word))
            }
        };
        let end = after('/', &[' ', '@', ','])?;
        let file = after('@', &[' ', ','])?;
        *text = text.trim_start_matches([' ', ',']);
        Some(Self {
            action,
            start,
            end,
            file,
        })
    }

    fn resolve(&self) -> Result<String> {
        let action = match self.action {
            // The kernel's `stop` with a range does what perf calls `tracestop`.
            "tracestop" => "stop",
            "filter" | "start" | "stop" => self.action,
            _ => return Err(unknown(self.action)),
        };
        let file = self.file.map(|name| {
            fs::canonicalize(name)
                .map_err(|e| Error::usage(format!("the filter's file {name}: {e}")))
        });
        let file = file.transpose()?;
        if let Some(file) = file
            .as_ref()
            .filter(|file| file.to_string_lossy().contains([' ', ',']))
        {
            // These characters end a name in the kernel's syntax.
            let shown = file.display();
            return Err(Error::usage(format!("the filter's file {shown} has a blank or a comma in its name, which the kernel cannot take")));
        }
        let find = |name: &str| {
            match &file {
            Some(file) => function(file, name),
            None => Err(Error::usage(format!(
                "`{name}` is no number; of the kernel's functions the addresses are in /proc/kallsyms, and one of a program wants `@FILE`"
            ))),
        }
        };
        let ranged = matches!(self.action, "filter" | "tracestop");
        let (start, len) = match number(self.start) {
            Some(start) => (start, None),
            None => find(self.start).map(|at| (at.start, Some(at.end - at.start)))?,
        };
        let len = match self.end {
            Some(end) => Some(match number(end) {
                Some(len) => len,
                None => find(end)?.end.checked_sub(start).ok_or_else(|| {
                    Error::usage(format!("`{end}` does not stand behind `{}`", self.start))
                })?,
            }),
            None => len.filter(|_| ranged),
        };
        if ranged && len.is_none_or(|len| len == 0) {
            return Err(Error::usage(format!(
                "`{}` has no length: give `{} {}/LENGTH`",
                self.start, self.action, self.start
            )));
        }
        let len = len.map_or(String::new(), |len| format!("/{len:#x}"));
        let file = file.map_or(String::new(), |file| format!("@{}", file.display()));
        Ok(format!("{action} {start:#x}{len}{file}"))
    }
}

fn unknown(what: &str) -> Error {
    Error::usage(format!("`{what}` makes no sense: {FORM}"))
}

/// A number in decimal, or in hexadecimal after `0x`.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The range of a function in a file.
pub(crate) fn function(path: &Path, name: &str) -> Result<Range<u64>> {
    let shown = path.display();
    let bytes = fs::read(path).map_err(|e| Error::usage(format!("cannot read {shown}: {e}")))?;
    let file = object::File::parse(bytes.as_slice())
        .map_err(|e| Error::usage(format!("{shown} has no functions that are known: {e}")))?;
    let place = |symbol: object::Symbol<'_, '_>| {
        let section = file.section_by_index(symbol.section_index()?).ok()?;
        let (offset, _) = section.file_range()?;
        let start = offset.checked_add(symbol.address().checked_sub(section.address())?)?;
        Some(start..start.checked_add(symbol.size())?)
    };
    let mut found: Vec<_> = file
        .symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
        .filter(|symbol| symbol.name() == Ok(name))
        .filter_map(place)
        .collect();
    found.sort_by_key(|at| (at.start, at.end));
    found.dedup();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Error::usage(format!(
            "{shown} has no function `{name}`; of a file without symbols give the place as a number"
        ))),
        several => {
            let places: Vec<_> = several
                .iter()
                .map(|at| format!("{:#x} ({:#x} bytes)", at.start, at.end - at.start))
                .collect();
            Err(Error::usage(format!(
                "{shown} has several functions `{name}`; give the place of one as a number: {}",
                places.join(", ")
            )))
        }
    }
}

/// Translates filters into the kernel's syntax.
///
/// # Errors
/// If they are invalid, or name something that does not exist.
pub(crate) fn resolve(text: &str) -> Result<CString> {
    let mut rest = text;
    let mut out = Vec::new();
    while !rest.trim().is_empty() {
        let words = Words::take(&mut rest).ok_or_else(|| unknown(text))?;
        out.push(words.resolve()?);
    }
    if out.is_empty() {
        return Err(unknown(text));
    }
    CString::new(out.join(",").as_bytes()).map_err(|_| Error::usage("a filter has no NUL in it"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_become_places() {
        let me = std::env::current_exe().unwrap().canonicalize().unwrap();
        let at = function(&me, "main").unwrap();
        let (start, len) = (at.start, at.end - at.start);
        let me = me.display();
        for (text, kernel) in [
            ("filter main @ ME", "filter START/LEN@ME"),
            ("filter main@ME", "filter START/LEN@ME"),
            ("filter main / main @ME", "filter START/LEN@ME"),
            ("filter main/16 @ME", "filter START/0x10@ME"),
            ("tracestop main @ME", "stop START/LEN@ME"),
            (
                "start main @ME , stop 0x40@ME",
                "start START@ME,stop 0x40@ME",
            ),
            ("start main @ME stop 0x40@ME", "start START@ME,stop 0x40@ME"),
            ("filter 4096/0x100", "filter 0x1000/0x100"),
        ] {
            let own = |text: &str| {
                text.replace("ME", &me.to_string())
                    .replace("START", &format!("{start:#x}"))
                    .replace("LEN", &format!("{len:#x}"))
            };
            assert_eq!(resolve(&own(text)).unwrap().to_str().unwrap(), own(kernel));
        }
    }

    /// The bytes of the file at that place are the code of the function.
    #[test]
    fn a_place_is_one_in_the_file() {
        let me = std::env::current_exe().unwrap();
        let at = function(&me, "main").unwrap();
        let bytes = fs::read(&me).unwrap();
        let file = object::File::parse(bytes.as_slice()).unwrap();
        let main = file
            .symbols()
            .find(|symbol| symbol.name() == Ok("main"))
            .unwrap();
        let section = file
            .section_by_index(main.section_index().unwrap())
            .unwrap();
        let code = section
            .data_range(main.address(), main.size())
            .unwrap()
            .unwrap();
        let place = usize::try_from(at.start).unwrap()..usize::try_from(at.end).unwrap();
        assert_eq!(&bytes[place], code);
    }

    /// Uses a program in which two functions have the same name.
    #[test]
    fn one_of_several_functions_is_not_guessed() {
        let bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
        let file = object::File::parse(bytes.as_slice()).unwrap();
        let texts = file
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text);
        let mut by_length = std::collections::HashMap::new();
        let (kept, renamed) = texts
            .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?)))
            .find_map(|(at, name)| {
                let (first, other) = *by_length.entry(name.len()).or_insert((at, name));
                (first != at && other != name).then_some((other, name))
            })
            .unwrap();
        let entry = [b"\0", renamed.as_bytes(), b"\0"].concat();
        let (names, len) = file
            .section_by_name(".strtab")
            .unwrap()
            .file_range()
            .unwrap();
        let [names, len] = [names, len].map(|at| usize::try_from(at).unwrap());
        let mut all = bytes[names..names + len].windows(entry.len());
        let at = names + all.position(|bytes| bytes == entry).unwrap() + 1;
        let mut twice = bytes.clone();
        twice[at..at + kept.len()].copy_from_slice(kept.as_bytes());
        let program = tempfile::NamedTempFile::new().unwrap();
        fs::write(program.path(), twice).unwrap();
        let error = function(program.path(), kept).unwrap_err().to_string();
        let says = format!("has several functions `{kept}`; give the place of one as a number: 0x");
        assert!(error.contains(&says), "{error}");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let me = std::env::current_exe().unwrap();
        for (text, says) in [
            ("", "START[/END]"),
            ("filter", "START[/END]"),
            ("filter /", "START[/END]"),
            ("filter main / @ME", "START[/END]"),
            ("trace main @ME", "`trace` makes no sense"),
            ("filter main", "/proc/kallsyms"),
            ("filter main @/nowhere", "/nowhere"),
            (
                "filter main @/proc/version",
                "has no functions that are known",
            ),
            (
                "filter no_such_function @ME",
                "has no function `no_such_function`",
            ),
            ("filter 0x1000", "`0x1000` has no length"),
            ("filter 0xffffffffffff/main @ME", "does not stand behind"),
        ] {
            let text = text.replace("ME", &me.display().to_string());
            let error = resolve(&text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
