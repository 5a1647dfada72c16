// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records programs in another way, and compares: the trace with the log of `steptrace`, and the packets with those of the first recording.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{bail, ensure, Context, Result};
use steptrace::compare::{self, Decoded};
use steptrace::log;

use super::decoders::{self, image, perf, walk};
use super::judge::{self, total};
use super::record::{output, recorded};
use super::{Expect, Outcome, Program, Way, CODE};

/// Records a program that was logged before.
pub(super) fn runs(programs: &Path, program: &Program, way: Way) -> Result<Outcome> {
    let path = programs.join(program.name);
    let path = path.to_str().context("no plain path")?;
    let mut command = vec![path];
    if program.name == "generated" {
        command.push(CODE);
    }
    let data = format!("/out/{}.{way}.data", program.name);
    let seen = recorded(program, Some(way), &data, &command)?;
    let alone = output(&[], &command, "")?;
    ensure!(
        seen.stdout == alone.stdout && seen.status == alone.status,
        "under auxrec it ends with {} and says {:?}, else with {} and says {:?}; {}",
        seen.status,
        String::from_utf8_lossy(&seen.stdout),
        alone.status,
        String::from_utf8_lossy(&alone.stdout),
        String::from_utf8_lossy(&seen.stderr),
    );
    Ok(Outcome::Good(alone.status.to_string()))
}

/// Compares the log with the instructions that perf and libipt show of the trace.
pub(super) fn compared(
    files: &Path,
    walker: &Path,
    program: &Program,
    way: Way,
) -> Result<Outcome> {
    let name = program.name;
    let data = files.join(format!("{name}.{way}.data"));
    if let Expect::Writes(_) = program.expect {
        return judge::written(files, walker, program, &data).map(Outcome::Good);
    }
    let path = files.join(format!("{name}.log"));
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let logged = log::read(BufReader::new(file))?;
    let executed = total(&logged);
    ensure!(executed > 0, "the log is empty");
    let same = |decoded: Decoded| {
        let outcome = compare::compare(&logged, decoded);
        ensure!(outcome.is_equal(), "{outcome}");
        Ok(())
    };
    same(perf(&data)?).context("by perf")?;
    let mut note = format!("{executed} instructions in {} threads", logged.len());
    if program.one {
        same(walk(&data, walker, files, &image(&data)?)?).context("by libipt")?;
        note += ", by libipt as well";
    }
    Ok(Outcome::Good(note))
}

/// Compares the packets of both recordings: all bytes except those of times.
pub(super) fn packets(files: &Path, walker: &Path, program: &Program, way: Way) -> Result<Outcome> {
    let [first, again] = ["data".to_owned(), format!("{way}.data")].map(|end| {
        let data = files.join(format!("{}.{end}", program.name));
        decoders::packets(&data, walker, files)
            .with_context(|| format!("the packets of {}", data.display()))
    });
    let (first, again) = (first?, again?);
    if let Some(difference) = difference(&first, &again, way) {
        bail!("{difference}");
    }
    let times = first.lines().filter(|line| line.ends_with("TSC")).count();
    let packets = first.lines().count().saturating_sub(1);
    let end = first.lines().last().unwrap_or_default();
    Ok(Outcome::Good(format!(
        "{packets} packets to {end}, all the same, but for the times in {times} of them"
    )))
}

/// Describes the first packet that differs.
fn difference(first: &str, again: &str, way: Way) -> Option<String> {
    let both = first.lines().zip(again.lines());
    let same = both.take_while(|(one, other)| one == other).count();
    let packets = [first, again].map(|packets| packets.lines().nth(same));
    if packets == [None, None] {
        return None;
    }
    let [one, other] = packets.map(|packet| {
        let packet = packet.and_then(|line| line.split_once(' '));
        packet.map_or_else(
            || "nothing".to_owned(),
            |(at, packet)| format!("{packet} at 0x{at}"),
        )
    });
    Some(format!(
        "after {same} packets that are the same the trace has {one}, and that of the {way} {other}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_packet_that_differs() {
        let first = "0 PSB 02 82\n10 TSC\n18 TNT 1c\n19 end\n";
        let differs = |one: &str, other: &str| difference(one, other, Way::Steps);
        assert_eq!(differs(first, first), None);
        for (rest, other) in [
            ("18 TNT 1e\n19 end\n", "TNT 1e at 0x18"),
            ("18 TSC\n20 TNT 1c\n", "TSC at 0x18"),
            ("18 end\n", "end at 0x18"),
            ("", "nothing"),
        ] {
            let again = format!("0 PSB 02 82\n10 TSC\n{rest}");
            let says = |one: &str, other: &str| {
                Some(format!(
                    "after 2 packets that are the same the trace has {one}, and that of the steps {other}"
                ))
            };
            assert_eq!(differs(first, &again), says("TNT 1c at 0x18", other));
            assert_eq!(differs(&again, first), says(other, "TNT 1c at 0x18"));
        }
    }
}
