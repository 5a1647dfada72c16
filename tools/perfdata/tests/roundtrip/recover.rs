// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `recover` finishes a file that was cut off.

use std::io::Cursor;

use perfdata::{Auxtrace, Encode, Feature, File, RecordType, Writer};

use crate::damaged::read_all;
use crate::sample::{aux_attr, chunks, sample_file};

pub(super) fn recovered(bytes: &[u8]) -> perfdata::Result<(perfdata::Recovered, Vec<u8>)> {
    let mut file = Cursor::new(bytes.to_vec());
    let found = perfdata::recover(
        &mut file,
        |features, _| {
            features.notes(&[("ended", "recovered")]);
        },
        |file, len| {
            file.get_mut().truncate(usize::try_from(len).unwrap());
            Ok(())
        },
        None,
    )?;
    Ok((found, file.into_inner()))
}

/// Cuts a file after each byte. From each front, `recover` makes a finished file that has all whole records and every whole word of trace.
#[test]
fn every_prefix_recovers_or_is_refused() {
    let whole = sample_file(&chunks());
    let file = File::parse(&whole).unwrap();
    let (data, size) = file.data_section();
    let payloads: Vec<(u64, u64)> = file
        .records()
        .map(|record| record.unwrap())
        .filter(|record| record.kind == RecordType::AUXTRACE)
        .map(|record| {
            (
                record.offset + 48,
                u64::try_from(record.payload.len()).unwrap(),
            )
        })
        .collect();
    let mut refused = 0;
    for len in 0..whole.len() {
        let cut = &whole[..len];
        let end = u64::try_from(len).unwrap();
        let (found, again) = match recovered(cut) {
            Ok(ok) => ok,
            Err(e) => {
                assert!(end < data, "{len}: {e}");
                assert!(e.to_string().len() > 30, "{e}");
                refused += 1;
                continue;
            }
        };
        assert!(end >= data && !found.was_finished, "{len}");
        let file = File::parse(&again).unwrap_or_else(|e| panic!("{len}: {e}"));
        assert!(file.is_finished(), "{len}");
        let records: Vec<_> = file.records().map(|record| record.unwrap()).collect();
        assert_eq!(
            u64::try_from(records.len()).unwrap(),
            found.records,
            "{len}"
        );
        let trace: usize = records.iter().map(|record| record.payload.len()).sum();
        let there: u64 = payloads
            .iter()
            .map(|(at, size)| end.saturating_sub(*at).min(*size) & !7)
            .sum();
        assert_eq!(u64::try_from(trace).unwrap(), there, "{len}");
        let index = file
            .feature(Feature::AUXTRACE)
            .map_or(Vec::new(), |s| s.index().unwrap());
        assert_eq!(u64::try_from(index.len()).unwrap(), found.pieces, "{len}");
        for entry in index {
            let record = file.record_at(entry).unwrap();
            assert_eq!(record.kind, RecordType::AUXTRACE);
        }
        assert_eq!(
            file.feature(Feature::EVENT_DESC).unwrap().events().unwrap()[0].ids,
            [100]
        );
        assert!(
            found.dropped < 64 * 1024 && found.dropped <= end - data,
            "{len}"
        );
        // A second call finds a finished file. A recovered file that is cut can be recovered again.
        assert!(recovered(&again).unwrap().0.was_finished);
        let (twice, _) = recovered(&again[..again.len() - 1]).unwrap();
        assert_eq!(
            (twice.records, twice.trace),
            (found.records, found.trace),
            "{len}"
        );
        read_all(&again);
    }
    assert_eq!(refused, data);
    assert!(size > 0);
    assert!(recovered(&whole).unwrap().0.was_finished);
}

/// After a power cut the end of a file may be zeros. They are no records.
#[test]
fn zeros_are_cut_off() {
    let whole = sample_file(&chunks());
    let (data, size) = File::parse(&whole).unwrap().data_section();
    let end = usize::try_from(data + size).unwrap();
    let mut bytes = whole[..end].to_vec();
    bytes.resize(end + 10_000, 0);
    let (found, again) = recovered(&bytes).unwrap();
    assert_eq!(found.dropped, 10_000);
    assert_eq!(
        File::parse(&again).unwrap().records().count(),
        File::parse(&whole).unwrap().records().count()
    );
}

/// The file system has stored the length of the file, but not its last blocks, which read as zeros.
#[test]
fn zeros_at_the_end_are_no_trace() {
    let whole = sample_file(&chunks());
    let file = File::parse(&whole).unwrap();
    let (data, _) = file.data_section();
    let data = usize::try_from(data).unwrap();
    let end = whole.len();
    for len in (data..end).step_by(97).chain([end]) {
        let (_, short) = recovered(&whole[..len]).unwrap_or_default();
        for zeros in [0, 1, 511, 512, 1024, 5000, 70_000] {
            // The blocks after this one were not written.
            let mut cut = whole[..len].to_vec();
            let next = len.next_multiple_of(512);
            cut.extend(vec![0; next - len]);
            let (_, of_block) = recovered(&cut).unwrap_or_default();
            cut.extend(vec![0; zeros]);
            let (_, longer) = recovered(&cut).unwrap_or_default();
            let trace = |bytes: &[u8]| -> Vec<u8> {
                let file = File::parse(bytes).unwrap();
                let records = file
                    .records()
                    .map(|record| record.unwrap().payload.to_vec());
                records.collect::<Vec<_>>().concat()
            };
            if !longer.is_empty() {
                assert!(trace(&longer) == trace(&of_block), "{len} {zeros}");
                assert!(trace(&longer).starts_with(&trace(&short)), "{len} {zeros}");
            }
        }
    }
}

/// A record of this type, with this length.
fn record(kind: u32, len: u16) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend([0; 2]);
    out.extend(len.to_le_bytes());
    out.resize(len.into(), 0xa5);
    out
}

/// An AUXTRACE record, and the first `there` bytes of its payload.
fn piece(size: u64, offset: u64, there: usize) -> Vec<u8> {
    let mut out = record(RecordType::AUXTRACE.0, 8);
    let aux = Auxtrace {
        size,
        offset,
        ..Auxtrace::default()
    };
    aux.encode(&mut out);
    let len = u16::try_from(out.len()).unwrap();
    out[6..8].copy_from_slice(&len.to_le_bytes());
    out.extend(vec![0x5a; there]);
    out
}

/// A file of stock perf that was killed. The header announces features that are missing. Records of other types come before, between and
/// after the pieces of trace. One type is unknown, and COMPRESSED is not aligned.
#[test]
fn a_file_of_perf_keeps_all_records() {
    let file = Writer::new(Cursor::new(Vec::new()), &[(aux_attr(), vec![100])]).unwrap();
    let data = usize::try_from(file.position()).unwrap();
    let mut front = file.into_inner().into_inner();
    front[72..104].copy_from_slice(&[0xff, 0xfe, 0x3f, 0x20].repeat(8));
    let before = [78, 79, 69, 73, 74, 82, 70, 84, 85].map(|kind| record(kind, 40));
    let parts = [
        before.concat(),
        piece(64, 0, 64),
        record(81, 21),
        record(1, 24),
        // A record of the kernel that is too short for its type.
        record(11, 8),
        record(83, 48),
        piece(128, 64, 128),
        record(4711, 16),
        piece(256, 192, 24),
    ];
    let whole = [front, parts.concat()].concat();
    let (found, again) = recovered(&whole).unwrap();
    assert_eq!(
        (found.records, found.pieces, found.trace, found.dropped),
        (17, 3, 64 + 128 + 24, 0)
    );
    let there = File::parse(&again).unwrap();
    assert!(there.is_finished());
    assert_eq!(there.records().map(Result::unwrap).count(), 17);
    // Nothing but the length of the last piece was changed.
    let (at, size) = there.data_section();
    assert_eq!(at, u64::try_from(data).unwrap());
    let end = data + usize::try_from(size).unwrap();
    assert_eq!(end, whole.len());
    assert_eq!(again[data..end - 64], whole[data..end - 64]);
    let index = there.feature(Feature::AUXTRACE).unwrap().index().unwrap();
    assert_eq!(index.len(), 3);
    read_all(&again);
}
