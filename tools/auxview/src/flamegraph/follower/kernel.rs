// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows the kernel's code, too: system calls, interrupts, and thread switches. No packet reports a thread switch.

use super::{Block, Followed, Follower, Left, Missing, Packet, Run, Sideband, Stray, World, UNFIT};

impl Follower {
    /// Executes a far branch: into the kernel, back from it, or back from an interrupt in it.
    pub(super) fn far(&mut self, block: &Block, to: u64, world: &mut World<'_>) -> Followed {
        if !world.code.is_kernel(block.last_at) {
            let function = self.block(to, world)?.function;
            let (stack, tree) = self.stack(world)?;
            stack.call(block.next(), function, Some(block.site()), tree);
            return Ok(());
        }
        if !world.code.is_kernel(to) {
            self.comes_back(world)?;
        }
        let function = self.function(to, world)?;
        let (stack, tree) = self.stack(world)?;
        if let Some(function) = function {
            stack.back(to, function, tree);
        }
        Ok(())
    }

    /// An interrupt or an exception before the instruction at `at`, which the kernel takes at `to`.
    pub(super) fn interrupt(&mut self, at: u64, to: u64, world: &mut World<'_>) -> Followed {
        // The exception may be that there is no code at `at`.
        let site = match self.block(at, world) {
            Ok(block) => Some(block.site_of(at)),
            Err(Stray::Missing(Missing::Code(_))) => None,
            Err(error) => return Err(error),
        };
        self.changes_mode();
        let function = self.block(to, world)?.function;
        let (stack, tree) = self.stack(world)?;
        stack.call(at, function, site, tree);
        self.ip = Some(to);
        Ok(())
    }

    /// The kernel returns to a program. The process may have mapped code meanwhile, or run another program.
    fn comes_back(&mut self, world: &mut World<'_>) -> Followed {
        let run = self.run.ok_or(UNFIT)?;
        let Some(time) = self.now(world) else {
            return Ok(());
        };
        let program = world.sideband.program_at(run.who.0, time);
        if program != run.program {
            self.tell(true, world)?;
        }
        self.run = Some(Run {
            program,
            time,
            ..run
        });
        Ok(())
    }

    /// The kernel switches threads: from here on the next thread runs.
    pub(super) fn switch(&mut self, world: &mut World<'_>) -> Followed {
        let (Ok(cpu), Some(ip)) = (self.place.ring, self.ip) else {
            // The events of a thread are off while other threads run.
            return Ok(());
        };
        let run = self.run.ok_or(UNFIT)?;
        let time = self.now(world).unwrap_or(run.time);
        let next = world.sideband.after(cpu, self.seen, time);
        let (place, who) = next.unwrap_or((self.seen, Sideband::unknown(cpu)));
        let lost = world.lost;
        let left = Left {
            next: ip,
            again: ip,
        };
        let (stack, _) = self.stack(world)?;
        stack.pause(left, lost);
        self.tell(true, world)?;

        let program = world.sideband.program_at(who.0, time);
        self.seen = place;
        self.run = Some(Run { who, program, time });
        self.is_due = self.time.is_some();
        let function = self.block(ip, world)?.function;
        let (stack, tree) = self.stack(world)?;
        if who == Sideband::unknown(cpu) {
            // It may be a different thread each time.
            stack.end();
        }
        stack.resume(lost);
        stack.enter(ip, function, tree);
        Ok(())
    }

    /// perf's time of the next packet, if it is known.
    fn now(&self, world: &World<'_>) -> Option<u64> {
        world.sideband.clock.time(self.time?)
    }

    /// Reports what the thread did up to here.
    fn tell(&mut self, ends: bool, world: &mut World<'_>) -> Followed {
        let due = std::mem::replace(&mut self.is_due, self.time.is_some());
        let reported = self.report(Packet::Sync(None), ends, world);
        self.is_due = due;
        reported.map_err(|error| Stray::Missing(Missing::Error(error)))
    }
}
