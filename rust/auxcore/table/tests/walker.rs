// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the cursors that a unit can have, and of tables that it cannot follow.

use super::*;

/// A unit that has filled the last region of a table is at the `END`: the position is that of the
/// next table's first region.
#[test]
fn end_of_a_table_is_a_place() {
    let table = table(&chunks(&[1; 4], |_| false), 3, u64::MAX);

    // From byte 0 to the end of the first table, and from byte 7 to the end of the last one.
    for (from, len) in [(4 * PAGE, 2 * PAGE), (4 * PAGE + 7, 4 * PAGE - 7)] {
        let from = Pos::new(from);
        let mut unit = Walker::new(table.seek(from));
        let _ = unit.write(len, |a| table.fetch(a), |_, _| ()).unwrap();

        assert_eq!(unit.cursor().offset, 0);
        assert_eq!(table.position(from, unit.cursor()), Some(from.advance(len)));
    }
}

#[test]
fn places_that_no_unit_can_be_at() {
    let table = table(&chunks(&[1; 4], |_| false), 3, u64::MAX);
    let place = |table, entry, offset| Cursor {
        table,
        entry,
        offset,
    };
    let second = AT + PAGE;

    let bad = [
        place(AT - PAGE, 0, 0),
        place(AT + 8, 0, 0),
        place(AT, 3, 0),
        place(AT, 0, PAGE + 1),
        // The end of a table has no bytes.
        place(AT, 2, 1),
        place(second, 2, 1),
        place(second + PAGE, 0, 0),
        place(AT, u64::MAX, 0),
        place(0u64.wrapping_sub(PAGE), 0, 0),
    ];
    for cursor in bad {
        assert_eq!(table.position(Pos::new(0), cursor), None, "{cursor:?}");
    }
    for address in [AT - 8, AT + 4, AT + 24, second + 24, AT + 2 * PAGE] {
        assert_eq!(table.fetch(address), None, "{address:#x}");
    }
}

/// A defective table ends in a fault, not in an endless loop.
#[test]
fn walker_meets_bad_tables() {
    let start = Cursor {
        table: 0,
        entry: 0,
        offset: 0,
    };
    let end = Entry::end(0).unwrap().bits();
    let region = Entry::region(PAGE, PAGE).unwrap().bits();
    let far = Cursor {
        offset: PAGE + 1,
        ..start
    };
    let last = Cursor {
        entry: u64::MAX,
        ..start
    };
    let run = |cursor, bits| Walker::new(cursor).write(1, |_| bits, |_, _| ());

    assert_eq!(run(start, None), Err(Fault::Fetch(0)));
    assert_eq!(run(start, Some(end)), Err(Fault::Cursor));
    assert_eq!(run(start, Some(region | 2)), Err(Fault::Entry(region | 2)));
    assert_eq!(run(far, Some(region)), Err(Fault::Cursor));
    assert_eq!(run(last, Some(region)), Err(Fault::Cursor));
    assert!(run(start, Some(region)).is_ok());

    // A unit that stopped at a region's end and starts there again ignores the region's marks.
    let marked = region | 1 << 2 | 1 << 4;
    let full = Cursor {
        offset: PAGE,
        ..start
    };
    let plain = |at| Some(if at == 0 { marked } else { region });
    let outcome = Walker::new(full).write(1, plain, |_, _| ()).unwrap();
    assert_eq!(
        (outcome.int, outcome.stopped, outcome.written),
        (false, false, 1)
    );
}
