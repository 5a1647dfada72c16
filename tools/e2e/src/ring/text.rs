// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares the events that are read from a buffer with the text that the kernel prints of it.

use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use tracering::format::Format;
use tracering::Event;

use super::{Instance, ROOM};

/// For each clock, the kernel's text must agree about each event, its time, and the fields of a tracepoint.
pub fn text() -> Result<String> {
    let mut said = Vec::new();
    for clock in ["local", "global", "counter", "mono", "boot", "x86-tsc"] {
        let instance = Instance::new(4, ROOM)?;
        let tracefs = &instance.tracefs;
        tracefs.write("buffer_size_kb", "4096")?;
        if !tracefs.read("trace_clock")?.contains(clock) {
            continue;
        }
        tracefs.write("trace_clock", clock)?;
        let switch = Format::parse(&tracefs.read("events/sched/sched_switch/format")?)?;
        tracefs.write("events/sched/enable", "1")?;
        // The pauses are so long that the time does not fit into a delta.
        for start in [0, 40, 80] {
            for cpu in [0, 1] {
                instance.write(cpu, start..start + 40)?;
            }
            thread::sleep(Duration::from_millis(150));
        }
        tracefs.write("tracing_on", "0")?;
        let mut events = 0;
        for cpu in [0, 1] {
            let text = tracefs.read(tracefs.cpu_file(cpu, "trace"))?;
            let mut lines = text.lines().filter(|line| !line.starts_with('#'));
            let mut map = instance.map(cpu)?;
            while let Some(reader) = map.reader()? {
                for event in reader {
                    let line = lines.next().context("more events than lines")?;
                    same(line, &event?, &switch, &instance.format)
                        .with_context(|| format!("{clock}, CPU {cpu}: {line}"))?;
                    events += 1;
                }
            }
            let more = lines.next();
            ensure!(more.is_none(), "{clock}, CPU {cpu}: not read: {more:?}");
        }
        ensure!(events > 240, "{clock}: {events} events");
        said.push(format!("{clock}: {events}"));
    }
    ensure!(said.len() > 3, "no clocks: {said:?}");
    Ok(said.join(", "))
}

/// Checks that a line of text describes this event.
fn same(line: &str, event: &Event<'_>, switch: &Format, print: &Format) -> Result<()> {
    let shown = line
        .split_whitespace()
        .find_map(|word| word.strip_suffix(':'));
    let shown = shown.context("no time")?;
    let (shown, time) = match shown.split_once('.') {
        // Microseconds, rounded.
        Some((seconds, micros)) => {
            let shown = seconds.parse::<u64>()? * 1_000_000 + micros.parse::<u64>()?;
            (shown, (event.time + 500) / 1000)
        }
        None => (shown.parse()?, event.time),
    };
    ensure!(shown == time, "the time is {time}");
    fields(line, event, switch, print)
}

fn fields(line: &str, event: &Event<'_>, switch: &Format, print: &Format) -> Result<()> {
    let id = event.data.u16(0).context("no type")?;
    if id == print.id {
        let text = print.field("buf").and_then(|buf| buf.text(event.data));
        let text = String::from_utf8(text.context("no text")?)?;
        ensure!(line.contains(text.trim_end()), "the text is {text:?}");
    }
    if id != switch.id {
        return Ok(());
    }
    for name in ["prev_pid", "prev_prio", "next_pid", "next_prio"] {
        let value = switch
            .field(name)
            .and_then(|field| field.signed(event.data));
        let value = value.with_context(|| format!("no {name}"))?;
        ensure!(
            format!("{line} ").contains(&format!("{name}={value} ")),
            "{name} is {value}"
        );
    }
    for name in ["prev_comm", "next_comm"] {
        let value = switch.field(name).and_then(|field| field.text(event.data));
        let value = String::from_utf8(value.with_context(|| format!("no {name}"))?)?;
        ensure!(
            line.contains(&format!("{name}={value} ")),
            "{name} is {value:?}"
        );
    }
    Ok(())
}
