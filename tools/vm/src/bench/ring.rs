// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The cost of reading an event of tracefs: the results of `auxe2e bench ring`.

use crate::results::figures::Figure;

/// The lengths of the events' texts, in bytes.
const BYTES: [u64; 3] = [1, 10, 100];
/// The ways of reading: the name in the figures, and a description.
const WAYS: [(&str, &str); 8] = [
    ("mapped", "mapped"),
    ("get-reader", "mapped, not looked at"),
    ("read", "read() of trace_pipe_raw"),
    ("spliced", "splice, then read from the pipe"),
    ("file", "splice to a file, not looked at"),
    ("text", "trace_pipe"),
    ("tracering", "tracering record"),
    ("trace-cmd", "trace-cmd extract"),
];

/// The cost of one way of reading, for one length of text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cost {
    way: String,
    bytes: u64,
    instructions: u64,
    events: u64,
}

impl Cost {
    /// The cost of an event, in hundredths of an instruction.
    fn each(&self) -> u64 {
        self.instructions.saturating_mul(100) / self.events.max(1)
    }
}

/// The results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    costs: Vec<Cost>,
    /// The system calls of a consumer that maps the buffer: the length of the text, and their number.
    calls: Vec<(u64, u64)>,
}

impl Figures {
    /// The command in the guest.
    pub const COMMAND: &str = "auxe2e bench ring";

    /// Parses the guest's output. [`None`] if a figure is missing.
    #[must_use]
    pub fn parse(said: &str) -> Option<Self> {
        let mut figures = Self {
            costs: Vec::new(),
            calls: Vec::new(),
        };
        for line in said.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["ring", way, bytes, instructions, events] => figures.costs.push(Cost {
                    way: (*way).to_owned(),
                    bytes: bytes.parse().ok()?,
                    instructions: instructions.parse().ok()?,
                    events: events.parse().ok()?,
                }),
                ["ring-calls", "mapped", bytes, calls] => {
                    figures
                        .calls
                        .push((bytes.parse().ok()?, calls.parse().ok()?));
                }
                _ => {}
            }
        }
        let complete = BYTES.iter().all(|bytes| {
            WAYS.iter()
                .all(|(way, _)| figures.of(way, *bytes).is_some())
                && figures.calls.iter().any(|(of, _)| of == bytes)
        });
        complete.then_some(figures)
    }

    fn of(&self, way: &str, bytes: u64) -> Option<&Cost> {
        let mut costs = self.costs.iter();
        costs.find(|cost| cost.way == way && cost.bytes == bytes)
    }

    fn each(&self, way: &str, bytes: u64) -> u64 {
        self.of(way, bytes).map_or(0, Cost::each)
    }

    /// The results as lines for the user.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (way, what) in WAYS {
            let each = BYTES.map(|bytes| {
                let each = self.each(way, bytes);
                format!("{}.{:02}", each / 100, each % 100)
            });
            let of = BYTES.map(|bytes| bytes.to_string()).join(", ");
            lines.push(format!(
                "{what}: {} instructions an event of {of} bytes",
                each.join(", ")
            ));
        }
        lines
    }

    /// The figures, with their targets.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for bytes in BYTES {
            for (way, _) in WAYS {
                let name = format!("ring.{way}.{bytes}");
                figures.push(Figure::hundredths(
                    name,
                    self.each(way, bytes),
                    "instructions",
                ));
            }
            let ratio = |name: &str, part: &str, whole: &str| {
                let (part, whole) = (self.each(part, bytes), self.each(whole, bytes));
                Figure::ratio(format!("ring.{name}.{bytes}"), part, whole)
            };
            figures.push(ratio("mapped-to-read", "mapped", "read").at_most_hundredths(50));
            figures.push(ratio("mapped-to-text", "mapped", "text").at_most_hundredths(2));
            // The rate without loss is the reciprocal of the cost.
            let rate = ratio("rate-to-trace-cmd", "trace-cmd", "tracering");
            figures.push(rate.at_least_hundredths(150));
        }
        let calls = self.calls.iter();
        figures.extend(calls.map(|(bytes, calls)| {
            Figure::count(format!("ring.calls.{bytes}"), *calls, "system calls")
        }));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> String {
        let mut said = String::new();
        for bytes in BYTES {
            for (n, (way, _)) in (1..).zip(WAYS) {
                said += &format!("ring {way} {bytes} {} 10\n", n * 100 * bytes);
            }
            said += &format!("ring-calls mapped {bytes} 12\n");
        }
        said
    }

    #[test]
    fn each_way_is_a_figure() {
        let figures = Figures::parse(&said()).unwrap();
        assert_eq!(figures.each("mapped", 10), 10_000);
        assert_eq!(figures.figures().len(), 3 * (WAYS.len() + 3) + 3);
        assert!(figures
            .lines()
            .first()
            .unwrap()
            .starts_with("mapped: 10.00, 100.00, 1000.00"));
    }

    #[test]
    fn a_figure_that_is_missing_is_an_error() {
        for line in said().lines() {
            let without = said().replace(&format!("{line}\n"), "");
            assert!(Figures::parse(&without).is_none(), "{line}");
        }
    }
}
