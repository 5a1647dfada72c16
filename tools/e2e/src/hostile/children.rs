// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Inherited events, and events that outlive the process that opened them.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use auxrec::sys::Event;
use perfdata::Flags;

use crate::attack::{aux, base, beside, pinned, sleep, traced, Victim};
use crate::workload::spin;

/// Opens events of this process for both CPUs, with rings. Its children inherit them.
fn of_this_process() -> Result<Vec<Victim>> {
    let mut attr = traced("pattern")?;
    attr.flags |= Flags::INHERIT;
    (0..2)
        .map(|cpu| {
            let victim = Victim::open(&attr, 0, cpu, 4)?;
            victim.event.enable()?;
            Ok(victim)
        })
        .collect()
}

fn child(what: What) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    Command::new(program)
        .arg("attack")
        .arg(match what {
            What::Tree => "tree",
            What::Open => "open",
            What::Hold => "hold",
        })
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a child")
}

pub fn storm() -> Result<String> {
    const TIMES: u32 = 3;
    let victims = of_this_process()?;
    let mut children = 0;

    beside(
        |_| {
            for victim in &victims {
                victim.release();
                let _ = victim.event.enable();
            }
            sleep(1);
        },
        || -> Result<()> {
            for n in 0..TIMES {
                let mut trees = (0..4)
                    .map(|_| child(What::Tree))
                    .collect::<Result<Vec<_>>>()?;
                if n == 1 {
                    // Some are killed before they end.
                    sleep(30);
                    for tree in &mut trees {
                        tree.kill()?;
                    }
                }
                for mut tree in trees {
                    tree.wait()?;
                    children += TREE + 1;
                }
            }
            Ok(())
        },
    )?;
    let bytes_seen: u64 = victims.iter().map(Victim::head).sum();
    ensure!(bytes_seen > 0, "nothing was traced meanwhile");
    Ok(format!("{children} processes, {bytes_seen} bytes"))
}

pub fn outlive() -> Result<String> {
    let mut opener = child(What::Open)?;
    let out = opener.stdout.take().context("no standard output")?;
    let mut lines = BufReader::new(out).lines();
    let status = opener.wait()?;
    ensure!(status.success(), "the opener ended with {status}");
    // The holder has inherited our pipe from the opener. It writes a line when it has mapped the rings.
    let said = lines.next().context("the holder has died")??;
    ensure!(said == HELD, "the holder says {said:?}");
    let references = pinned("an event whose opener is gone")?;
    // The pipe is closed when the holder ends.
    for line in lines {
        line?;
    }
    Ok(format!("{references} references after the opener had gone"))
}

/// The part of an attack that is another process.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(value_enum)]
    what: What,
}

/// What the other process does.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Starts many processes and threads that end at once.
    Tree,
    /// Opens an event, gives it to a holder, and ends.
    Open,
    /// Maps the event that is its standard input, and holds it for a while.
    Hold,
}

/// How many processes a tree starts.
const TREE: u32 = 12;

const HELD: &str = "held";

/// Runs this part of an attack.
pub fn part(args: &Args) -> Result<ExitCode> {
    match args.what {
        What::Tree => {
            for _ in 0..TREE / 2 {
                let threads: Vec<_> = (0..3)
                    .map(|_| thread::spawn(|| spin(Duration::from_micros(300))))
                    .collect();
                let mut children = (0..2)
                    .map(|_| Command::new("true").spawn())
                    .collect::<std::io::Result<Vec<_>>>()?;
                for child in &mut children {
                    child.wait()?;
                }
                // Some threads are not joined, and end with the process.
                drop(threads);
            }
        }
        What::Open => {
            let event = Event::open(&traced("pattern")?, -1, 0)?;
            let control = base(&event)?;
            let _aux = aux(&event, &control, 4)?;
            event.enable()?;
            let passed = OwnedFd::from(event.try_clone()?);
            let program = std::env::current_exe().context("cannot find this program")?;
            // The holder also inherits our pipe, which is closed when the holder ends.
            let _ = Command::new(program)
                .args(["attack", "hold"])
                .stdin(passed)
                .spawn()
                .context("cannot start a holder")?;
            // Time for the holder to map the rings.
            sleep(200);
        }
        What::Hold => {
            let input = rustix::stdio::stdin();
            let control = base(input)?;
            let _aux = aux(input, &control, 4)?;
            sleep(600);
            println!("{HELD}");
            sleep(400);
        }
    }
    Ok(ExitCode::SUCCESS)
}
