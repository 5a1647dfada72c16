// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What makes the packets of instructions, for each virtual CPU. Nothing of QEMU.
//!
//! The thread of a virtual CPU takes the lock of its [`Cpu`] at each block. Who has that lock may take
//! the device's; who has the device's must not wait for that of a CPU.

use crate::flow::{Block, Flow, State, Wanted};
use intel_pt::{Config, Encoder, Full, Output};
use qemuplugin::biased::{Inside, Outside, PerCpu};
use qemuplugin::{Discontinuity, VirtualCpu};
use std::io::{self, BufWriter, Write};
use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Whether a return to its call is a bit.
    pub ret_compression: bool,
    /// Bytes from one `PSB` to the next.
    pub psb_period: u64,
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

/// What reads the time stamp counter of guests.
pub type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// A virtual CPU.
pub struct Cpu {
    /// Its trace, if it is on.
    flow: Option<Flow>,
    packets: Packets,
    /// Whether the next discontinuity is an exception.
    raised: bool,
    log: Option<Log>,
}

struct Timed<'a> {
    packets: &'a mut Packets,
    clock: &'a Clock,
}

impl Output for Timed<'_> {
    fn write(&mut self, bytes: &[u8], _keep: usize) -> Result<(), Full> {
        if !bytes.is_empty() {
            self.packets.add(bytes);
        }
        Ok(())
    }

    fn tsc(&mut self) -> u64 {
        (self.clock)()
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
    /// Whether the trace of each is on. It is changed under the CPU's lock.
    on: Box<[AtomicBool]>,
    clock: Clock,
    /// Whether blocks are reported.
    armed: AtomicBool,
}

/// A virtual CPU whose lock is held.
pub struct Held<'a, G> {
    cpu: G,
    on: &'a AtomicBool,
    clock: &'a Clock,
}

impl Source {
    /// That of as many CPUs as there are places for logs.
    pub fn new(clock: Clock, logs: impl IntoIterator<Item = Option<Log>>) -> Self {
        let cpu = |log| Cpu {
            flow: None,
            packets: Packets::default(),
            raised: false,
            log,
        };
        let cpus = PerCpu::new(logs.into_iter().map(cpu));
        Self {
            on: (0..cpus.len()).map(|_| AtomicBool::new(false)).collect(),
            cpus,
            clock,
            armed: AtomicBool::new(false),
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

    /// A CPU, for another thread than its own.
    pub fn cpu(&self, index: usize) -> Option<Held<'_, Outside<'_, Cpu>>> {
        Some(Held {
            cpu: self.cpus.of(index)?,
            on: self.on.get(index)?,
            clock: &self.clock,
        })
    }

    /// The CPU that calls, if its trace is on.
    #[inline]
    pub fn tracing<'a>(&'a self, cpu: &'a mut VirtualCpu) -> Option<Held<'a, Inside<'a, Cpu>>> {
        let on = self.on.get(cpu.index())?;
        if !on.load(Ordering::Relaxed) {
            return None;
        }
        Some(Held {
            cpu: self.cpus.here(cpu)?,
            on,
            clock: &self.clock,
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
            ret_compression: request.ret_compression,
            psb_period: request.psb_period,
            tsc_period: TSC_PERIOD,
            cbr: None,
        });
        self.cpu.flow = Some(Flow::new(encoder, request.wanted));
        self.cpu.raised = false;
        self.on.store(true, Ordering::Relaxed);
    }

    /// Its trace ends. `whole`: it has reached the last instruction of the block that it executes.
    pub fn stop(&mut self, whole: bool) {
        self.on.store(false, Ordering::Relaxed);
        let Cpu {
            flow, packets, log, ..
        } = &mut *self.cpu;
        let Some(mut flow) = flow.take() else {
            return;
        };
        let clock = self.clock;
        // `Timed` has place for everything.
        let _ = flow.ends(whole, &mut Timed { packets, clock });
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
            flow, packets, log, ..
        } = &mut *self.cpu;
        let Some(flow) = flow else {
            return;
        };
        if let Some(log) = log {
            complain(log.block());
            // Not what the flow makes of it.
            let pc = state.pc().unwrap_or(block.first);
            log.shift = pc.wrapping_sub(block.first);
        }
        let clock = self.clock;
        let _ = flow.executes(block, whole, state, &mut Timed { packets, clock });
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
            log.not_executed(from);
            complain(log.block());
        }
        let clock = self.clock;
        let _ = flow.discontinuity(kind, from, to, whole, &mut Timed { packets, clock });
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
    /// The last instruction of the block before. It may be repeated, which counts once.
    last: Option<u64>,
    /// The instructions of the block that were begun.
    begun: Vec<u64>,
    /// From the address that the block was translated for to where it is executed.
    shift: u64,
}

impl Log {
    /// One that is written here, a line for each instruction: its address, hexadecimal.
    #[must_use]
    pub fn new(file: Box<dyn Write + Send>) -> Self {
        Self {
            file: BufWriter::with_capacity(1 << 18, file),
            last: None,
            begun: Vec::new(),
            shift: 0,
        }
    }

    /// An instruction begins.
    fn begins(&mut self, address: u64) {
        if self.begun.is_empty() && self.last == Some(address) {
            self.last = None;
        }
        if self.begun.last() != Some(&address) {
            self.begun.push(address);
        }
    }

    /// The one that was begun last was not executed, or not to its end, if it is this.
    fn not_executed(&mut self, address: u64) {
        if self.begun.last() == Some(&address) {
            self.begun.pop();
        } else if self.begun.is_empty() && self.last == Some(address) {
            self.last = None;
        }
    }

    /// The block is left.
    fn block(&mut self) -> io::Result<()> {
        if let Some(newest) = self.begun.pop() {
            let before = self.last.replace(newest);
            self.write(before)?;
        }
        Ok(())
    }

    /// Writes an instruction, and those that were begun.
    fn write(&mut self, first: Option<u64>) -> io::Result<()> {
        let mut all = first.into_iter().chain(self.begun.drain(..));
        all.try_for_each(|address| writeln!(self.file, "{address:x}"))
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
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct File(Arc<Mutex<Vec<u8>>>);

    impl Write for File {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink for File {
        fn put(&self, _cpu: usize, packets: &Packets) {
            self.0.lock().unwrap().extend(packets.as_bytes());
        }
    }

    struct At(u64);

    impl State for At {
        fn pc(&self) -> Option<u64> {
            Some(self.0)
        }

        fn cr3(&self) -> Option<u64> {
            None
        }
    }

    fn block(first: u64) -> &'static Block {
        Box::leak(Box::new(Block {
            first,
            others: [1, 2].into(),
            last: 2,
            insn: intel_pt::insn::Insn::decode(&[0xc3], intel_pt::insn::Mode::Bits64).unwrap(),
            writes_cr3: false,
        }))
    }

    fn source(log: Option<Log>) -> Source {
        Source::new(Box::new(|| 7), [log])
    }

    fn request() -> Request {
        let mut request = Request::default();
        request.wanted.kernel = true;
        request
    }

    const KERNEL: u64 = 0xffff_ffff_8100_0000;

    #[test]
    fn a_trace_begins_and_ends_with_packets() {
        let source = source(None);
        assert!(source.cpu(1).is_none());
        let mut cpu = source.cpu(0).unwrap();
        cpu.executes(block(KERNEL), || true, &At(0));
        assert!(cpu.packets().as_bytes().is_empty());
        cpu.start(&request());
        drop(cpu);

        let mut cpu = source.cpu(0).unwrap();
        assert!(cpu.is_on());
        for n in 0..100 {
            cpu.executes(block(KERNEL + 0x1000 * n), || true, &At(0));
        }
        let before = cpu.packets().as_bytes().len();
        cpu.stop(true);
        assert!(cpu.packets().as_bytes().starts_with(&intel_pt::PSB));
        assert!(cpu.packets().as_bytes().len() > before);
        assert_eq!(cpu.packets().as_bytes().last(), Some(&1));
        let file = File::default();
        cpu.pass_all(0, &file);
        assert!(cpu.packets().as_bytes().is_empty());
        assert_eq!(file.0.lock().unwrap().len(), before + 4);
        assert!(!cpu.is_on());
    }

    #[test]
    fn packets_are_passed_on_when_they_are_many() {
        let source = source(None);
        let file = File::default();
        let mut cpu = source.cpu(0).unwrap();
        cpu.packets().add(&[0; BATCH - 1]);
        cpu.pass(0, &file);
        assert!(file.0.lock().unwrap().is_empty());
        cpu.packets().add(&[0; 3]);
        assert_eq!(cpu.packets().fit(BATCH + 1), BATCH - 1);
        assert_eq!(cpu.packets().fit(BATCH + 2), BATCH + 2);
        assert_eq!(cpu.packets().fit(BATCH - 2), 0);
        cpu.pass(0, &file);
        assert_eq!(file.0.lock().unwrap().len(), BATCH + 2);
    }

    enum Event {
        /// A block, after one that is whole or not.
        Block(u64, bool),
        Begins(u64),
        Goes(u64, u64),
        Stop(bool),
    }
    use Event::{Begins, Block as B, Goes, Stop};

    #[test]
    fn what_is_shown_is_logged() {
        let at = |offset| KERNEL + offset;
        let all = |first: u64| (0..3).map(move |offset| Begins(at(first) + offset));
        let mut whole = vec![B(KERNEL, true)];
        whole.extend(all(0));
        let table: [(Vec<Event>, &[u64]); 5] = [
            // The last one has not ended.
            ([B(KERNEL, true), Begins(KERNEL), Stop(false)].into(), &[]),
            (whole.into_iter().chain([Stop(true)]).collect(), &[0, 1]),
            (
                [B(KERNEL, true)]
                    .into_iter()
                    .chain(all(0))
                    .chain([B(at(3), true), Begins(at(3)), Stop(false)])
                    .collect(),
                &[0, 1, 2],
            ),
            // Repeated, until an interrupt comes.
            (
                [
                    B(KERNEL, true),
                    Begins(KERNEL),
                    Begins(at(1)),
                    B(at(1), true),
                    Begins(at(1)),
                    B(at(1), true),
                    Begins(at(1)),
                    Goes(at(1), at(0x100)),
                    B(at(0x100), true),
                    Begins(at(0x100)),
                    B(at(1), true),
                    Begins(at(1)),
                    B(at(2), true),
                    Stop(false),
                ]
                .into(),
                &[0, 0x100, 1],
            ),
            // Not the code of programs.
            (
                [
                    B(0x1000, true),
                    Begins(0x1000),
                    B(KERNEL, true),
                    Begins(KERNEL),
                    B(at(3), true),
                    Stop(false),
                ]
                .into(),
                &[0],
            ),
        ];
        for (n, (events, want)) in table.into_iter().enumerate() {
            let file = File::default();
            let source = source(Some(Log::new(Box::new(file.clone()))));
            let mut cpu = source.cpu(0).unwrap();
            cpu.start(&request());
            for event in events {
                match event {
                    B(first, whole) => cpu.executes(block(first), || whole, &At(first)),
                    Begins(address) => cpu.begins(address),
                    Goes(from, to) => {
                        cpu.discontinuity(Discontinuity::Interrupt, from, to, true);
                    }
                    Stop(whole) => cpu.stop(whole),
                }
            }
            cpu.flush_log();
            let logged = String::from_utf8(file.0.lock().unwrap().clone()).unwrap();
            let logged: Vec<_> = logged.lines().collect();
            let want: Vec<_> = want
                .iter()
                .map(|offset| format!("{:x}", at(*offset)))
                .collect();
            assert_eq!(logged, want, "{n}");
        }
    }
}
