// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `report --flamegraph`: the tree of calls in a trace of Intel PT's format, with the number of instructions of each function.
//!
//! The crate `iptr-decoder` reads the packets. Between two packets, this module follows the code instruction by instruction, in the files
//! that the programs had mapped. A thread for each ring reads a few thousand packets ahead. The packets of all rings are put into order by
//! their time stamps, so that a thread that ran on several CPUs has one call stack. Of each ring, only the trace between two `PSB`s is in
//! memory. All sideband records and all calls are in memory.
//!
//! Trace that cannot be followed is counted and reported. Following continues at the next packet where it can begin.

pub(crate) mod calls;
mod clock;
pub(crate) mod code;
mod follower;
mod generated;
pub(crate) mod image;
mod kernel;
mod listener;
mod packets;
mod pokes;
mod sideband;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{sync_channel, Receiver};
use std::thread;

use inferno::flamegraph::{from_lines, Options};

use crate::error::{Error, Result};
use crate::pieces::Pieces;
use crate::source::Source;
use crate::trace::Trace;
use calls::Tree;
use code::Code;
use follower::{Follower, Loss, World};
use kernel::Kernel;
pub(crate) use listener::{Listener, Moment};
use packets::{Batch, Batches, Stop};
use sideband::Sideband;

/// Maximum number of messages of a ring that wait. Then the thread that reads the ring waits, too.
const AHEAD: usize = 2;

/// The calls of a recording.
#[derive(Debug)]
pub struct Calls {
    tree: Tree,
    count: u64,
    threads: usize,
    /// Trace that could not be followed, by reason.
    losses: BTreeMap<String, Loss>,
}

/// Where the traced code is.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// The files of programs are looked for below this directory.
    pub root: &'a Path,
    /// The directory with the kernel's `kcore` and `kallsyms`. Without it, the kernel's code is not followed.
    pub kernel: Option<&'a Path>,
}

impl<'a> From<&'a Path> for Places<'a> {
    fn from(root: &'a Path) -> Self {
        Self { root, kernel: None }
    }
}

/// Follows the trace of a recording.
///
/// # Errors
/// If it is no perf.data file, if it has no trace of Intel PT's format, or if the file of a program is missing or is not the one that was
/// traced.
pub fn calls<'a, S: Source + ?Sized>(file: &S, places: impl Into<Places<'a>>) -> Result<Calls> {
    Recording::read(file)?.follow(places.into(), None)
}

/// A recording whose trace can be followed.
pub(crate) struct Recording<'a, S: ?Sized> {
    file: &'a S,
    trace: Trace,
    sideband: Sideband,
}

impl<'a, S: Source + ?Sized> Recording<'a, S> {
    /// Reads everything except the trace.
    pub(crate) fn read(file: &'a S) -> Result<Self> {
        let trace = Trace::read(file)?;
        let sideband = Sideband::read(file)?;
        if sideband.format != Some(perfdata::auxtrace::INTEL_PT) {
            return Err(Error::failed(format!(
            "there is no trace of Intel PT in it, but of the PMU `{}`; only what intel_pt or soft_pt recorded can be followed",
            trace.pmu
        )));
        }
        let mut rings = trace.rings.values().filter(|ring| !ring.pieces.is_empty());
        if rings.any(|ring| ring.cpu.is_some()) && sideband.clock.mult == 0 {
            return Err(Error::failed(
            "the file does not relate the processor's clock to perf's, so the tasks that ran on each CPU are unknown; record with --per-thread",
        ));
        }
        Ok(Self {
            file,
            trace,
            sideband,
        })
    }

    /// Whether the trace has times.
    pub(crate) fn is_timed(&self) -> bool {
        self.sideband.is_timed
    }

    /// Follows the trace, and calls `listener` when functions begin and end.
    pub(crate) fn follow(
        self,
        places: Places<'_>,
        listener: Option<&mut dyn Listener>,
    ) -> Result<Calls> {
        let Self {
            file,
            trace,
            mut sideband,
        } = self;
        let rings: Vec<_> = trace
            .rings
            .values()
            .filter(|ring| !ring.pieces.is_empty())
            .collect();
        let here = rustix::system::uname();
        let same_kernel = here.release().to_string_lossy() == sideband.release.as_str();
        let kernel = places.kernel.map(Kernel::read).transpose()?;
        // There is no TSC packet where the kernel returns to a program. The packets between two TSCs give the time of that.
        let timed = listener.is_some() || kernel.is_some();
        let ratios = timed.then_some(sideband.ratios);
        let code = Code::new(places.root, same_kernel, kernel, &mut sideband);
        let mut world = World::new(sideband, code, listener);
        let mut followers: Vec<_> = rings
            .iter()
            .map(|ring| Follower::new(ring.cpu.ok_or(ring.thread.unwrap_or(0))))
            .collect();

        let cannot = |e: io::Error| {
            let count = rings.len();
            Error::failed(format!(
                "cannot start a thread for each of the {count} rings of the recording: {e}"
            ))
        };
        let files = [file];
        thread::scope(|scope| {
            let (mut batches, mut readers) = (Vec::new(), Vec::new());
            for ring in &rings {
                let (send, receive) = sync_channel(AHEAD);
                let mut read = Pieces::of(&files);
                // The thread ends when it has sent everything, or when the receiver is dropped.
                let run = move || packets::send(&ring.pieces, &mut read, ratios, &send);
                readers.push(
                    thread::Builder::new()
                        .spawn_scoped(scope, run)
                        .map_err(cannot)?,
                );
                batches.push(receive);
            }
            in_order(&batches, |ring, batch| {
                followers
                    .get_mut(ring)
                    .map_or(Ok(()), |follower| follower.follow(&batch, &mut world))
            })?;
            for reader in readers {
                match reader.join() {
                    Ok(Ok(()) | Err(Stop::Gone(_))) => {}
                    Ok(Err(Stop::Failed(e))) => return Err(e),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok(())
        })?;
        let threads = world.threads();
        let World {
            listener,
            tree,
            code,
            count,
            losses,
            ..
        } = world;
        if let Some(listener) = listener {
            listener.finish(&tree, &code)?;
        }
        Ok(Calls {
            tree,
            count,
            threads,
            losses,
        })
    }
}

/// The next batch of a ring: from `left`, the rest of its last message, or else from the next message.
fn next((ring, left): (&Receiver<Batches>, &mut std::vec::IntoIter<Batch>)) -> Option<Batch> {
    loop {
        if let Some(batch) = left.next() {
            return Some(batch);
        }
        *left = ring.recv().ok()?.into_iter();
    }
}

/// Calls `each` with the batches of all rings, the oldest first.
fn in_order(
    rings: &[Receiver<Batches>],
    mut each: impl FnMut(usize, Batch) -> Result<()>,
) -> Result<()> {
    let mut left: Vec<_> = rings.iter().map(|_| Batches::new().into_iter()).collect();
    let mut heads: Vec<_> = rings.iter().zip(&mut left).map(next).collect();
    loop {
        let oldest = heads
            .iter()
            .enumerate()
            .filter_map(|(n, head)| Some((head.as_ref()?.tsc, n)))
            .min();
        let Some((_, n)) = oldest else {
            return Ok(());
        };
        let following = rings.get(n).zip(left.get_mut(n)).and_then(next);
        if let Some(batch) = heads
            .get_mut(n)
            .and_then(|head| std::mem::replace(head, following))
        {
            each(n, batch)?;
        }
    }
}

impl Calls {
    /// Number of instructions that were followed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How often the trace could not be followed.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.losses.values().map(|loss| loss.times).sum()
    }

    /// Writes folded stacks: a line for each call, with the names from the outermost, separated by `;`, and its instructions.
    ///
    /// # Errors
    /// If the output fails.
    pub fn fold(&self, out: &mut impl Write) -> io::Result<()> {
        self.tree.fold(out)
    }

    /// The flame graph, as SVG.
    ///
    /// # Errors
    /// If there is nothing to draw.
    pub fn draw(&self) -> Result<Vec<u8>> {
        if self.count() == 0 {
            return Err(Error::failed(format!(
                "there is nothing to draw: no instruction of the trace could be followed\n{}",
                self.summary()
            )));
        }
        let mut folded = Vec::new();
        let mut picture = Vec::new();
        let mut options = Options::default();
        options.title = "Instructions".to_owned();
        options.count_name = "instructions".to_owned();
        options.deterministic = true;
        // In percent. Narrower frames cannot be seen.
        options.min_width = 0.1;
        let wrong = |e: io::Error| Error::failed(format!("cannot draw the flame graph: {e}"));
        self.fold(&mut folded).map_err(wrong)?;
        let folded = String::from_utf8_lossy(&folded);
        from_lines(&mut options, folded.lines(), &mut picture).map_err(wrong)?;
        Ok(picture)
    }

    /// Describes what was followed and what was not, in lines.
    #[must_use]
    pub fn summary(&self) -> String {
        let Self {
            count,
            losses,
            tree,
            threads,
        } = self;
        let mut text = format!("# {count} instructions of {threads} threads\n");
        for (why, loss) in losses {
            text.push_str(&format!(
                "# not followed, {} times: {why}; first behind {}\n",
                loss.times, loss.first
            ));
        }
        if tree.cut {
            text.push_str("# calls that are very deep are counted for their callers\n");
        }
        text
    }
}
