// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks whether decoders show the instructions that a program executed.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::BufReader;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use steptrace::compare::{self, Decoded};
use steptrace::log::{self, Threads};

use super::decoders::{
    address, counted, cycles_by_perf, forget_env, image, perf, walk, writes_by_libipt,
    writes_by_perf, Image, Write,
};
use super::{
    Expect::{self, Counted, Generated, Losses, Same, Visits, Writes, X32},
    Outcome, Program, HELD,
};

/// Prepares the decoding: compiles `ptwalk`, which follows a trace with libipt, and puts saved code where it was recorded.
pub(super) fn prepare(files: &Path, ptwalk: &Path) -> Result<PathBuf> {
    let walker = files.join("ptwalk");
    let mut compiler = Command::new("gcc");
    compiler.arg("-O2").arg("-o").arg(&walker);
    let built = compiler.arg(ptwalk).arg("-lipt").output();
    let built = built.context("cannot start gcc")?;
    ensure!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    for entry in fs::read_dir(files).context("cannot read the folder of recordings")? {
        let from = entry?.path();
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".data.code") || name == "generated.code" {
            let to = Path::new("/tmp").join(&*name);
            fs::copy(&from, to).context("cannot put the code where it was")?;
        }
    }
    Ok(walker)
}

/// The data about a run to compare with.
struct Run {
    /// An address, and how often the program reports that it was executed.
    visits: Option<(u64, usize)>,
    /// The instructions of another run that was stepped.
    logged: Threads,
    /// The code of the program that is in files.
    image: Image,
    /// How many instructions the driver counted.
    counted: u64,
    /// How often the ring had no space.
    losses: u64,
}

#[derive(Clone, Copy)]
enum Decoder {
    Perf,
    Libipt,
}

/// Compares all recordings of a program.
pub(super) fn compared(files: &Path, walker: &Path, program: &Program) -> Result<Outcome> {
    let name = program.name;
    let data = files.join(format!("{name}.data"));
    if let (Writes(_), true) = (&program.expect, data.exists()) {
        return written(files, walker, program, &data).map(Outcome::Good);
    }
    // If it had to be recorded, the recording part has reported the error.
    if !data.exists() {
        return Ok(Outcome::Skipped("it was not recorded"));
    }
    let logged = files.join(format!("{name}.log"));
    let logged = if program.is_stepped() {
        let file = File::open(&logged);
        let file = file.with_context(|| format!("cannot open {}", logged.display()))?;
        log::read(BufReader::new(file))?
    } else {
        Threads::new()
    };
    let (counted, losses) = counted(&data)?;
    let visits = match program.expect {
        Visits(symbol) => {
            let path = files.join(format!("{name}.out"));
            let said = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            Some((place(&data, name, symbol)?, said.trim().parse()?))
        }
        _ => None,
    };
    let run = Run {
        visits,
        logged,
        image: image(&data)?,
        counted,
        losses,
    };
    let judge = |decoded, decoder| verdict(&program.expect, &run, decoder, decoded);

    let ours = judge(perf(&data)?, Decoder::Perf);
    let mut note = ours.context("auxrec's file, by perf")?;
    let followed = followed(&data, &run, &program.expect);
    note += &followed.context("auxrec's file, by auxview")?;
    if program.perf {
        let mut theirs = perf(&files.join(format!("{name}.perf.data")))?;
        forget_env(&run.logged, &mut theirs.threads);
        judge(theirs, Decoder::Perf).context("perf's file, by perf")?;
        note += "; perf's file as well";
    }
    if program.one {
        let walked = walk(&data, walker, files, &run.image)?;
        let walked = judge(walked, Decoder::Libipt).context("auxrec's file, by libipt")?;
        note += &format!("; libipt: {walked}");
    }
    Ok(Outcome::Good(note))
}

/// Checks that auxview follows as many instructions as were counted.
fn followed(data: &Path, run: &Run, expect: &Expect) -> Result<String> {
    let bytes = fs::read(data)?;
    let calls = auxview::flamegraph::calls(&bytes, Path::new("/"))?;
    ensure!(
        calls.losses() == 0 || matches!(expect, Losses),
        "{}",
        calls.summary()
    );
    ensure!(
        calls.count() == run.counted,
        "{} instructions were counted, and {} followed",
        run.counted,
        calls.count()
    );
    Ok("; auxview follows as many".to_owned())
}

/// The address of a symbol of the program.
fn place(data: &Path, name: &str, symbol: &str) -> Result<u64> {
    let image = image(data)?;
    let file = image.0.values().find(|part| part.file.ends_with(name));
    let file = &file.context("the program is not mapped")?.file;
    let bytes = fs::read(file).with_context(|| format!("cannot read {file}"))?;
    address(&bytes, symbol)
}

/// Compares the PTWRITE packets that decoders show with the program's output. The tracer must have executed each PTWRITE, so that no signal
/// came.
pub(super) fn written(
    files: &Path,
    walker: &Path,
    program: &Program,
    data: &Path,
) -> Result<String> {
    let Writes(handler) = program.expect else {
        bail!("{} writes nothing", program.name);
    };
    let path = files.join(format!("{}.out", program.name));
    let said =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let said: Vec<_> = said.lines().filter_map(Write::said).collect();
    ensure!(!said.is_empty(), "the program has written nothing");

    let handler = place(data, program.name, handler)?;
    let (counted, _) = counted(data)?;
    let image = image(data)?;
    for (decoder, decoded) in [
        ("perf", perf(data)?),
        ("libipt", walk(data, walker, files, &image)?),
    ] {
        let Decoded { threads, errors } = decoded;
        ensure!(errors.is_empty(), "{decoder} has errors: {errors:?}");
        let shown = total(&threads);
        ensure!(
            u64::try_from(shown)? == counted,
            "{counted} instructions were counted, and {decoder} shows {shown}"
        );
        let handled = threads.values().flatten().filter(|ip| **ip == handler);
        let handled = handled.count();
        ensure!(handled == 0, "the program had {handled} signals");
    }
    let cycles = cycles_by_perf(data)?;
    let other = cycles
        .iter()
        .find(|(instructions, cycles)| instructions != cycles);
    ensure!(
        other.is_none(),
        "perf shows {other:?} instructions and cycles"
    );
    let cycles: u64 = cycles.iter().map(|(_, cycles)| cycles).sum();
    ensure!(
        cycles == counted,
        "{counted} instructions were counted, and {cycles} cycles"
    );
    let shown = writes_by_perf(data)?;
    ensure!(shown == said, "perf shows {shown:x?} of {said:x?}");
    // libipt does not know the function that perf accepts as a PTWRITE.
    let said: Vec<_> = said
        .into_iter()
        .filter(|write| write.address != 0)
        .collect();
    let shown = writes_by_libipt(data, walker, files, &image)?;
    ensure!(shown == said, "libipt shows {shown:x?} of {said:x?}");
    Ok(format!(
        "{counted} instructions and cycles, {} payloads as written, by perf and libipt",
        said.len()
    ))
}

pub(super) fn total(threads: &Threads) -> usize {
    threads.values().map(Vec::len).sum()
}

fn verdict(expect: &Expect, run: &Run, decoder: Decoder, decoded: Decoded) -> Result<String> {
    let executed = total(&run.logged);
    let shown = total(&decoded.threads);
    let errors = decoded.errors.len();
    let first = decoded.errors.first().cloned().unwrap_or_default();
    let all_counted = |number: usize| {
        ensure!(
            run.counted == u64::try_from(number)?,
            "{} instructions were counted, and there are {number}",
            run.counted
        );
        Ok(())
    };

    match (expect, decoder) {
        (X32, Decoder::Perf) => {
            let outcome = compare::compare(&run.logged, decoded);
            ensure!(!outcome.is_equal(), "perf can read x32 programs now");
            Ok(format!(
                "perf reads it as 32-bit code: {shown} instructions for {executed}, {errors} errors"
            ))
        }
        (Same, _) | (Generated, Decoder::Perf) | (X32, Decoder::Libipt) => {
            let outcome = compare::compare(&run.logged, decoded);
            ensure!(outcome.is_equal(), "{outcome}");
            all_counted(executed)?;
            Ok(format!(
                "{executed} instructions in {} threads, all the same",
                run.logged.len()
            ))
        }
        (Losses, _) => {
            let held = u64::try_from(HELD)?;
            ensure!(run.losses >= held, "{} losses of {held}", run.losses);
            let expected = match decoder {
                Decoder::Perf => run.losses,
                // For libipt, a cut trace ends regularly. perf makes errors of the AUX records.
                Decoder::Libipt => 0,
            };
            ensure!(
                u64::try_from(errors)? == expected,
                "{errors} errors of {} losses: {first}",
                run.losses
            );
            all_counted(shown)?;
            let parts = parts(one(&run.logged)?, one(&decoded.threads)?);
            let parts = parts.context("it shows what was not executed")?;
            // The trace continues each time after the recorder was stopped. Instructions are missing only at losses.
            let parts = parts.len();
            ensure!(
                parts > HELD && u64::try_from(parts)? <= run.losses + 1,
                "{} losses, and what it shows is in {parts} parts",
                run.losses
            );
            Ok(format!(
                "{shown} of {executed} instructions in {parts} parts, {} losses, {errors} errors",
                run.losses
            ))
        }
        (Generated, Decoder::Libipt) => {
            let has = |ip: &u64| run.image.has(*ip);
            let all = one(&run.logged)?;
            let known = decoded.errors.iter().all(|error| run.image.explains(error));
            ensure!(known, "an error is another: {:?}", decoded.errors);
            let parts = parts(all, one(&decoded.threads)?);
            let parts = parts.context("it shows what was not executed")?;
            let ends = parts.iter().filter_map(|part| all.get(part.end));
            let wrong: Vec<_> = ends.clone().filter(|ip| has(ip)).collect();
            ensure!(wrong.is_empty(), "it stops in front of {wrong:x?}");
            let ends = ends.count();
            // There is an error at each stop, and where trace begins in such code.
            ensure!(
                errors >= ends,
                "it stops {ends} times, with {errors} errors"
            );
            ensure!(parts.len() > 2, "it does not go on behind what no file has");
            all_counted(executed)?;
            let visits = all.chunk_by(|a, b| has(a) == has(b));
            let visits = visits.filter(|ips| !ips.first().is_some_and(has)).count();
            Ok(format!(
                "{shown} of {executed} instructions in {} parts, {errors} errors; {visits} times it went where no file is, and {ends} times that was seen",
                parts.len()
            ))
        }
        (Visits(symbol), _) => {
            ensure!(errors == 0, "{errors} errors: {first}");
            all_counted(shown)?;
            let (address, said) = run.visits.context("it was not recorded")?;
            let all = decoded.threads.values().flatten();
            let visits = all.filter(|ip| **ip == address).count();
            ensure!(
                said > 0 && visits == said,
                "{symbol} was executed {said} times, and is shown {visits} times"
            );
            Ok(format!(
                "{shown} instructions shown, and as many counted; {visits} times at {symbol}"
            ))
        }
        (Writes(_), _) => bail!("its payloads are compared elsewhere"),
        (Counted(why), _) => {
            ensure!(errors == 0, "{errors} errors: {first}");
            all_counted(shown)?;
            Ok(format!(
                "{shown} instructions shown, and as many counted: {why}"
            ))
        }
    }
}

/// The instructions of the only thread.
fn one(threads: &Threads) -> Result<&[u64]> {
    let mut all = threads.values();
    let only = all.next().context("no instruction")?;
    ensure!(all.next().is_none(), "{} threads", threads.len());
    Ok(only)
}

/// Splits `some` into parts of `all` without a gap, in their order. Returns [`None`] if that is not possible.
fn parts(all: &[u64], some: &[u64]) -> Option<Vec<Range<usize>>> {
    let mut parts = Vec::new();
    let (mut from, mut left) = (0, some);

    while !left.is_empty() {
        // The longest part; if several are as long, the first one.
        let tails = (from..all.len()).filter_map(|at| Some((at, all.get(at..)?)));
        let (at, len) = tails
            .map(|(at, tail)| (at, common(tail, left)))
            .max_by_key(|&(at, len)| (len, Reverse(at)))
            .filter(|&(_, len)| len != 0)?;
        from = at + len;
        left = left.get(len..)?;
        parts.push(at..from);
    }
    Some(parts)
}

/// The length of the common beginning.
fn common(left: &[u64], right: &[u64]) -> usize {
    let pairs = left.iter().zip(right);
    pairs.take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found() {
        let all = [1, 2, 3, 1, 2, 4, 5, 6];
        let table: [(&[u64], &str); 8] = [
            (&[], "Some([])"),
            (&all, "Some([0..8])"),
            (&[1, 2, 4], "Some([3..6])"),
            (&[2, 3, 5, 6], "Some([1..3, 6..8])"),
            (&[1, 3, 2, 5], "Some([0..1, 2..3, 4..5, 6..7])"),
            (&[2, 1], "Some([1..2, 3..4])"),
            (&[6, 5], "None"),
            (&[1, 7], "None"),
        ];
        for (some, expected) in table {
            assert_eq!(format!("{:?}", parts(&all, some)), expected, "{some:?}");
        }
    }
}
