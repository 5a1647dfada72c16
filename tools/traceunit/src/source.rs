// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Generates the packets of instructions, for each virtual CPU. Independent of QEMU.
//!
//! The thread of a virtual CPU takes the lock of its [`Cpu`] at each block. Lock order: a thread may take the device's lock while it holds
//! the lock of a CPU, but not the other way round.

use crate::flow::{Block, Flow, State, Wanted};
use intel_pt::{Config, Encoder, Full, Mtc, Output};
use qemuplugin::biased::{Inside, Outside, PerCpu};
use qemuplugin::{Discontinuity, VirtualCpu};
use std::io::{self, BufWriter, Write};
use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of bytes from which on packets are passed to the sink.
const BATCH: usize = 512;

/// Minimum number of ticks between two `TSC` packets. Tasks run longer than that, so perf can tell which task was traced.
const TSC_PERIOD: u64 = 4096;

/// The state of the wait for the first program.
#[derive(Debug, Default)]
pub struct FromUser {
    /// Whether the kernel has executed code at its final addresses.
    up: AtomicBool,
    begun: AtomicBool,
}

impl FromUser {
    /// Whether this is the first program: the CPU executes code below the kernel's addresses, after it has executed code there. `pc` is where
    /// the CPU is. A block's address does not say that: QEMU uses the translation of code that was executed where the image was loaded.
    #[must_use]
    pub fn begins(&self, pc: impl FnOnce() -> Option<u64>) -> bool {
        if self.begun.load(Ordering::Relaxed) {
            return false;
        }
        match pc().map(|pc| pc >> 63) {
            Some(0) if self.up.load(Ordering::Relaxed) => !self.begun.swap(true, Ordering::Relaxed),
            Some(1) => {
                self.up.store(true, Ordering::Relaxed);
                false
            }
            _ => false,
        }
    }
}

/// The trace that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    /// The code to trace.
    pub wanted: Wanted,
    /// Whether there are `TSC` packets.
    pub tsc: bool,
    /// Whether there are `CYC` packets.
    pub cyc: bool,
    /// Configuration of `MTC` packets, the coarse clock; [`None`] for none.
    pub mtc: Option<Mtc>,
    /// Whether there are packets of interrupts, exceptions and changes of the interrupt flag.
    pub event: bool,
    /// Whether a return to its call is a bit in a `TNT`.
    pub ret_compression: bool,
    /// Number of bytes between two `PSB`s.
    pub psb_period: u64,
    /// Whether the trace begins with the first instruction that is wanted: see [`Flow::late`].
    pub late: bool,
}

/// Packets in groups. The packets of a group must stay together.
#[derive(Default)]
pub struct Packets {
    bytes: Vec<u8>,
    /// Offset in `bytes` of the end of each group.
    ends: Vec<usize>,
}

impl Packets {
    /// The bytes of all packets.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of bytes of the groups that fit into `space` bytes.
    #[must_use]
    pub fn fit(&self, space: usize) -> usize {
        let fit = self.ends.iter().rev().find(|end| **end <= space);
        fit.copied().unwrap_or(0)
    }

    /// Removes all packets.
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

/// The time stamp counter of the guest.
pub trait Clock: Send + Sync {
    /// Value of the counter.
    fn ticks(&self) -> u64;

    /// The ticks of this number of instructions, if the counter counts instructions; otherwise 0.
    fn ticks_of(&self, _instructions: usize) -> u64 {
        0
    }

    /// Frequency of the counter in units of 100 MHz, as in `CBR` packets; [`None`] if it is unknown.
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
    /// The trace of the CPU; [`None`] if tracing is off.
    flow: Option<Flow>,
    packets: Packets,
    /// Whether the next discontinuity is an exception.
    raised: bool,
    /// Number of code changes up to the last message in the trace.
    seen: u64,
    log: Option<Log>,
}

/// Changes of the guest's code.
#[derive(Default)]
struct Changes {
    count: AtomicU64,
    /// Address of the newest change.
    newest: AtomicU64,
}

struct Timed<'a> {
    packets: &'a mut Packets,
    clock: &'a dyn Clock,
    /// Ticks by which the clock is ahead of the executed instructions.
    ahead: u64,
    /// The registers, if they are known.
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

/// The destination of packets.
pub trait Sink: Send + Sync {
    /// Takes the packets of a CPU.
    fn put(&self, cpu: usize, packets: &Packets);

    /// There are no more packets.
    fn ends(&self) {}
}

/// The virtual CPUs.
pub struct Source {
    cpus: PerCpu<Cpu>,
    clock: Box<dyn Clock>,
    /// Whether QEMU reports blocks.
    armed: AtomicBool,
    changes: Changes,
}

/// A virtual CPU whose lock the caller holds.
pub struct Held<'a, G> {
    cpu: G,
    clock: &'a dyn Clock,
    changes: &'a Changes,
}

impl Source {
    /// A source with one CPU for each element of `logs`.
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

    /// Whether QEMU reports blocks. To change this, a thread has to hold the locks of [all CPUs](Self::cpu).
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Sets whether QEMU reports blocks.
    pub fn arm(&self, armed: bool) {
        self.armed.store(armed, Ordering::Relaxed);
    }

    /// Records that the code at an address has changed, and returns the time. The trace of each CPU that is on gets a message before the
    /// CPU executes another block.
    pub fn changed(&self, address: u64) -> u64 {
        let now = self.clock.ticks();
        self.changes.newest.store(address, Ordering::Relaxed);
        self.changes.count.fetch_add(1, Ordering::Release);
        now
    }

    /// The CPU with this index. Not for the thread of that CPU itself.
    pub fn cpu(&self, index: usize) -> Option<Held<'_, Outside<'_, Cpu>>> {
        Some(Held {
            cpu: self.cpus.of(index)?,
            clock: &*self.clock,
            changes: &self.changes,
        })
    }

    /// The calling CPU, if its trace is on.
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
    /// Whether the trace of the CPU is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.cpu.flow.is_some()
    }

    /// The packets that were not passed to the sink.
    pub fn packets(&mut self) -> &mut Packets {
        &mut self.cpu.packets
    }

    /// Starts the trace with the next block.
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

    /// Ends the trace. `whole`: the CPU has reached the last instruction of its current block.
    pub fn stop(&mut self, whole: bool) {
        let Cpu {
            flow, packets, log, ..
        } = &mut *self.cpu;
        let Some(mut flow) = flow.take() else {
            return;
        };
        let clock = self.clock;
        // `Timed` always has space, so this cannot fail.
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

    /// The CPU is about to execute a block. `whole` returns whether it has reached the last instruction of the previous block.
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
            // The log does not use the state of the flow, which it is to verify.
            let pc = state.pc().unwrap_or(block.first);
            log.shift = pc.wrapping_sub(block.first);
            let last = pc.wrapping_add(u64::from(block.last));
            log.branch = block.insn.kind.is_branch().then_some(last);
        }
        // QEMU counts the instructions of a block when the block begins.
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

    /// An instruction begins. Used only for the log.
    pub fn begins(&mut self, address: u64) {
        let Cpu { flow, log, .. } = &mut *self.cpu;
        if let (Some(log), Some(flow)) = (log, flow) {
            let address = address.wrapping_add(log.shift);
            if flow.traces(address) {
                log.begins(address);
            }
        }
    }

    /// The CPU leaves its code at a discontinuity. `whole` is as for [`Self::stop()`].
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
        // On x86 QEMU reports an exception twice: first as an exception with equal addresses, which may be stale, and then as an interrupt.
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

    /// Passes the packets to the sink if there are at least `BATCH` bytes.
    #[inline]
    pub fn pass(&mut self, index: usize, sink: &dyn Sink) {
        if self.cpu.packets.bytes.len() >= BATCH {
            self.pass_all(index, sink);
        }
    }

    /// Passes all packets to the sink.
    pub fn pass_all(&mut self, index: usize, sink: &dyn Sink) {
        let packets = &mut self.cpu.packets;
        if !packets.bytes.is_empty() {
            sink.put(index, packets);
            packets.clear();
        }
    }

    /// Writes the buffered part of the log to the file.
    pub fn flush_log(&mut self) {
        if let Some(log) = &mut self.cpu.log {
            complain(log.file.flush());
        }
    }
}

/// A log of the instructions that were executed while the trace was on.
pub struct Log {
    file: BufWriter<Box<dyn Write + Send>>,
    /// The last instruction of the previous block.
    last: Option<u64>,
    /// Whether `last` may be a repeated instruction, which is logged once. A branch to itself is logged each time.
    repeats: bool,
    /// Address of the branch at the end of the block, if there is one.
    branch: Option<u64>,
    /// The instructions of the block that have begun.
    begun: Vec<u64>,
    /// Difference between the address at which the block is executed and the address for which it was translated.
    shift: u64,
    /// Number of instructions that may still be logged.
    left: u64,
}

impl Log {
    /// A log to `file`. It has a line for each of the first `max` instructions: the address, as a hexadecimal number.
    #[must_use]
    pub fn new(file: Box<dyn Write + Send>, max: u64) -> Self {
        Self {
            file: BufWriter::with_capacity(1 << 18, file),
            last: None,
            repeats: false,
            branch: None,
            begun: Vec::new(),
            shift: 0,
            left: max,
        }
    }

    /// An instruction begins.
    fn begins(&mut self, address: u64) {
        self.begins_again(address);
        if self.begun.last() != Some(&address) {
            self.begun.push(address);
        }
    }

    /// The instruction at `address` was not executed, or not completely. Removes it if it has begun last.
    fn not_executed(&mut self, address: u64) {
        if self.begun.last() == Some(&address) {
            self.begun.pop();
        } else {
            self.begins_again(address);
        }
    }

    /// The instruction at `address` begins again. If it is the last one of the previous block, that has not ended.
    fn begins_again(&mut self, address: u64) {
        if self.repeats && self.begun.is_empty() && self.last == Some(address) {
            self.last = None;
        }
    }

    /// The CPU leaves the block.
    fn block(&mut self) -> io::Result<()> {
        if let Some(newest) = self.begun.pop() {
            let before = self.last.replace(newest);
            self.repeats = self.branch != Some(newest);
            self.write(before)?;
        }
        Ok(())
    }

    /// Writes the address `first`, and those of the instructions that have begun.
    fn write(&mut self, first: Option<u64>) -> io::Result<()> {
        for address in first.into_iter().chain(self.begun.drain(..)) {
            if self.left != 0 {
                self.left -= 1;
                writeln!(self.file, "{address:x}")?;
            }
        }
        Ok(())
    }

    /// The trace ends: if `whole`, before the last instruction of the block, otherwise before its first.
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
