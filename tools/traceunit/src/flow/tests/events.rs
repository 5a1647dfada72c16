// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interrupts and exceptions, and the interrupt flag.

use super::*;

#[test]
fn events_are_told_when_their_handler_begins() {
    let at = |offset| KERNEL + offset;
    let config = Config {
        event: true,
        ..Config::default()
    };
    let fault = ["PFA 7000", "CFE 1 e"];
    let begin = "PGE ffffffff81000000";
    let handler = "TIP ffffffff81009000";
    let end = ["FUP ffffffff81009000", "PGD"];
    let table: &[(&[Event], &[&str])] = &[
        // `cli` in the middle of a block. Interrupts are enabled where no block begins.
        (
            &[
                Enabled(true),
                B(KERNEL, CLI),
                Whole,
                Enabled(false),
                B(at(4), STI),
                Whole,
                Interrupt(at(7), HANDLER),
                B(HANDLER, NOP),
            ],
            &[
                "IF",
                begin,
                "FUP ffffffff81000002",
                "IF",
                "FUP ffffffff81000007",
                fault[0],
                fault[1],
                "FUP ffffffff81000007",
                handler,
                end[0],
                end[1],
            ],
        ),
        // An exception in front of the `cli`, and one at the instruction behind it.
        (
            &[
                Enabled(true),
                B(KERNEL, CLI),
                Exception(at(1), HANDLER),
                Enabled(false),
                B(HANDLER, NOP),
            ],
            &[
                "IF",
                begin,
                fault[0],
                fault[1],
                "FUP ffffffff81000001",
                handler,
                end[0],
                end[1],
            ],
        ),
        (
            &[
                Enabled(true),
                B(KERNEL, CLI),
                Exception(at(2), HANDLER),
                Enabled(false),
                B(HANDLER, NOP),
            ],
            &[
                "IF",
                begin,
                "FUP ffffffff81000002",
                fault[0],
                fault[1],
                "FUP ffffffff81000002",
                handler,
                end[0],
                end[1],
            ],
        ),
        // A change to a program, which is not traced, and back.
        (
            &[
                Enabled(false),
                B(KERNEL, IRET),
                Whole,
                Enabled(true),
                B(USER, NOP),
                Exception(USER, HANDLER),
                Enabled(false),
                B(HANDLER, NOP),
            ],
            &[
                begin,
                "CFE 82 0",
                "FUP ffffffff81000002",
                "PGD",
                fault[0],
                fault[1],
                "PGE ffffffff81009000",
                end[0],
                end[1],
            ],
        ),
        // The handler of the exception has not begun.
        (
            &[Enabled(false), B(KERNEL, NOP), Exception(KERNEL, HANDLER)],
            &[begin, "FUP ffffffff81000000", handler, end[0], end[1]],
        ),
    ];
    for (number, (events, want)) in table.iter().enumerate() {
        let wanted = Wanted {
            kernel: true,
            ..Wanted::default()
        };
        let mut found = trace_by(config, events, wanted);
        found.retain(|packet| !packet.starts_with("PIP"));
        assert_eq!(&found, want, "{number}");
    }
    // The trace of a program. The handlers that interrupt it are not traced.
    let events = [
        Enabled(true),
        B(USER, NOP),
        Exception(USER + 2, HANDLER),
        Enabled(false),
        B(HANDLER, NOP),
    ];
    let wanted = Wanted {
        user: true,
        ..Wanted::default()
    };
    let want = ["IF", "PGE 401000", fault[0], fault[1], "FUP 401002", "PGD"];
    assert_eq!(trace_by(config, &events, wanted), want);
}
