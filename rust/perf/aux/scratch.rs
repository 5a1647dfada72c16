// SPDX-License-Identifier: GPL-2.0

//! A session without a driver.

use super::{
    bench::{
        Bench,
        Setup, //
    },
    Loss,
    Pages,
    Session,
    Written, //
};
use crate::{
    event::{
        Attr,
        Event, //
    },
    pmu::Pmu, //
};
use kernel::prelude::*;

/// The driver of [`in_session`].
pub struct Scratch(fn(&mut Session<'_, Scratch>) -> Result);

#[vtable]
impl Pmu for Scratch {
    type Config = ();
    type Event = ();
    type Buffer = ();
    type Run = ();

    fn event_init(&self, _attr: &Attr<'_, ()>) -> Result {
        Ok(())
    }

    fn setup_aux(&self, _event: &Event<'_, Self>, _pages: &Pages) -> Result {
        Ok(())
    }

    fn start(&self, session: &mut Session<'_, Self>) -> Result {
        (self.0)(session)
    }

    fn quiesce(&self, session: &mut Session<'_, Self>, _run: ()) -> Written {
        Written::by_writer(session.window, Loss::None)
    }
}

/// Runs `f` in a session, and commits what it has written: for tests of code that needs a session
/// but not the rest of a driver, and for the examples of this documentation.
///
/// `f` runs as [`Pmu::start`] does, with interrupts off, and must not assert. Its error is the
/// result; the bench is there to look at what came of it.
pub fn in_session(
    setup: &Setup,
    f: fn(&mut Session<'_, Scratch>) -> Result,
) -> Result<Bench<Scratch>> {
    let mut bench = Bench::new(Scratch(f), setup)?;

    bench.add()?;
    bench.del();
    Ok(bench)
}
