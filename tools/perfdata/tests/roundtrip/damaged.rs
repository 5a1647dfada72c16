// SPDX-License-Identifier: GPL-2.0 OR MIT

//! No bytes make the reader panic, and errors name the field and its place.

use perfdata::{File, TimePlace};
use proptest::prelude::*;

use crate::recover::recovered;
use crate::sample::{chunks, sample_file};

/// Reads every record and every feature.
pub(super) fn read_all(bytes: &[u8]) {
    let Ok(file) = File::parse(bytes) else { return };
    for record in file.records().map_while(Result::ok) {
        let _ = file.decode(&record);
        for (attr, _) in file.events() {
            let id = record.sample_id(attr).ok().and_then(|(id, _)| id);
            assert_eq!(record.time(TimePlace::of(attr)), id.and_then(|id| id.time));
        }
    }
    for section in file.features() {
        let _ = section.string();
        let _ = section.cmdline();
        let _ = section.pmu_mappings();
        let _ = section.events();
        let _ = section
            .index()
            .map(|index| index.iter().filter(|&&e| file.record_at(e).is_ok()).count());
        let _ = section.sample_time();
        let _ = section.clock_data();
        let _ = section.notes();
    }
}

#[test]
fn a_cut_file_never_panics() {
    let bytes = sample_file(&chunks());
    for len in 0..bytes.len() {
        read_all(&bytes[..len]);
    }
}

#[test]
fn errors_name_field_and_place() {
    let good = sample_file(&chunks());
    let broken = |at: usize, value: u64| {
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        match File::parse(&bytes) {
            Err(e) => e.to_string(),
            Ok(_) => "accepted".to_owned(),
        }
    };
    for (at, value, says) in [
        (0, 1, "magic at file offset 0x0"),
        (
            0,
            u64::from_be_bytes(*b"PERFILE2").swap_bytes().swap_bytes(),
            "other byte order",
        ),
        (8, 16, "a stream for a pipe"),
        (8, 17, "header.size at file offset 0x8 is 0x11"),
        (16, 17, "header.attr_size at file offset 0x10"),
        (24, u64::MAX, "header.attrs at file offset 0x18"),
        (40, 1 << 40, "header.data at file offset 0x28"),
        (48, 1 << 40, "header.data at file offset 0x28"),
    ] {
        let text = broken(at, value);
        assert!(text.contains(says), "{at}: {text}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        read_all(&bytes);
        let mut file = b"PERFILE2".to_vec();
        file.extend(104_u64.to_le_bytes());
        file.extend(&bytes);
        read_all(&file);
    }

    #[test]
    fn mutated_files_never_panic(at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), word: Option<(prop::sample::Index, u64)>) {
        let mut bytes = sample_file(&chunks());
        for (at, value) in at {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some((at, value)) = word {
            let at = at.index(bytes.len() / 8) * 8;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        read_all(&bytes);
        let _ = recovered(&bytes);
    }
}
