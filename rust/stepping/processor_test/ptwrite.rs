// SPDX-License-Identifier: GPL-2.0

//! Tests of PTWRITE, and of branches that lead to the next instruction whether they are taken or
//! not.

use super::{index, Memory, DATA, DATA_LEN, ELSEWHERE, INSN};
use interpreter::{
    is_taken, run, Block, Branch, Ended, Observer, PtWrite, Registers, Width, CARRY, ZERO,
};
use std::ops::ControlFlow;

/// A memory with this text, followed by NOPs.
fn with_text(text: &[u8]) -> Memory {
    let mut slot = text.to_vec();
    slot.resize(index(ELSEWHERE - INSN), 0x90);
    Memory {
        base: 0,
        data: (1..=8)
            .chain(std::iter::repeat(0))
            .take(index(DATA_LEN))
            .collect(),
        text: slot,
        vectors: [[0; 4]; 16],
        writes: 0,
        distrusted: Vec::new(),
    }
}

/// The reported operands of PTWRITE, and whether the instruction is to be executed.
struct Writes(Vec<(u64, u64, Width)>, bool);

impl Observer for Writes {
    fn ptwrite(&mut self, from: u64, operand: u64, width: Width, _executed: u64) -> bool {
        self.0.push((from, operand, width));
        self.1
    }
}

/// A text, and its operand if it is a PTWRITE that can be interpreted.
type Row<'a> = (&'a [u8], Option<(u64, Width)>);

#[test]
fn an_operand_of_ptwrite_is_the_observers() {
    const RAX: u64 = 0x1122_3344_5566_7788;
    let wide = |operand| Some((operand, Width::B8));
    let narrow = |operand| Some((operand, Width::B4));
    let table: [Row<'_>; 12] = [
        // ptwrite rax, eax, r8d
        (&[0xf3, 0x48, 0x0f, 0xae, 0xe0], wide(RAX)),
        (&[0xf3, 0x0f, 0xae, 0xe0], narrow(RAX & 0xffff_ffff)),
        (&[0xf3, 0x41, 0x0f, 0xae, 0xe0], narrow(0)),
        // ptwrite qword [rbx], dword [rbx+4], qword [rip+…]
        (&[0xf3, 0x48, 0x0f, 0xae, 0x23], wide(0x0807_0605_0403_0201)),
        (&[0xf3, 0x0f, 0xae, 0x63, 4], narrow(0x0807_0605)),
        (
            &[0xf3, 0x48, 0x0f, 0xae, 0x25, 0xf7, 0x1b, 0, 0],
            wide(0x0807_0605_0403_0201),
        ),
        // Nothing is mapped at the address.
        (&[0xf3, 0x48, 0x0f, 0xae, 0x20], None),
        // With 66 or LOCK this is no valid instruction. With `gs` or a 32-bit address it is left to
        // the processor.
        (&[0x66, 0xf3, 0x0f, 0xae, 0xe0], None),
        (&[0xf0, 0xf3, 0x0f, 0xae, 0x23], None),
        (&[0x65, 0xf3, 0x0f, 0xae, 0x23], None),
        (&[0x67, 0xf3, 0x0f, 0xae, 0x23], None),
        // Another instruction of the group: incsspd eax.
        (&[0xf3, 0x0f, 0xae, 0xe8], None),
    ];

    for (text, want) in table {
        let mut memory = with_text(text);
        let mut general = [0; 16];
        general[0] = RAX;
        general[3] = DATA;
        let before = Registers {
            general,
            ip: INSN,
            flags: 0,
        };
        let next = INSN + u64::try_from(text.len()).unwrap();
        let found = PtWrite::of(text, &before, &mut memory);
        let wanted = want.map(|(operand, width)| PtWrite {
            operand,
            width,
            next,
        });
        assert_eq!(found, wanted, "{text:x?}");
        for taken in [true, false] {
            let mut registers = before;
            let mut writes = Writes(Vec::new(), taken);
            let blocks = &mut [Block::EMPTY];
            let ran = run(blocks, &mut registers, &mut memory, &mut writes, 1);
            let said = want.map(|(operand, width)| (INSN, operand, width));

            assert_eq!(writes.0, Vec::from_iter(said), "{text:x?}");
            assert_eq!(registers.general, before.general, "{text:x?}");
            if want.is_some() && taken {
                assert!(ran.executed > 0 && registers.ip >= next, "{text:x?}");
            } else {
                assert_eq!((ran.executed, ran.ended), (0, Ended::Left), "{text:x?}");
                assert_eq!(registers.ip, INSN, "{text:x?}");
            }
        }
    }
}

/// Whether the branch that was executed was taken.
#[derive(Default)]
struct Taken(Option<bool>);

impl Observer for Taken {
    fn branches(
        &mut self,
        branch: Branch,
        _from: u64,
        _next: u64,
        _to: u64,
        _executed: u64,
    ) -> ControlFlow<()> {
        if let Branch::Conditional { taken } = branch {
            self.0 = Some(taken);
        }
        ControlFlow::Break(())
    }
}

/// Text, the flags that are set, `rcx`, and whether the branch is taken.
type Jump<'a> = (&'a [u8], u64, u64, Option<bool>);

#[test]
fn a_branch_to_the_next_instruction_is_taken_by_its_condition() {
    let table: [Jump<'_>; 14] = [
        // jz and jnz; jc and jnc with a wide displacement
        (&[0x74, 0], ZERO, 0, Some(true)),
        (&[0x74, 0], 0, 0, Some(false)),
        (&[0x75, 0], ZERO, 0, Some(false)),
        (&[0x75, 0], CARRY, 0, Some(true)),
        (&[0x0f, 0x82, 0, 0, 0, 0], CARRY, 0, Some(true)),
        (&[0x0f, 0x82, 0, 0, 0, 0], ZERO, 0, Some(false)),
        (&[0x0f, 0x83, 0, 0, 0, 0], ZERO, 0, Some(true)),
        (&[0x0f, 0x83, 0, 0, 0, 0], CARRY, 0, Some(false)),
        // jrcxz
        (&[0xe3, 0], 0, 0, Some(true)),
        (&[0xe3, 0], ZERO, 1 << 32, Some(false)),
        // Other branches: jmp, call, loop, which changes rcx, and jz with a prefix on which
        // processors differ.
        (&[0xeb, 0], 0, 0, None),
        (&[0xe8, 0, 0, 0, 0], 0, 0, None),
        (&[0xe2, 0], 0, 2, None),
        (&[0x66, 0x74, 0], ZERO, 0, None),
    ];

    for (text, flags, cx, want) in table {
        let mut memory = with_text(text);
        let mut registers = Registers {
            ip: INSN,
            flags,
            ..Registers::default()
        };
        registers.general[1] = cx;
        registers.general[4] = DATA + 64;
        assert_eq!(is_taken(text, &registers), want, "{text:x?}");

        let mut taken = Taken::default();
        run(
            &mut [Block::EMPTY],
            &mut registers,
            &mut memory,
            &mut taken,
            1,
        );
        assert_eq!(taken.0, want, "{text:x?}");
    }
}
