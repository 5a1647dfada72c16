// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What recorders cost: the figures of `auxe2e bench record`, `auxrec` beside stock perf, as lines.

/// What was measured of a recorder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Recorder {
    /// Instructions for a MiB of trace.
    instructions: u64,
    /// Context switches for 1000 MiB.
    switches: u64,
    /// MiB per 2^30 instructions at which it first loses.
    loss: u64,
    /// KiB of a snapshot and of the area, and instructions without trace for it.
    blind: Vec<[u64; 3]>,
}

/// All that was measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// Instructions of the kernel's copy of a MiB into a file.
    copy: u64,
    perf: Recorder,
    auxrec: Recorder,
    /// Of watermarks: the part of the area, instructions for a MiB, and at how many MiB per 2^30 instructions it first loses.
    watermarks: Vec<[u64; 3]>,
}

impl Figures {
    /// From what the guest said; [`None`] if a figure is missing.
    #[must_use]
    pub fn parse(said: &str) -> Option<Self> {
        let lines = || {
            said.lines()
                .filter_map(|line| line.strip_prefix("record "))
                .map(|line| line.split_whitespace().collect::<Vec<_>>())
        };
        let number = |words: &[&str], n: usize| words.get(n)?.parse::<u64>().ok();
        let recorder = |name: &str| {
            let of = |what: &'static str| lines().filter(move |w| w.starts_with(&[name, what]));
            let cost = of("cost").next()?;
            let blind = of("blind").map(|w| Some([number(&w, 2)?, number(&w, 3)?, number(&w, 4)?]));
            Some(Recorder {
                instructions: number(&cost, 2)?,
                switches: number(&cost, 3)?,
                loss: number(&of("loss").next()?, 2)?,
                blind: blind
                    .collect::<Option<Vec<_>>>()
                    .filter(|b| !b.is_empty())?,
            })
        };
        Some(Self {
            copy: number(&lines().find(|w| w.starts_with(&["copy"]))?, 1)?,
            perf: recorder("perf")?,
            auxrec: recorder("auxrec")?,
            watermarks: lines()
                .filter(|w| w.starts_with(&["watermark"]))
                .map(|w| Some([number(&w, 1)?, number(&w, 2)?, number(&w, 3)?]))
                .collect::<Option<Vec<_>>>()
                .filter(|all| !all.is_empty())?,
        })
    }

    /// For people.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let percent = |part: u64, whole: u64| part * 100 / whole.max(1);
        let beyond = |recorder: &Recorder| recorder.instructions.saturating_sub(self.copy);
        let (perf, auxrec) = (&self.perf, &self.auxrec);
        let mut lines = vec![format!(
            "write() of a MiB from memory to a file: {} instructions",
            self.copy
        )];
        for (name, recorder) in [("perf record", perf), ("auxrec", auxrec)] {
            lines.push(format!(
                "{name}: {} instructions a MiB, {} beyond that copy; {}.{:03} context switches a MiB; first loss at {} MiB per 1024^3 instructions",
                recorder.instructions,
                beyond(recorder),
                recorder.switches / 1000,
                recorder.switches % 1000,
                recorder.loss,
            ));
        }
        lines.push(format!(
            "auxrec has {} % of perf's instructions beyond the copy, and first loses at {} % of its rate",
            percent(beyond(auxrec), beyond(perf)),
            percent(auxrec.loss, perf.loss),
        ));
        for [part, cost, loss] in &self.watermarks {
            lines.push(format!(
                "auxrec, woken at 1/{part} of an area of 1 MiB: {cost} instructions a MiB; first loss at {loss} MiB per 1024^3 instructions"
            ));
        }
        for [size, area, ours] in &auxrec.blind {
            let Some([.., theirs]) = perf.blind.iter().find(|[other, ..]| other == size) else {
                continue;
            };
            lines.push(format!(
                "snapshot of {size} KiB of {area}: nothing is traced for {theirs} instructions with perf, {ours} with auxrec, {} %",
                percent(*ours, *theirs),
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "record copy 1000\nrecord perf cost 3000 2500\nrecord auxrec cost 1500 1250\n\
        record perf loss 100\nrecord auxrec loss 200\nrecord watermark 4 1500 200\nrecord perf blind 1024 1024 9000\nrecord auxrec blind 1024 2048 900\n";

    #[test]
    fn figures_are_understood() {
        let lines = Figures::parse(SAID).unwrap().lines();
        for (line, says) in [
            (0, "1000 instructions"),
            (1, "3000 instructions a MiB, 2000 beyond that copy; 2.500 context"),
            (2, "1500 instructions a MiB, 500 beyond that copy; 1.250 context"),
            (3, "25 % of perf's instructions beyond the copy, and first loses at 200 %"),
            (4, "1/4 of an area of 1 MiB: 1500 instructions a MiB; first loss at 200"),
            (5, "1024 KiB of 2048: nothing is traced for 9000 instructions with perf, 900 with auxrec, 10 %"),
        ] {
            assert!(lines[line].contains(says), "{}", lines[line]);
        }
    }

    #[test]
    fn a_missing_figure_is_noticed() {
        for line in SAID.lines() {
            assert_eq!(Figures::parse(&SAID.replace(line, "")), None, "{line}");
        }
    }
}
