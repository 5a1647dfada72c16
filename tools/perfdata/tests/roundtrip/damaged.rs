// SPDX-License-Identifier: GPL-2.0 OR MIT

//! No bytes make a reader panic, and errors name the field and its place.

use std::io::Cursor;

use perfdata::{Event, Feature, File, Stream, TimePlace};
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

/// Reads a file in memory: first what surrounds its records, then the records with their payload, then the error that ends them.
fn read(bytes: &[u8]) -> Result<Vec<String>, String> {
    let file = File::parse(bytes).map_err(|e| e.to_string())?;
    let features = file.features().iter();
    let features: Vec<_> = features.map(|s| (s.feature, s.offset, s.bytes)).collect();
    let index = file.feature(Feature::AUXTRACE);
    let index = index.map_or(Ok(Vec::new()), |s| s.index().map_err(|e| e.to_string()));
    let mut out = vec![format!(
        "{:?}",
        (file.events(), file.is_finished(), features, index)
    )];
    for record in file.records() {
        out.push(match record {
            Ok(record) => format!(
                "{:?}",
                (record, file.decode(&record).map_err(|e| e.to_string()))
            ),
            Err(e) => e.to_string(),
        });
    }
    Ok(out)
}

/// The same as [`read`], but with [`Stream`].
fn streamed(bytes: &[u8]) -> Result<Vec<String>, String> {
    let mut file = Stream::open(Cursor::new(bytes)).map_err(|e| e.to_string())?;
    let mut features = Vec::new();
    for number in 0..=u8::MAX {
        if let Some(s) = file.feature(Feature(number)).unwrap() {
            features.push((s.feature, s.offset, s.bytes.to_vec()));
        }
    }
    let mut index = Vec::new();
    let index = file.index(|entry| index.push(entry)).map(|()| index);
    let index = index.map_err(|e| e.to_string());
    let mut out = vec![format!(
        "{:?}",
        (file.events(), file.is_finished(), features, index)
    )];
    loop {
        let offset = match file.record() {
            Ok(Some(record)) => record.offset,
            Ok(None) => return Ok(out),
            Err(e) => {
                out.push(e.to_string());
                // A second pass from the beginning reads the same records.
                file.go_to(file.data()).unwrap();
                let mut again = 0;
                while file.record().is_ok_and(|record| record.is_some()) {
                    again += 1;
                }
                assert_eq!(again + 2, out.len());
                return Ok(out);
            }
        };
        // Reads the record again, then its payload in portions.
        file.go_to(offset).unwrap();
        file.record().unwrap();
        let mut payload = Vec::new();
        let mut portion = [0; 24];
        if let Ok((Event::Auxtrace(aux, _), _)) = file.decode() {
            file.skip(aux.size / 3).unwrap();
            while let some @ 1.. = file.payload(&mut portion).unwrap() {
                payload.extend(&portion[..some]);
            }
            let skipped = usize::try_from(aux.size / 3).unwrap();
            let at = usize::try_from(file.position()).unwrap() - payload.len() - skipped;
            payload.splice(0..0, bytes[at..at + skipped].iter().copied());
        }
        let record = perfdata::Record {
            payload: &payload,
            ..file.last()
        };
        let event = file
            .decode()
            .map_err(|e| e.to_string())
            .map(|(event, id)| match event {
                Event::Auxtrace(aux, _) => (Event::Auxtrace(aux, &payload), id),
                other => (other, id),
            });
        out.push(format!("{:?}", (record, event)));
    }
}

/// Checks that both readers give the same result.
fn same(bytes: &[u8]) {
    assert_eq!(read(bytes), streamed(bytes));
}

#[test]
fn a_cut_file_never_panics() {
    let bytes = sample_file(&chunks());
    for len in 0..=bytes.len() {
        read_all(&bytes[..len]);
        same(&bytes[..len]);
    }
}

/// The records end where the header says, whatever follows. Sizes in the header that cannot be right are refused.
#[test]
fn the_header_says_where_records_end() {
    let good = sample_file(&chunks());
    let (at, size) = File::parse(&good).unwrap().data_section();
    let records = File::parse(&good).unwrap().records();
    let last = records.map(|record| record.unwrap().offset).last().unwrap();
    for (finished, size, says) in [
        (true, size, None),
        (false, size, None),
        (false, last - at, None),
        (
            true,
            size + (1 << 40),
            Some("header.data at file offset 0x28"),
        ),
        (
            false,
            size + (1 << 40),
            Some("header.data at file offset 0x28"),
        ),
        (true, last - at, Some("feature section")),
    ] {
        let mut bytes = good.clone();
        bytes[48..56].copy_from_slice(&size.to_le_bytes());
        if !finished {
            bytes[72..104].fill(0);
        }
        same(&bytes);
        match (streamed(&bytes), says) {
            (Ok(_), None) => {}
            (Err(e), Some(says)) => assert!(e.contains(says), "{e}"),
            (got, _) => panic!("{finished}, {size}: {got:?}"),
        }
    }
    // The recorder was killed before it wrote the size: the records extend to the end of the file. Then the last payload is cut, too.
    let mut bytes = good[..usize::try_from(at + size).unwrap()].to_vec();
    bytes[48..56].fill(0);
    bytes[72..104].fill(0);
    same(&bytes);
    let first = streamed(&bytes).unwrap();
    let payload = |line: &&String| line.contains("payload at file offset");
    assert_eq!(first.iter().filter(payload).count(), 0);
    let cut = streamed(&bytes[..bytes.len() - 8]).unwrap();
    assert_eq!(
        cut.len(),
        first.len(),
        "an error in the place of the last record: {cut:?}"
    );
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

/// A count that is too large is reported at its own offset, by both readers.
#[test]
fn counts_are_named_at_their_place() {
    let good = sample_file(&chunks());
    for feature in [
        Feature::CMDLINE,
        Feature::PMU_MAPPINGS,
        Feature::EVENT_DESC,
        Feature::AUXTRACE,
    ] {
        let section = File::parse(&good).unwrap().feature(feature).unwrap();
        let place = section.offset;
        let start = usize::try_from(place).unwrap();
        let mut bytes = good.clone();
        bytes[start..start + 4].fill(0xff);
        let says = format!("at file offset {place:#x} is 0x");

        let file = File::parse(&bytes).unwrap();
        let section = file.feature(feature).unwrap();
        let error = match feature {
            Feature::CMDLINE => section.cmdline().map(drop),
            Feature::PMU_MAPPINGS => section.pmu_mappings().map(drop),
            Feature::EVENT_DESC => section.events().map(drop),
            _ => section.index().map(drop),
        };
        let text = error.unwrap_err().to_string();
        assert!(text.contains(&says), "{feature:?}: {text}");
        if feature == Feature::AUXTRACE {
            let mut stream = Stream::open(Cursor::new(&bytes)).unwrap();
            let text = stream.index(|_| ()).unwrap_err().to_string();
            assert!(text.contains(&says), "{text}");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        read_all(&bytes);
        same(&bytes);
        let mut file = b"PERFILE2".to_vec();
        file.extend(104_u64.to_le_bytes());
        file.extend(&bytes);
        read_all(&file);
        same(&file);
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
        same(&bytes);
        let _ = recovered(&bytes);
    }
}
