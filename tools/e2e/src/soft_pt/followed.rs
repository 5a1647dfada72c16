// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows a trace of this program: each counted instruction must be found, and the calls must be right.

use std::num::NonZero;
use std::path::Path;

use anyhow::{ensure, Context, Result};
use auxview::trace::Trace;
use object::{Object, ObjectSegment, ObjectSymbol};
use perfdata::Event;

use crate::recording::{Reader, Recorder, TraceFile};
use crate::workload::CALLS;

/// A recording of the workload `calls`, and its calls.
pub struct Followed {
    /// The instructions that the driver counted.
    pub counted: u64,
    calls: auxview::flamegraph::Calls,
    /// Stacks with the outermost function first, and the instructions of each.
    folded: Vec<(String, u64)>,
}

impl Followed {
    /// Records the workload with these options, and follows its trace. No instruction may be missing.
    pub fn record(options: &[&str]) -> Result<Self> {
        let followed = Self::run(&[options, &["-m", "64K,4M"]].concat())?;

        ensure!(
            followed.calls.count() == followed.counted,
            "{} instructions were traced: {}",
            followed.counted,
            followed.calls.summary()
        );
        Ok(followed)
    }

    /// Records the workload with these options. The trace in the file must be followed to its end, without a loss.
    fn run(options: &[&str]) -> Result<Self> {
        let file = TraceFile::new("followed");
        let arguments: Vec<String> = ["-e", "soft_pt//u"]
            .iter()
            .chain(options)
            .chain(&["--", PROGRAM, "workload", "calls"])
            .copied()
            .map(str::to_owned)
            .collect();
        let ended = Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;
        ensure!(ended.status == 0, "auxrec: {}", ended.errors);

        let bytes = std::fs::read(file.path()).context("cannot read the recording")?;
        let trace = Trace::read(&bytes)?;
        let counts = trace.rings.values().flat_map(|ring| &ring.counts);
        let counted = counts.map(|count| count.value).sum();
        let calls = auxview::flamegraph::calls(&bytes, Path::new("/"))?;
        ensure!(calls.losses() == 0, "{}", calls.summary());

        let mut folded = Vec::new();
        calls.fold(&mut folded)?;
        let folded = String::from_utf8(folded)
            .context("not UTF-8")?
            .lines()
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(calls, count)| Ok((calls.to_owned(), count.parse()?)))
            .collect::<Result<Vec<_>>>()?;
        let sum: u64 = folded.iter().map(|(_, count)| count).sum();
        ensure!(
            sum == calls.count(),
            "the folded stacks have {sum} of {}",
            calls.count()
        );
        Ok(Self {
            counted,
            calls,
            folded,
        })
    }

    /// The instructions of a function, and its callers, the innermost first. It must have been called from one place only.
    fn own(&self, function: &str) -> Result<(u64, Vec<&str>)> {
        let mut found = self.folded.iter().filter_map(|(calls, count)| {
            let (callers, name) = calls.rsplit_once(';')?;
            (name == function).then(|| (*count, callers.rsplit(';').collect()))
        });
        let first = found.next();
        ensure!(found.next().is_none(), "{function} was called by several");
        first.with_context(|| format!("{function} was not executed"))
    }
}

/// The path of this program.
pub const PROGRAM: &str = "/bin/auxe2e";
const CALLER: &str = "auxe2e::workload::caller";
const CALLED: &str = "auxe2e::workload::called";

/// The folded stacks of a recording must have all instructions that the driver counted, and the program's calls.
pub(super) fn flamegraph() -> Result<String> {
    let followed = Followed::record(&[])?;
    let (count, callers) = followed.own(CALLED)?;
    ensure!(
        callers.first() == Some(&CALLER)
            && callers.contains(&"auxe2e::main")
            && callers.last() == Some(&"auxe2e"),
        "called by {callers:?}"
    );
    ensure!(
        count > 0 && count % CALLS == 0,
        "{count} instructions in {CALLS} calls"
    );
    Ok(format!(
        "{} instructions, {} each of {CALLS} calls, {} bytes of picture",
        followed.counted,
        count / CALLS,
        followed.calls.draw()?.len()
    ))
}

/// With filters, exactly the instructions of the named functions must be traced.
pub(super) fn filters() -> Result<String> {
    let all = Followed::record(&[])?;
    let (called, caller) = (all.own(CALLED)?.0, all.own(CALLER)?.0);
    let [in_called, in_caller] = [place("6called")?, place("6caller")?]
        .map(|(offset, size)| format!("filter {offset:#x}/{size:#x}@{PROGRAM}"));

    for (filter, want) in [
        (&in_called, called),
        (&in_caller, caller),
        (&format!("{in_called},{in_caller}"), called + caller),
    ] {
        let some = Followed::record(&["--filter", filter])?;
        ensure!(
            some.counted == want,
            "`{filter}`: {} instructions were traced, and not {want}",
            some.counted
        );
    }
    for (filter, why) in [
        (
            format!("start 0x1000@{PROGRAM}"),
            "an address at which to start",
        ),
        (format!("{in_called},").repeat(5), "too many"),
    ] {
        ensure!(
            Followed::record(&["--filter", filter.trim_end_matches(',')]).is_err(),
            "{why}: `{filter}` was not refused"
        );
    }
    Ok(format!("{called} and {caller} instructions"))
}

/// A snapshot of an area that has wrapped must be followed from the first synchronisation point on.
pub(super) fn snapshot() -> Result<String> {
    // An area that has not wrapped has the whole trace.
    let all = Followed::run(&["-m", "64K,4M", "-Se"])?;
    ensure!(
        all.calls.count() == all.counted,
        "{} instructions were traced: {}",
        all.counted,
        all.calls.summary()
    );

    let followed = Followed::run(&["-m", "64K,8K", "-Se"])?;
    let (count, counted) = (followed.calls.count(), followed.counted);

    // An instruction takes a bit or two.
    ensure!(
        count > 8 * 1024 && count < counted,
        "{count} of {counted} instructions are in the snapshot"
    );
    Ok(format!("the last {count} of {counted} instructions"))
}

/// The reference of an AUXTRACE record is the cycle counter, as in perf's files. TIME_CONV must convert it to a time between the first AUX
/// record and the counters at the end.
pub(super) fn times() -> Result<String> {
    let file = TraceFile::new("times");
    let arguments = "-e soft_pt//u -m 64K,64K -- /bin/auxe2e workload calls";
    let arguments: Vec<_> = arguments.split(' ').map(str::to_owned).collect();
    Recorder::start(file.path(), &arguments)?.wait(Reader::KeepsUp)?;

    let bytes = std::fs::read(file.path()).context("cannot read the recording")?;
    let parsed = perfdata::File::parse(&bytes)?;
    let (mut conv, mut first, mut last, mut pieces) = (None, None, None, Vec::new());
    for record in parsed.records() {
        let (event, id) = parsed.decode(&record?)?;
        let time = id.and_then(|id| id.time);
        match event {
            Event::TimeConv(found) => conv = Some(found),
            Event::Aux(_) => first = first.or(time),
            Event::Read(_) => last = last.max(time),
            Event::Auxtrace(aux, _) => pieces.push(aux.reference),
            _ => {}
        }
    }
    let conv = conv.context("there is no TIME_CONV record")?;
    let range = first.context("no AUX record")?..=last.context("no counter")?;
    let mut times = Vec::new();
    for reference in pieces {
        let time = conv.time(reference).context("no conversion")?;
        ensure!(
            range.contains(&time),
            "a piece with the reference {reference} is of {time} ns, and the records of {range:?}"
        );
        times.push(time);
    }
    let trace = Trace::read(&bytes)?;
    let read = trace.rings.values().flat_map(|ring| &ring.pieces);
    let mut read: Vec<_> = read
        .filter_map(|piece| piece.read)
        .map(NonZero::get)
        .collect();
    read.sort_unstable();
    times.sort_unstable();
    ensure!(
        !times.is_empty() && read == times,
        "auxrec takes {times:?} for {read:?}"
    );
    Ok(format!("{} pieces in {range:?}", times.len()))
}

/// The offset of a function in this program's file, and its length.
pub fn place(name: &str) -> Result<(u64, u64)> {
    let bytes = std::fs::read(PROGRAM).context("cannot read the program")?;
    let file = object::File::parse(bytes.as_slice()).context("no program")?;
    let symbol = file
        .symbols()
        .find(|symbol| {
            symbol
                .name()
                .is_ok_and(|text| text.contains("8workload") && text.contains(name))
        })
        .with_context(|| format!("there is no symbol {name}"))?;
    let offset = file
        .segments()
        .find_map(|segment| {
            let at = symbol.address().checked_sub(segment.address())?;
            (at < segment.size()).then(|| segment.file_range().0 + at)
        })
        .context("the symbol is in no segment")?;
    Ok((offset, symbol.size()))
}
