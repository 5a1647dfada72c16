// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The packets other than those of branches: of the address space, of PTWRITEs and messages, and of
//! the final end of the trace.

use super::{Encoder, Full, Output, State};
use crate::packet::{Address, Group, Payload};

impl Encoder {
    /// Sets the address space to that of `cr3` from here on. Each `PSB` repeats it. Can be called
    /// while tracing is off; before [`begin`](Self::begin) it writes nothing.
    pub fn address_space(&mut self, cr3: u64, output: &mut impl Output) -> Result<(), Full> {
        let mut group = Group::new();
        let mut state = State {
            cr3: Some(cr3),
            ..self.state
        };

        if self.state.begun && self.state.cr3 != Some(cr3) {
            group.tnt(&mut state.tnt);
            if self.config.cyc {
                let now = output.tsc();
                self.cycles(&mut group, &mut state, output.cycles().unwrap_or(now));
            }
            group.pip(cr3);
        }
        self.write(&group, state, output)
    }

    /// Traces the PTWRITE at `ip`, which was executed with this operand. Called before
    /// [`step`](Self::step). Does nothing if tracing is off, or without [`Config::ptw`].
    pub fn ptwrite(
        &mut self,
        ip: u64,
        operand: Payload,
        output: &mut impl Output,
    ) -> Result<(), Full> {
        if !self.state.on || !self.config.ptw {
            return Ok(());
        }

        let mut group = Group::new();
        let mut state = self.state;

        group.tnt(&mut state.tnt);
        self.time(&mut group, &mut state, output);
        group.ptw(operand, self.config.fup_on_ptw);
        if self.config.fup_on_ptw {
            group.address(Address::Fup, ip, &mut state.last_ip);
        }
        // If the trace has packets of branches, a due `PSB` follows one of those.
        if self.config.branch_disable && self.psb_due(&state) {
            self.psb(&mut group, &mut state, None, output);
        }
        self.write(&group, state, output)
    }

    /// Writes a message at this point of the trace, with its time. When a decoder reports the
    /// message, it has decoded no instruction behind it. Does nothing if tracing is off.
    pub fn message(&mut self, message: u64, output: &mut impl Output) -> Result<(), Full> {
        if !self.state.on {
            return Ok(());
        }

        let mut group = Group::new();
        let mut state = self.state;

        group.tnt(&mut state.tnt);
        if self.config.tsc {
            let now = output.tsc();
            self.tsc(&mut group, &mut state, now, output);
        }
        group.ptw(Payload::Bits64(message), false);
        self.write(&group, state, output)
    }

    /// Marks the final end of the trace. Called after [`disable`](Self::disable) or another end of
    /// tracing, if the thread has reached an address that stops the trace.
    pub fn stopped(&mut self, output: &mut impl Output) -> Result<(), Full> {
        let mut group: Group = Group::new();

        group.trace_stop();
        self.write(&group, self.state, output)
    }
}
