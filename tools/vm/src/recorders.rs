// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What recorders cost: the figures of `auxe2e bench record`, `auxrec` beside stock perf, as lines.

/// What was measured of a recorder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Recorder {
    /// Instructions for a MiB of trace: the median of several runs, the least and the most.
    instructions: [u64; 3],
    /// The same of a file that takes everything for nothing.
    beyond: [u64; 3],
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
    /// Instructions of the kernel's copy of a MiB into a file, likewise.
    copy: [u64; 3],
    perf: Recorder,
    auxrec: Recorder,
    /// Instructions of each of auxrec's threads for a MiB, the most first: of one ring, and of two drained by a thread each.
    threads: [Vec<u64>; 2],
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
        let three = |words: &[&str], n| {
            Some([
                number(words, n)?,
                number(words, n + 1)?,
                number(words, n + 2)?,
            ])
        };
        let recorder = |name: &str| {
            let of = |what: &'static str| lines().filter(move |w| w.starts_with(&[name, what]));
            let cost = of("cost").next()?;
            let blind = of("blind").map(|w| three(&w, 2));
            Some(Recorder {
                instructions: three(&cost, 2)?,
                beyond: three(&of("beyond").next()?, 2)?,
                switches: number(&cost, 5)?,
                loss: number(&of("loss").next()?, 2)?,
                blind: blind
                    .collect::<Option<Vec<_>>>()
                    .filter(|b| !b.is_empty())?,
            })
        };
        let threads = |rings: &str| {
            let line = lines().find(|w| w.starts_with(&["threads", rings]))?;
            let costs: Option<Vec<u64>> =
                line.iter().skip(2).map(|word| word.parse().ok()).collect();
            costs.filter(|costs| !costs.is_empty())
        };
        Some(Self {
            threads: [threads("1")?, threads("2")?],
            copy: three(&lines().find(|w| w.starts_with(&["copy"]))?, 1)?,
            perf: recorder("perf")?,
            auxrec: recorder("auxrec")?,
            watermarks: lines()
                .filter(|w| w.starts_with(&["watermark"]))
                .map(|w| three(&w, 1))
                .collect::<Option<Vec<_>>>()
                .filter(|all| !all.is_empty())?,
        })
    }

    /// For people.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let percent = |part: u64, whole: u64| part * 100 / whole.max(1);
        let (perf, auxrec) = (&self.perf, &self.auxrec);
        let mut lines = vec![format!(
            "write() of a MiB from memory to a file: {} instructions ({} to {})",
            self.copy[0], self.copy[1], self.copy[2]
        )];
        for (name, recorder) in [("perf record", perf), ("auxrec", auxrec)] {
            lines.push(format!(
                "{name}: {} instructions a MiB ({} to {}), {} into /dev/null ({} to {}); {}.{:03} context switches a MiB; first loss at {} MiB per 1024^3 instructions",
                recorder.instructions[0],
                recorder.instructions[1],
                recorder.instructions[2],
                recorder.beyond[0],
                recorder.beyond[1],
                recorder.beyond[2],
                recorder.switches / 1000,
                recorder.switches % 1000,
                recorder.loss,
            ));
        }
        lines.push(format!(
            "auxrec has {} % of perf's instructions into /dev/null, and first loses at {} % of its rate",
            percent(auxrec.beyond[0], perf.beyond[0]),
            percent(auxrec.loss, perf.loss),
        ));
        let [one, two] = &self.threads;
        let most = |threads: &[u64]| threads.first().copied().unwrap_or(0);
        // The kernel lets one thread at a time write into a file.
        let file = auxrec.instructions[0].saturating_sub(auxrec.beyond[0]);
        lines.push(format!(
            "one ring: {} instructions a MiB; two rings and a thread for each: {} in the busiest thread, {} in all, {file} of them while no other can write: so at most {} % of the rate of one",
            one.iter().sum::<u64>(),
            most(two),
            two.iter().sum::<u64>(),
            percent(most(one), most(two).max(file)),
        ));
        for [part, cost, loss] in &self.watermarks {
            let cost = match cost {
                0 => "it loses where the others are measured".to_owned(),
                cost => format!("{cost} instructions a MiB"),
            };
            lines.push(format!(
                "auxrec, woken at 1/{part} of an area of 1 MiB: {cost}; first loss at {loss} MiB per 1024^3 instructions"
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

    const SAID: &str = "record copy 1000 990 1010\nrecord perf cost 3000 2900 3100 2500\nrecord auxrec cost 1500 1400 1600 1250\nrecord perf beyond 400 390 410 2500\nrecord auxrec beyond 100 90 110 1250\n\
        record threads 1 1500 20\nrecord threads 2 1000 100 90 20\nrecord perf loss 100\nrecord auxrec loss 200\nrecord watermark 4 1500 200\nrecord perf blind 1024 1024 9000\nrecord auxrec blind 1024 2048 900\n";

    #[test]
    fn figures_are_understood() {
        let lines = Figures::parse(SAID).unwrap().lines();
        for (line, says) in [
            (0, "1000 instructions"),
            (1, "3000 instructions a MiB (2900 to 3100), 400 into /dev/null (390 to 410); 2.500 context"),
            (2, "1500 instructions a MiB (1400 to 1600), 100 into /dev/null (90 to 110); 1.250 context"),
            (3, "25 % of perf's instructions into /dev/null, and first loses at 200 %"),
            (4, "one ring: 1520 instructions a MiB; two rings and a thread for each: 1000 in the busiest thread, 1210 in all, 1400 of them while no other can write: so at most 107 %"),
            (5, "1/4 of an area of 1 MiB: 1500 instructions a MiB; first loss at 200"),
            (6, "1024 KiB of 2048: nothing is traced for 9000 instructions with perf, 900 with auxrec, 10 %"),
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
