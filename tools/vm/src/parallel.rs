// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Does several things in parallel.

use crate::error::Result;
use std::panic::resume_unwind;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// Calls `run` for each item and its number, for `count` items in parallel. Returns the results in the order of the items.
pub(crate) fn each<T: Sync, R: Send>(
    count: usize,
    items: &[T],
    run: impl Fn(usize, &T) -> R + Sync,
) -> Vec<R> {
    let waiting = Mutex::new(items.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let worker = || loop {
        // A statement of its own, so that the lock is released before the item is run.
        let next = lock(&waiting).next();
        let Some((number, item)) = next else {
            break;
        };
        let result = run(number, item);
        lock(&done).push((number, result));
    };
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(worker);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Runs both in parallel.
///
/// # Errors
///
/// When one of them fails. The other ends first.
pub(crate) fn both<A, B: Send>(
    one: impl FnOnce() -> Result<A>,
    other: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    thread::scope(|scope| {
        let other = scope.spawn(other);
        let one = one();
        let other = other.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok((one?, other?))
    })
}

/// Takes a lock. What it protects is whole even if a thread has panicked with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn results_have_the_order_of_the_items() {
        let all = Barrier::new(3);
        let results = each(3, &["a", "b", "c", "d"], |number, item| {
            // The first three wait for each other.
            if number < 3 {
                all.wait();
            }
            format!("{number}{item}")
        });
        assert_eq!(results, ["0a", "1b", "2c", "3d"]);
        assert_eq!(each(2, &[(); 0], |number, ()| number), [0; 0]);
    }

    #[test]
    fn both_run_in_parallel() {
        let two = Barrier::new(2);
        let wait = |what: u32| {
            two.wait();
            Ok(what)
        };
        assert_eq!(both(|| wait(1), || wait(2)).unwrap(), (1, 2));
    }
}
