// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows the code that was executed, by the packets of a ring.

#[path = "follower/kernel.rs"]
mod kernel;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;

use intel_pt::insn::{Kind, Mode};

use super::calls::{Function, Left, Stack, Tree};
use super::code::{is_indirect, Block, Code, Missing};
use super::listener::{Listener, Moment};
use super::packets::{Batch, Packet};
use super::sideband::{Sideband, Who};
use crate::error::Result;

/// The state that the followers of all rings share.
#[derive(Debug)]
pub(super) struct World<'l> {
    pub(super) sideband: Sideband,
    pub(super) code: Code,
    pub(super) tree: Tree,
    /// The call stack of each thread in each program of its process.
    stacks: HashMap<(Who, usize), Stack>,
    /// Number of instructions that were followed.
    pub(super) count: u64,
    /// Trace that could not be followed, by reason.
    pub(super) losses: BTreeMap<String, Loss>,
    /// Called when a function begins and when it ends.
    pub(super) listener: Option<&'l mut dyn Listener>,
    /// Number of losses in the traces of CPUs: any thread may have run in lost trace.
    lost: u64,
}

/// Trace that could not be followed.
#[derive(Debug)]
pub(super) struct Loss {
    /// Number of losses.
    pub(super) times: u64,
    /// Place of the first one.
    pub(super) first: Place,
}

/// A place in the trace: after this byte, and before the next place where decoding can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The ring's CPU, or else its thread.
    pub(super) ring: std::result::Result<u32, u32>,
    pub(super) at: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, number) = match self.ring {
            Ok(cpu) => ("CPU", cpu),
            Err(thread) => ("thread", thread),
        };
        write!(f, "byte {:#x} of the trace of {what} {number}", self.at)
    }
}

impl<'l> World<'l> {
    pub(super) fn new(
        sideband: Sideband,
        code: Code,
        listener: Option<&'l mut dyn Listener>,
    ) -> Self {
        Self {
            sideband,
            code,
            tree: Tree::default(),
            stacks: HashMap::new(),
            count: 0,
            losses: BTreeMap::new(),
            listener,
            lost: 0,
        }
    }

    /// Number of threads.
    pub(super) fn threads(&self) -> usize {
        let mut threads: Vec<_> = self.stacks.keys().map(|(who, _)| who).collect();
        threads.sort_unstable();
        threads.dedup();
        threads.len()
    }
}

/// The task that runs, its program, and since when.
#[derive(Debug, Clone, Copy)]
struct Run {
    who: Who,
    program: usize,
    time: u64,
}

/// Follows one ring.
#[derive(Debug)]
pub(super) struct Follower {
    place: Place,
    run: Option<Run>,
    /// Index of the record that names the running task, among the records of the CPU.
    seen: usize,
    /// The current address, while the code is followed.
    ip: Option<u64>,
    mode: Mode,
    /// The execution mode from the next address in the trace on.
    next_mode: Option<Mode>,
    /// TNT bits of the next branches.
    bits: VecDeque<bool>,
    /// Return addresses of calls, for returns that are compressed to TNT bits.
    returns: Vec<u64>,
    /// The event of the next packet happened before this instruction.
    stopped: Option<u64>,
    /// The time of the next packet, and whether no packet has come since.
    time: Option<u64>,
    is_due: bool,
    /// The same time by perf's clock. It selects the version of the kernel's code.
    moment: u64,
}

/// Why the code is not followed any more.
enum Stray {
    Missing(Missing),
    Packet(&'static str),
}

impl From<Missing> for Stray {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

type Followed<T = ()> = std::result::Result<T, Stray>;

/// The packets do not fit the code.
const UNFIT: Stray = Stray::Packet("packets that do not fit the code");

impl Follower {
    /// Maximum number of calls for which Intel PT compresses the return.
    const RETURNS_MAX: usize = 64;
    /// Maximum number of direct branches without a packet. More are an endless loop.
    const BLOCKS_MAX: u32 = 1 << 20;
    /// Maximum number of TNT bits while the target of an indirect branch is missing.
    const BITS_MAX: usize = 1 << 10;

    /// A follower for the ring of a CPU, or else of a thread.
    pub(super) fn new(ring: std::result::Result<u32, u32>) -> Self {
        Self {
            place: Place { ring, at: 0 },
            run: None,
            seen: 0,
            ip: None,
            mode: Mode::Bits64,
            next_mode: None,
            bits: VecDeque::new(),
            returns: Vec::new(),
            stopped: None,
            time: None,
            is_due: false,
            moment: 0,
        }
    }

    /// Follows the packets of a batch.
    ///
    /// # Errors
    /// If the file of a program cannot be read, or the listener fails.
    pub(super) fn follow(&mut self, batch: &Batch, world: &mut World<'_>) -> Result<()> {
        for packet in &batch.packets {
            let why = match self.packet(*packet, batch.tsc, world) {
                Ok(()) => {
                    self.report(*packet, self.ip.is_none(), world)?;
                    continue;
                }
                Err(Stray::Missing(Missing::Error(error))) => return Err(error),
                Err(Stray::Missing(Missing::Code(why))) => why,
                Err(Stray::Packet(why)) => why.to_owned(),
            };
            let loss = world.losses.entry(why).or_insert(Loss {
                times: 0,
                first: self.place,
            });
            loss.times = loss.times.saturating_add(1);
            world.lost += u64::from(self.place.ring.is_ok());
            if let Ok((stack, _)) = self.stack(world) {
                stack.forget();
            }
            self.report(*packet, self.ip.is_none(), world)?;
            self.lose();
        }
        Ok(())
    }

    /// Reports to the listener which functions began and ended at a packet, and when, and whether the trace of the thread ends there.
    fn report(&mut self, packet: Packet, ends: bool, world: &mut World<'_>) -> Result<()> {
        let World {
            sideband,
            code,
            tree,
            stacks,
            listener,
            ..
        } = world;
        let (Some(listener), Some(run)) = (listener, self.run) else {
            return Ok(());
        };
        let Some(stack) = stacks.get_mut(&(run.who, run.program)) else {
            return Ok(());
        };
        let takes_time = match packet {
            Packet::Time(_) | Packet::Mode(_) | Packet::At(_) | Packet::Stopped(_) => return Ok(()),
            Packet::Lost(_) => false,
            _ => std::mem::take(&mut self.is_due),
        };
        let (changes, executed) = stack.changes();
        let moment = Moment {
            who: run.who,
            program: run.program,
            executed,
            time: self
                .time
                .filter(|_| takes_time)
                .and_then(|tsc| sideband.clock.time(tsc)),
            ends,
        };
        let program = sideband.program_of(run.who.0, run.program);
        let name = program.map_or("", |program| program.name.as_str());
        listener.take(&moment, name, changes, tree, code)
    }

    /// Follows nothing until the next place where decoding can begin.
    fn lose(&mut self) {
        self.ip = None;
        self.bits.clear();
        self.returns.clear();
        self.stopped = None;
    }

    fn packet(&mut self, packet: Packet, tsc: Option<u64>, world: &mut World<'_>) -> Followed {
        match packet {
            Packet::Mode(mode) => self.next_mode = Some(mode),
            Packet::At(at) => self.place.at = at,
            Packet::Time(tsc) => {
                (self.time, self.is_due) = (Some(tsc), true);
                self.moment = world.sideband.clock.time(tsc).unwrap_or(0);
            }
            Packet::Lost(why) => return Err(Stray::Packet(why)),
            Packet::Begin(ip) => self.begin(ip, tsc, world)?,
            Packet::Sync(Some(ip)) if self.ip.is_none() => self.begin(ip, tsc, world)?,
            _ if self.ip.is_none() => {}
            Packet::Sync(Some(ip)) => {
                self.run_to(ip, world)?;
                self.changes_mode();
                // A return after this place is not compressed if its call is before it.
                self.returns.clear();
            }
            Packet::Sync(None) => return Err(Stray::Packet("an end of tracing")),
            Packet::Stopped(ip) => self.stopped = Some(ip),
            Packet::Branches(bits, count) => {
                let bits = (0..count).rev().map(|n| bits >> n & 1 == 1);
                self.bits.extend(bits);
                self.branch(world)?;
            }
            Packet::Target(to) => match self.stopped.take() {
                Some(at) if world.code.is_kernel(to) => {
                    self.run_to(at, world)?;
                    self.interrupt(at, to, world)?;
                }
                Some(at) => {
                    self.run_to(at, world)?;
                    self.changes_mode();
                    let left = Left {
                        next: at,
                        again: at,
                    };
                    self.arrive(to, Some(left), world)?;
                }
                None => {
                    self.indirect(to, world)?;
                    self.branch(world)?;
                }
            },
            Packet::End(to) => self.end(to, world)?,
        }
        Ok(())
    }

    /// `MODE.Exec` holds from the address in the next packet on.
    fn changes_mode(&mut self) {
        self.mode = self.next_mode.take().unwrap_or(self.mode);
    }

    fn begin(&mut self, ip: u64, tsc: Option<u64>, world: &mut World<'_>) -> Followed {
        self.changes_mode();
        let time = world.sideband.time(self.time.max(tsc));
        let is_kernel = world.code.is_kernel(ip);
        let who = match self.place.ring {
            Ok(cpu) if is_kernel && world.sideband.is_before(cpu, time) => {
                Some(Sideband::unknown(cpu))
            }
            Ok(cpu) => world
                .sideband
                .on_cpu(cpu, self.seen, time)
                .map(|(place, who)| {
                    self.seen = place;
                    who
                }),
            Err(thread) => Some(world.sideband.thread(thread)),
        };
        let who = who.ok_or(Stray::Packet(
            "trace of a CPU on which no record says who ran",
        ))?;
        let program = world.sideband.program_at(who.0, time);

        self.lose();
        self.run = Some(Run { who, program, time });
        let lost = world.lost;
        let (stack, _) = self.stack(world)?;
        stack.resume(lost);
        self.arrive(ip, None, world)
    }

    /// Continues at `ip`. `left` is the address before, if no branch leads to `ip`.
    fn arrive(&mut self, ip: u64, left: Option<Left>, world: &mut World<'_>) -> Followed {
        let function = match left {
            // The trace may end in front of `ip`. Then nothing is executed there, and the code is not needed.
            Some(_) => self.function(ip, world)?,
            None => Some(self.block(ip, world)?.function),
        };
        let (stack, tree) = self.stack(world)?;
        if left.is_some() {
            stack.leave(left);
        }
        if let Some(function) = function {
            stack.enter(ip, function, tree);
        }
        self.ip = Some(ip);
        Ok(())
    }

    fn stack<'a>(&self, world: &'a mut World<'_>) -> Followed<(&'a mut Stack, &'a mut Tree)> {
        let run = self.run.ok_or(UNFIT)?;
        let program = world.sideband.program_of(run.who.0, run.program);
        let name = program.map_or("", |program| program.name.as_str());
        let watched = world.listener.is_some();
        let tree = &mut world.tree;
        let stack = world
            .stacks
            .entry((run.who, run.program))
            .or_insert_with(|| {
                let name = tree.name(if name.is_empty() { "?" } else { name });
                Stack::new(tree.child(None, name), watched)
            });
        Ok((stack, tree))
    }

    fn block(&self, ip: u64, world: &mut World<'_>) -> Followed<Block> {
        let run = self.run.ok_or(UNFIT)?;
        let World {
            sideband,
            code,
            tree,
            ..
        } = world;
        let program = sideband.program_of(run.who.0, run.program);
        let (time, mode) = (self.time_at(ip, run), self.mode_at(ip));
        Ok(code.block(program, time, ip, mode, tree)?)
    }

    /// The execution mode of the code at `ip`.
    fn mode_at(&self, ip: u64) -> Mode {
        match super::kernel::has(ip) {
            true => Mode::Bits64,
            false => self.mode,
        }
    }

    /// The function at `ip`. [`None`] if its code is missing: it may never be executed.
    fn function(&self, ip: u64, world: &mut World<'_>) -> Followed<Option<Function>> {
        match self.block(ip, world) {
            Ok(block) => Ok(Some(block.function)),
            Err(Stray::Missing(Missing::Code(_))) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The time for which to look up the code at `ip`. For a program it is when the run began, because its mappings are known from there.
    fn time_at(&self, ip: u64, run: Run) -> u64 {
        match super::kernel::has(ip) {
            true => self.moment.max(run.time),
            false => run.time,
        }
    }

    /// The block at the current address. Puts the thread into its function.
    fn here(&self, world: &mut World<'_>) -> Followed<(u64, Block)> {
        let ip = self.ip.ok_or(UNFIT)?;
        let block = self.block(ip, world)?;
        let (stack, tree) = self.stack(world)?;
        stack.at(block.function, tree);
        Ok((ip, block))
    }

    /// Counts instructions that were executed.
    fn count(&self, count: u64, world: &mut World<'_>) -> Followed {
        let (stack, tree) = self.stack(world)?;
        stack.count(count, tree);
        world.count += count;
        Ok(())
    }

    /// Executes a block, whose last instruction leads to `to`.
    fn execute(&mut self, block: &Block, to: u64, world: &mut World<'_>) -> Followed {
        self.count(block.count, world)?;
        match block.last.kind {
            Kind::Call { .. } | Kind::IndirectCall => {
                let back = block.next();
                // "Call the next instruction" is how code finds its own address.
                if to != back {
                    if self.returns.len() == Self::RETURNS_MAX {
                        self.returns.remove(0);
                    }
                    self.returns.push(back);
                    let function = self.function(to, world)?;
                    let (stack, tree) = self.stack(world)?;
                    // A call into its own middle is how a retpoline jumps.
                    let is_call = |function: &Function| {
                        function.begins || !function.named || function.name != block.function.name
                    };
                    if let Some(function) = function.filter(is_call) {
                        stack.call(back, function, Some(block.site()), tree);
                    }
                }
            }
            Kind::Return => {
                let function = self.function(to, world)?;
                let (stack, tree) = self.stack(world)?;
                if let Some(function) = function {
                    stack.back(to, function, tree);
                }
            }
            Kind::Far(_) => self.far(block, to, world)?,
            _ => {}
        }
        self.ip = Some(to);
        match world.code.is_switch(to) {
            true => self.switch(world),
            false => Ok(()),
        }
    }

    /// Where the block leads, if its code determines that.
    fn direct(block: &Block) -> Option<u64> {
        match block.last.kind {
            Kind::Jump { .. } | Kind::Call { .. } => block.last.target(block.last_at),
            Kind::Conditional { .. } => None,
            kind if is_indirect(kind) => None,
            _ => Some(block.next()),
        }
    }

    /// Runs to the next branch that is not direct.
    fn run(&mut self, world: &mut World<'_>) -> Followed<Block> {
        for _ in 0..Self::BLOCKS_MAX {
            let (_, block) = self.here(world)?;
            match Self::direct(&block) {
                Some(to) => self.execute(&block, to, world)?,
                None => return Ok(block),
            }
        }
        Err(UNFIT)
    }

    /// Follows the branches whose TNT bits are known, up to an indirect one.
    fn branch(&mut self, world: &mut World<'_>) -> Followed {
        while let Some(&taken) = self.bits.front() {
            let block = self.run(world)?;
            let to = match block.last.kind {
                Kind::Conditional { .. } if taken => block.last.target(block.last_at),
                Kind::Conditional { .. } => Some(block.next()),
                Kind::Return if taken => self.returns.pop(),
                // Its target may come after the TNT bits of later branches.
                _ if self.bits.len() <= Self::BITS_MAX => return Ok(()),
                _ => None,
            };
            self.bits.pop_front();
            self.execute(&block, to.ok_or(UNFIT)?, world)?;
        }
        Ok(())
    }

    /// An indirect branch leads to `to`.
    fn indirect(&mut self, to: u64, world: &mut World<'_>) -> Followed {
        let block = self.run(world)?;
        if !is_indirect(block.last.kind) {
            return Err(UNFIT);
        }
        self.changes_mode();
        self.execute(&block, to, world)
    }

    /// Runs up to the instruction at `to`, which is not executed.
    fn run_to(&mut self, to: u64, world: &mut World<'_>) -> Followed {
        for _ in 0..Self::BLOCKS_MAX {
            // The code at `to` may be missing.
            if self.ip == Some(to) {
                return Ok(());
            }
            let (ip, block) = self.here(world)?;
            if (ip..=block.last_at).contains(&to) {
                let run = self.run.ok_or(UNFIT)?;
                let program = world.sideband.program_of(run.who.0, run.program);
                let time = self.time_at(ip, run);
                let part = world.code.part(program, time, (ip, to), self.mode_at(ip));
                self.count(part.ok_or(UNFIT)?, world)?;
                self.ip = Some(to);
                return Ok(());
            }
            let next = Self::direct(&block).ok_or(UNFIT)?;
            self.execute(&block, next, world)?;
        }
        Err(UNFIT)
    }

    /// Tracing ends.
    fn end(&mut self, to: Option<u64>, world: &mut World<'_>) -> Followed {
        let stopped = self.stopped.take();
        let left = match (stopped, to) {
            (Some(at), _) => {
                self.run_to(at, world)?;
                Left {
                    next: at,
                    again: at,
                }
            }
            (None, None) => {
                let block = self.run(world)?;
                if !matches!(block.last.kind, Kind::Far(_)) {
                    return Err(UNFIT);
                }
                self.count(block.count, world)?;
                Left {
                    next: block.next(),
                    again: block.last_at,
                }
            }
            (None, Some(to)) => {
                self.run_out(to, world)?;
                Left {
                    next: to,
                    again: to,
                }
            }
        };
        let lost = world.lost;
        // The kernel returns to a program that is not traced: all calls in the kernel end.
        let is_kernel = |ip: Option<u64>| ip.is_some_and(|ip| world.code.is_kernel(ip));
        let leaves = stopped.is_none() && is_kernel(self.ip) && !is_kernel(to);
        let (stack, _) = self.stack(world)?;
        match leaves {
            true => stack.end(),
            false => stack.pause(left, lost),
        }
        self.lose();
        Ok(())
    }

    /// Executes up to and including a branch to `to`, which leaves the traced code.
    fn run_out(&mut self, to: u64, world: &mut World<'_>) -> Followed {
        for _ in 0..Self::BLOCKS_MAX {
            let (_, block) = self.here(world)?;
            let kind = block.last.kind;
            let leads = block.last.target(block.last_at) == Some(to) || block.next() == to;
            let next = match Self::direct(&block) {
                _ if is_indirect(kind) || leads => {
                    self.count(block.count, world)?;
                    return Ok(());
                }
                next => next.ok_or(UNFIT)?,
            };
            self.execute(&block, next, world)?;
        }
        Err(UNFIT)
    }
}
