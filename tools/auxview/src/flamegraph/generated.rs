// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Code that the kernel generates while it runs: BPF programs, trampolines, the instructions that probes replace.
//!
//! `KSYMBOL` records have its address and time. The code itself is in `TEXT_POKE` records, in `BPF_PROG_INFO`, or in the copy of the
//! kernel's memory.

use std::collections::HashMap;
use std::ops::Range;

use perfdata::BpfFunction;

use super::image::Image;
use super::kernel;

/// A function in a `KSYMBOL` record.
#[derive(Debug, Clone)]
pub(super) struct Symbol {
    pub(super) since: u64,
    pub(super) at: Range<u64>,
    pub(super) name: String,
    /// Whether it is removed at that time.
    pub(super) gone: bool,
}

/// A compiled function of a BPF program.
#[derive(Debug)]
pub(super) struct Bpf {
    at: u64,
    /// Its tag in hexadecimal, as in the names of symbols.
    tag: String,
    code: Vec<u8>,
}

impl From<BpfFunction<'_>> for Bpf {
    fn from(function: BpfFunction<'_>) -> Self {
        Self {
            at: function.address,
            tag: function.tag.map(|byte| format!("{byte:02x}")).concat(),
            code: function.code.to_vec(),
        }
    }
}

/// A function, since when it is there, and the number of its image.
#[derive(Debug)]
struct Place {
    since: u64,
    at: Range<u64>,
    image: usize,
}

/// All code that the kernel has generated.
#[derive(Debug, Default)]
pub(super) struct Generated {
    /// Ranges of addresses, sorted and without overlap; and the functions in each, in order of time.
    spans: Vec<(Range<u64>, Vec<Place>)>,
    /// The numbers of the functions' images.
    images: Range<usize>,
}

impl Generated {
    /// Maximum number of bytes of BPF programs' code in memory.
    const TEXT: usize = 256 << 20;

    /// Appends an image for each function to `images`.
    pub(super) fn new(symbols: &[Symbol], programs: &[Bpf], images: &mut Vec<Image>) -> Self {
        let first = images.len();
        let mut left = Self::TEXT;
        let mut code: HashMap<u64, Vec<&Bpf>> = HashMap::new();
        for program in programs {
            code.entry(program.at).or_default().push(program);
        }
        let mut seen: HashMap<u64, u64> = HashMap::new();
        let mut places = Vec::new();
        for symbol in symbols {
            let at = symbol.at.clone();
            if at.is_empty() || !kernel::has(at.start) {
                continue;
            }
            let since = match (symbol.gone, seen.get(&at.start)) {
                // Code may still run after its symbol is removed. It counts as present until another function takes its place.
                (true, Some(end)) if *end == at.end => continue,
                // It was added before the recording began.
                (true, _) => 0,
                (false, _) => symbol.since,
            };
            seen.insert(at.start, at.end);
            let all = code.get(&at.start).map_or(&[][..], Vec::as_slice);
            let named = all.iter().find(|bpf| symbol.name.contains(&bpf.tag));
            let text = named.map_or(&[][..], |bpf| bpf.code.as_slice());
            let text = text.get(..left).unwrap_or(text);
            left = left.saturating_sub(text.len());
            let text = match text {
                [] => Vec::new(),
                text => vec![(at.start, text.to_vec())],
            };
            let function = (at.clone(), symbol.name.clone());
            let image = images.len();
            images.push(Image::of_memory(OWN.to_owned(), text, vec![function]));
            places.push(Place { since, at, image });
        }
        places.sort_by_key(|place| place.at.start);
        let mut spans: Vec<(Range<u64>, Vec<Place>)> = Vec::new();
        for place in places {
            match spans
                .last_mut()
                .filter(|(last, _)| last.end > place.at.start)
            {
                Some((last, all)) => {
                    last.end = last.end.max(place.at.end);
                    all.push(place);
                }
                None => spans.push((place.at.clone(), vec![place])),
            }
        }
        for (_, places) in &mut spans {
            places.sort_by_key(|place| place.since);
        }
        Self {
            spans,
            images: first..images.len(),
        }
    }

    /// The image that has an address at a time.
    pub(super) fn find(&self, ip: u64, time: u64) -> Option<usize> {
        let after = self.spans.partition_point(|(at, _)| at.start <= ip);
        let (at, places) = self.spans.get(after.checked_sub(1)?)?;
        if !at.contains(&ip) {
            return None;
        }
        let past = places.partition_point(|place| place.since <= time);
        let mut past = places.get(..past)?.iter().rev();
        past.find(|place| place.at.contains(&ip))
            .map(|place| place.image)
    }

    /// Whether an image has generated code.
    pub(super) fn has(&self, image: usize) -> bool {
        self.images.contains(&image)
    }
}

/// Module name of this code, for people.
const OWN: &str = "[generated]";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const K: u64 = 1 << 63;

    fn symbol(since: u64, at: Range<u64>, name: &str, gone: bool) -> Symbol {
        Symbol {
            since,
            at: K + at.start..K + at.end,
            name: name.to_owned(),
            gone,
        }
    }

    fn bpf(at: u64, tag: u8, code: &[u8]) -> Bpf {
        Bpf::from(BpfFunction {
            address: K + at,
            tag: [tag; 8],
            code,
        })
    }

    /// Functions that take one place after each other, and one that was there before the recording.
    #[test]
    fn functions_of_the_time() {
        let symbols = [
            symbol(10, 0..0x40, "bpf_prog_0101010101010101_a", false),
            symbol(15, 0x100..0x200, "was_there", true),
            symbol(20, 0..0x40, "bpf_prog_0101010101010101_a", true),
            symbol(30, 0x20..0x60, "trampoline", false),
            symbol(40, 0..0x30, "bpf_prog_0202020202020202_b", false),
        ];
        let programs = [bpf(0, 1, &[1; 0x40]), bpf(0, 2, &[2; 0x30])];
        let mut images = Vec::new();
        let generated = Generated::new(&symbols, &programs, &mut images);
        let find = |at: u64, time| {
            let image = &images[generated.find(K + at, time)?];
            let (_, name) = image.function(K + at)?;
            let byte = image.text(K + at).and_then(|text| text.first());
            Some((name, byte.copied()))
        };
        let (a, b) = ("bpf_prog_0101010101010101_a", "bpf_prog_0202020202020202_b");
        for (at, time, want) in [
            (0, 9, None),
            (0, 10, Some((a, Some(1)))),
            // It may still run.
            (0x3f, 25, Some((a, Some(1)))),
            (0x20, 30, Some(("trampoline", None))),
            (0x1f, 39, Some((a, Some(1)))),
            (0x1f, 40, Some((b, Some(2)))),
            (0x30, 40, Some(("trampoline", None))),
            (0x60, 40, None),
            (0x100, 0, Some(("was_there", None))),
            (0x1ff, 99, Some(("was_there", None))),
            (0x200, 99, None),
        ] {
            assert_eq!(find(at, time), want, "{at:x} at {time}");
        }
        assert!(generated.has(0) && !generated.has(images.len()));
    }

    /// Symbols at addresses of programs, of length 0, and up to the end of the address space.
    #[test]
    fn hostile_symbols() {
        let mut symbols = vec![
            symbol(0, 0..0, "none", false),
            symbol(0, 0..u64::MAX - K, "all", false),
        ];
        symbols.push(Symbol {
            at: 0..100,
            ..symbols[0].clone()
        });
        let mut images = Vec::new();
        let generated = Generated::new(&symbols, &[], &mut images);
        assert_eq!(images.len(), 1);
        assert_eq!(generated.find(K + 7, 0), Some(0));
        assert_eq!(generated.find(7, 0), None);
        assert_eq!(generated.find(u64::MAX, 0), None);
    }
}
