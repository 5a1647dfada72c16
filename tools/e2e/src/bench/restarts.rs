// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures interrupts that end a transaction and begin the next one, with the plugin of `tools/bench`.
//!
//! The plugin counts the instructions of each call of the handler. If the handler calls `perf_aux_output_begin()`, the plugin counts the
//! call as a restart.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use auxrec::pmu::Pmus;
use perfdata::{Flags, Read};

use crate::bench::twins::mark;
use crate::events::probe::{bytes, Probe};
use crate::module::{self, counter};
use crate::wait::PATIENCE;

/// A unit to measure, and its interrupt handler.
struct Unit {
    /// The name of its PMU, and of its module.
    name: &'static str,
    /// The name of the measurement window.
    window: &'static str,
    /// The terms of its event.
    terms: &'static str,
    /// Pages of trace for each wakeup.
    pages: usize,
    /// The function in its module that the interrupt enters.
    handler: &'static str,
}

/// A wakeup is due every 16 KiB of trace, and for the last unit every 64 KiB. If the processor copied trace, that would take longer.
/// `pattern` writes 4 KiB at each tick. With `dry=1` it stores nothing, because a device's DMA does not use the processor either.
const UNITS: [Unit; 3] = [
    Unit {
        name: "pattern",
        window: "pattern",
        pages: 4,
        terms: "dry=1,packet=64,burst=1,rate=32768",
        handler: "<perf::aux::cpu::CpuState<pattern::Pattern>>::expired",
    },
    Unit {
        name: "trace_unit",
        window: "trace_unit",
        pages: 4,
        // The pattern is no Intel PT, but its terms are the default.
        terms: "source=1,tsc=0,pt=0,branch=0,rate=200",
        handler: "perf::interrupt::pci::handle::<trace_unit::Handler>",
    },
    Unit {
        name: "trace_unit",
        window: "trace_unit.64KiB",
        pages: 16,
        terms: "source=1,tsc=0,pt=0,branch=0,rate=50",
        handler: "perf::interrupt::pci::handle::<trace_unit::Handler>",
    },
];

/// The function by which a transaction begins.
const BEGIN: &str = "perf_aux_output_begin";

/// Pages of the AUX area.
const PAGES: usize = 512;

/// Restarts each unit `times` times between two marks, and prints the name of the window.
///
/// # Errors
/// If a driver cannot be loaded, a function is not found, a transaction is lost, or a mark cannot be made.
pub fn run(times: u32) -> Result<()> {
    for unit in &UNITS {
        module::load(unit.name)?;
        // A module's addresses are fixed once it is loaded.
        let path = "/proc/kallsyms";
        let symbols = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        let handler = function(&symbols, unit.handler, Some(unit.name))?;
        let begin = function(&symbols, BEGIN, None)?;
        restarts(unit, times.into(), [&handler, &begin])
            .with_context(|| format!("restarts of {}", unit.window))?;
        println!("window {}", unit.window);
    }
    Ok(())
}

fn restarts(unit: &Unit, times: u64, [handler, begin]: [&str; 2]) -> Result<()> {
    let pmus = Pmus::at(Path::new("/sys/bus/event_source/devices"));
    let mut attr = pmus
        .event(&format!("{}/{}/", unit.name, unit.terms))?
        .attr();
    attr.sample_period = 1;
    attr.read_format = Read::FORMAT;
    attr.flags |= Flags::DISABLED;
    attr.aux_watermark = u32::try_from(bytes(unit.pages))?;
    let mut probe = Probe::open(&attr, -1, 0, PAGES, false)?;
    let begins = || counter(unit.name, "begins");
    let before = begins()?;

    mark(&["begin", handler, begin])?;
    probe.event.enable()?;
    let end = Instant::now() + PATIENCE;
    let wanted = before + times;
    // This loop never sleeps, because the clock jumps when the guest is idle.
    while begins()? <= wanted {
        probe.read_trace(u64::MAX)?;
        probe.trace.clear();
        no_loss(&mut probe)?;
        ensure!(
            Instant::now() < end,
            "{} of {times} after {} s",
            begins()?.saturating_sub(before),
            PATIENCE.as_secs()
        );
    }
    probe.event.disable()?;
    mark(&["end"])?;
    no_loss(&mut probe)
}

/// Fails if the area was full: then the handler does not begin a transaction.
fn no_loss(probe: &mut Probe) -> Result<()> {
    probe.read_records()?;
    ensure!(probe.truncations() == 0, "the AUX area was full");
    Ok(())
}

/// The address of a function of the kernel or of a module, from the text of `/proc/kallsyms`.
fn function(symbols: &str, name: &str, module: Option<&str>) -> Result<String> {
    let mut found = symbols.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (at, kind, symbol) = (words.next()?, words.next()?, words.next()?);
        let of = words.next().map(|of| of.trim_matches(['[', ']']));
        let is_it = kind.eq_ignore_ascii_case("t")
            && of == module
            && format!("{:#}", rustc_demangle::demangle(symbol)) == name;
        is_it.then(|| at.to_owned())
    });
    let first = found.next();
    let first = first.with_context(|| format!("/proc/kallsyms has no {name}"))?;
    ensure!(found.next().is_none(), "/proc/kallsyms has two {name}");
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KALLSYMS: &str = "ffffffff81000000 T perf_aux_output_begin\n\
        ffffffff81000100 D jiffies\n\
        ffffffffc0001000 t __pfx__RINvNtNtCs23inMRxywfe_4perf9interrupt3pci6handleNtCseWbyQ3M9qAz_10trace_unit7HandlerEBM_\t[trace_unit]\n\
        ffffffffc0001010 t _RINvNtNtCs23inMRxywfe_4perf9interrupt3pci6handleNtCseWbyQ3M9qAz_10trace_unit7HandlerEBM_\t[trace_unit]\n\
        ffffffffc0001990 t _RNvMs0_NtNtCs23inMRxywfe_4perf3aux3cpuINtB5_8CpuStateNtCseWbyQ3M9qAz_10trace_unit4UnitE7expiredBR_\t[trace_unit]\n\
        ffffffffc0004640 t _RNvMs0_NtNtCs23inMRxywfe_4perf3aux3cpuINtB5_8CpuStateNtCs9qMxxfMz9t1_7pattern7PatternE7expiredBR_\t[pattern]\n";

    #[test]
    fn functions_are_found_by_their_names() {
        let [pattern, trace_unit, _] = &UNITS;
        let find = |unit: &Unit| function(KALLSYMS, unit.handler, Some(unit.name)).unwrap();
        assert_eq!(find(pattern), "ffffffffc0004640");
        assert_eq!(find(trace_unit), "ffffffffc0001010");
        assert_eq!(function(KALLSYMS, BEGIN, None).unwrap(), "ffffffff81000000");
    }

    #[test]
    fn a_function_that_is_not_there_once_is_refused() {
        let [pattern, trace_unit, _] = &UNITS;
        for (name, module) in [
            (BEGIN, Some("pattern")),
            (pattern.handler, Some("trace_unit")),
            (trace_unit.handler, None),
            ("jiffies", None),
        ] {
            assert!(function(KALLSYMS, name, module).is_err(), "{name}");
        }
        let twice = format!("{KALLSYMS}{KALLSYMS}");
        assert!(function(&twice, BEGIN, None).is_err());
    }
}
