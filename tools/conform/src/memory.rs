// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs cases while the kernel's memory runs out: their first allocation fails, then the second, and so on.

use anyhow::{Context, Result};
use conform::allocations::Allocations;

use crate::cases::Case;
use crate::module::Module;
use crate::pmu::Pmu;
use crate::rig::with_patience;

/// A case whose allocation has failed may wait in vain. It does not wait longer than this, in seconds.
const SHORT: u64 = 10;

/// Runs cases while allocations fail.
pub struct Memory {
    allocations: Allocations,
    /// The maximum number of allocations of a case that fail.
    max: u32,
}

impl Memory {
    /// Of each case the first `max` allocations fail, one in each run.
    pub fn new(max: u32) -> Result<Self> {
        let allocations = Allocations::new()?;
        Ok(Self { allocations, max })
    }

    /// Runs a case several times, with one allocation failing each time. The case may fail then, but the reference count of the driver's
    /// module must return to its old value. In the end the case must pass.
    pub fn run_out(&self, case: &Case, pmu: &Pmu) -> Result<String> {
        let module = Module::of(pmu).ok();
        let before = module.as_ref().map(Module::references).transpose()?;
        let (mut failed, mut reported) = (0, 0);
        for nth in 1..=self.max {
            let starved = || self.allocations.without(nth, || (case.run)(pmu));
            let (outcome, left) = with_patience(SHORT, starved)?;
            if let (Some(module), Some(before)) = (&module, before) {
                let returns = module.returns_to(before);
                returns.with_context(|| format!("after allocation {nth} failed"))?;
            }
            if left > 0 {
                break;
            }
            failed += 1;
            reported += u32::from(outcome.is_err());
        }
        let said = (case.run)(pmu).context("when no allocation failed any more")?;
        Ok(format!(
            "{failed} allocations failed, and the case {reported} times\n{said}"
        ))
    }
}
