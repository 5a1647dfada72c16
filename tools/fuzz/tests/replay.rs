// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the targets on the stored corpus, on seeds that are cut or have one word changed, and on files that are made to take much memory or
//! time.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Cursor;
use std::path::Path;

use fuzz::{run, seeds, Target, TARGETS};
use perfdata::{Attr, Features, Writer};

/// There is only one test, because all tests would share the counting allocator.
#[test]
fn nothing_panics_and_nothing_takes_much_memory() {
    for target in TARGETS {
        corpus(target);
        changed(target);
        if !["text", "device", "program", "tracering"].contains(&target.0) {
            for (what, input) in greedy() {
                eprintln!("{}: {what}", target.0);
                run(target.1, &input);
            }
        }
    }
}

fn corpus((name, target): Target) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut inputs = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        run(target, &fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 10, "the corpus of {name} has {inputs} inputs");
}

fn changed((name, target): Target) {
    for seed in seeds(name).unwrap() {
        for len in (0..seed.len()).step_by((seed.len() / 64).max(1)) {
            run(target, &seed[..len]);
        }
        for at in (0..seed.len().saturating_sub(8)).step_by(8) {
            for word in [0, u64::MAX, 1 << 63, 1 << 32, 0xffff_ffff] {
                let mut changed = seed.clone();
                changed[at..at + 8].copy_from_slice(&word.to_le_bytes());
                run(target, &changed);
            }
        }
    }
}

/// A file with these attributes and records after the header, and no features.
fn file(attrs: &[u8], records: &[u8]) -> Vec<u8> {
    let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let len = |part: &[u8]| u64::try_from(part.len()).unwrap();
    let mut out = b"PERFILE2".to_vec();
    let data = 104 + len(attrs);
    out.extend(words(&[104, 80, 104, len(attrs), data, len(records)]));
    out.resize(104, 0);
    [out, attrs.to_vec(), records.to_vec()].concat()
}

/// An attribute with its section of ids.
fn attr(ids_at: u64, ids_len: u64) -> Vec<u8> {
    let mut out = vec![0; 80];
    out[4..8].copy_from_slice(&64_u32.to_le_bytes());
    // Every record ends with identifier, thread and time.
    out[24..32].copy_from_slice(&0x1_0006_u64.to_le_bytes());
    out[40..48].copy_from_slice(&(1_u64 << 18).to_le_bytes());
    out[64..72].copy_from_slice(&ids_at.to_le_bytes());
    out[72..80].copy_from_slice(&ids_len.to_le_bytes());
    out
}

/// A record of this type with this body.
fn record(kind: u32, body: &[u64]) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend([0; 2]);
    let size = u16::try_from(8 + body.len() * 8).unwrap();
    out.extend(size.to_le_bytes());
    out.extend(body.iter().flat_map(|word| word.to_le_bytes()));
    out
}

/// A file whose notes name this many CPUs.
fn offline(cpus: u32) -> Vec<u8> {
    let cpus: Vec<_> = (0..cpus).map(|cpu| format!("{cpu}:1")).collect();
    let mut features = Features::new();
    features.notes(&[("offline", cpus.join(","))]);
    let file = Writer::new(Cursor::new(Vec::new()), &[(Attr::default(), vec![7])]).unwrap();
    file.finish(&features).unwrap().into_inner()
}

fn greedy() -> Vec<(&'static str, Vec<u8>)> {
    const COUNT: usize = 20_000;
    let one = attr(104, 0);
    // ID_INDEX: id 7 belongs to ring 0.
    let index = record(69, &[1, 7, 0, 1, u64::MAX]);
    // AUX of that id, of any length, and an AUXTRACE without payload.
    let aux = record(11, &[0, u64::MAX / 2, 1, 0, 1, 7]);
    let piece = record(71, &[0, u64::MAX - 7, 1, 0, 1]);
    vec![
        (
            "events that all have the whole file as ids",
            file(&attr(0, 80 * 4000).repeat(4000), &[]),
        ),
        (
            "records that are too short for who and when",
            file(&one, &record(11, &[]).repeat(COUNT)),
        ),
        (
            "records of no known event",
            file(&one, &record(11, &[0; 6]).repeat(COUNT)),
        ),
        (
            "an index of rings that are not there",
            file(
                &one,
                &[record(69, &[u64::MAX; 8000]), index.clone()].concat(),
            ),
        ),
        (
            "many records, many pieces",
            file(&one, &[index, [aux, piece].concat().repeat(COUNT)].concat()),
        ),
        ("CPUs that were never recorded", offline(64)),
        ("more CPUs than there are", offline(200_000)),
        (
            "a piece of all the memory that there is",
            file(&one, &record(71, &[u64::MAX & !7, 0, 0, 0, 0])),
        ),
    ]
}
