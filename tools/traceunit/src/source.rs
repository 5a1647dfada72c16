// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What makes the packets of instructions, for each virtual CPU. Nothing of QEMU.
//!
//! The thread of a virtual CPU takes the lock of its [`Cpu`] at each block. Who has that lock may take
//! the device's; who has the device's must not wait for that of a CPU.

use crate::flow::{Block, Flow, State, Wanted};
use intel_pt::{Config, Encoder, Full, Mtc, Output};
use qemuplugin::biased::{Inside, Outside, PerCpu};
use qemuplugin::{Discontinuity, VirtualCpu};
use std::io::{self, BufWriter, Write};
use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes after which packets are passed on.
const BATCH: usize = 512;

/// Ticks from one `TSC` to the next, at least. A task runs longer, so perf knows which one it was.
const TSC_PERIOD: u64 = 4096;

/// What is traced, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    /// Which code.
    pub wanted: Wanted,
    /// Whether there are `TSC` packets.
    pub tsc: bool,
    /// Whether packets have `CYC` in front of them.
    pub cyc: bool,
    /// Packets of the coarse clock, if there are to be any.
    pub mtc: Option<Mtc>,
    /// Whether there are packets of interrupts and exceptions, and of whether interrupts are enabled.
    pub event: bool,
    /// Whether a return to its call is a bit.
    pub ret_compression: bool,
    /// Bytes from one `PSB` to the next.
    pub psb_period: u64,
    /// Whether the trace begins with the first instruction that is traced.
    pub late: bool,
}

/// Packets in groups. None of a group makes sense without the others.
#[derive(Default)]
pub struct Packets {
    bytes: Vec<u8>,
    /// Where in it groups end.
    ends: Vec<usize>,
}

impl Packets {
    /// The bytes of all.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of as many groups as fit in `room`.
    #[must_use]
    pub fn fit(&self, room: usize) -> usize {
        let fit = self.ends.iter().rev().find(|end| **end <= room);
        fit.copied().unwrap_or(0)
    }

    /// They were passed on.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Adds a group.
    pub fn add(&mut self, group: &[u8]) {
        self.bytes.extend_from_slice(group);
        self.ends.push(self.bytes.len());
    }
}

/// The time stamp counter of guests.
pub trait Clock: Send + Sync {
    /// What it is at.
    fn ticks(&self) -> u64;

    /// If it counts instructions, the ticks of so many; else 0.
    fn ticks_of(&self, _instructions: usize) -> u64 {
        0
    }

    /// Ticks in 10 nanoseconds, if they are known: its frequency in units of 100 MHz, as `CBR` has it.
    fn ratio(&self) -> Option<u8> {
        None
    }
}

impl<F: Fn() -> u64 + Send + Sync> Clock for F {
    fn ticks(&self) -> u64 {
        self()
    }
}

/// A virtual CPU.
pub struct Cpu {
    /// Its trace, if it is on.
    flow: Option<Flow>,
    packets: Packets,
    /// Whether the next discontinuity is an exception.
    raised: bool,
    /// The changes of code that its trace has messages of.
    seen: u64,
    log: Option<Log>,
}

/// Changes of the code that CPUs execute.
#[derive(Default)]
struct Changes {
    count: AtomicU64,
    /// Where the newest is.
    newest: AtomicU64,
}

struct Timed<'a> {
    packets: &'a mut Packets,
    clock: &'a dyn Clock,
    /// Ticks by which the clock is ahead of what was executed.
    ahead: u64,
    /// The registers, where they are known.
    state: Option<&'a dyn State>,
}

impl Output for Timed<'_> {
    fn write(&mut self, bytes: &[u8], _keep: usize) -> Result<(), Full> {
        if !bytes.is_empty() {
            self.packets.add(bytes);
        }
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        self.clock.ticks().wrapping_sub(self.ahead)
    }

    fn ratio(&mut self) -> Option<u8> {
        self.clock.ratio()
    }

    fn interrupts(&mut self) -> Option<bool> {
        self.state?.interrupts()
    }
}

/// Where packets go.
pub trait Sink: Send + Sync {
    /// Takes the packets of a CPU.
    fn put(&self, cpu: usize, packets: &Packets);

    /// There will be no more.
    fn ends(&self) {}
}

/// The virtual CPUs.
pub struct Source {
    cpus: PerCpu<Cpu>,
    clock: Box<dyn Clock>,
    /// Whether blocks are reported.
    armed: AtomicBool,
    changes: Changes,
}

/// A virtual CPU whose lock is held.
pub struct Held<'a, G> {
    cpu: G,
    clock: &'a dyn Clock,
    changes: &'a Changes,
}

impl Source {
    /// That of as many CPUs as there are places for logs.
    pub fn new(clock: Box<dyn Clock>, logs: impl IntoIterator<Item = Option<Log>>) -> Self {
        let cpu = |log| Cpu {
            flow: None,
            packets: Packets::default(),
            raised: false,
            seen: 0,
            log,
        };
        let cpus = PerCpu::new(logs.into_iter().map(cpu));
        Self {
            cpus,
            clock,
            armed: AtomicBool::new(false),
            changes: Changes::default(),
        }
    }

    /// The number of CPUs.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Whether blocks are reported. Who wants to change it has all CPUs [held](Self::cpu).
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Blocks are reported from now on, or not any more.
    pub fn arm(&self, armed: bool) {
        self.armed.store(armed, Ordering::Relaxed);
    }

    /// The code at an address has changed: when that was. Each CPU whose trace is on has a message of it
    /// before it executes another block.
    pub fn changed(&self, address: u64) -> u64 {
        let now = self.clock.ticks();
        self.changes.newest.store(address, Ordering::Relaxed);
        self.changes.count.fetch_add(1, Ordering::Release);
        now
    }

    /// A CPU, for another thread than its own.
    pub fn cpu(&self, index: usize) -> Option<Held<'_, Outside<'_, Cpu>>> {
        Some(Held {
            cpu: self.cpus.of(index)?,
            clock: &*self.clock,
            changes: &self.changes,
        })
    }

    /// The CPU that calls, if its trace is on.
    #[inline]
    pub fn tracing<'a>(&'a self, cpu: &'a mut VirtualCpu) -> Option<Held<'a, Inside<'a, Cpu>>> {
        let cpu = self.cpus.here(cpu).filter(|cpu| cpu.flow.is_some())?;
        Some(Held {
            cpu,
            clock: &*self.clock,
            changes: &self.changes,
        })
    }
}

impl<G: DerefMut<Target = Cpu>> Held<'_, G> {
    /// Whether its trace is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.cpu.flow.is_some()
    }

    /// The packets that were not passed on.
    pub fn packets(&mut self) -> &mut Packets {
        &mut self.cpu.packets
    }

    /// Its trace begins with the next block.
    pub fn start(&mut self, request: &Request) {
        let encoder = Encoder::new(Config {
            tsc: request.tsc,
            cyc: request.cyc,
            mtc: request.mtc,
            event: request.event,
            ret_compression: request.ret_compression,
            psb_period: request.psb_period,
            tsc_period: TSC_PERIOD,
            ..Config::default()
        });
        let flow = Flow::new(encoder, request.wanted);
        self.cpu.flow = Some(match request.late {
            true => flow.late(),
            false => flow,
        });
        self.cpu.raised = false;
        self.cpu.seen = self.changes.count.load(Ordering::Relaxed);
    }

    /// Its trace ends. `whole`: it has reached the last instruction of the block that it executes.
    pub fn stop(&mut self, whole: bool) {
        let Cpu {
            flow, packets, log, ..
        } = &mut *self.cpu;
        let Some(mut flow) = flow.take() else {
            return;
        };
        let clock = self.clock;
        // `Timed` has place for everything.
        let ahead = 0;
        let _ = flow.ends(
            whole,
            &mut Timed {
                packets,
                clock,
                ahead,
                state: None,
            },
        );
        if let Some(log) = log {
            complain(log.stops(whole));
        }
    }

    /// It is about to execute a block. `whole` tells whether it has reached the last instruction of the
    /// one before.
    #[inline]
    pub fn executes(
        &mut self,
        block: &'static Block,
        whole: impl FnOnce() -> bool,
        state: &impl State,
    ) {
        let Cpu {
            flow,
            packets,
            log,
            seen,
            ..
        } = &mut *self.cpu;
        let Some(flow) = flow else {
            return;
        };
        if let Some(log) = log {
            complain(log.block());
            // Not what the flow makes of it.
            let pc = state.pc().unwrap_or(block.first);
            log.shift = pc.wrapping_sub(block.first);
            let last = pc.wrapping_add(u64::from(block.last));
            log.branch = block.insn.kind.is_branch().then_some(last);
        }
        // QEMU counts a block when it is entered.
        let clock = self.clock;
        let ahead = clock.ticks_of(block.others.len() + 1);
        let mut timed = Timed {
            packets,
            clock,
            ahead,
            state: Some(state),
        };
        let _ = flow.executes(block, whole, state, &mut timed);
        let count = self.changes.count.load(Ordering::Acquire);
        if count != *seen && flow.traces(block.first) {
            *seen = count;
            let at = self.changes.newest.load(Ordering::Relaxed);
            let _ = flow.message(at, &mut timed);
        }
    }

    /// An instruction begins. For a log only.
    pub fn begins(&mut self, address: u64) {
        let Cpu { flow, log, .. } = &mut *self.cpu;
        if let (Some(log), Some(flow)) = (log, flow) {
            let address = address.wrapping_add(log.shift);
            if flow.traces(address) {
                log.begins(address);
            }
        }
    }

    /// It goes elsewhere. `whole` is as for [`Self::stop()`].
    pub fn discontinuity(&mut self, kind: Discontinuity, from: u64, to: u64, whole: bool) {
        let Cpu {
            flow,
            packets,
            log,
            raised,
            ..
        } = &mut *self.cpu;
        let Some(flow) = flow else {
            return;
        };
        // On x86 QEMU reports an exception twice: as one that leads nowhere, with an address that may
        // be stale, and then as an interrupt.
        if kind == Discontinuity::Exception && from == to {
            *raised = true;
            return;
        }
        let kind = match std::mem::take(raised) {
            true => Discontinuity::Exception,
            false => kind,
        };
        if let Some(log) = log {
            if !flow.is_executed(kind, from) {
                log.not_executed(from);
            }
            complain(log.block());
        }
        let clock = self.clock;
        let ahead = 0;
        let mut timed = Timed {
            packets,
            clock,
            ahead,
            state: None,
        };
        let _ = flow.discontinuity(kind, from, to, whole, &mut timed);
    }

    /// Passes the packets on if they are many.
    #[inline]
    pub fn pass(&mut self, index: usize, sink: &dyn Sink) {
        if self.cpu.packets.bytes.len() >= BATCH {
            self.pass_all(index, sink);
        }
    }

    /// Passes all packets on.
    pub fn pass_all(&mut self, index: usize, sink: &dyn Sink) {
        let packets = &mut self.cpu.packets;
        if !packets.bytes.is_empty() {
            sink.put(index, packets);
            packets.clear();
        }
    }

    /// All that was logged is in the file.
    pub fn flush_log(&mut self) {
        if let Some(log) = &mut self.cpu.log {
            complain(log.file.flush());
        }
    }
}

/// What was executed while the trace was on.
pub struct Log {
    file: BufWriter<Box<dyn Write + Send>>,
    /// The last instruction of the block before.
    last: Option<u64>,
    /// Whether it can be repeated, which counts once: a branch to itself is executed each time.
    repeats: bool,
    /// The branch at the end of the block.
    branch: Option<u64>,
    /// The instructions of the block that were begun.
    begun: Vec<u64>,
    /// From the address that the block was translated for to where it is executed.
    shift: u64,
    /// How many more instructions it takes.
    left: u64,
}

impl Log {
    /// One that is written here, a line for each of the first `most` instructions: its address, hexadecimal.
    #[must_use]
    pub fn new(file: Box<dyn Write + Send>, most: u64) -> Self {
        Self {
            file: BufWriter::with_capacity(1 << 18, file),
            last: None,
            repeats: false,
            branch: None,
            begun: Vec::new(),
            shift: 0,
            left: most,
        }
    }

    /// An instruction begins.
    fn begins(&mut self, address: u64) {
        self.begins_again(address);
        if self.begun.last() != Some(&address) {
            self.begun.push(address);
        }
    }

    /// The one that was begun last was not executed, or not to its end, if it is this.
    fn not_executed(&mut self, address: u64) {
        if self.begun.last() == Some(&address) {
            self.begun.pop();
        } else {
            self.begins_again(address);
        }
    }

    /// The last instruction of the block before has not ended, if it is this.
    fn begins_again(&mut self, address: u64) {
        if self.repeats && self.begun.is_empty() && self.last == Some(address) {
            self.last = None;
        }
    }

    /// The block is left.
    fn block(&mut self) -> io::Result<()> {
        if let Some(newest) = self.begun.pop() {
            let before = self.last.replace(newest);
            self.repeats = self.branch != Some(newest);
            self.write(before)?;
        }
        Ok(())
    }

    /// Writes an instruction, and those that were begun.
    fn write(&mut self, first: Option<u64>) -> io::Result<()> {
        for address in first.into_iter().chain(self.begun.drain(..)) {
            if self.left != 0 {
                self.left -= 1;
                writeln!(self.file, "{address:x}")?;
            }
        }
        Ok(())
    }

    /// The trace ends: before the last instruction of the block if it is `whole`, else before its first.
    fn stops(&mut self, whole: bool) -> io::Result<()> {
        match whole {
            true => drop(self.begun.pop()),
            false => self.begun.clear(),
        }
        let last = self.last.take();
        self.write(last)
    }
}

fn complain(result: io::Result<()>) {
    if let Err(error) = result {
        eprintln!("traceunit: cannot write: {error}");
    }
}

#[cfg(test)]
mod tests;
