// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recordings of `pattern`, and the results that they must have.

use anyhow::{ensure, Context, Result};

use super::{event, released, Seen, PAGE};
use crate::module;
use crate::recording::{Reader, Recorder, TraceFile};

/// How a recording is made, and the results that it must have.
pub(super) struct Trace {
    /// Terms of the event.
    pub(super) terms: &'static str,
    /// Pages of the AUX ring.
    pub(super) ring: u64,
    /// The target, as arguments of the recorder.
    pub(super) target: &'static [&'static str],
    pub(super) workload: &'static str,
    pub(super) reader: Reader,
    /// Whether the ring is mapped read-only, for overwrite mode.
    pub(super) overwrite: bool,
    /// How often the rings must wrap at least, as a sum over all CPUs.
    pub(super) wraps: u64,
    /// Whether the rings must get full.
    pub(super) full: bool,
    /// How many CPUs must have trace, at least.
    pub(super) cpus: usize,
    /// How many streams the trace must have, at least.
    pub(super) streams: usize,
}

/// The settings that most recordings have in common.
///
/// A ring holds 128 ms of trace. A busy machine may withhold the processor from the guest for a while, and that must not fail a reader that
/// keeps up.
pub(super) const TRACE: Trace = Trace {
    terms: "rate=512",
    ring: 16,
    target: &["-C", "0"],
    workload: "sleep",
    reader: Reader::KeepsUp,
    overwrite: false,
    wraps: 10,
    full: false,
    cpus: 1,
    streams: 1,
};

impl Trace {
    /// Makes the recording. If the ring got full although the reader should keep up, tries again with a slower unit: the machine was busy.
    pub(super) fn run(&self, name: &str) -> Result<String> {
        let mut terms = self.terms.to_owned();
        loop {
            let seen = self.record(name, &terms)?;
            if self.full || seen.truncations == 0 {
                return Ok(seen.to_string());
            }
            terms = slower(&terms)
                .with_context(|| format!("a reader that keeps up found the ring full: {seen}"))?;
        }
    }

    /// Records until the file has enough trace.
    fn record(&self, name: &str, terms: &str) -> Result<Seen> {
        let file = TraceFile::new(name);
        // The debug kernel checks each memory access, which leaves the reader less time.
        let (ring, wraps) = match module::is_debug_kernel() && !self.full {
            true => (4 * self.ring, self.wraps / 4),
            false => (self.ring, self.wraps),
        };
        let mut arguments = event(terms, ring);
        arguments.extend(self.target.iter().map(ToString::to_string));
        if self.overwrite {
            arguments.extend(["-S".into(), "e".into()]);
        }
        arguments.push("--".into());
        arguments.extend(["auxe2e", "workload", self.workload].map(String::from));
        if self.overwrite {
            // In overwrite mode, the recorder writes the rings to the file only at the end.
            arguments.extend(["--ms".into(), "900".into()]);
        } else {
            let cpus = u64::try_from(self.cpus)?;
            // Each ring may be in the middle of its next wrap.
            let bytes = (wraps + 1) * ring * PAGE * cpus;
            arguments.extend([
                "--trace".into(),
                file.path().display().to_string(),
                bytes.to_string(),
            ]);
        }

        let ended = Recorder::start(file.path(), &arguments)?.wait(self.reader)?;
        let seen = Seen::of(&file)?;

        seen.is_right()?;
        ensure!(
            seen.wraps >= wraps,
            "the rings went round {} times only: {seen}",
            seen.wraps
        );
        ensure!(
            seen.cpus.len() >= self.cpus,
            "trace of CPUs {:?} only: {seen}",
            seen.cpus
        );
        ensure!(
            seen.content.streams >= u64::try_from(self.streams)?,
            "too few streams: {seen}"
        );
        if self.full {
            ensure!(
                seen.truncations > 1,
                "the ring was not full, and then enabled again: {seen}"
            );
        } else if seen.truncations == 0 {
            ensure!(
                seen.content.lost == 0,
                "bytes are lost, though the ring was never full: {seen}"
            );
        }
        if self.overwrite {
            let max = ring * PAGE * u64::try_from(seen.cpus.len())?;
            ensure!(
                seen.content.recorded <= max,
                "more in the file than the rings hold: {seen}"
            );
        }
        let lost = seen.content.lost > 0;
        let expected = if lost || self.full { 3 } else { 0 };
        ensure!(
            ended.status == expected,
            "auxrec record: exit status {}: {}",
            ended.status,
            ended.errors
        );
        released()?;

        Ok(seen)
    }
}

/// The terms with a quarter of the rate, which must be the first term. [`None`] if the test would take too long with it.
fn slower(terms: &str) -> Option<String> {
    let (rate, rest) = match terms.split_once(',') {
        Some((rate, rest)) => (rate, format!(",{rest}")),
        None => (terms, String::new()),
    };
    let rate: u32 = rate.strip_prefix("rate=")?.parse().ok()?;

    (rate >= 64).then(|| format!("rate={}{rest}", rate / 4))
}

#[cfg(test)]
mod tests {
    use super::slower;

    #[test]
    fn a_rate_is_reduced_and_other_terms_stay() {
        let table = [
            ("rate=16384,packet=32", Some("rate=4096,packet=32")),
            ("rate=512", Some("rate=128")),
            ("rate=64,sink=1", Some("rate=16,sink=1")),
            ("rate=63", None),
            ("packet=3,rate=512", None),
            ("", None),
        ];
        for (terms, want) in table {
            assert_eq!(slower(terms).as_deref(), want, "{terms}");
        }
    }
}
