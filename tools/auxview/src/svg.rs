// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The picture of a recording: head, tail and fill of each AUX area over time.

use std::num::NonZero;

use plotters::prelude::*;

use crate::error::{Error, Result};
use crate::size::bytes;
use crate::trace::{since, Mode, Ring, Trace};

const WIDTH: u32 = 1280;
const TITLE: u32 = 64;
const POSITIONS: u32 = 250;
const FILL: u32 = 130;
/// Maximum number of points in a line: the picture cannot show more.
const POINTS: usize = 2400;
/// Maximum number of wraps that are drawn as lines of full height. If there are more, each is a mark at the top.
const LINES: usize = 80;

const HEAD: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const TAIL: RGBColor = RGBColor(0xe0, 0x8a, 0x1e);
const FULL: RGBColor = RGBColor(0x3a, 0x9d, 0x6e);
const LOST: RGBColor = RGBColor(0xd6, 0x2f, 0x3c);
const EVENT: RGBColor = RGBColor(0x7a, 0x4f, 0xb0);
const INK: RGBColor = RGBColor(0x33, 0x3a, 0x42);
const WRAP: RGBColor = RGBColor(0x9a, 0xa3, 0xad);
const GRID: RGBColor = RGBColor(0xe6, 0xe9, 0xed);

type Point = (f64, f64);

/// The data of a ring's two charts. Times are ms since the first event of the recording, positions MiB.
#[derive(Debug, Default)]
struct Lines {
    head: Vec<Point>,
    tail: Vec<Point>,
    fill: Vec<Point>,
    wraps: Vec<f64>,
    truncations: Vec<f64>,
    /// Time without trace: from a truncation until the area was drained.
    untraced: Vec<Point>,
    /// Events of tracefs on the CPU of the ring.
    events: Vec<f64>,
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss)]
fn float(n: u64) -> f64 {
    // A picture does not need more than 53 bits.
    n as f64
}

impl Lines {
    fn of(ring: &Ring, size: u64, start: u64, end: f64, mode: Mode) -> Self {
        let ms = |time: u64| float(time.saturating_sub(start)) / 1e6;
        let mib = |n: u64| float(n) / f64::from(1 << 20);
        // Changes of the head and of the tail, in order of time.
        enum Step {
            Head(u64, bool),
            Tail(u64),
        }
        let mut steps: Vec<(u64, Step)> = Vec::new();
        for record in &ring.records {
            let head = match mode {
                Mode::Normal => record.aux.offset.saturating_add(record.aux.size),
                Mode::Overwrite => record.aux.offset,
            };
            steps.push((record.time, Step::Head(head, record.is_truncated())));
        }
        if mode == Mode::Normal {
            steps.extend(ring.pieces.iter().filter_map(|piece| {
                Some((
                    piece.read?.get(),
                    Step::Tail(piece.offset.saturating_add(piece.size)),
                ))
            }));
        }
        steps.sort_by_key(|(time, _)| *time);

        let mut out = Self::default();
        let (mut head, mut tail) = (0_u64, 0_u64);
        let mut dark_from = None;
        let percent = |head: u64, tail: u64| match mode {
            Mode::Normal => 100.0 * float(head.saturating_sub(tail).min(size)) / float(size),
            Mode::Overwrite => 100.0 * float(head.min(size)) / float(size),
        };
        for (time, step) in steps {
            let at = ms(time);
            // The line is level until now, then it steps up or down.
            out.fill.push((at, percent(head, tail)));
            match step {
                Step::Head(to, cut) => {
                    let to = match mode {
                        Mode::Overwrite => head.saturating_add(since(size, head, to)),
                        Mode::Normal => to,
                    };
                    out.head.push((at, mib(head)));
                    if to / size != head / size {
                        out.wraps.push(at);
                    }
                    head = head.max(to);
                    out.head.push((at, mib(head)));
                    if cut {
                        out.truncations.push(at);
                        dark_from = dark_from.or(Some(at));
                    }
                }
                Step::Tail(to) => {
                    out.tail.push((at, mib(tail)));
                    tail = tail.max(to);
                    out.tail.push((at, mib(tail)));
                    if let Some(from) = dark_from.take() {
                        out.untraced.push((from, at));
                    }
                }
            }
            out.fill.push((at, percent(head, tail)));
        }
        out.head.push((end, mib(head)));
        out.fill.push((end, percent(head, tail)));
        if mode == Mode::Normal {
            out.tail.push((end, mib(tail)));
        }
        for line in [&mut out.head, &mut out.tail, &mut out.fill] {
            thin(line, end);
        }
        out
    }

    /// Adds marks of events: at most one for each column of the picture.
    fn events(&mut self, times: &[u64], start: u64, end: f64) {
        let columns = float(u64::try_from(POINTS / 4).unwrap_or(1));
        let inside = times.iter().filter(|time| **time >= start);
        let mut ms: Vec<_> = inside
            .map(|time| float(time.saturating_sub(start)) / 1e6)
            .filter(|at| *at <= end)
            .collect();
        ms.sort_by(f64::total_cmp);
        let column = |at: f64| (at / end * columns).floor();
        ms.dedup_by(|a, b| column(*a).total_cmp(&column(*b)).is_eq());
        self.events = ms;
    }
}

/// Reduces the points in each column of the picture to the first, the lowest, the highest and the last.
fn thin(line: &mut Vec<Point>, end: f64) {
    if line.len() <= POINTS || end <= 0.0 {
        return;
    }
    let columns = float(u64::try_from(POINTS / 4).unwrap_or(1));
    let column = |point: &Point| (point.0 / end * columns).floor();
    let same = |a: &Point, b: &Point| column(a).total_cmp(&column(b)).is_eq();
    let thinned = line
        .chunk_by(same)
        .flat_map(|points| {
            let extreme = |pick: fn(f64, f64) -> f64| points.iter().map(|p| p.1).reduce(pick);
            let (Some(first), Some(last)) = (points.first(), points.last()) else {
                return Vec::new();
            };
            let (Some(low), Some(high)) = (extreme(f64::min), extreme(f64::max)) else {
                return Vec::new();
            };
            vec![*first, (first.0, low), (last.0, high), *last]
        })
        .collect();
    *line = thinned;
}

/// Draws the picture.
pub(crate) fn draw(trace: &Trace) -> Result<String> {
    let rings = u32::try_from(trace.rings.len().max(1)).unwrap_or(1).min(64);
    let height = TITLE + rings * (POSITIONS + FILL);
    let mut text = String::new();
    paint(trace, &mut text, height)
        .map_err(|e| Error::failed(format!("cannot draw the timeline: {e}")))?;
    Ok(text)
}

fn paint(
    trace: &Trace,
    text: &mut String,
    height: u32,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let times = trace.rings.values().flat_map(|ring| {
        let records = ring.records.iter().map(|record| record.time);
        let pieces = ring.pieces.iter().filter_map(|piece| piece.read);
        records.chain(pieces.map(NonZero::get))
    });
    let (start, last) = times.fold((u64::MAX, 0), |(a, b), time| (a.min(time), b.max(time)));
    let end = (float(last.saturating_sub(start)) / 1e6).max(1e-3);
    // An unknown size of the area becomes 1, because the charts divide by it.
    let size = trace.aux_size.unwrap_or(0).max(1);

    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (title, charts) = root.split_vertically(TITLE);
    heading(trace, &title)?;
    let areas = charts.split_evenly((trace.rings.len().max(1), 1));
    for (ring, area) in trace.rings.values().zip(&areas) {
        let mut lines = Lines::of(ring, size, start, end, trace.mode);
        let events = ring.cpu.and_then(|cpu| trace.tracefs.get(&cpu));
        lines.events(events.map_or(&[], |of| &of.times), start, end);
        let (above, below) = area.split_vertically(POSITIONS);
        positions(ring, &lines, size, end, &above)?;
        fill(&lines, end, &below)?;
    }
    root.present()?;
    Ok(())
}

type Area<'a, 'b> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

fn heading(trace: &Trace, area: &Area<'_, '_>) -> Drawn {
    let loss = trace
        .rings
        .values()
        .fold(crate::loss::Loss::default(), |sum, ring| {
            sum.plus(ring.loss)
        });
    let size = trace.aux_size.map_or("unknown".to_owned(), bytes);
    let title = TextStyle::from(("sans-serif", 20).into_font()).color(&INK);
    area.draw_text(
        &format!("AUX area of {}: {size} each", trace.event),
        &title,
        (20, 12),
    )?;
    let small = TextStyle::from(("sans-serif", 14).into_font()).color(&INK);
    let what = format!(
        "{} bytes of trace, {} truncations",
        loss.read, loss.truncated
    );
    area.draw_text(&what, &small, (20, 38))?;
    let keys = [
        ("head", HEAD),
        ("tail", TAIL),
        ("fill", FULL),
        ("wrap", WRAP),
        ("truncated", LOST),
        ("event", EVENT),
    ];
    for (n, (name, color)) in (0_i32..).zip(keys) {
        let x = 700 + n * 95;
        area.draw(&Rectangle::new([(x, 41), (x + 18, 49)], color.filled()))?;
        area.draw_text(name, &small, (x + 24, 38))?;
    }
    Ok(())
}

fn positions(ring: &Ring, lines: &Lines, size: u64, end: f64, area: &Area<'_, '_>) -> Drawn {
    let top = lines.head.iter().map(|p| p.1).fold(0.0, f64::max).max(1e-6) * 1.08;
    let mut chart = ChartBuilder::on(area)
        .margin_left(12)
        .margin_right(24)
        .margin_top(8)
        .x_label_area_size(6)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(0)
        .y_labels(6)
        .y_desc(format!("{}, MiB", ring.name()))
        .label_style(("sans-serif", 13).into_font().color(&INK))
        .axis_desc_style(("sans-serif", 14).into_font().color(&INK))
        .draw()?;
    let _ = size;
    let untraced = lines
        .untraced
        .iter()
        .map(|&(from, to)| Rectangle::new([(from, 0.0), (to, top)], LOST.mix(0.10).filled()));
    chart.draw_series(untraced)?;
    let low = if lines.wraps.len() > LINES {
        top * 0.96
    } else {
        0.0
    };
    let wraps = lines
        .wraps
        .iter()
        .map(|&at| PathElement::new([(at, low), (at, top)], WRAP.mix(0.7).stroke_width(1)));
    chart.draw_series(wraps)?;
    chart.draw_series(LineSeries::new(
        lines.head.iter().copied(),
        HEAD.stroke_width(2),
    ))?;
    chart.draw_series(LineSeries::new(
        lines.tail.iter().copied(),
        TAIL.stroke_width(2),
    ))?;
    let events = lines
        .events
        .iter()
        .map(|&at| PathElement::new([(at, 0.0), (at, top * 0.05)], EVENT.stroke_width(1)));
    chart.draw_series(events)?;
    Ok(())
}

fn fill(lines: &Lines, end: f64, area: &Area<'_, '_>) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .margin_left(12)
        .margin_right(24)
        .margin_bottom(6)
        .x_label_area_size(40)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..end, 0.0..105.0)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(12)
        .y_labels(3)
        .y_desc("fill, %")
        .x_desc("time, ms")
        .label_style(("sans-serif", 13).into_font().color(&INK))
        .axis_desc_style(("sans-serif", 14).into_font().color(&INK))
        .draw()?;
    chart.draw_series(
        AreaSeries::new(lines.fill.iter().copied(), 0.0, FULL.mix(0.35)).border_style(FULL),
    )?;
    let cuts = lines
        .truncations
        .iter()
        .map(|&at| PathElement::new([(at, 0.0), (at, 105.0)], LOST.stroke_width(1)));
    chart.draw_series(cuts)?;
    Ok(())
}
