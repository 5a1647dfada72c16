// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>);

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for File {
    fn put(&self, _cpu: usize, packets: &Packets) {
        self.0.lock().unwrap().extend(packets.as_bytes());
    }
}

struct At(u64);

impl State for At {
    fn pc(&self) -> Option<u64> {
        Some(self.0)
    }

    fn cr3(&self) -> Option<u64> {
        None
    }

    fn interrupts(&self) -> Option<bool> {
        None
    }

    fn event(&self, _handler: u64) -> Option<intel_pt::Event> {
        None
    }
}

fn block(first: u64) -> &'static Block {
    block_with(first, &[0xc3])
}

fn block_with(first: u64, last: &[u8]) -> &'static Block {
    Box::leak(Box::new(Block {
        first,
        others: [1, 2].into(),
        last: 2,
        insn: intel_pt::insn::Insn::decode(last, intel_pt::insn::Mode::Bits64).unwrap(),
        writes_cr3: false,
        behind_cli: Box::default(),
        may_enable: false,
    }))
}

fn source(log: Option<Log>) -> Source {
    Source::new(Box::new(|| 7), [log])
}

fn request() -> Request {
    let mut request = Request::default();
    request.wanted.kernel = true;
    request
}

const KERNEL: u64 = 0xffff_ffff_8100_0000;

#[test]
fn a_trace_begins_and_ends_with_packets() {
    let source = source(None);
    assert!(source.cpu(1).is_none());
    let mut cpu = source.cpu(0).unwrap();
    cpu.executes(block(KERNEL), || true, &At(0));
    assert!(cpu.packets().as_bytes().is_empty());
    cpu.start(&request());
    drop(cpu);

    let mut cpu = source.cpu(0).unwrap();
    assert!(cpu.is_on());
    for n in 0..100 {
        cpu.executes(block(KERNEL + 0x1000 * n), || true, &At(0));
    }
    let before = cpu.packets().as_bytes().len();
    cpu.stop(true);
    assert!(cpu.packets().as_bytes().starts_with(&intel_pt::PSB));
    assert!(cpu.packets().as_bytes().len() > before);
    assert_eq!(cpu.packets().as_bytes().last(), Some(&1));
    let file = File::default();
    cpu.pass_all(0, &file);
    assert!(cpu.packets().as_bytes().is_empty());
    assert_eq!(file.0.lock().unwrap().len(), before + 4);
    assert!(!cpu.is_on());
}

#[test]
fn packets_are_passed_on_when_they_are_many() {
    let source = source(None);
    let file = File::default();
    let mut cpu = source.cpu(0).unwrap();
    cpu.packets().add(&[0; BATCH - 1]);
    cpu.pass(0, &file);
    assert!(file.0.lock().unwrap().is_empty());
    cpu.packets().add(&[0; 3]);
    assert_eq!(cpu.packets().fit(BATCH + 1), BATCH - 1);
    assert_eq!(cpu.packets().fit(BATCH + 2), BATCH + 2);
    assert_eq!(cpu.packets().fit(BATCH - 2), 0);
    cpu.pass(0, &file);
    assert_eq!(file.0.lock().unwrap().len(), BATCH + 2);
}

enum Event {
    /// A block, and whether the previous block is whole.
    Block(u64, bool),
    Begins(u64),
    Goes(u64, u64),
    Stop(bool),
}
use Event::{Begins, Block as B, Goes, Stop};

#[test]
fn what_is_shown_is_logged() {
    let at = |offset| KERNEL + offset;
    let all = |first: u64| (0..3).map(move |offset| Begins(at(first) + offset));
    let mut whole = vec![B(KERNEL, true)];
    whole.extend(all(0));
    let table: [(Vec<Event>, &[u64]); 5] = [
        // The last instruction has not ended.
        ([B(KERNEL, true), Begins(KERNEL), Stop(false)].into(), &[]),
        (whole.into_iter().chain([Stop(true)]).collect(), &[0, 1]),
        (
            [B(KERNEL, true)]
                .into_iter()
                .chain(all(0))
                .chain([B(at(3), true), Begins(at(3)), Stop(false)])
                .collect(),
            &[0, 1, 2],
        ),
        // An instruction is repeated until an interrupt comes.
        (
            [
                B(KERNEL, true),
                Begins(KERNEL),
                Begins(at(1)),
                B(at(1), true),
                Begins(at(1)),
                B(at(1), true),
                Begins(at(1)),
                Goes(at(1), at(0x100)),
                B(at(0x100), true),
                Begins(at(0x100)),
                B(at(1), true),
                Begins(at(1)),
                B(at(2), true),
                Stop(false),
            ]
            .into(),
            &[0, 0x100, 1],
        ),
        // Code of programs is not logged.
        (
            [
                B(0x1000, true),
                Begins(0x1000),
                B(KERNEL, true),
                Begins(KERNEL),
                B(at(3), true),
                Stop(false),
            ]
            .into(),
            &[0],
        ),
    ];
    for (n, (events, want)) in table.into_iter().enumerate() {
        let file = File::default();
        let source = source(Some(Log::new(Box::new(file.clone()), u64::MAX)));
        let mut cpu = source.cpu(0).unwrap();
        cpu.start(&request());
        for event in events {
            match event {
                B(first, whole) => cpu.executes(block(first), || whole, &At(first)),
                Begins(address) => cpu.begins(address),
                Goes(from, to) => {
                    cpu.discontinuity(Discontinuity::Interrupt, from, to, true);
                }
                Stop(whole) => cpu.stop(whole),
            }
        }
        cpu.flush_log();
        let logged = String::from_utf8(file.0.lock().unwrap().clone()).unwrap();
        let logged: Vec<_> = logged.lines().collect();
        let want: Vec<_> = want
            .iter()
            .map(|offset| format!("{:x}", at(*offset)))
            .collect();
        assert_eq!(logged, want, "{n}");
    }
}

#[test]
fn an_instruction_that_interrupts_is_logged() {
    // `int $0x80`, `int3`, `ret`.
    let table: [(&[u8], &str); 3] = [(&[0xcd, 0x80], "2"), (&[0xcc], "1"), (&[0xc3], "1")];
    for (last, want) in table {
        let file = File::default();
        let source = source(Some(Log::new(Box::new(file.clone()), u64::MAX)));
        let mut cpu = source.cpu(0).unwrap();
        cpu.start(&request());
        cpu.executes(block_with(KERNEL, last), || true, &At(KERNEL));
        (0..3).for_each(|offset| cpu.begins(KERNEL + offset));
        // QEMU reports an exception in two steps.
        cpu.discontinuity(Discontinuity::Exception, KERNEL, KERNEL, true);
        cpu.discontinuity(Discontinuity::Interrupt, KERNEL + 2, KERNEL + 0x100, true);
        cpu.stop(true);
        cpu.flush_log();
        let logged = String::from_utf8(file.0.lock().unwrap().clone()).unwrap();
        let newest = logged.lines().last().and_then(|line| line.chars().last());
        assert_eq!(newest, want.chars().next(), "{last:?}: {logged}");
    }
}

#[test]
fn a_branch_to_itself_is_logged_each_time() {
    // `loop`, `rep movsb`.
    let table: [(&[u8], usize); 2] = [(&[0xe2, 0xfe], 5), (&[0xf3, 0xa4], 3)];
    for (last, want) in table {
        let file = File::default();
        let source = source(Some(Log::new(Box::new(file.clone()), u64::MAX)));
        let mut cpu = source.cpu(0).unwrap();
        cpu.start(&request());
        let again: &'static Block = Box::leak(Box::new(Block {
            first: KERNEL + 2,
            others: [].into(),
            last: 0,
            ..block_with(KERNEL, last).clone()
        }));
        cpu.executes(block_with(KERNEL, last), || true, &At(KERNEL));
        (0..3).for_each(|offset| cpu.begins(KERNEL + offset));
        for _ in 0..2 {
            cpu.executes(again, || true, &At(KERNEL + 2));
            cpu.begins(KERNEL + 2);
        }
        cpu.executes(block(KERNEL + 4), || true, &At(KERNEL + 4));
        cpu.stop(false);
        cpu.flush_log();
        let logged = String::from_utf8(file.0.lock().unwrap().clone()).unwrap();
        assert_eq!(logged.lines().count(), want, "{last:?}: {logged}");
    }
}

#[test]
fn a_change_of_code_is_told_before_the_next_block() {
    let file = File::default();
    let source = source(None);
    let mut cpu = source.cpu(0).unwrap();
    let mut request = request();
    request.late = true;
    cpu.start(&request);
    // Code of a program does not start the trace.
    cpu.executes(block(0x1000), || true, &At(0x1000));
    cpu.executes(block(KERNEL), || true, &At(KERNEL));
    cpu.pass_all(0, &file);
    assert!(file.0.lock().unwrap().starts_with(&[2, 0x82]));
    file.0.lock().unwrap().clear();

    assert_eq!(source.changed(KERNEL + 3), 7);
    cpu.executes(block(KERNEL + 3), || true, &At(KERNEL + 3));
    cpu.executes(block(KERNEL + 6), || true, &At(KERNEL + 6));
    cpu.pass_all(0, &file);
    let bytes = file.0.lock().unwrap().clone();
    let message = [2, 0x32, 3, 0, 0, 0x81, 0xff, 0xff, 0xff, 0xff];
    let found = bytes.windows(10).filter(|part| **part == message);
    assert_eq!(found.count(), 1, "{bytes:x?}");
    // The message follows the packet that leads to the block.
    let at = bytes.windows(10).position(|part| *part == message);
    assert!(at > Some(2), "{bytes:x?}");
}

/// QEMU reports that an exception was raised, and then its handler, as an interrupt. Before an interrupt the last instruction of the block
/// was executed, before an exception it was not.
#[test]
fn an_exception_is_reported_twice() {
    let (last, handler) = (KERNEL + 2, KERNEL + 0x100);
    let trace = |events: &[(Discontinuity, u64, u64)]| {
        let source = source(None);
        let mut cpu = source.cpu(0).unwrap();
        cpu.start(&request());
        cpu.executes(block(KERNEL), || true, &At(KERNEL));
        for (kind, from, to) in events {
            cpu.discontinuity(*kind, *from, *to, true);
        }
        cpu.packets().as_bytes().to_owned()
    };
    let interrupt = (Discontinuity::Interrupt, last, handler);
    let exception = (Discontinuity::Exception, last, handler);
    let raised = (Discontinuity::Exception, KERNEL, KERNEL);
    assert_eq!(trace(&[raised, interrupt]), trace(&[exception]));
    assert_ne!(trace(&[interrupt]), trace(&[exception]));
    // The first report applies only to the next one.
    let again = (Discontinuity::Interrupt, handler, handler + 0x100);
    assert_eq!(
        trace(&[raised, interrupt, again]),
        trace(&[exception, again])
    );
}

#[test]
fn the_trace_begins_with_the_first_program() {
    let from_user = FromUser::default();
    let kernel = 0xffff_ffff_8100_0000;
    let visited = [
        // The kernel, where its image was loaded, and at its final addresses.
        (Some(0x0100_0000), false),
        (None, false),
        (Some(kernel), false),
        // A program, and what follows.
        (Some(0x40_1000), true),
        (Some(kernel), false),
        (Some(0x40_1000), false),
    ];
    for (at, (pc, begins)) in visited.into_iter().enumerate() {
        assert_eq!(from_user.begins(|| pc), begins, "{at}");
    }
}
