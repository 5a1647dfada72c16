// SPDX-License-Identifier: GPL-2.0

//! Padding that is committed as trace.
//!
//! error: cannot move out of `*writer`

use kernel::prelude::*;
use perf::{
    aux::Transaction,
    AuxPmu, //
};

/// Commits in the closure that writes padding.
pub fn skip<T: AuxPmu>(transaction: &mut Transaction<'_, T>) -> Result {
    transaction.skip(8, |writer| {
        writer.put(&[0; 8])?;
        writer.commit();
        Ok(())
    })
}
