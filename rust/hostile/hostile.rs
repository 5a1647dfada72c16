// SPDX-License-Identifier: GPL-2.0

//! Hostile drivers: safe code that misuses the framework. Each must be harmless.
//!
//! Misuse that must not compile is in `rust/compile-fail/`. Each driver here is an
//! [`attack::Attack`] on a driver that otherwise behaves correctly. It is registered as
//! `hostile_NAME`. `auxe2e` opens it, maps its AUX area, runs it, and unloads the module.
//!
//! ```text
//! # insmod rust_perf.ko; insmod hostile.ko driver=5
//! ```

use kernel::prelude::*;

mod attack;
mod fail;
#[cfg(CONFIG_PCI_MSI)]
mod line;
mod publish;
mod quiet;
mod reenter;
mod unregister;

use attack::{
    Armed,
    Hostile, //
};
use unregister::Unregisters;

module! {
    type: Module,
    name: "hostile",
    authors: ["The auxpmu authors"],
    description: "perf PMU drivers that do what they should not",
    license: "GPL",
    params: {
        driver: u8 {
            default: 0,
            description: "Register only the driver with this number; 0: all but 1, 2, 18, 19 and 30",
        },
    },
}

macro_rules! drivers {
    ($($field:ident: $attack:ty = $name:literal, $number:literal;)*) => {
        /// The drivers that are registered.
        struct Drivers {
            $($field: Option<Armed<$attack>>,)*
        }

        impl Drivers {
            fn new(only: u8) -> Result<Self> {
                Ok(Self {
                    $($field: match only == $number || only == 0 && $number > 2 {
                        true => Some(Hostile::<$attack>::register($name)?),
                        false => None,
                    },)*
                })
            }

            /// The number of registered drivers.
            fn count(&self) -> usize {
                let armed = [$(self.$field.is_some(),)*];

                armed.into_iter().filter(|armed| *armed).count()
            }
        }
    };
}

drivers! {
    // These two misbehave when the module is unloaded: see `Module::drop()`.
    forgets: unregister::Forgets = c"hostile_forgets", 1;
    interrupts_off: unregister::InterruptsOff = c"hostile_interrupts_off", 2;
    overclaim: publish::Overclaim = c"hostile_overclaim", 3;
    never_commits: publish::NeverCommits = c"hostile_never_commits", 4;
    flushes: publish::Flushes = c"hostile_flushes", 5;
    skips: publish::Skips = c"hostile_skips", 6;
    stale: publish::Stale = c"hostile_stale", 7;
    writes_in_pause: publish::WritesInPause = c"hostile_writes_in_pause", 8;
    reenters: reenter::Reenters = c"hostile_reenters", 9;
    twin_a: reenter::Twin = c"hostile_twin_a", 10;
    twin_b: reenter::Twin = c"hostile_twin_b", 11;
    timers: fail::Timers = c"hostile_timers", 12;
    never: fail::Never = c"hostile_never", 13;
    keeps: fail::Keeps = c"hostile_keeps", 14;
    setup_fails: fail::SetupFails = c"hostile_setup_fails", 15;
    start_fails: fail::StartFails = c"hostile_start_fails", 16;
    registers: fail::Registers = c"hostile_registers", 17;
    drop_event_init: Unregisters<{ unregister::EVENT_INIT }> = c"hostile_drop_event_init", 20;
    drop_event: Unregisters<{ unregister::EVENT_DROP }> = c"hostile_drop_event", 21;
    drop_setup_aux: Unregisters<{ unregister::SETUP_AUX }> = c"hostile_drop_setup_aux", 22;
    drop_buffer: Unregisters<{ unregister::BUFFER_DROP }> = c"hostile_drop_buffer", 23;
    drop_start: Unregisters<{ unregister::START }> = c"hostile_drop_start", 24;
    drop_tick: Unregisters<{ unregister::TICK }> = c"hostile_drop_tick", 25;
    drop_quiesce: Unregisters<{ unregister::QUIESCE }> = c"hostile_drop_quiesce", 26;
    drop_deferred: Unregisters<{ unregister::DEFERRED }> = c"hostile_drop_deferred", 27;
    drop_pause: Unregisters<{ unregister::PAUSE }> = c"hostile_drop_pause", 28;
    drop_failing: Unregisters<{ unregister::SETUP_AUX_FAILS }> = c"hostile_drop_failing", 29;
    unmaps: fail::Unmaps = c"hostile_unmaps", 31;
    // This one misbehaves when the module is unloaded, too.
    rcu_reader: unregister::RcuReader = c"hostile_rcu_reader", 32;
}

/// The numbers of the drivers of a PCI device.
#[cfg(CONFIG_PCI_MSI)]
const LINE: u8 = 18;
#[cfg(CONFIG_PCI_MSI)]
const LINE_IN_HANDLER: u8 = 19;
#[cfg(CONFIG_PCI_MSI)]
const LINE_KEPT: u8 = 30;

struct Module {
    drivers: Drivers,
    #[cfg(CONFIG_PCI_MSI)]
    _line: Option<line::Registered>,
    _counter: perf::Registration<quiet::BadCounter>,
}

impl kernel::Module for Module {
    fn init(module: &'static ThisModule) -> Result<Self> {
        quiet::impossible()?;

        let number = module_parameters::driver.value();
        let drivers = Drivers::new(number)?;
        pr_info!("{} drivers\n", drivers.count());
        if let (Some(a), Some(b)) = (&drivers.twin_a, &drivers.twin_b) {
            a.introduce(b);
        }
        #[cfg(CONFIG_PCI_MSI)]
        let _line = match number {
            LINE | LINE_IN_HANDLER | LINE_KEPT => Some(line::register(module)?),
            _ => None,
        };
        Ok(Self {
            drivers,
            #[cfg(CONFIG_PCI_MSI)]
            _line,
            _counter: quiet::BadCounter::register()?,
        })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Some(armed) = &self.drivers.forgets {
            unregister::Forgets::exit(armed.driver());
        }
        if let Some(armed) = &self.drivers.interrupts_off {
            unregister::InterruptsOff::exit(armed.driver());
        }
        if let Some(armed) = &self.drivers.rcu_reader {
            unregister::RcuReader::exit(armed.driver());
        }
    }
}
