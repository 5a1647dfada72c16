// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The intended differences between a recording of auxrec and one of perf on the same machine.

use std::collections::BTreeSet;

use super::fields::Fields;

/// The name of a field, its value in perf's file, its value in ours, and the reason. A value is "" if the field is missing. A `*` at the
/// end of a name or value stands for any text.
type Difference = (&'static str, &'static str, &'static str, &'static str);

/// All intended differences.
#[rustfmt::skip]
const INTENDED: &[Difference] = &[
    // What read() of an event returns. The times show whether a CPU was offline. LOST records count the lost samples.
    ("unit.read_format.LOST", "0x1", "", "LOST records say it"),
    ("tracking.read_format.LOST", "0x1", "", "LOST records say it"),
    ("unit.read_format.TOTAL_TIME_*", "", "0x1", "reports the time of a CPU that was offline"),
    ("tracking.read_format.TOTAL_TIME_*", "", "0x1", "reports the time of a CPU that was offline"),
    ("unit.aux_watermark", "", "0x7000", "7/16 of the area; the kernel's default is a half"),
    // All records of auxrec have the same format, also in the recording of a thread.
    ("unit.sample_type.TIME", "", "0x1", "the recorder sorts records by it"),
    ("unit.sample_type.CPU", "", "0x1", "all records have one form"),
    ("tracking.sample_type.TIME", "", "0x1", "the recorder sorts records by it"),
    ("tracking.sample_type.CPU", "", "0x1", "all records have one form"),
    ("unit.config", "", "0x1", "records have a time, from which perf's decoder of SPE concludes that the trace has times"),
    ("tracking.flags.NAMESPACES", "", "0x1", "for programs in containers"),
    ("tracking.flags.TEXT_POKE", "", "0x1", "for a trace of the kernel"),
    ("tracking.flags.CONTEXT_SWITCH", "", "0x1", "perf leaves it out for PTT"),
    ("tracking.flags.DISABLED", "", "0x1", "the recorder enables it before it reads /proc"),
    ("tracking.flags.ENABLE_ON_EXEC", "", "0x1", "nothing of the command is recorded before its exec"),
    ("tracking.flags.EXCLUDE_GUEST", "0x1", "", "it counts nothing"),
    ("tracking.flags.KSYMBOL", "", "0x1", "perf has a second tracking event for it, on all CPUs"),
    ("tracking2.*", "*", "", "the first one has these flags"),
    ("record.CPU_MAP", "there", "", "no decoder reads it"),
    ("record.THREAD_MAP", "there", "", "no decoder reads it"),
    ("record.EVENT_UPDATE", "there", "", "no decoder reads it"),
    ("pmu.cpu", "4", "", "perf's own"),
    ("pmu.tool", "4294967294", "", "perf's own"),
    ("feature.TOTAL_MEM", "there", "", "no decoder reads it"),
    ("feature.AUXTRACE", "there", "", "nothing was traced: there is nothing to list"),
    ("feature.SAMPLE_TIME", "there", "", "nothing was traced: there is no time"),
    ("feature.20", "there", "", "CACHE: no decoder reads it"),
    ("feature.25", "there", "", "BPF_PROG_INFO: no decoder reads it"),
    ("feature.26", "there", "", "BPF_BTF: no decoder reads it"),
    ("feature.28", "there", "", "CPU_PMU_CAPS: no decoder reads it"),
    ("feature.31", "there", "", "PMU_CAPS: AUXTRACE_INFO has those that decoders read"),
    ("feature.33", "there", "", "E_MACHINE: ARCH says it"),
    ("feature.34", "there", "", "CLN_SIZE: no decoder reads it"),
    ("feature.NOTES", "", "there", "the recorder's own"),
];

/// The differences that are not intended, and the indices of the intended ones that were found.
pub(super) fn find(perf: &Fields, ours: &Fields) -> (Vec<String>, BTreeSet<usize>) {
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    let fields: BTreeSet<_> = perf.keys().chain(ours.keys()).collect();
    for field in fields {
        let value = |of: &Fields| of.get(field).cloned().unwrap_or_default();
        let (theirs, ours) = (value(perf), value(ours));
        if theirs == ours {
            continue;
        }
        let is_this = |(name, of_perf, of_ours, _): &Difference| {
            let is = |pattern: &str, text: &str| match pattern.strip_suffix('*') {
                Some(start) => text.starts_with(start),
                None => pattern == text,
            };
            is(name, field) && is(of_perf, &theirs) && is(of_ours, &ours)
        };
        match INTENDED.iter().position(is_this) {
            Some(number) => {
                seen.insert(number);
            }
            None => wrong.push(format!("{field}: perf \"{theirs}\", auxrec \"{ours}\"")),
        }
    }
    (wrong, seen)
}

/// The intended differences that were never found: they no longer exist.
pub(super) fn stale(seen: &BTreeSet<usize>) -> Vec<String> {
    let all = INTENDED.iter().enumerate();
    all.filter(|(number, _)| !seen.contains(number))
        .map(|(_, (name, perf, ours, _))| format!("{name}: perf \"{perf}\", auxrec \"{ours}\""))
        .collect()
}
