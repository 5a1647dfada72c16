// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The cost of copying trace: the results of `auxe2e bench commit` and `auxe2e bench loss`, as lines, as figures and as a picture.

use crate::error::{Error, Result};
use crate::results::figures::Figure;
use plotters::prelude::*;
use std::fmt::Write as _;
use std::path::Path;

/// The sinks, in the order in which they are shown.
const SINKS: [&str; 3] = ["direct", "sg", "flat"];
const COLOURS: [RGBColor; 3] = [
    RGBColor(0x1f, 0x6f, 0xb4),
    RGBColor(0xe0, 0x8a, 0x1e),
    RGBColor(0xd6, 0x2f, 0x3c),
];
const SIZE: (u32, u32) = (960, 480);

/// The cost of one stop and one start.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Commit {
    sink: String,
    /// The size of the ring in bytes.
    ring: u64,
    /// Bytes of trace that the stop commits.
    len: u64,
    instructions: u64,
}

/// The results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    commits: Vec<Commit>,
    /// The rate at which each sink first loses trace, in MiB per 2^30 instructions.
    losses: Vec<(String, u64)>,
}

impl Figures {
    /// Parses the guest's output. [`None`] if a figure is missing.
    #[must_use]
    pub fn parse(said: &str) -> Option<Self> {
        let mut figures = Self {
            commits: Vec::new(),
            losses: Vec::new(),
        };
        for line in said.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["commit", sink, ring, len, instructions] => figures.commits.push(Commit {
                    sink: (*sink).to_owned(),
                    ring: ring.parse().ok()?,
                    len: len.parse().ok()?,
                    instructions: instructions.parse().ok()?,
                }),
                ["loss", sink, rate] => {
                    figures
                        .losses
                        .push(((*sink).to_owned(), rate.parse().ok()?));
                }
                _ => {}
            }
        }
        let complete = SINKS.iter().all(|sink| {
            figures.losses.iter().any(|(name, _)| name == sink)
                && figures.of(sink).any(|c| c.len == 0)
                && figures.of(sink).any(|c| c.len != 0)
        });
        complete.then_some(figures)
    }

    fn of<'a>(&'a self, sink: &'a str) -> impl Iterator<Item = &'a Commit> {
        self.commits.iter().filter(move |c| c.sink == sink)
    }

    /// The results as lines for the user.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for sink in SINKS {
            let empty = self.of(sink).filter(|c| c.len == 0);
            let least = empty.map(|c| c.instructions).min().unwrap_or(0);
            let mut line = format!("{sink}: stop and start, empty commit: {least} instructions;");
            for c in self.of(sink).filter(|c| c.len != 0) {
                let more = c.instructions.saturating_sub(least);
                let _ = write!(
                    line,
                    " {} KiB in a ring of {} KiB: {} ({} per KiB more),",
                    c.len / 1024,
                    c.ring / 1024,
                    c.instructions,
                    more * 1024 / c.len.max(1),
                );
            }
            lines.push(line.trim_end_matches(',').to_owned());
        }
        let rate = |sink: &str| {
            let found = self.losses.iter().find(|(name, _)| name == sink);
            found.map_or(0, |(_, rate)| *rate)
        };
        let direct = rate("direct").max(1);
        for sink in SINKS {
            let rate = rate(sink);
            lines.push(format!(
                "{sink}: the first loss is at {rate} MiB per 1024^3 instructions, {} % of direct",
                rate * 100 / direct
            ));
        }
        lines
    }

    /// The figures of each sink and ring.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let commit = |c: &Commit| {
            let what = match c.len {
                0 => "empty".to_owned(),
                len => format!("{}KiB", len / 1024),
            };
            let name = format!("bounce.{}.ring-{}KiB.{what}", c.sink, c.ring / 1024);
            Figure::count(name, c.instructions, "instructions")
        };
        let loss = |(sink, rate): &(String, u64)| {
            let name = format!("bounce.{sink}.first-loss");
            Figure::count(name, *rate, "MiB per 2^30 instructions")
        };
        let commits = self.commits.iter().map(commit);
        commits.chain(self.losses.iter().map(loss)).collect()
    }

    /// Draws the instructions of a commit of half the ring over the size of the ring, for each sink.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn draw(&self, path: &Path) -> Result<()> {
        self.try_draw(path)
            .map_err(|e| Error::Other(format!("cannot draw {}: {e}", path.display())))
    }

    fn try_draw(&self, path: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let full = self.commits.iter().filter(|c| c.len != 0);
        let max = full.clone().map(|c| c.instructions).max().unwrap_or(1);
        let rings = full.map(|c| c.ring / 1024);
        let (first, last) = rings.fold((u64::MAX, 1), |(a, b), ring| (a.min(ring), b.max(ring)));
        let mut chart = ChartBuilder::on(&area)
            .caption(
                "one commit of half the ring: instructions",
                ("sans-serif", 20),
            )
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(
                (first..last * 2).log_scale(),
                (500_u64..max * 2).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc("ring, KiB")
            .y_desc("instructions")
            .light_line_style(WHITE)
            .draw()?;
        for (sink, colour) in SINKS.into_iter().zip(COLOURS) {
            let points: Vec<(u64, u64)> = self
                .of(sink)
                .filter(|c| c.len != 0)
                .map(|c| (c.ring / 1024, c.instructions))
                .collect();
            let marks = points.clone();
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(sink)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
            chart.draw_series(
                marks
                    .into_iter()
                    .map(|at| Circle::new(at, 4, colour.filled())),
            )?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK)
            .background_style(WHITE)
            .draw()?;
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str =
        "commit direct 65536 0 1500\ncommit direct 65536 32768 1510\ncommit sg 65536 0 1600\n\
        commit sg 65536 32768 34368\ncommit flat 65536 0 1600\ncommit flat 65536 32768 34368\n\
        loss direct 4000\nloss sg 500\nloss flat 1000\n";

    #[test]
    fn figures_are_understood() {
        let figures = Figures::parse(SAID).unwrap();
        let lines = figures.lines();
        assert!(lines[0].contains("empty commit: 1500"), "{}", lines[0]);
        assert!(
            lines[1].contains("32 KiB in a ring of 64 KiB: 34368 (1024 per KiB more)"),
            "{}",
            lines[1]
        );
        assert!(lines[4].contains("12 % of direct"), "{}", lines[4]);
        assert_eq!(Figures::parse("commit direct 1 2 3\n"), None);
    }

    #[test]
    fn a_picture_has_a_line_for_each_sink() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.svg");
        Figures::parse(SAID).unwrap().draw(&path).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        for text in ["direct", "flat", "ring, KiB"] {
            assert!(svg.contains(text));
        }
    }
}
