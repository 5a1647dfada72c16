// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What it costs to trace a program instruction by instruction, with `soft_pt` and with what there is besides, and whether the kernel
//! needs more and more memory for it.
//!
//! `auxe2e bench steps` measures in a guest whose clock counts instructions; see there what is measured.

use crate::bench::number;
use crate::figures::Figure;

/// One way to trace: instructions of the program, and instructions of the machine for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    steps: u64,
    cost: u64,
}

impl Way {
    fn parse(said: &str, name: &str, without: u64) -> Option<Self> {
        let line = said
            .lines()
            .find_map(|l| l.strip_prefix("steps ")?.strip_prefix(name))?;
        let (steps, time) = line.trim().split_once(' ')?;
        let time: u64 = time.parse().ok()?;
        Some(Self {
            steps: steps.parse().ok().filter(|&steps| steps > 0)?,
            cost: time.saturating_sub(without),
        })
    }

    /// Of the machine's for each of the program's.
    fn each(self) -> u64 {
        self.cost / self.steps
    }
}

/// Memory while a program is traced: instructions traced so far, in so many bytes, KiB in slabs, KiB available.
type Memory = (u64, u64, u64, u64);

/// What was measured.
#[derive(Debug, PartialEq, Eq)]
pub struct Figures {
    soft_pt: Way,
    bytes: u64,
    /// Of instructions that are not to be traced.
    outside: Way,
    /// A system call: without the driver, with it, while somebody else is traced, and after that.
    calls: [u64; 4],
    /// How late a task runs at most that goes before others, beside a program, and beside one that is traced.
    delays: [u64; 2],
    /// Programs that people have, by name.
    programs: Vec<(String, Way)>,
    ptrace: Way,
    gdb: Way,
    /// In the first and in the last second.
    memory: [Memory; 2],
}

impl Figures {
    /// The commands that say it.
    pub const COMMAND: &str = "auxe2e bench steps && auxe2e bench memory --times 4";

    /// From what they said.
    #[must_use]
    pub fn parse(said: &str) -> Option<Self> {
        let alone = number(said, "steps alone 0")?;
        let mut memory = said.lines().filter_map(|line| {
            let mut words = line.strip_prefix("memory ")?.split(' ');
            let mut number = || words.next()?.parse().ok();
            Some((number()?, number()?, number()?, number()?))
        });
        Some(Self {
            soft_pt: Way::parse(said, "soft_pt ", alone)?,
            bytes: number(said, "steps bytes")?,
            outside: Way::parse(said, "outside ", alone)?,
            calls: [
                number(said, "steps call absent")?,
                number(said, "steps call idle")?,
                number(said, "steps call others")?,
                number(said, "steps call after")?,
            ],
            delays: [
                number(said, "steps delay alone")?,
                number(said, "steps delay traced")?,
            ],
            programs: programs(said)?,
            ptrace: Way::parse(said, "ptrace ", alone)?,
            // It was measured against itself.
            gdb: Way::parse(said, "gdb ", 0)?,
            memory: [memory.next()?, memory.next_back()?],
        })
    }

    /// By what is done.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let [absent, idle, others, after] = self.calls;
        let [(from, first, slab, free), (to, last, slab_after, free_after)] = self.memory;
        let [beside, delayed] = self.delays;
        let instructions = [
            ("delay.program", beside),
            ("delay.program-traced", delayed),
            ("call.driver-absent", absent),
            ("call.driver-idle", idle),
            ("call.another-traced", others),
            ("call.after-that", after),
            ("soft_pt", self.soft_pt.each()),
            ("steptrace", self.ptrace.each()),
            ("gdb", self.gdb.each()),
            ("memory.traced", to.saturating_sub(from)),
        ];
        let kib = [
            ("memory.slabs.before", slab),
            ("memory.slabs.after", slab_after),
            ("memory.available.before", free),
            ("memory.available.after", free_after),
        ];
        let figure = |unit| move |(name, n)| Figure::count(format!("steps.{name}"), n, unit);
        let mut figures: Vec<Figure> = instructions
            .into_iter()
            .map(figure("instructions"))
            .collect();
        figures.extend(kib.into_iter().map(figure("KiB")));
        figures.push(figure("instructions")(("filtered-out", self.outside.each())).at_most(60));
        // Rounded down.
        let times = self.ptrace.each() * 100 / self.soft_pt.each().max(1);
        figures.push(
            Figure::hundredths("steps.steptrace.times", times, "ratio").at_least_hundredths(15_000),
        );
        let program = |(name, way): &(String, Way)| {
            Figure::count(format!("steps.program.{name}"), way.each(), "instructions").at_most(250)
        };
        figures.extend(self.programs.iter().map(program));
        figures.push(Figure::count("steps.program.mean", self.mean(), "instructions").at_most(100));
        figures.push(Figure::count(
            "steps.memory.trace",
            last.saturating_sub(first),
            "bytes",
        ));
        let bits = self.bytes * 800 / self.soft_pt.steps;
        figures.push(
            Figure::hundredths("steps.soft_pt.trace", bits, "bits an instruction")
                .at_most_hundredths(65),
        );
        figures
    }

    fn programs_line(&self) -> String {
        let one = |(name, way): &(String, Way)| {
            format!("{name} {} ({} instructions)", way.each(), way.steps)
        };
        let each: Vec<_> = self.programs.iter().map(one).collect();
        format!(
            "an instruction of programs that people have: {}; on average {}",
            each.join(", "),
            self.mean()
        )
    }

    /// The geometric mean of what an instruction of a program costs.
    fn mean(&self) -> u64 {
        let count = u32::try_from(self.programs.len()).unwrap_or(1);
        let product: u128 = self
            .programs
            .iter()
            .map(|(_, way)| u128::from(way.each()))
            .product();
        let root = (1_u64..).take_while(|n| u128::from(*n).pow(count) <= product);
        root.last().unwrap_or(0)
    }

    /// The lines to print.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let bits = self.bytes * 800 / self.soft_pt.steps;
        let times = |way: Way| {
            let tenths = way.each() * 10 / self.soft_pt.each().max(1);
            format!("{}.{}", tenths / 10, tenths % 10)
        };
        let [(from, first, slab, free), (to, last, slab_after, free_after)] = self.memory;
        let bytes = last.saturating_sub(first);
        let [beside, delayed] = self.delays;
        let [absent, idle, others, after] = self.calls;
        vec![
            format!(
                "a system call of a program that nobody traces: {absent} instructions without soft_pt, {idle} with it, {others} while another program is traced, {after} after that"
            ),
            format!(
                "an instruction that filters leave out: {} instructions",
                self.outside.each()
            ),
            format!(
                "an instruction traced by soft_pt: {} instructions, {}.{:02} bits of trace ({} instructions in {} bytes)",
                self.soft_pt.each(),
                bits / 100,
                bits % 100,
                self.soft_pt.steps,
                self.bytes
            ),
            self.programs_line(),
            format!(
                "a task that goes before others is {beside} instructions late at most beside a program, {delayed} beside one that is traced"
            ),
            format!(
                "by steptrace (ptrace): {} instructions, {} times that; by gdb's `record full`: {}, {} times",
                self.ptrace.each(),
                times(self.ptrace),
                self.gdb.each(),
                times(self.gdb)
            ),
            format!(
                "the kernel's memory while {} instructions are traced, in {bytes} bytes: slabs from {slab} to {slab_after} KiB, available from {free} to {free_after} KiB",
                to.saturating_sub(from)
            ),
        ]
    }
}

/// The programs that were traced; their cost is what tracing adds.
fn programs(said: &str) -> Option<Vec<(String, Way)>> {
    let lines = said
        .lines()
        .filter_map(|line| line.strip_prefix("steps program "));
    let programs = lines.map(|line| {
        let (name, _) = line.split_once(' ')?;
        let way = Way::parse(said, &format!("program {name} "), 0)?;
        Some((name.to_owned(), way))
    });
    let programs: Option<Vec<_>> = programs.collect();
    programs.filter(|programs| !programs.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_says_is_understood() {
        let said = "steps call absent 100\nsteps call idle 101\nsteps call others 300\nsteps call after 102\nsteps alone 0 1000\nsteps outside 100 101000\nsteps delay alone 300\nsteps delay traced 4000\nsteps soft_pt 100 201000\nsteps bytes 6\nsteps program perl 100 6400\nsteps program gzip 10 2500\nsteps ptrace 100 1201000\nsteps gdb 10 500000\n\
                    memory 1000 60 20 500\nmemory 2000 120 21 499\nmemory 9000 540 22 498\n";
        let lines = Figures::parse(said).unwrap().lines();
        assert!(lines[0].contains("100 instructions without soft_pt, 101 with it, 300 while another program is traced, 102 after"), "{lines:?}");
        assert!(lines[1].contains("1000 instructions"), "{lines:?}");
        assert!(
            lines[2].contains("2000 instructions, 0.48 bits"),
            "{lines:?}"
        );
        assert!(
            lines[3].ends_with(
                "perl 64 (100 instructions), gzip 250 (10 instructions); on average 126"
            ),
            "{lines:?}"
        );
        assert!(
            lines[4].contains("300 instructions late at most beside a program, 4000"),
            "{lines:?}"
        );
        assert!(
            lines[5].contains("12000 instructions, 6.0 times"),
            "{lines:?}"
        );
        assert!(lines[5].contains("50000, 25.0 times"), "{lines:?}");
        assert!(
            lines[6].contains("8000 instructions are traced, in 480 bytes: slabs from 20 to 22 KiB, available from 500 to 498"),
            "{lines:?}"
        );
        assert_eq!(Figures::parse("steps alone 0 1\n"), None);
    }
}
