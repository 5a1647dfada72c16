// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests against another decoder, iced-x86: each opcode with each ModRM, and random bytes.

use super::*;
use iced_x86::{Decoder as Iced, DecoderOptions, FlowControl, Instruction, Mnemonic};

const MODES: [Mode; 2] = [Mode::Bits64, Mode::Bits32];

/// The address is high enough that a 16-bit target differs, and low enough for 32-bit code.
const IP: u64 = 0x1234_5678;

/// The result of iced-x86 for `text`: length, kind, and target.
fn other(text: &[u8], mode: Mode) -> Option<(usize, Kind, Option<u64>)> {
    let bits = match mode {
        Mode::Bits64 => 64,
        Mode::Bits32 => 32,
    };
    let mut decoder = Iced::with_ip(bits, text, IP, DecoderOptions::NONE);
    let insn = decoder.decode();

    if insn.is_invalid() {
        return None;
    }

    let kind = other_kind(&insn);
    let target = matches!(
        kind,
        Kind::Conditional { .. } | Kind::Jump { .. } | Kind::Call { .. }
    )
    .then(|| insn.near_branch_target());

    Some((insn.len(), kind, target))
}

/// The kind, with displacements of 0.
fn other_kind(insn: &Instruction) -> Kind {
    let displacement = 0;

    match insn.mnemonic() {
        Mnemonic::Syscall => return Kind::Far(Far::Syscall),
        Mnemonic::Sysenter => return Kind::Far(Far::Sysenter),
        Mnemonic::Sysret | Mnemonic::Sysretq | Mnemonic::Sysexit | Mnemonic::Sysexitq => {
            return Kind::Far(Far::Sysret)
        }
        Mnemonic::Int => return Kind::Far(Far::Interrupt(insn.immediate8())),
        Mnemonic::Int3 => return Kind::Far(Far::Interrupt(3)),
        Mnemonic::Into => return Kind::Far(Far::Interrupt(4)),
        Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => {
            return Kind::Far(Far::InterruptReturn)
        }
        Mnemonic::Retf => return Kind::Far(Far::Return),
        Mnemonic::Ret => return Kind::Return,
        Mnemonic::Pushf | Mnemonic::Pushfd | Mnemonic::Pushfq => return Kind::PushFlags,
        Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq => return Kind::PopFlags,
        Mnemonic::Cpuid => return Kind::Cpuid,
        Mnemonic::Ptwrite => return Kind::PtWrite,
        Mnemonic::Xbegin => return Kind::TransactionBegin { displacement },
        Mnemonic::Xabort => return Kind::TransactionAbort,
        Mnemonic::Mov | Mnemonic::Pop if insn.op0_register() == iced_x86::Register::SS => {
            return Kind::Shadow
        }
        _ => {}
    }
    if insn.is_string_instruction() && (insn.has_rep_prefix() || insn.has_repne_prefix()) {
        return Kind::String;
    }

    match insn.flow_control() {
        FlowControl::ConditionalBranch => Kind::Conditional { displacement },
        FlowControl::UnconditionalBranch if insn.is_jmp_far() => Kind::Far(Far::Jump),
        FlowControl::UnconditionalBranch => Kind::Jump { displacement },
        FlowControl::IndirectBranch if insn.is_jmp_far_indirect() => Kind::Far(Far::Jump),
        FlowControl::IndirectBranch => Kind::IndirectJump,
        FlowControl::IndirectCall if insn.is_call_far_indirect() => Kind::Far(Far::Call),
        FlowControl::IndirectCall => Kind::IndirectCall,
        FlowControl::Call if insn.is_call_near() => Kind::Call { displacement },
        FlowControl::Call if insn.is_call_far() => Kind::Far(Far::Call),
        _ => Kind::Other,
    }
}

fn without_displacement(kind: Kind) -> Kind {
    let displacement = 0;

    match kind {
        Kind::Conditional { .. } => Kind::Conditional { displacement },
        Kind::Jump { .. } => Kind::Jump { displacement },
        Kind::Call { .. } => Kind::Call { displacement },
        Kind::TransactionBegin { .. } => Kind::TransactionBegin { displacement },
        kind => kind,
    }
}

/// Compares the decoders for one text. Returns whether iced-x86 knows an instruction there.
fn compare(text: &[u8], mode: Mode) -> bool {
    let Some((len, kind, target)) = other(text, mode) else {
        return false;
    };
    let Some(insn) = Insn::decode(text, mode) else {
        panic!("{text:02x?} in {mode:?}: not known; iced-x86 says {len} bytes, {kind:?}");
    };
    let ours = (
        usize::from(insn.len),
        without_displacement(insn.kind),
        insn.target(IP),
    );

    assert_eq!(ours, (len, kind, target), "{text:02x?} in {mode:?}");
    true
}

fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);

    word ^ word >> 31
}

const PREFIXES: &[&[u8]] = &[
    &[],
    &[0x66],
    &[0x67],
    &[0xf2],
    &[0xf3],
    &[0x2e],
    &[0x3e],
    &[0x64],
    &[0xf0],
    &[0x48],
    &[0x4f],
    &[0x66, 0x48],
    &[0x48, 0x66],
    &[0x66, 0x67],
    &[0x67, 0x66, 0xf2],
    &[0xf3, 0x66, 0xf2, 0x41],
    &[0xf2, 0xf3, 0x2e, 0x4d],
];

/// The bytes that can precede an opcode: the escapes of the legacy maps, and whole VEX, EVEX and
/// XOP prefixes of each map, operand size and length.
fn maps() -> Vec<Vec<u8>> {
    let mut maps = vec![vec![], vec![0x0f], vec![0x0f, 0x38], vec![0x0f, 0x3a]];

    for low in 0..=0xff {
        // W, vvvv all ones or zeros, L, pp.
        if low & 0x78 == 0x78 || low & 0x78 == 0 {
            maps.push(vec![0xc5, low | 0x80]);
            for map in [1, 2, 3, 7] {
                maps.push(vec![0xc4, 0xe0 | map, low]);
            }
            for map in [8, 9, 10] {
                maps.push(vec![0x8f, 0xe0 | map, low]);
            }
            if low & 4 != 0 {
                for map in [1, 2, 3, 5, 6] {
                    for last in [0x08, 0x28, 0x48, 0x09, 0x99] {
                        maps.push(vec![0x62, 0xf0 | map, low, last]);
                    }
                }
            }
        }
    }
    maps
}

/// Every opcode with every ModRM.
#[test]
fn every_opcode() {
    let mut seen = 0u32;

    for mode in MODES {
        for map in maps() {
            // There are many vector maps, so they are tested with a part of all ModRM bytes, of all
            // forms.
            let legacy = map.len() < 2 || map[0] == 0x0f;
            let (prefixes, step) = if legacy {
                (PREFIXES, 1)
            } else {
                (&PREFIXES[..1], 11)
            };

            for prefix in prefixes {
                for opcode in 0..=0xff {
                    for modrm in (0..=0xff).step_by(step) {
                        // A SIB with a base, and one without.
                        for sib in [0x24, 0x25] {
                            let mut text = [prefix, &map[..], &[opcode, modrm, sib]].concat();
                            text.extend([0x81, 0x92, 0xa3, 0xf4, 5, 6, 7, 8, 9, 10]);

                            seen += u32::from(compare(&text, mode));
                            if modrm & 0xc7 != 4 {
                                break;
                            }
                        }
                    }
                }
            }
        }
    }
    // This is nearly all of the legacy maps, and the defined part of the others.
    assert!(seen > 2_000_000, "{seen}");
}

/// Random bytes, half of them behind prefixes and escapes.
#[test]
fn random_bytes() {
    let mut state = 1;
    let mut seen = 0u32;

    for _ in 0..1_500_000 {
        let word = mix(&mut state);
        let mut text = Vec::new();

        if word & 1 != 0 {
            text.extend(PREFIXES[usize::from(word.to_le_bytes()[1]) % PREFIXES.len()]);
            if word & 2 != 0 {
                text.push(0x0f);
            }
        }
        text.extend(mix(&mut state).to_le_bytes());
        text.extend(mix(&mut state).to_le_bytes());
        for mode in MODES {
            seen += u32::from(compare(&text, mode));
        }
    }
    assert!(seen > 2_000_000, "{seen}");
}

/// A text that ends before its instruction does not decode. Bytes behind the instruction have no
/// effect.
#[test]
fn short_text() {
    let mut state = 2;

    for _ in 0..200_000 {
        let text = [mix(&mut state).to_le_bytes(), mix(&mut state).to_le_bytes()].concat();

        for mode in MODES {
            let Some(insn) = Insn::decode(&text, mode) else {
                continue;
            };
            let len = usize::from(insn.len);

            assert_eq!(Insn::decode(&text[..len], mode), Some(insn), "{text:02x?}");
            for short in 0..len {
                assert_eq!(Insn::decode(&text[..short], mode), None, "{text:02x?}");
            }
        }
    }
    for mode in MODES {
        assert_eq!(Insn::decode(&[0x66; 15], mode), None);
        assert_eq!(
            Insn::decode(&[&[0x66; 15][..], &[0x90]].concat(), mode),
            None
        );
        assert!(Insn::decode(&[&[0x66; 14][..], &[0x90]].concat(), mode).is_some());
    }
}

/// Instructions that iced-x86 does not report, or reports differently.
#[test]
fn by_hand() {
    let table: &[(&[u8], Mode, usize, Kind)] = &[
        (&[0x17], Mode::Bits32, 1, Kind::Shadow),
        (&[0x8e, 0xd0], Mode::Bits64, 2, Kind::Shadow),
        (&[0x8e, 0xd8], Mode::Bits64, 2, Kind::Other),
        // bnd jmp, notrack jmp rax.
        (
            &[0xf2, 0xe9, 1, 0, 0, 0],
            Mode::Bits64,
            6,
            Kind::Jump { displacement: 1 },
        ),
        (&[0x3e, 0xff, 0xe0], Mode::Bits64, 3, Kind::IndirectJump),
        // rep ret, data16 call.
        (&[0xf3, 0xc3], Mode::Bits64, 2, Kind::Return),
        (
            &[0x66, 0xe8, 1, 0, 0, 0],
            Mode::Bits64,
            6,
            Kind::Call { displacement: 1 },
        ),
        (
            &[0x66, 0xe8, 1, 0],
            Mode::Bits32,
            4,
            Kind::Call { displacement: 1 },
        ),
        (
            &[0xcd, 0x80],
            Mode::Bits32,
            2,
            Kind::Far(Far::Interrupt(0x80)),
        ),
        (&[0xf3, 0xa4], Mode::Bits64, 2, Kind::String),
        (&[0xa4], Mode::Bits64, 1, Kind::Other),
        (
            &[0xc7, 0xf8, 4, 0, 0, 0],
            Mode::Bits64,
            6,
            Kind::TransactionBegin { displacement: 4 },
        ),
    ];

    for &(text, mode, len, kind) in table {
        let insn = Insn::decode(text, mode).unwrap();

        assert_eq!(
            (usize::from(insn.len), insn.kind),
            (len, kind),
            "{text:02x?}"
        );
    }

    // REX2 and EVEX's map 4 are APX.
    assert_eq!(Insn::decode(&[0xd5, 0x08, 0x01, 0xc0], Mode::Bits64), None);
    assert_eq!(
        Insn::decode(&[0x62, 0xf4, 0x7c, 0x18, 0x01, 0xc0], Mode::Bits64),
        None
    );
}

/// A 32-bit instruction pointer wraps at 4 GiB, a 16-bit one at 64 KiB.
#[test]
fn targets_wrap() {
    let jump = |text: &[u8], mode, ip| Insn::decode(text, mode).unwrap().target(ip);

    assert_eq!(jump(&[0xeb, 0x7f], Mode::Bits32, 0xffff_fff0), Some(0x71));
    assert_eq!(
        jump(&[0xeb, 0x7f], Mode::Bits64, 0xffff_fff0),
        Some(0x1_0000_0071)
    );
    assert_eq!(
        jump(&[0xeb, 0x80], Mode::Bits64, 0),
        Some(0xffff_ffff_ffff_ff82)
    );
    assert_eq!(
        jump(&[0x66, 0xe9, 0, 0], Mode::Bits32, 0x1_2345),
        Some(0x2349)
    );
    assert_eq!(jump(&[0xff, 0xe0], Mode::Bits64, 0), None);
}

/// Each combination of three bytes, followed by opcodes that are not plain. An instruction that
/// `is_plain()` accepts neither stores nor loads TF, and does not load SS.
#[test]
fn what_is_plain_leaves_the_flags_alone() {
    let mut plain = 0;

    for mode in MODES {
        for start in 0..1_u32 << 24 {
            let [a, b, c, _] = start.to_le_bytes();
            let text = [a, b, c, 0x9c, 0x9d, 0xcf, 0x17, 0x8e, 0, 0, 0, 0, 0, 0, 0];
            if !Insn::is_plain(&text, mode) {
                continue;
            }
            plain += 1;
            let kind = Insn::decode(&text, mode).map_or(Kind::Other, |insn| insn.kind);
            assert!(
                !matches!(
                    kind,
                    Kind::PushFlags
                        | Kind::PopFlags
                        | Kind::Shadow
                        | Kind::Far(Far::InterruptReturn)
                ),
                "{text:x?}, {mode:?}: {kind:?}"
            );
        }
    }
    // Nearly all instructions are plain.
    assert!(plain > (2 << 24) * 9 / 10, "{plain}");
    assert!(!Insn::is_plain(&[0x48, 0x48], Mode::Bits64));
    assert!(!Insn::is_plain(&[], Mode::Bits64));
}
