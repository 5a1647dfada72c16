// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Closures, trait objects, iterators, a panic that is caught.

use std::collections::BTreeMap;
use std::panic;

fn main() {
    let mut words = BTreeMap::new();
    for word in "the quick brown fox jumps over the lazy dog and the cat".split(' ') {
        *words.entry(word).or_insert(0u32) += 1;
    }
    let steps: Vec<Box<dyn Fn(u32) -> u32>> =
        vec![Box::new(|x| x + 1), Box::new(|x| x * 3), Box::new(|x| x ^ 5)];
    let sum = (0..50).fold(0, |sum, i| steps[i % steps.len()](sum) % 1000);
    panic::set_hook(Box::new(|_| ()));
    let caught = panic::catch_unwind(|| words["none of them"]).is_err();

    println!("{words:?} {sum} {caught}");
}
