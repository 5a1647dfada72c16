// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Single records: those that only the kernel writes, mappings, and the renaming of events.

use std::io::Cursor;

use perfdata::{
    Attr, Event, File, FileId, KernelMmap, Ksymbol, Mmap2, RecordType, Records, TextPoke, TimeConv,
    Writer, MISC_SWITCH_OUT,
};

use crate::sample::{features, raw_record, who};

/// Only the ids of events change. (The kernel gives new ids, which the file does not know, to events
/// that are opened again.)
#[test]
fn records_of_renamed_events_keep_all_but_their_ids() {
    // The words of each body. A 7 is an id of the event.
    let table = [
        (RecordType::COMM, &[1, 7_000, 3, 7][..]),
        (RecordType::LOST, &[7, 5, 2, 7]),
        (RecordType::SAMPLE, &[7, 1, 2, 3]),
        (RecordType::THROTTLE, &[1, 7, 7, 2, 7]),
        (RecordType::AUX, &[4096, 64, 0, 2, 8]),
        (RecordType::FINISHED_ROUND, &[]),
        (RecordType::ID_INDEX, &[7, 7]),
    ];
    let encode = |new: u64| {
        let mut out = Vec::new();
        for (kind, words) in table {
            out.extend(kind.0.to_le_bytes());
            out.extend(0_u16.to_le_bytes());
            out.extend(u16::try_from(8 + words.len() * 8).unwrap().to_le_bytes());
            let user = kind.0 >= 64;
            let word = |word: &u64| if *word == 7 && !user { new } else { *word };
            out.extend(words.iter().flat_map(|w| word(w).to_le_bytes()));
        }
        out
    };
    let mut bytes = encode(7);
    perfdata::rename(&mut bytes, &|id| (id == 7).then_some(70)).unwrap();
    assert_eq!(bytes, encode(70));
    // A record that is too short for an id, and bytes that are no record.
    for bad in [&[1, 0, 0, 0, 0, 0, 8, 0][..], &[1, 0, 0, 0, 0, 0, 7, 0]] {
        assert!(perfdata::rename(&mut bad.to_vec(), &|_| None).is_err());
    }
}

#[test]
fn what_only_the_kernel_writes_is_read() {
    let attr = Attr::default();
    let le = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let symbol = [
        le(&[0x1000, 0, 64, 1 << 16]),
        b"bpf_prog\0\0\0\0\0\0\0\0".to_vec(),
    ]
    .concat();
    let poke = [
        le(&[0x2000, 0, 5 | 2 << 16]),
        vec![1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0],
    ]
    .concat();
    let cases = [
        (
            RecordType::SWITCH,
            MISC_SWITCH_OUT,
            vec![],
            Event::Switch(true, None),
        ),
        (
            RecordType::SWITCH_CPU_WIDE,
            0,
            le(&[7, 8]),
            Event::Switch(false, Some((7, 8))),
        ),
        (
            RecordType::KSYMBOL,
            0,
            symbol,
            Event::Ksymbol(true, 0x1000, 64, b"bpf_prog"),
        ),
        (
            RecordType::TEXT_POKE,
            0,
            poke,
            Event::TextPoke(0x2000, &[1, 2, 3, 4, 5], &[6, 7]),
        ),
        (
            RecordType::AUX_OUTPUT_HW_ID,
            0,
            le(&[9, 0]),
            Event::AuxOutputHwId(9),
        ),
    ];
    for (kind, misc, body, event) in cases {
        let bytes = raw_record(kind, misc, &body);
        let record = Records::new(&bytes, 0).next().unwrap().unwrap();
        assert_eq!(record.event(&attr).unwrap(), event, "{kind:?}");
        // A shorter body gives an error or a shorter string, and never a panic.
        for len in (0..body.len()).step_by(8) {
            let bytes = raw_record(kind, misc, &body[..len]);
            let _ = Records::new(&bytes, 0)
                .next()
                .unwrap()
                .unwrap()
                .event(&attr);
        }
    }
}

#[test]
fn mappings_have_build_ids_or_are_the_kernels_and_its_text_changes() {
    let mut id = [0; 20];
    id[..4].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    let user = Mmap2 {
        pid: 1,
        tid: 1,
        addr: 0x1000,
        len: 0x1000,
        pgoff: 0,
        file: FileId::BuildId(20, id),
        prot: 5,
        flags: 2,
        filename: b"/bin/x",
    };
    let kernel = KernelMmap {
        addr: 0xffff_ffff_8100_0000,
        len: 0x100_0000,
        pgoff: 0xffff_ffff_8100_0000,
        filename: b"[kernel.kallsyms]_text",
    };
    let attr = Attr::default();
    let mut w = Writer::new(Cursor::new(Vec::new()), &[(attr.clone(), vec![1])]).unwrap();
    w.record(&user, Some((&who(1, 1), &attr))).unwrap();
    w.record(&kernel, Some((&who(1, 1), &attr))).unwrap();
    let poke = TextPoke {
        addr: 0xffff_ffff_8100_0010,
        old: &[0x90; 5],
        new: &[0xe9, 1, 2, 3, 4],
    };
    w.record(&poke, Some((&who(1, 1), &attr))).unwrap();
    let symbol = Ksymbol {
        addr: 0xffff_ffff_c000_0000,
        len: 4096,
        kind: 2,
        gone: true,
        name: b"kprobe_insn_page",
    };
    w.record(&symbol, Some((&who(1, 1), &attr))).unwrap();
    let clock = TimeConv {
        shift: 31,
        mult: 2,
        zero: 3,
        cycles: 4,
        mask: 5,
        cap_zero: true,
        cap_short: false,
    };
    w.record(&clock, None).unwrap();
    let bytes = w.finish(&features()).unwrap().into_inner();
    let file = File::parse(&bytes).unwrap();
    let events: Vec<_> = file
        .records()
        .map(|record| file.decode(&record.unwrap()).unwrap().0)
        .collect();
    assert_eq!(
        events,
        [
            Event::Mmap2(user),
            Event::Mmap(kernel),
            Event::TextPoke(poke.addr, poke.old, poke.new),
            Event::Ksymbol(true, symbol.addr, symbol.len, symbol.name),
            Event::TimeConv(clock),
        ]
    );
    assert_eq!(user.file.build_id().unwrap()[..4], [0xde, 0xad, 0xbe, 0xef]);
}

/// In unlimited precision, a time is a product and a shift.
#[test]
fn cycles_become_times() {
    let conv = |shift, mult, zero| TimeConv {
        shift,
        mult,
        zero,
        ..TimeConv::default()
    };
    for (conv, cycles) in [
        (conv(10, 341, 5), 3_000_000_000_u64),
        (conv(32, 1_431_655_765, 0), u64::MAX),
        (conv(31, 715_827_883, 1 << 60), (1 << 55) + 12_345),
        (conv(0, 1, 7), 9),
    ] {
        let product = (u128::from(cycles) * u128::from(conv.mult)) >> conv.shift;
        let time = product + u128::from(conv.zero);
        assert_eq!(conv.time(cycles).map(u128::from), Some(time), "{conv:?}");
    }
    // A counter of 40 bits that has wrapped.
    let short = TimeConv {
        cycles: (5 << 40) - 10,
        mask: (1 << 40) - 1,
        cap_short: true,
        ..conv(0, 1, 0)
    };
    assert_eq!(short.time(20), Some((5 << 40) + 20));
    // No conversion.
    for none in [conv(10, 0, 5), conv(64, 1, 5)] {
        assert_eq!(none.time(1), None);
    }
}
