// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The description of a recording for perf's decoders: AUXTRACE_INFO.
//!
//! The words are those that perf writes: see `info_fill` of each decoder in a file in `arch/*/util`. `make golden` compares them with
//! perf's on described machines. They are not verified on hardware, and [`notes`] warns the user about that.

use std::fs;
use std::path::PathBuf;

use perfdata::auxtrace::{ARM_SPE, CS_ETM, HISI_PTT, INTEL_BTS, INTEL_PT};
use perfdata::TimeConv;

use crate::error::Result;
use crate::pmu::{EventSpec, Format, Pmu};
use crate::session::{Mode, Plan};

mod coresight;
mod intel_pt;

/// `ARM_SPE_HEADER_CURRENT_VERSION`.
const SPE_VERSION: u64 = 2;
/// Words in front of those of CPUs: `ARM_SPE_AUXTRACE_PRIV_MAX`.
const SPE_WORDS: u64 = 4;
/// `ARM_SPE_CPU_MAGIC`.
const SPE_CPU: u64 = 0x1010_1010_1010_1010;
/// Words of a CPU behind their number: from `ARM_SPE_CPU_MIDR` on.
const SPE_CPU_WORDS: u64 = 4;

/// The AUXTRACE_INFO record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Info {
    /// The decoder.
    pub kind: u32,
    /// The decoder's own words.
    pub words: Vec<u64>,
}

/// The machine's CPUs.
#[derive(Debug)]
pub(crate) struct Cpus {
    /// The CPUs that are online.
    pub online: Vec<u32>,
    /// The directory of sysfs that describes them.
    pub dir: PathBuf,
}

impl Cpus {
    pub fn new(online: &[u32]) -> Self {
        Self {
            online: online.to_vec(),
            dir: "/sys/devices/system/cpu".into(),
        }
    }

    /// The online CPUs that a plan records: all, if rings follow threads.
    fn recorded(&self, plan: &Plan) -> Vec<u32> {
        let is_recorded = |cpu: &u32| plan.cpus.as_ref().is_none_or(|some| some.contains(cpu));
        self.online.iter().copied().filter(is_recorded).collect()
    }

    /// The identification of an Arm CPU.
    fn midr(&self, cpu: u32) -> Option<u64> {
        let file = format!("cpu{cpu}/regs/identification/midr_el1");
        number(&fs::read_to_string(self.dir.join(file)).ok()?, 16)
    }
}

/// A number as C's `strtoul()` reads it.
fn number(text: &str, radix: u32) -> Option<u64> {
    let text = text.trim();
    let digits = match radix {
        16 => text.strip_prefix("0x").unwrap_or(text),
        _ => text,
    };
    u64::from_str_radix(digits, radix).ok()
}

/// The first event whose trace perf can decode, and the trace's format.
fn decoded(plan: &Plan) -> Option<(&EventSpec, Format)> {
    let format = plan.format()?;
    let mut events = plan.events.iter().map(|(event, _)| event);
    Some((
        events.find(|event| event.pmu.format() == Some(format))?,
        format,
    ))
}

/// Checks that the trace units of the recorded CPUs can do what the event asks for. perf checks the same before it records.
///
/// # Errors
/// If a unit cannot, or a CPU has no unit.
pub(crate) fn check(plan: &Plan, cpus: &Cpus) -> Result<()> {
    match decoded(plan) {
        Some((_, Format::CoreSight)) => coresight::check(plan, &cpus.recorded(plan)),
        _ => Ok(()),
    }
}

/// The AUXTRACE_INFO record, if perf has a decoder for the trace.
pub(crate) fn info(plan: &Plan, clock: &TimeConv, cpus: &Cpus) -> Option<Info> {
    let (event, format) = decoded(plan)?;
    let pmu = &event.pmu;
    let (kind, words) = match format {
        Format::IntelPt => (INTEL_PT, intel_pt::info(plan, clock)?),
        // The decoder divides by the multiplier.
        Format::IntelBts if clock.mult == 0 => return None,
        Format::IntelBts => (INTEL_BTS, intel_bts(pmu, plan, clock)),
        Format::CoreSight => (CS_ETM, coresight::words(event, plan, &cpus.recorded(plan))?),
        Format::ArmSpe => (ARM_SPE, arm_spe(pmu, plan, cpus)),
        Format::HisiPtt => (HISI_PTT, vec![pmu.kind.into()]),
    };
    Some(Info { kind, words })
}

/// `intel_bts_info_fill()`, `arch/x86/util/intel-bts.c`.
fn intel_bts(pmu: &Pmu, plan: &Plan, clock: &TimeConv) -> Vec<u64> {
    vec![
        pmu.kind.into(),
        clock.shift,
        clock.mult,
        clock.zero,
        clock.cap_zero.into(),
        u64::from(plan.mode == Mode::Overwrite),
    ]
}

/// `arm_spe_info_fill()`, `arch/arm64/util/arm-spe.c`.
fn arm_spe(pmu: &Pmu, plan: &Plan, cpus: &Cpus) -> Vec<u64> {
    let wanted = cpus.recorded(plan);
    let cap = |name: &str, radix| pmu.caps.get(name).and_then(|text| number(text, radix));
    let count = u64::try_from(wanted.len()).unwrap_or(0);
    let mut words = vec![SPE_VERSION, SPE_WORDS, pmu.kind.into(), count];
    for cpu in wanted {
        let midr = cpus.midr(cpu).unwrap_or(0);
        words.extend([SPE_CPU, cpu.into(), SPE_CPU_WORDS, midr]);
        words.extend(match pmu.is_on(cpu) {
            true => [
                pmu.kind.into(),
                cap("min_interval", 10).unwrap_or(0),
                cap("event_filter", 16).unwrap_or(0),
            ],
            false => [u64::MAX, 0, 0],
        });
    }
    words
}

/// Notes and warnings for the user about such a recording.
pub(crate) fn notes(plan: &Plan, clock: &TimeConv) -> Vec<String> {
    let Some((EventSpec { pmu, .. }, format)) = decoded(plan) else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    // Software units and tests have this format, too.
    let is_hardware = format != Format::IntelPt || pmu.max_nonturbo_ratio.is_some();
    if is_hardware {
        notes.push(format!(
            "note: {} is not verified on hardware: the file describes the machine as perf does, but auxrec was never tested on one",
            pmu.name
        ));
    }
    if intel_pt::lacks_clock(plan, clock) {
        notes.push(
            "warning: the kernel does not say how the processor's cycle counter becomes perf's clock (TSC not available), so \
             a decoder cannot assign the trace of a CPU to threads: record with --per-thread"
                .to_owned(),
        );
    }
    if format == Format::IntelBts && plan.cpus.is_some() {
        notes.push(format!(
            "warning: perf decodes the trace of {} for threads only: record with --per-thread",
            pmu.name
        ));
    }
    if format == Format::IntelBts && clock.mult == 0 {
        notes.push(format!(
            "warning: the kernel does not say how the processor's cycle counter becomes perf's clock (TSC not available), without \
             which perf cannot decode the trace of {}: the file has no AUXTRACE_INFO record, and `perf script` takes --no-itrace",
            pmu.name
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::*;
    use crate::pmu::{Pmus, Role};

    /// Writes files of sysfs.
    pub(super) fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    pub(super) fn plan(dir: &Path, event: &str, cpus: Option<Vec<u32>>) -> Plan {
        Plan {
            events: vec![(Pmus::at(dir).event(event).unwrap(), Role::Aux)],
            cpus,
            ..Plan::default()
        }
    }

    const CLOCK: TimeConv = TimeConv {
        shift: 31,
        mult: 1_234_567,
        zero: 0xffff_ffff_0000_0000,
        cap_zero: true,
        cycles: 0,
        mask: 0,
        cap_short: false,
    };

    fn no_cpus() -> Cpus {
        Cpus {
            online: Vec::new(),
            dir: PathBuf::new(),
        }
    }

    #[test]
    fn words_of_branch_trace_store() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("intel_bts/type", "12")]);
        let mut plan = plan(dir.path(), "intel_bts//u", None);
        for (mode, snapshots) in [(Mode::Normal, 0), (Mode::Overwrite, 1)] {
            plan.mode = mode;
            let words = vec![12, 31, 1_234_567, 0xffff_ffff_0000_0000, 1, snapshots];
            let found = info(&plan, &CLOCK, &no_cpus());
            assert_eq!(found, Some(Info { kind: 2, words }));
        }
        let [note] = &notes(&plan, &CLOCK)[..] else {
            panic!("{:?}", notes(&plan, &CLOCK))
        };
        assert!(note.contains("intel_bts is not verified on hardware"));
        // perf's own clock, by which its decoder sorts.
        assert!(!plan.has_own_clock());
        // The decoder would divide by 0.
        let none = TimeConv::default();
        assert_eq!(info(&plan, &none, &no_cpus()), None);
        plan.cpus = Some(vec![0]);
        let notes = notes(&plan, &none);
        assert!(
            notes.len() == 3
                && notes[1].contains("--per-thread")
                && notes[2].contains("--no-itrace")
        );
    }

    #[test]
    fn words_of_statistical_profiling() {
        const CPU: u64 = 0x1010_1010_1010_1010;
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[
                ("pmus/arm_spe_0/type", "9"),
                ("pmus/arm_spe_0/cpumask", "0-1"),
                ("pmus/arm_spe_0/format/ts_enable", "config:0"),
                ("pmus/arm_spe_0/format/pa_enable", "config:1"),
                ("pmus/arm_spe_0/caps/min_interval", "256"),
                ("pmus/arm_spe_0/caps/event_filter", "0xfe"),
                (
                    "cpu/cpu0/regs/identification/midr_el1",
                    "0x00000000410fd0c0",
                ),
                (
                    "cpu/cpu1/regs/identification/midr_el1",
                    "0x00000000411fd401",
                ),
                (
                    "cpu/cpu2/regs/identification/midr_el1",
                    "0x00000000410fd034",
                ),
            ],
        );
        let cpus = Cpus {
            online: vec![0, 1, 2],
            dir: dir.path().join("cpu"),
        };
        let of = [
            [CPU, 0, 4, 0x410f_d0c0, 9, 256, 0xfe],
            [CPU, 1, 4, 0x411f_d401, 9, 256, 0xfe],
            // No such unit is on this CPU.
            [CPU, 2, 4, 0x410f_d034, u64::MAX, 0, 0],
        ];
        for (wanted, found) in [
            (None, &of[..]),
            (Some(vec![0, 1, 2, 3]), &of[..]),
            (Some(vec![1, 2]), &of[1..]),
        ] {
            let plan = plan(&dir.path().join("pmus"), "arm_spe_0//u", wanted);
            let count = u64::try_from(found.len()).unwrap();
            let mut words = vec![2, 4, 9, count];
            words.extend(found.iter().flatten());
            let found = info(&plan, &CLOCK, &cpus);
            assert_eq!(found, Some(Info { kind: 4, words }));
            assert!(!plan.has_own_clock() && notes(&plan, &CLOCK).len() == 1);
        }
    }

    #[test]
    fn words_of_the_others() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[("hisi_ptt0_2/type", "17"), ("pattern/type", "4")],
        );
        let ptt = plan(dir.path(), "hisi_ptt0_2//", Some(vec![0]));
        let words = vec![17];
        let found = info(&ptt, &CLOCK, &no_cpus());
        assert_eq!(found, Some(Info { kind: 6, words }));
        assert!(!ptt.has_own_clock() && notes(&ptt, &CLOCK).len() == 1);
        // perf has no decoder for most PMUs.
        let other = plan(dir.path(), "pattern//", Some(vec![0]));
        assert_eq!(info(&other, &CLOCK, &no_cpus()), None);
        assert!(notes(&other, &CLOCK).is_empty() && other.has_own_clock());
    }
}
