// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Encodes the execution of a thread.

use super::packet::{Address, Group, Tnt};
use crate::insn::{Far, Insn, Kind, Mode};

mod alone;
mod bits;
mod calls;
mod events;
mod sample;
mod time;

use calls::Calls;
pub use events::Event;
pub use sample::Sample;
pub use time::Mtc;

/// The longest instruction, in bytes.
const LEN_MAX: u64 = 15;

/// The space in bytes that stays free while tracing is on: for `TNT`, `CYC`, `FUP` and `TIP.PGD`.
pub const CLOSE_MAX: usize = 8 + CYC_MAX + 9 + 1;

/// The longest `CYC`, in bytes.
const CYC_MAX: usize = 10;

/// There is no space for the packets of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("there is no space for the packets")
    }
}

impl core::error::Error for Full {}

/// The destination of packets, and the clock of their time stamps.
pub trait Output {
    /// Writes all of `bytes` if at least `keep` bytes stay free behind them. Writes nothing
    /// otherwise.
    fn write(&mut self, bytes: &[u8], keep: usize) -> Result<(), Full>;

    /// The time stamp counter.
    fn tsc(&mut self) -> u64;

    /// The number of cycles up to now in which traced instructions were executed. [`None`]: a tick
    /// of the time stamp counter counts as a cycle.
    fn cycles(&mut self) -> Option<u64> {
        None
    }

    /// The frequency of the time stamp counter in units of 100 MHz, if it is known. With `CYC`s,
    /// `CBR` packets have this value if [`Config::cbr`] is [`None`].
    fn ratio(&mut self) -> Option<u8> {
        None
    }

    /// Whether interrupts are enabled at the thread's next instruction, if that is known. Used for
    /// the flag in `MODE.Exec` if [`Config::event`] is false.
    fn interrupts(&mut self) -> Option<bool> {
        None
    }
}

/// The contents of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// Whether there are `TSC` packets.
    pub tsc: bool,
    /// The number of ticks after which another `TSC` is written, in front of the next packet with
    /// an address. 0: a `TSC` is written only at a `PSB` and where tracing begins.
    pub tsc_period: u64,
    /// Whether a `CYC` precedes each packet of branches or with an address. It counts cycles: see
    /// [`Output::cycles`]. If these are ticks of the time stamp counter, `tsc` is needed. With
    /// `CYC`s a `TNT` has at most six branches.
    pub cyc: bool,
    /// The minimum number of cycles in a `CYC`. The `CYC` at the end of tracing may have fewer.
    pub cyc_threshold: u64,
    /// Whether a return to the address behind its call is a bit in a `TNT`. Not every decoder
    /// supports that.
    pub ret_compression: bool,
    /// Whether there are no `TNT`s. A decoder then learns the targets of indirect branches, but
    /// cannot follow the thread.
    pub tnt_disable: bool,
    /// Whether packets of branches, and of the beginning and end of tracing, are left out. The
    /// trace then consists of times and PTWRITEs.
    pub branch_disable: bool,
    /// Whether there is a `PTW` for each PTWRITE.
    pub ptw: bool,
    /// Whether a `FUP` with the address of the PTWRITE follows each `PTW`.
    pub fup_on_ptw: bool,
    /// Whether there are packets of interrupts and exceptions, and of whether interrupts are
    /// enabled.
    pub event: bool,
    /// Bytes between two `PSB`s. 0: only the first one.
    pub psb_period: u64,
    /// Packets of the coarse clock; needs `tsc`. [`None`]: no such packets.
    pub mtc: Option<Mtc>,
    /// The core-to-bus ratio in `CBR` packets. [`None`]: no such packets.
    pub cbr: Option<u8>,
}

/// An executed instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The instruction.
    pub insn: Insn,
    /// Its address.
    pub from: u64,
    /// The address of the next instruction.
    pub to: u64,
    /// The mode of the next instruction.
    pub mode: Mode,
}

/// A near branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Branch {
    /// Jcc, JCXZ, JECXZ, JRCXZ, LOOP, LOOPE, LOOPNE.
    Conditional {
        /// Whether it led to its target.
        taken: bool,
    },
    /// Direct JMP.
    Jump,
    /// Direct CALL.
    Call,
    /// JMP to an address in a register or in memory.
    IndirectJump,
    /// CALL of an address in a register or in memory.
    IndirectCall,
    /// RET.
    Return,
}

/// Why a thread is at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The instruction leads there.
    Instruction,
    /// The instruction does not lead there. The trace has an asynchronous event in front of the
    /// instruction instead.
    Elsewhere,
}

/// The state of a decoder at this point of the trace.
#[derive(Clone, Copy, Debug)]
struct State {
    tnt: Tnt,
    last_ip: u64,
    /// The contents of the newest `MODE.Exec`: the mode, and whether interrupts are enabled.
    mode: Option<(Mode, bool)>,
    /// Whether interrupts are enabled.
    interrupts: bool,
    cr3: Option<u64>,
    /// The newest `TSC`.
    tsc: u64,
    /// The cycle up to which `CYC`s have counted.
    counted: u64,
    /// The cycle of the oldest branch in `tnt`, if [`Output::cycles()`] has any.
    first: Option<u64>,
    /// The number of the newest `MTC`, or of the one before the newest `TMA`.
    mtc: u64,
    /// Whether a `PSB` was written.
    begun: bool,
    on: bool,
    since_psb: u64,
}

/// Writes the trace of one thread of execution: of a CPU, or of a task.
///
/// Each call writes all of its packets, or writes nothing and fails with [`Full`]. A failed call
/// leaves the state of the trace unchanged. Most callers then end the trace with
/// [`disable`](Encoder::disable), which always has space.
#[derive(Clone, Debug)]
pub struct Encoder {
    config: Config,
    state: State,
    calls: Calls,
}

impl Encoder {
    /// An encoder that has written nothing.
    pub const fn new(config: Config) -> Self {
        Self {
            config,
            state: State {
                tnt: Tnt::EMPTY,
                last_ip: 0,
                mode: None,
                interrupts: false,
                cr3: None,
                tsc: 0,
                counted: 0,
                first: None,
                mtc: 0,
                begun: false,
                on: false,
                since_psb: 0,
            },
            calls: Calls::EMPTY,
        }
    }

    /// The contents of the trace.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Whether tracing is on: after [`enable`](Self::enable), until a call ends it.
    pub const fn is_on(&self) -> bool {
        self.state.on
    }

    /// Begins a trace that a decoder can read without the packets before it. Tracing is off
    /// afterwards.
    ///
    /// `lost`: trace is missing before this point, and a decoder is to report that as an error. If
    /// the records of the ring report the same loss, it is reported twice.
    pub fn begin(&mut self, lost: bool, output: &mut impl Output) -> Result<(), Full> {
        let mut group = Group::new();
        let mut state = State {
            tnt: Tnt::EMPTY,
            on: false,
            ..self.state
        };

        if lost {
            group.ovf();
        }
        self.psb(&mut group, &mut state, None, output);
        self.write(&group, state, output)?;
        self.calls.clear();
        Ok(())
    }

    /// Begins tracing at `ip`, in `mode`. Does nothing if tracing is on.
    pub fn enable(&mut self, ip: u64, mode: Mode, output: &mut impl Output) -> Result<(), Full> {
        if self.state.on {
            return Ok(());
        }

        let mut group = Group::new();
        let mut state = State {
            on: true,
            ..self.state
        };

        if self.psb_due(&state) {
            self.psb(&mut group, &mut state, None, output);
        } else if self.config.tsc {
            let now = output.tsc();
            self.tsc(&mut group, &mut state, now, output);
        }
        if !self.config.branch_disable {
            self.mode_exec(&mut group, &mut state, mode, output);
            group.address(Address::Pge, ip, &mut state.last_ip);
        }
        self.write(&group, state, output)?;
        // Decoders differ in whether they keep older calls, so the encoder must not use them.
        self.calls.clear();
        Ok(())
    }

    /// Traces an executed instruction. Does nothing if tracing is off.
    #[inline]
    pub fn step(&mut self, step: &Step, output: &mut impl Output) -> Result<Cause, Full> {
        let Step { insn, from, to, .. } = *step;
        let next = insn.next(from);

        if !self.state.on {
            return Ok(Cause::Instruction);
        }
        let branch = match insn.kind {
            Kind::Conditional { .. } if insn.target(from) == Some(to) => {
                Branch::Conditional { taken: true }
            }
            Kind::Conditional { .. } if to == next => Branch::Conditional { taken: false },
            Kind::Jump { .. } if insn.target(from) == Some(to) => Branch::Jump,
            Kind::Call { .. } if insn.target(from) == Some(to) => Branch::Call,
            Kind::IndirectJump => Branch::IndirectJump,
            Kind::IndirectCall => Branch::IndirectCall,
            Kind::Return => Branch::Return,
            Kind::Far(far) => {
                self.tip(Some((far, from)), to, step.mode, output)?;
                self.calls.clear();
                return Ok(Cause::Instruction);
            }
            Kind::String if to == from || to == next => return Ok(Cause::Instruction),
            Kind::Unknown if (1..=LEN_MAX).contains(&to.wrapping_sub(from)) => {
                return Ok(Cause::Instruction)
            }
            kind if !kind.is_branch() && to == next => return Ok(Cause::Instruction),
            _ => {
                self.interrupt(from, to, step.mode, output)?;
                return Ok(Cause::Elsewhere);
            }
        };
        self.branch(branch, next, to, step.mode, output)?;
        Ok(Cause::Instruction)
    }

    /// Traces an executed near branch. It is in front of `next`, and has led to `to`, in `mode`.
    /// Does nothing if tracing is off.
    #[inline]
    pub fn branch(
        &mut self,
        branch: Branch,
        next: u64,
        to: u64,
        mode: Mode,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        if !self.state.on || self.config.branch_disable {
            return Ok(());
        }
        match branch {
            Branch::Conditional { taken } => self.bit(taken, to, output)?,
            Branch::Jump => {}
            Branch::Call => {
                // "Call the next instruction" is how code finds its own address.
                if to != next {
                    self.calls.push(next);
                }
            }
            Branch::IndirectJump => {
                self.tip(None, to, mode, output)?;
            }
            Branch::IndirectCall => {
                let forgotten = self.tip(None, to, mode, output)?;
                // A `PSB` behind the packet makes a decoder forget this call too, so it is not
                // pushed then.
                if !forgotten {
                    self.calls.push(next);
                }
            }
            Branch::Return => {
                if self.config.ret_compression && self.calls.last() == Some(to) {
                    self.bit(true, to, output)?;
                    self.calls.pop();
                } else {
                    self.tip(None, to, mode, output)?;
                    // Decoders differ: perf drops the address of the call here, libipt keeps it.
                    self.calls.clear();
                }
            }
        }
        Ok(())
    }

    /// Traces an asynchronous event that has taken the thread from `from` to `to`. The instruction
    /// at `from` was not executed. Tracing stays on. Does nothing if tracing is off.
    pub fn interrupt(
        &mut self,
        from: u64,
        to: u64,
        mode: Mode,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        self.interrupt_by(None, from, to, mode, output)
    }

    /// Ends tracing before the instruction at `ip`. Does nothing if tracing is off.
    ///
    /// Fails only if the [`Output`] has not kept the space that it was asked to keep.
    pub fn disable(&mut self, ip: u64, output: &mut impl Output) -> Result<(), Full> {
        self.close(None, Some(ip), None, output)
    }

    /// Ends tracing with the far transfer that was executed last, such as a system call.
    pub fn far(&mut self, output: &mut impl Output) -> Result<(), Full> {
        self.close(None, None, None, output)
    }

    /// Ends tracing with the branch that was executed last. It has left the traced addresses and
    /// led to `to`. The caller does not report it to [`step`](Self::step).
    pub fn leave(&mut self, to: u64, output: &mut impl Output) -> Result<(), Full> {
        self.close(None, None, Some(to), output)
    }

    /// Ends tracing. The packets of `origin` precede those with the addresses `at` and `to`.
    fn close(
        &mut self,
        origin: Option<events::Origin>,
        at: Option<u64>,
        to: Option<u64>,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        if !self.state.on {
            return Ok(());
        }
        if self.config.branch_disable {
            self.state.on = false;
            return Ok(());
        }

        let mut group = Group::new();
        let mut state = State {
            on: false,
            ..self.state
        };

        group.tnt(&mut state.tnt);
        if self.config.cyc {
            let now = output.tsc();
            self.cycles(&mut group, &mut state, output.cycles().unwrap_or(now));
        }
        if let Some(origin) = origin {
            origin.add(&mut group, &mut state);
        }
        if let Some(ip) = at {
            group.address(Address::Fup, ip, &mut state.last_ip);
        }
        match to {
            Some(ip) => group.address(Address::Pgd, ip, &mut state.last_ip),
            None => group.no_address(Address::Pgd),
        }
        self.write(&group, state, output)
    }

    /// Writes a `TIP`. `far`: the far transfer that leads to `to`, and its address. Returns what
    /// [`finish`](Self::finish) returns.
    fn tip(
        &mut self,
        far: Option<(Far, u64)>,
        to: u64,
        mode: Mode,
        output: &mut impl Output,
    ) -> Result<bool, Full> {
        if self.config.branch_disable {
            return Ok(false);
        }

        let mut group = Group::new();
        let mut state = self.state;

        group.tnt(&mut state.tnt);
        self.time(&mut group, &mut state, output);
        if let Some(origin) = far.and_then(|(far, from)| self.origin(far, from)) {
            origin.add(&mut group, &mut state);
        }
        self.mode_exec(&mut group, &mut state, mode, output);
        group.address(Address::Tip, to, &mut state.last_ip);
        self.finish(&mut group, state, to, output)
    }

    /// Writes a group at whose end a decoder has followed the thread to `ip` exactly. Adds a `PSB`
    /// if one is due. Returns whether it has added one: then decoders forget the calls before it.
    fn finish(
        &mut self,
        group: &mut Group,
        mut state: State,
        ip: u64,
        output: &mut impl Output,
    ) -> Result<bool, Full> {
        let due = self.psb_due(&state);

        if due {
            self.psb(group, &mut state, Some(ip), output);
        }
        self.write(group, state, output)?;
        if due {
            self.calls.clear();
        }
        Ok(due)
    }

    fn psb_due(&self, state: &State) -> bool {
        self.config.psb_period != 0 && state.since_psb >= self.config.psb_period
    }

    /// Adds a `PSB` and the packets up to its `PSBEND`.
    fn psb(&self, group: &mut Group, state: &mut State, ip: Option<u64>, output: &mut impl Output) {
        let now = (self.config.tsc || self.config.cyc).then(|| output.tsc());

        if let Some(now) = now {
            self.cycles(group, state, output.cycles().unwrap_or(now));
        }
        group.psb();
        state.begun = true;
        state.since_psb = 0;
        state.last_ip = 0;

        if let Some(now) = now.filter(|_| self.config.tsc) {
            self.tsc(group, state, now, output);
        }
        let counted = || output.ratio().filter(|_| self.config.cyc);

        if let Some(ratio) = self.config.cbr.or_else(counted) {
            group.cbr(ratio);
        }
        if let Some(cr3) = state.cr3 {
            group.pip(cr3);
        }
        match (ip, state.mode) {
            (Some(ip), Some((mode, _))) => {
                // Each `PSB` has a `MODE.Exec`.
                state.mode = None;
                self.mode_exec(group, state, mode, output);
                // perf's decoder reads this `FUP` before it resets the last address, so the address
                // is not compressed.
                group.full_address(Address::Fup, ip);
                state.last_ip = ip;
            }
            _ => state.mode = None,
        }
        group.psbend();
    }

    /// Writes `group`. On success `state` becomes the state of the decoder.
    fn write<const MAX: usize>(
        &mut self,
        group: &Group<MAX>,
        mut state: State,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        let bytes = group.as_bytes();
        let keep = if state.on { CLOSE_MAX } else { 0 };

        output.write(bytes, keep)?;
        let written = bytes.len().try_into().unwrap_or(u64::MAX);
        state.since_psb = state.since_psb.saturating_add(written);
        self.state = state;
        Ok(())
    }

    /// Adds `MODE.Exec` if a decoder does not know the mode. With events, also if it does not know
    /// whether interrupts are enabled.
    fn mode_exec(
        &self,
        group: &mut Group,
        state: &mut State,
        mode: Mode,
        output: &mut impl Output,
    ) {
        let now = (mode, state.interrupts);
        let is_known = |known: (Mode, bool)| known == now || !self.config.event && known.0 == mode;

        if state.mode.is_some_and(is_known) {
            return;
        }
        if !self.config.event {
            state.interrupts = output.interrupts().unwrap_or(state.interrupts);
        }
        group.mode_exec(mode, state.interrupts);
        state.mode = Some((mode, state.interrupts));
    }
}
