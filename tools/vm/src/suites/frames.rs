// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that no function of the modules uses more stack than the kernel allows its own functions.
//!
//! A C compiler warns of such a function (`CONFIG_FRAME_WARN`), rustc does not. A kernel stack has 16 KiB. A trap or a callback has only
//! the part of it that the interrupted code has left.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};
use object::{File, Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::fmt;
use std::fs;

/// The default of `CONFIG_FRAME_WARN` on 64 bits.
const LIMIT: u64 = 2048;

/// Texts in the names of functions that only tests call, with little else on the stack.
const TESTS: [&str; 2] = ["::tests::", "<hostile::Module as kernel::module::Module>"];

/// Texts in the names of functions that the kernel calls in a system call or in a kernel thread. No other function of a module is then on
/// the stack.
const FIRST: [&str; 3] = [
    "kernel::module::Module>::init",
    "kernel::pci::Driver>::probe",
    "::kunit_rust_wrapper_",
];

/// Checks the objects of all modules.
///
/// # Errors
///
/// When they cannot be built or read.
pub fn run(cache: &Cache, kernel: &Kernel) -> Result<Case> {
    let name = format!("no function takes too much stack on {}", kernel.kind);
    let config = kernel.build_dir().join(".config");
    let config = fs::read_to_string(&config).on("read", &config)?;
    let limits = Limits::of(&config);
    modules::build(cache, kernel, Mode::Plain)?;
    let mut count = 0;
    let mut large = Vec::new();
    for path in modules::objects(cache, kernel)? {
        let bytes = fs::read(&path).on("read", &path)?;
        let frames = frames(&bytes).map_err(|e| {
            Error::Other(format!(
                "{} is not what a compiler makes: {e}",
                path.display()
            ))
        })?;
        count += frames.len();
        large.extend(
            frames
                .into_iter()
                .filter(|(name, frame)| {
                    *frame > limits.for_function(name)
                        && !TESTS.iter().any(|test| name.contains(test))
                })
                .map(|(name, frame)| format!("{name} takes {frame} bytes")),
        );
    }
    let verdict = match (count, large.len()) {
        (0, _) => Err("no function takes any".to_owned()),
        (_, 0) => Ok(format!("{count} functions, at most {limits}")),
        (_, many) => Err(format!("{many} functions take more than {limits}")),
    };
    let failed = verdict.is_err();
    let case = Case::judged(&name, verdict);
    Ok(if failed { case.with_log(large) } else { case })
}

/// The stack that a function may use, in bytes.
#[derive(Debug, PartialEq, Eq)]
struct Limits {
    any: u64,
    /// For the functions in [`FIRST`].
    first: u64,
}

impl Limits {
    /// With KASAN, a stack is twice as large. But the compiler adds space around each variable, so a function with many inlined functions
    /// needs several times as much.
    fn of(config: &str) -> Self {
        if config.lines().any(|line| line == "CONFIG_KASAN=y") {
            Self {
                any: LIMIT * 2,
                first: LIMIT * 4,
            }
        } else {
            Self {
                any: LIMIT,
                first: LIMIT,
            }
        }
    }

    fn for_function(&self, name: &str) -> u64 {
        if FIRST.iter().any(|first| name.contains(first)) {
            self.first
        } else {
            self.any
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { any, first } = self;
        write!(f, "{any} bytes")?;
        if first != any {
            write!(
                f,
                ", and {first} if nothing of a module is on the stack before"
            )?;
        }
        Ok(())
    }
}

/// The functions of an object that reserve stack space with one subtraction, as compilers do, and the size of that space.
fn frames(bytes: &[u8]) -> Result<Vec<(String, u64)>, object::Error> {
    let file = File::parse(bytes)?;
    let mut frames = Vec::new();
    for symbol in file.symbols() {
        let (SymbolKind::Text, Some(section)) = (symbol.kind(), symbol.section_index()) else {
            continue;
        };
        let section = file.section_by_index(section)?;
        let Some(code) = section.data_range(symbol.address(), symbol.size())? else {
            continue;
        };
        let taken = Decoder::new(64, code, DecoderOptions::NONE)
            .into_iter()
            .filter(|i| i.mnemonic() == Mnemonic::Sub && i.op0_register() == Register::RSP)
            .filter(|i| i.op1_kind() != OpKind::Register && i.op1_kind() != OpKind::Memory)
            .map(|i| i.immediate(1))
            .max();
        let name = format!("{:#}", rustc_demangle::demangle(symbol.name()?));
        frames.extend(taken.map(|frame| (name, frame)));
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kasan_has_larger_stacks() {
        const INIT: &str = "<pattern::Module as kernel::module::Module>::init";
        let kasan = Limits::of("CONFIG_KASAN=y\n");
        let usual = Limits::of("# CONFIG_KASAN is not set\n");
        for (name, times) in [("pattern::fill", 2), (INIT, 4)] {
            assert_eq!(usual.for_function(name), LIMIT);
            assert_eq!(kasan.for_function(name), times * LIMIT);
        }
    }

    /// The check finds a function of this program that has a large variable.
    #[test]
    fn a_large_frame_is_found() {
        #[inline(never)]
        fn large(seed: u8) -> u8 {
            let bytes = std::hint::black_box([seed; 50_000]);
            bytes
                .iter()
                .fold(0, |sum: u8, byte| sum.wrapping_add(*byte))
        }
        assert_eq!(large(0), 0);
        let own = fs::read(std::env::current_exe().expect("it runs")).expect("it is readable");
        let found = frames(&own).expect("it is an object");
        let of = |(name, frame): &&(String, u64)| name.ends_with("::large") && *frame >= 4096;
        assert!(found.iter().any(|found| of(&found)));
    }
}
