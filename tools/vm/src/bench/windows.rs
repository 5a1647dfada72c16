// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The functions that execute the instructions of a call, and the cache lines that the transactions of two CPUs share.
//!
//! A guest runs `auxe2e bench windows` under the plugin of `tools/bench/plugin`. For each window, the plugin reports how often each CPU
//! executed each block of the kernel, and which cache lines each CPU wrote. This is exact, as the plugin sees every write. A line that both
//! CPUs write bounces between their caches.
//!
//! There are two guests. Instructions are counted in one with one CPU: its clock counts instructions, so there are few interrupts. Lines
//! are those of a guest with two CPUs.

use crate::bench::twins::TWINS;
use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::plugin;
use crate::results::figures::Figure;
use crate::step::{Log, Progress};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How often each call is made in its window.
const TIMES: u32 = 4000;

/// The addresses of the kernel's text and of its modules' text on x86-64. The kernel's text is included, as Rust's atomics may be functions
/// there.
const TEXT: &str = "from=ffffffff80000000,to=ffffffffff000000";

/// By how many instructions a call may differ in a function between two windows, due to interrupts.
const NOISE: u64 = 1;

/// The kinds of work in the windows.
const WORK: [&str; 3] = ["restart", "toggle", "trace"];

/// Runs the guests on a kernel with these modules.
///
/// # Errors
///
/// When a build or a guest fails, or the output of a guest or of the plugin is not as expected.
pub fn run(
    cache: &Cache,
    kernel: &Kernel,
    files: &[PathBuf],
    programs: &[(String, PathBuf)],
) -> Result<Observed> {
    let plugin = plugin::build(cache, "bench-plugin")?;
    let mark = mark(cache)?;
    let observe = |processors: u32| -> Result<Windows> {
        let name = format!("bench/windows-{}-{processors}", kernel.kind);
        let dir = cache.build().join(&name);
        let report = cache.build().join(format!("{name}.report"));
        let options = format!("{},out={},{TEXT}", plugin.display(), report.display());
        let mut guest = Guest::new(kernel, files)?
            .observed(processors, &options)
            .append("kunit.enable=0")
            .program("mark", &mark)?
            .timeout(Duration::from_secs(900));
        for (name, path) in programs {
            guest = guest.program(name, path)?;
        }
        let command =
            format!("sleep 10; auxe2e bench windows --times {TIMES} && cp /proc/kallsyms /out");
        let outcome = guest.run(cache, &dir, &command, |_| {})?;
        if let Some(fault) = outcome.faults().first() {
            return Err(Error::Other(format!("{}: {}", fault.name, fault.reason)));
        }
        let symbols = outcome.files.join("kallsyms");
        let symbols = Symbols::parse(&fs::read_to_string(&symbols).on("read", &symbols)?);
        let text = fs::read_to_string(&report).on("read", &report)?;
        let cpus = usize::try_from(processors).unwrap_or(CPUS);
        Windows::parse(&outcome.said, &text, &symbols, cpus).map_err(|why| {
            Error::Other(format!(
                "{why}: the report is {}, what the guest said {}",
                report.display(),
                dir.join("said.log").display()
            ))
        })
    };

    let progress = Progress::begin(&format!(
        "counting by function and by line in the {} kernel",
        kernel.kind
    ));
    let observed = Observed {
        calls: observe(1)?,
        lines: observe(2)?,
    };
    progress.end("done");
    Ok(observed)
}

/// Builds the program that opens and closes a window of the plugin.
///
/// # Errors
///
/// When it does not compile.
pub fn mark(cache: &Cache) -> Result<PathBuf> {
    let log = Log::create(&cache.build().join("bench/mark.log"))?;
    let path = cache.build().join("bench/mark");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o"])
        .arg(&path)
        .arg(cache.checkout().join("tools/bench/mark.c"));
    log.run("building mark", &mut gcc)?;
    Ok(path)
}

/// The functions of a kernel and its modules.
#[derive(Debug, Default)]
pub struct Symbols(Vec<(u64, Function)>);

/// A function, and its module if it is in one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Function {
    name: String,
    module: Option<String>,
    /// Whether it is in Rust, or a C helper by which Rust code calls an inline function of C.
    rust: bool,
}

impl Symbols {
    /// Parses `/proc/kallsyms`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut all: Vec<(u64, Function)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let at = u64::from_str_radix(words.next()?, 16).ok()?;
                let kind = words.next()?;
                let name = words.next()?;
                let rust = name.starts_with("_R") || name.starts_with("rust_helper_");
                let module = words.next().map(|m| m.trim_matches(['[', ']']).to_owned());
                kind.eq_ignore_ascii_case("t").then(|| {
                    let name = format!("{:#}", rustc_demangle::demangle(name));
                    (at, Function { name, module, rust })
                })
            })
            .collect();
        // Keeps the first of several names of an address.
        all.sort_by_key(|(at, _)| *at);
        all.dedup_by_key(|(at, _)| *at);
        Self(all)
    }

    fn find(&self, at: u64) -> Option<&Function> {
        let after = self.0.partition_point(|(start, _)| *start <= at);
        self.0.get(after.checked_sub(1)?).map(|(_, f)| f)
    }
}

/// The maximum number of CPUs of a guest.
const CPUS: usize = 2;

/// A cache line: the functions that write it on each CPU.
type SharedLine = [BTreeSet<String>; CPUS];

/// The instructions and writes in a window, in which the events of one PMU run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Window {
    /// Instructions of the first CPU, by function.
    functions: HashMap<Function, u64>,
    /// The cache lines that are written, by number.
    writes: BTreeMap<u64, SharedLine>,
}

impl Window {
    /// Lines that both CPUs write.
    fn shared(&self) -> impl Iterator<Item = &SharedLine> {
        let both = |line: &&SharedLine| line.iter().all(|by| !by.is_empty());
        self.writes.values().filter(both)
    }

    /// Instructions of a call in this function.
    fn of(&self, function: &Function) -> u64 {
        self.functions.get(function).copied().unwrap_or(0) / u64::from(TIMES)
    }

    fn total(&self) -> u64 {
        self.functions.values().sum::<u64>() / u64::from(TIMES)
    }

    /// Instructions of a call in the code of modules.
    fn in_modules(&self) -> u64 {
        let modules = self.functions.iter().filter(|(f, _)| f.module.is_some());
        modules.map(|(_, n)| n).sum::<u64>() / u64::from(TIMES)
    }
}

/// All windows of a guest, by PMU and kind of work.
#[derive(Debug, PartialEq, Eq)]
struct Windows(BTreeMap<(String, String), Window>);

impl Windows {
    /// Parses the guest's output and the plugin's report.
    fn parse(said: &str, report: &str, symbols: &Symbols, cpus: usize) -> Result<Self, String> {
        let names: Vec<(&str, &str)> = said
            .lines()
            .filter_map(|line| line.strip_prefix("window ")?.trim().split_once(' '))
            .collect();
        let mut windows = BTreeMap::new();
        let mut names = names.into_iter();
        let mut open: Option<((&str, &str), Window)> = None;
        for line in report.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match (words.as_slice(), &mut open) {
                (["window", _], None) => {
                    let name = names.next().ok_or("the plugin saw more windows")?;
                    open = Some((name, Window::default()));
                }
                (["end", _], Some(_)) => {
                    let closed = open.take().map(|((pmu, work), window)| {
                        windows.insert((pmu.to_owned(), work.to_owned()), window)
                    });
                    if closed.flatten().is_some() {
                        return Err("two windows have one name".to_owned());
                    }
                }
                (words, Some(((pmu, _), window))) => window
                    .take(words, pmu, symbols)
                    .ok_or_else(|| format!("the plugin said {line:?}"))?,
                (_, None) => return Err(format!("the plugin said {line:?}")),
            }
        }
        if open.is_some() || names.next().is_some() {
            return Err("the plugin saw fewer windows".to_owned());
        }
        let windows = Self(windows);
        windows.check(cpus)?;
        Ok(windows)
    }

    fn get(&self, pmu: &str, work: &str) -> Option<&Window> {
        self.0.get(&(pmu.to_owned(), work.to_owned()))
    }

    fn of<'a>(&'a self, pmu: &'a str) -> impl Iterator<Item = (&'a str, &'a Window)> {
        let all = self.0.iter();
        all.filter_map(move |((name, work), w)| (name == pmu).then_some((work.as_str(), w)))
    }

    /// Checks that the plugin has seen each kind of work on each CPU. Otherwise it would also see no shared line.
    fn check(&self, cpus: usize) -> Result<(), String> {
        for (pmu, _) in TWINS.into_iter().flatten() {
            for work in WORK {
                let window = self.get(pmu, work);
                let wrote = |cpu: usize| {
                    let mut writes = window.iter().flat_map(|w| w.writes.values());
                    writes.any(|by| !by[cpu].is_empty())
                };
                if !(0..cpus).all(wrote)
                    || window.is_none_or(|w| w.in_modules() == 0 && work != "trace")
                {
                    return Err(format!("{pmu} did nothing on one CPU in window {work}"));
                }
            }
        }
        Ok(())
    }
}

/// The results on a kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct Observed {
    /// Those of the guest with one CPU.
    calls: Windows,
    /// Those of the guest with two CPUs.
    lines: Windows,
}

impl Observed {
    /// The figures: how many lines are shared, and how many instructions are in modules.
    #[must_use]
    pub fn figures(&self, kernel: &str) -> Vec<Figure> {
        let mut figures = Vec::new();
        for twins in TWINS {
            for (place, (pmu, _)) in twins.into_iter().enumerate() {
                let name = |what: &str| format!("driver.{kernel}.{pmu}.{what}");
                let lines = self.lines.of(pmu).map(|(_, w)| w.shared().count()).max();
                let lines = u64::try_from(lines.unwrap_or(0)).unwrap_or(u64::MAX);
                let lines = Figure::count(name("shared-lines"), lines, "lines");
                // The drivers in C are only for comparison, so they have no target.
                figures.push(if place == 0 { lines.at_most(0) } else { lines });
                for work in ["restart", "toggle"] {
                    let count = self.calls.get(pmu, work).map_or(0, Window::in_modules);
                    let name = name(&format!("{work}.in-modules"));
                    figures.push(Figure::count(name, count, "instructions"));
                }
            }
        }
        figures
    }

    /// A table for each call: the functions in which our driver and the one in C differ. They are sorted by how many more instructions ours
    /// needs, the most first.
    #[must_use]
    pub fn functions(&self) -> String {
        let mut text = String::new();
        for work in ["restart", "toggle"] {
            for [(ours, _), (c, _)] in TWINS {
                let (Some(a), Some(b)) = (self.calls.get(ours, work), self.calls.get(c, work))
                else {
                    continue;
                };
                let _ = writeln!(
                    text,
                    "\n## {work}: {ours} {}, {c} {}\n\n| function | module | {ours} | {c} | more |\n|---|---|---:|---:|---:|",
                    a.total(),
                    b.total()
                );
                let all: BTreeSet<&Function> =
                    a.functions.keys().chain(b.functions.keys()).collect();
                let mut rows: Vec<(i64, &Function, u64, u64)> = all
                    .into_iter()
                    .map(|f| {
                        let (x, y) = (a.of(f), b.of(f));
                        let signed = |n| i64::try_from(n).unwrap_or(i64::MAX);
                        (signed(x) - signed(y), f, x, y)
                    })
                    .filter(|(more, ..)| more.unsigned_abs() > NOISE)
                    .collect();
                rows.sort_by(|x, y| y.0.cmp(&x.0).then(x.1.cmp(y.1)));
                for (more, f, x, y) in rows {
                    let module = f.module.as_deref().unwrap_or("");
                    let _ = writeln!(text, "| `{}` | {module} | {x} | {y} | {more:+} |", f.name);
                }
            }
        }
        text
    }

    /// The lines that both CPUs write, and the functions that write them.
    #[must_use]
    pub fn shared(&self) -> Vec<String> {
        let mut lines = BTreeSet::new();
        for (pmu, _) in TWINS.into_iter().flatten() {
            for (work, window) in self.lines.of(pmu) {
                for by in window.shared() {
                    let names = |by: &BTreeSet<String>| {
                        by.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
                    };
                    lines.insert(format!(
                        "{pmu}, {work}: a line that CPU 0 writes in {} and CPU 1 in {}",
                        names(&by[0]),
                        names(&by[1])
                    ));
                }
            }
        }
        lines.into_iter().collect()
    }

    /// Writes the tables into a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn save(&self, path: &Path, kernel: &str) -> Result<()> {
        let shared = self.shared();
        let mut text = format!("# Instructions by function, {kernel} kernel\n");
        text += &self.functions();
        text += "\n## Lines that both CPUs write\n\n";
        for line in &shared {
            let _ = writeln!(text, "- {line}");
        }
        if shared.is_empty() {
            text += "None.\n";
        }
        fs::write(path, text).on("write", path)
    }
}

impl Window {
    /// Takes a line of the report, as words.
    fn take(&mut self, words: &[&str], pmu: &str, symbols: &Symbols) -> Option<()> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let at = |text: &str| hex(text).map(|at| symbols.find(at));
        match words {
            ["block", place, instructions, cpu, times] => {
                let count = instructions.parse::<u64>().ok()? * times.parse::<u64>().ok()?;
                if let (Some(function), true) = (at(place)?, *cpu == "0") {
                    *self.functions.entry(function.clone()).or_default() += count;
                }
            }
            ["write", line, cpu, place, _] => {
                let by = self.writes.entry(hex(line)?).or_default();
                let by = by.get_mut(cpu.parse::<usize>().ok()?)?;
                if let Some(function) = at(place)?.filter(|f| f.is_of(pmu)) {
                    by.insert(function.name.clone());
                }
            }
            _ => return None,
        }
        Some(())
    }
}

impl Function {
    /// Whether the function belongs to the framework, to the driver with this PMU, or to the kernel's Rust code, which only these use.
    fn is_of(&self, pmu: &str) -> bool {
        let driver = TWINS.iter().flatten().find(|(name, _)| *name == pmu);
        let module = self.module.as_deref();
        module.is_none() && self.rust
            || module == Some("rust_perf")
            || driver.is_some_and(|(_, name)| module == Some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "ffffffff81000000 T perf_aux_output_begin\nffffffff81000800 T rust_helper_atomic_add\nffffffffa0000000 t c_minimal_start\t[c_minimal]\n\
        ffffffffa0000100 t c_pattern_start [c_pattern]\nffffffffa0001000 t _RNvNtC4perf3aux5begin [rust_perf]\nffffffffa0001000 t again [rust_perf]\n\
        ffffffffa0001100 b data [rust_perf]\nffffffffa0002000 t other [virtio_net]\n";

    fn parse(report: &str, said: &str) -> Result<Observed, String> {
        let parse = || Windows::parse(said, report, &Symbols::parse(KALLSYMS), CPUS);
        Ok(Observed {
            calls: parse()?,
            lines: parse()?,
        })
    }

    /// A report without errors, and the guest's output.
    fn good() -> (String, String) {
        let (mut report, mut said) = (String::new(), String::new());
        let mut number = 0;
        for work in WORK {
            for (pmu, _) in TWINS.into_iter().flatten() {
                number += 1;
                let at = match pmu {
                    "c_minimal" => "ffffffffa0000010",
                    "c_pattern" => "ffffffffa0000110",
                    _ => "ffffffffa0001010",
                };
                let line = number * 0x1000;
                let _ = write!(
                    report,
                    "window {number}\nblock ffffffff81000010 5 0 4000\nblock {at} 3 1 9\nblock {at} 10 0 8000\n\
                    write {line:x} 0 {at} 1\nwrite {:x} 1 {at} 1\nend {number}\n",
                    line + 64
                );
                let _ = writeln!(said, "window {pmu} {work}");
            }
        }
        (report, said)
    }

    #[test]
    fn instructions_are_those_of_the_first_cpu() {
        let (report, said) = good();
        let windows = parse(&report, &said).unwrap();
        let window = windows.calls.get("minimal", "restart").unwrap();
        assert_eq!((window.total(), window.in_modules()), (25, 20));
        let text = windows.functions();
        assert!(
            text.contains("## restart: minimal 25, c_minimal 25"),
            "{text}"
        );
        assert!(
            text.contains("| `perf::aux::begin` | rust_perf | 20 | 0 | +20 |\n| `c_minimal_start` | c_minimal | 0 | 20 | -20 |"),
            "{text}"
        );
        // Both execute the same number of instructions there.
        assert!(!text.contains("perf_aux_output_begin"), "{text}");
    }

    #[test]
    fn a_line_that_both_write_is_shared() {
        let (report, said) = good();
        let windows = parse(&report, &said).unwrap();
        assert!(windows.shared().is_empty());
        assert!(windows.figures("lean").iter().all(|f| !f.is_missed()));

        // Both CPUs write a line in the framework.
        let shared = report.replace(
            "end 1\n",
            "write 40 0 ffffffffa0001020 1\nwrite 40 1 ffffffffa0001030 1\nend 1\n",
        );
        let windows = parse(&shared, &said).unwrap();
        assert_eq!(
            windows.shared(),
            ["minimal, restart: a line that CPU 0 writes in perf::aux::begin and CPU 1 in perf::aux::begin"]
        );
        let missed: Vec<String> = windows
            .figures("lean")
            .iter()
            .filter(|f| f.is_missed())
            .filter_map(Figure::verdict)
            .collect();
        assert_eq!(
            missed,
            ["missed: driver.lean.minimal.shared-lines 1 lines (target: <= 0)"]
        );

        // Writes of another module or of perf's core do not count. Those of a helper do.
        for (at, count) in [
            ("ffffffffa0002020", 0),
            ("ffffffff81000020", 0),
            ("ffffffff81000820", 1),
        ] {
            let others = shared.replace("ffffffffa0001020", at);
            assert_eq!(parse(&others, &said).unwrap().shared().len(), count, "{at}");
        }
    }

    #[test]
    fn what_lacks_something_is_refused() {
        let (report, said) = good();
        assert!(parse(&report, &said).is_ok());
        let (first, rest) = said.split_once('\n').unwrap();
        assert!(parse(&report, rest).is_err());
        assert!(parse(&report, &format!("{said}{first}\n")).is_err());
        for (what, with) in [
            ("end 12\n", ""),
            ("window 2\n", ""),
            ("block", "black"),
            // One CPU has written nothing.
            ("write 1040 1 ffffffffa0001010 1\n", ""),
            ("write 1040 1", "write 1040 2"),
        ] {
            assert!(report.contains(what));
            assert!(parse(&report.replace(what, with), &said).is_err(), "{what}");
        }
    }
}
