// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The costs of recorders, `auxrec` compared with stock perf: the results of `auxe2e bench record`, `parallel` and `starts`.

use crate::results::figures::Figure;

/// `N` numbers, from word `n` on.
fn numbers<const N: usize>(words: &[&str], n: usize) -> Option<[u64; N]> {
    let words = words.get(n..n + N)?.iter();
    let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// The results of one recorder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Recorder {
    /// Instructions for a MiB of trace: the median of several runs, the minimum and the maximum.
    instructions: [u64; 3],
    /// The same for a recording to /dev/null.
    beyond: [u64; 3],
    /// Context switches for 1000 MiB of trace.
    switches: u64,
    /// The rate at which it first loses trace, in MiB per 2^30 instructions: alone, and beside a program that is always busy.
    loss: [u64; 2],
    /// For each size of snapshots: KiB of a snapshot, KiB of the AUX area, and the instructions that are not traced during a snapshot.
    blind: Vec<[u64; 3]>,
}

/// The results of both recorders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// Instructions of the kernel for copying a MiB into a file: median, minimum and maximum.
    copy: [u64; 3],
    perf: Recorder,
    auxrec: Recorder,
    /// auxrec with a watermark of a quarter of the AUX area, as perf has it: instructions for a MiB to /dev/null, and context switches for
    /// 1000 MiB.
    quarter: [u64; 2],
    /// Instructions of each of auxrec's threads for a MiB, the busiest first: with one ring, with two rings and a thread for each, and with
    /// two rings, and a thread and a file for each.
    threads: [Vec<u64>; 3],
    /// For each watermark: sixteenths of the AUX area, instructions for a MiB, and the rate at which auxrec first loses trace, in MiB per
    /// 2^30 instructions: alone, and beside a program that is always busy.
    watermarks: Vec<[u64; 4]>,
    /// How often auxrec was woken for a piece of trace, and KiB of its own memory after a tenth of the trace, and after all of it.
    memory: [u64; 3],
}

impl Figures {
    /// Parses the guest's output. [`None`] if a figure is missing.
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
            let blind = of("blind").map(|w| numbers(&w, 2));
            Some(Recorder {
                instructions: numbers(&cost, 2)?,
                beyond: numbers(&of("beyond").next()?, 2)?,
                switches: number(&cost, 5)?,
                loss: numbers(&of("loss").next()?, 2)?,
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
            threads: [threads("1")?, threads("2")?, threads("split")?],
            copy: numbers(&lines().find(|w| w.starts_with(&["copy"]))?, 1)?,
            perf: recorder("perf")?,
            auxrec: recorder("auxrec")?,
            quarter: numbers(&lines().find(|w| w.starts_with(&["auxrec", "quarter"]))?, 2)?,
            watermarks: lines()
                .filter(|w| w.starts_with(&["watermark"]))
                .map(|w| numbers(&w, 1))
                .collect::<Option<Vec<_>>>()
                .filter(|all| !all.is_empty())?,
            memory: numbers(&lines().find(|w| w.starts_with(&["memory"]))?, 1)?,
        })
    }

    /// The figures, with their targets.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        const COST: &str = "instructions a MiB";
        const RATE: &str = "MiB per 2^30 instructions";
        let mut figures = vec![Figure::count(
            "recorder.write-to-memory",
            self.copy[0],
            COST,
        )];
        for (name, recorder) in [("perf", &self.perf), ("auxrec", &self.auxrec)] {
            let mut add = |what: &str, value, unit| {
                figures.push(Figure::count(
                    format!("recorder.{name}.{what}"),
                    value,
                    unit,
                ));
            };
            add("into-file", recorder.instructions[0], COST);
            add("into-null", recorder.beyond[0], COST);
            add(
                "switches",
                recorder.switches,
                "context switches in 1000 MiB",
            );
            add("first-loss", recorder.loss[0], RATE);
            add("first-loss-beside-busy", recorder.loss[1], RATE);
            for [size, area, blind] in &recorder.blind {
                add(
                    &format!("snapshot-{size}KiB-of-{area}KiB"),
                    *blind,
                    "instructions without trace",
                );
            }
        }
        // The targets are half of perf's instructions, and a tenth of its time without trace.
        let ours = &self.auxrec;
        let half =
            |name: &str, part, whole| Figure::ratio(name, part, whole).at_most_hundredths(50);
        figures.push(half(
            "recorder.into-null.ratio",
            ours.beyond[0],
            self.perf.beyond[0],
        ));
        for [size, area, blind] in &ours.blind {
            let theirs = self.perf.blind.iter().find(|[other, ..]| other == size);
            if let Some([.., theirs]) = theirs {
                let name = format!("recorder.snapshot-{size}KiB-of-{area}KiB.ratio");
                figures.push(Figure::ratio(name, *blind, *theirs).at_most_hundredths(10));
            }
        }
        let [cost, switches] = self.quarter;
        figures.push(Figure::count(
            "recorder.auxrec.woken-at-quarter.into-null",
            cost,
            COST,
        ));
        let name = "recorder.auxrec.woken-at-quarter.switches";
        figures.push(Figure::count(
            name,
            switches,
            "context switches in 1000 MiB",
        ));
        for (threads, name) in self
            .threads
            .iter()
            .zip(["one-ring", "two-rings", "two-rings-split"])
        {
            let max = threads.first().copied().unwrap_or(0);
            figures.push(Figure::count(
                format!("recorder.auxrec.{name}.busiest-thread"),
                max,
                COST,
            ));
            figures.push(Figure::count(
                format!("recorder.auxrec.{name}.all-threads"),
                threads.iter().sum(),
                COST,
            ));
        }
        for [part, cost, loss, beside] in &self.watermarks {
            let name = |what: &str| format!("recorder.auxrec.woken-at-{part:02}-sixteenths.{what}");
            // The cost is 0 if auxrec loses trace at the rate at which the costs are measured.
            figures.push(Figure::count(name("into-file"), *cost, COST));
            figures.push(Figure::count(name("first-loss"), *loss, RATE));
            figures.push(Figure::count(name("first-loss-beside-busy"), *beside, RATE));
        }
        let [wakeups, early, late] = self.memory;
        let name = |what: &str| format!("recorder.auxrec.memory.{what}");
        figures.push(Figure::count(name("wakeups"), wakeups, "wakeups"));
        figures.push(Figure::count(name("early"), early, "KiB"));
        figures.push(Figure::count(name("late"), late, "KiB"));
        let grown = late.saturating_sub(early);
        figures.push(Figure::count(name("growth"), grown, "KiB").at_most(64));
        figures
    }

    /// The results as lines for the user.
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
                "{name}: {} instructions a MiB ({} to {}), {} into /dev/null ({} to {}); {}.{:03} context switches a MiB; first loss at {} MiB per 1024^3 instructions, at {} beside a busy program",
                recorder.instructions[0],
                recorder.instructions[1],
                recorder.instructions[2],
                recorder.beyond[0],
                recorder.beyond[1],
                recorder.beyond[2],
                recorder.switches / 1000,
                recorder.switches % 1000,
                recorder.loss[0],
                recorder.loss[1],
            ));
        }
        lines.push(format!(
            "auxrec has {} % of perf's instructions into /dev/null, and first loses at {} % of its rate, {} % beside a busy program",
            percent(auxrec.beyond[0], perf.beyond[0]),
            percent(auxrec.loss[0], perf.loss[0]),
            percent(auxrec.loss[1], perf.loss[1]),
        ));
        lines.push(format!(
            "auxrec woken at a quarter of the area, as perf is: {} instructions a MiB into /dev/null, {} %; {}.{:03} context switches",
            self.quarter[0],
            percent(self.quarter[0], perf.beyond[0]),
            self.quarter[1] / 1000,
            self.quarter[1] % 1000,
        ));
        let [one, two, split] = &self.threads;
        let max = |threads: &[u64]| threads.first().copied().unwrap_or(0);
        // In the kernel, only one thread at a time can write into a file.
        let file = auxrec.instructions[0].saturating_sub(auxrec.beyond[0]);
        lines.push(format!(
            "one ring: {} instructions a MiB; two rings and a thread for each: {} in the busiest thread, {} in all, {file} of them while no other can write: so at most {} % of the rate of one",
            one.iter().sum::<u64>(),
            max(two),
            two.iter().sum::<u64>(),
            percent(max(one), max(two).max(file)),
        ));
        lines.push(format!(
            "with a file for each: {} in the busiest thread, {} in all, and no file that both wait for: so at most {} % of the rate of one",
            max(split),
            split.iter().sum::<u64>(),
            percent(max(one), max(split)),
        ));
        for [part, cost, loss, beside] in &self.watermarks {
            let cost = match cost {
                0 => "it loses where the others are measured".to_owned(),
                cost => format!("{cost} instructions a MiB"),
            };
            lines.push(format!(
                "auxrec, woken at {part}/16 of an area of 1 MiB: {cost}; first loss at {loss} MiB per 1024^3 instructions, at {beside} beside a busy program"
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
        let [wakeups, early, late] = self.memory;
        lines.push(format!(
            "memory of auxrec: {early} KiB after a tenth of the trace, {late} KiB after {wakeups} wakeups"
        ));
        lines
    }
}

/// The rates at which one CPU and two CPUs are drained: the results of `auxe2e bench parallel`. Each has the rate in KiB a second, and in
/// percent of the rate of one. Both have the median of several runs, the minimum and the maximum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rates([[u64; 6]; Self::NAMES.len()]);

impl Rates {
    /// The command that measures the rates.
    pub const COMMAND: &str = "auxe2e bench parallel";

    const NAMES: [&str; 7] = [
        "write-one",
        "write-two",
        "write-shared",
        "drain-one",
        "drain-own",
        "drain-two",
        "drain-split",
    ];

    /// Parses the guest's output. [`None`] if a figure is missing.
    #[must_use]
    pub fn parse(said: &str) -> Option<Self> {
        let mut all = [[0; 6]; Self::NAMES.len()];
        for (figures, name) in all.iter_mut().zip(Self::NAMES) {
            let line = said
                .lines()
                .find_map(|line| line.strip_prefix(&format!("parallel {name} ")))?;
            let words: Option<Vec<u64>> = line.split(' ').map(|word| word.parse().ok()).collect();
            *figures = words?.try_into().ok()?;
        }
        Some(Self(all))
    }

    /// The figures, with their targets. `how` is a word for the way in which memory is copied.
    #[must_use]
    pub fn figures(&self, how: &str) -> Vec<Figure> {
        let all = self.0.iter().zip(Self::NAMES);
        all.flat_map(|([rate, _, _, part, ..], name)| {
            let ratio = format!("parallel.{how}.{name}.ratio");
            let ratio = Figure::hundredths(ratio, *part, "ratio");
            [
                Figure::count(format!("parallel.{how}.{name}"), *rate / 1024, "MiB/s"),
                match name {
                    "drain-split" => ratio.at_least_hundredths(180),
                    _ => ratio,
                },
            ]
        })
        .collect()
    }

    /// The results as lines for the user.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        // A description, and the index of the rate that it is compared with.
        const WHAT: [(&str, usize); 7] = [
            ("a thread that writes memory to a file", 0),
            ("two, with a file each", 0),
            ("two, to one file", 0),
            ("auxrec, one CPU", 3),
            ("auxrec, one CPU, by a thread that stays on it", 3),
            ("two CPUs into one file", 3),
            (
                "two CPUs, --split-files: each by a thread that stays on it",
                4,
            ),
        ];
        let times = |percent: u64| format!("{}.{:02}", percent / 100, percent % 100);
        let line =
            |([rate, least, max, part, low, high], (what, beside)): (&[u64; 6], (&str, usize))| {
                let [_, _, best_of_one, ..] = self.0[beside];
                format!(
                    "{what}: {} MiB/s ({} to {}), {} times the rate of one ({} to {}), {} its best",
                    rate / 1024,
                    least / 1024,
                    max / 1024,
                    times(*part),
                    times(*low),
                    times(*high),
                    times(max * 100 / best_of_one.max(1)),
                )
            };
        self.0.iter().zip(WHAT).map(line).collect()
    }
}

/// How soon the units of all CPUs run: the results of `auxe2e bench starts`. `all` has the times of perf and of auxrec in µs, and auxrec's
/// time in percent of perf's. Each has the median, the minimum and the maximum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Starts {
    cpus: u64,
    all: [[u64; 3]; 3],
}

impl Starts {
    /// The command that measures the times.
    pub const COMMAND: &str = "auxe2e bench starts";

    const NAMES: [&str; 3] = ["perf", "auxrec", "part"];

    /// Parses the guest's output. [`None`] if a figure is missing.
    #[must_use]
    pub fn parse(said: &str) -> Option<Self> {
        let mut all = [[0; 3]; 3];
        let mut cpus = 0;

        for (figures, name) in all.iter_mut().zip(Self::NAMES) {
            let line = said
                .lines()
                .find_map(|line| line.strip_prefix(&format!("starts {name} ")))?;
            let words: Vec<_> = line.split(' ').collect();

            [cpus] = numbers(&words, 0)?;
            *figures = numbers(&words, 1)?;
        }
        Some(Self { cpus, all })
    }

    /// The figures. The target is to be no slower than perf.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let [perf, auxrec, [part, ..]] = self.all;
        let name = |what: &str| format!("starts.{}-cpus.{what}", self.cpus);

        vec![
            Figure::count(name("perf"), perf[0] / 1000, "ms"),
            Figure::count(name("auxrec"), auxrec[0] / 1000, "ms"),
            Figure::hundredths(name("ratio"), part, "ratio").at_most(1),
        ]
    }

    /// The results as lines for the user.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let [perf, auxrec, [part, least, max]] = self.all;
        let [perf, auxrec] = [perf, auxrec].map(|[time, ..]| time / 1000);

        vec![format!(
            "until {} CPUs are traced, perf takes {perf} ms and auxrec {auxrec} ms: {part} % of perf's time ({least} to {max})",
            self.cpus
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_understood() {
        let said = "starts perf 64 9000 8000 10000\nstarts auxrec 64 4500 4000 5000\nstarts part 64 50 40 60\n";
        let lines = Starts::parse(said).unwrap().lines();

        assert_eq!(
            lines,
            ["until 64 CPUs are traced, perf takes 9 ms and auxrec 4 ms: 50 % of perf's time (40 to 60)"]
        );
        for line in said.lines() {
            assert_eq!(Starts::parse(&said.replace(line, "")), None, "{line}");
        }
    }

    const RATES: &str = "parallel write-one 1024000 1000000 1100000 100 100 100\nparallel write-two 2048000 2000000 2100000 200 190 210\n\
        parallel write-shared 1024000 1 2 100 1 2\nparallel drain-one 512000 400000 600000 100 100 100\n\
        parallel drain-own 409600 400000 500000 80 70 90\nparallel drain-two 522240 500000 530000 102 90 103\nparallel drain-split 972800 900000 1000000 190 185 195\n";

    #[test]
    fn rates_are_understood() {
        let lines = Rates::parse(RATES).unwrap().lines();
        for (line, says) in [
            (
                1,
                "two, with a file each: 2000 MiB/s (1953 to 2050), 2.00 times",
            ),
            (3, "one CPU: 500 MiB/s (390 to 585), 1.00 times"),
            (4, "stays on it: 400 MiB/s (390 to 488), 0.80 times"),
            (
                5,
                "510 MiB/s (488 to 517), 1.02 times the rate of one (0.90 to 1.03)",
            ),
            (6, "stays on it: 950 MiB/s (878 to 976), 1.90 times the rate of one (1.85 to 1.95), 2.00 its best"),
        ] {
            assert!(lines[line].contains(says), "{}", lines[line]);
        }
        for line in RATES.lines() {
            assert_eq!(Rates::parse(&RATES.replace(line, "")), None, "{line}");
        }
    }

    const SAID: &str = "record copy 1000 990 1010\nrecord perf cost 3000 2900 3100 2500\nrecord auxrec cost 1500 1400 1600 1250\nrecord perf beyond 400 390 410 2500\nrecord auxrec beyond 100 90 110 1250\nrecord auxrec quarter 200 1900\n\
        record threads 1 1500 20\nrecord threads 2 1000 100 90 20\nrecord threads split 750 740 10\nrecord perf loss 100 50\nrecord auxrec loss 200 75\nrecord watermark 7 1500 200 75\nrecord perf blind 1024 1024 9000\nrecord auxrec blind 1024 2048 900\n\
        record memory 1000 500 510\n";

    #[test]
    fn figures_are_understood() {
        let lines = Figures::parse(SAID).unwrap().lines();
        for (line, says) in [
            (0, "1000 instructions"),
            (1, "3000 instructions a MiB (2900 to 3100), 400 into /dev/null (390 to 410); 2.500 context"),
            (2, "1500 instructions a MiB (1400 to 1600), 100 into /dev/null (90 to 110); 1.250 context"),
            (3, "25 % of perf's instructions into /dev/null, and first loses at 200 % of its rate, 150 % beside"),
            (4, "as perf is: 200 instructions a MiB into /dev/null, 50 %; 1.900 context switches"),
            (5, "one ring: 1520 instructions a MiB; two rings and a thread for each: 1000 in the busiest thread, 1210 in all, 1400 of them while no other can write: so at most 107 %"),
            (6, "with a file for each: 750 in the busiest thread, 1500 in all, and no file that both wait for: so at most 200 %"),
            (7, "7/16 of an area of 1 MiB: 1500 instructions a MiB; first loss at 200 MiB per 1024^3 instructions, at 75 beside"),
            (8, "1024 KiB of 2048: nothing is traced for 9000 instructions with perf, 900 with auxrec, 10 %"),
            (9, "500 KiB after a tenth of the trace, 510 KiB after 1000 wakeups"),
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
