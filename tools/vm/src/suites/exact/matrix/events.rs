// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that perf shows the interrupts and exceptions that QEMU has logged (`-d int`): vector, address, and the address of a page fault.
//! Also checks that the returns from interrupts and the changes of the interrupt flag that perf shows match the executed instructions. At
//! each interrupt, QEMU's log has the flag.

use super::executed::{Code, Executed, Kind, Printed, Step, Verdict};
use iced_x86::Mnemonic;
use std::collections::HashMap;

/// An interrupt or exception in QEMU's log.
#[derive(Debug)]
struct Logged {
    vector: u8,
    ip: u64,
    page_fault: Option<u64>,
    of_program: bool,
    /// Whether interrupts were enabled.
    enabled: bool,
}

/// An event that perf shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Interrupt {
        vector: u8,
        page_fault: Option<u64>,
        /// `None` if the interrupted code is not traced.
        ip: Option<u64>,
    },
    /// `IRET`.
    Return(u64),
    /// Interrupts are enabled or disabled: from `ip` on, or with `branch`, by the branch at `ip`.
    Flag {
        enabled: bool,
        branch: bool,
        ip: u64,
    },
}

fn hex(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()
}

/// The word after `name` in the line.
fn behind<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(name)?.1.split_whitespace().next()
}

/// Parses pairs of lines such as `7: v=0e e=0014 i=0 cpl=3 IP=0033:000000000057ea36 … CR2=000000000057ea36` and `RIP=… RFL=00000046 …`.
fn logged(text: &str) -> Option<Vec<Logged>> {
    let mut all: Vec<Logged> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(flags) = behind(line, "RFL=") {
            all.last_mut()?.enabled = hex(flags)? & 0x200 != 0;
            continue;
        }
        all.push(Logged {
            vector: u8::try_from(hex(behind(line, " v=")?)?).ok()?,
            ip: hex(behind(line, " IP=")?.split_once(':')?.1)?,
            page_fault: behind(line, " CR2=").and_then(hex),
            of_program: behind(line, "cpl=")? == "3",
            enabled: false,
        });
    }
    Some(all)
}

/// Parses lines such as `evt:  cfe: INTR IP: 1 vector: 14 PFA: 0x401020  401020` and `iflag:  IFLAG: 0->1 via branch  401020`.
fn shown(line: &str) -> Option<Shown> {
    let ip = hex(line.split_whitespace().next_back()?)?;
    if let Some(change) = behind(line, "IFLAG:") {
        return Some(Shown::Flag {
            enabled: match change {
                "0->1" => true,
                "1->0" => false,
                _ => return None,
            },
            branch: line.contains(" via branch "),
            ip,
        });
    }
    match behind(line, "cfe:")? {
        "IRET" => Some(Shown::Return(ip)),
        "INTR" => Some(Shown::Interrupt {
            vector: behind(line, "vector:")?.parse().ok()?,
            page_fault: behind(line, "PFA:").and_then(hex),
            ip: (behind(line, " IP:")? == "1").then_some(ip),
        }),
        _ => None,
    }
}

/// Parses the output: QEMU's log, and the events that perf shows.
fn read(out: &str) -> Result<(Vec<Logged>, Vec<Shown>), String> {
    let (log, lines) = out
        .split_once("\nshown\n")
        .ok_or("there is no line `shown`")?;
    let logged = logged(log).ok_or("QEMU's log is none")?;
    let lines = lines.lines().filter(|line| !line.trim().is_empty());
    let all: Result<Vec<_>, _> = lines
        .map(|line| shown(line).ok_or_else(|| format!("perf shows `{line}`")))
        .collect();
    Ok((logged, all?))
}

/// Whether perf shows this entry of the log.
fn is(shown: &Shown, logged: &Logged) -> bool {
    let Shown::Interrupt {
        vector,
        page_fault,
        ip,
    } = *shown
    else {
        return false;
    };
    vector == logged.vector
        && page_fault == logged.page_fault
        && ip.map_or(logged.of_program, |ip| ip == logged.ip)
}

/// The entries of the log that perf shows. They must be consecutive, and there must be only one such place in the log.
fn found<'a>(logged: &'a [Logged], shown: &[Shown]) -> Result<&'a [Logged], String> {
    let interrupts: Vec<_> = shown
        .iter()
        .filter(|one| matches!(one, Shown::Interrupt { .. }))
        .collect();
    let all = |part: &&[Logged]| {
        let pairs = interrupts.iter().zip(*part);
        pairs.filter(|(shown, logged)| is(shown, logged)).count() == interrupts.len()
    };
    if interrupts.is_empty() {
        return Err("perf shows no interrupt".to_owned());
    }
    let mut parts = logged.windows(interrupts.len()).filter(all);
    match (parts.next(), parts.next()) {
        (Some(part), None) => Ok(part),
        (None, _) => Err(format!("QEMU's log does not have {interrupts:x?} in a row")),
        (Some(_), Some(_)) => Err(format!("QEMU's log has {interrupts:x?} more than once")),
    }
}

/// All events of a CPU.
pub(super) fn events(said: &Printed<'_>) -> Verdict {
    of_cpu(said, true)
}

/// All events of a CPU on which only the kernel's code is traced.
pub(super) fn events_of_kernel(said: &Printed<'_>) -> Verdict {
    of_cpu(said, false)
}

/// The interrupts and exceptions of a program that is traced alone.
pub(super) fn events_of_program(said: &Printed<'_>) -> Verdict {
    let (mut logged, shown) = read(said.out)?;
    logged.retain(|one| one.of_program && !said.executed.code.bytes(one.ip, 1).is_empty());
    let [Shown::Flag {
        enabled: true,
        branch: true,
        ip: 0,
    }, interrupts @ ..] = shown.as_slice()
    else {
        return Err(format!("perf shows {:x?} first", shown.first()));
    };
    let is_interrupt = |one: &Shown| matches!(one, Shown::Interrupt { .. });
    if let Some(other) = interrupts.iter().find(|one| !is_interrupt(one)) {
        return Err(format!("perf shows {other:x?}"));
    }
    // Other programs have code at the same addresses. The entries of this one begin with the first event that perf shows.
    let begins = interrupts
        .first()
        .and_then(|first| logged.iter().position(|one| is(first, one)));
    let logged = logged.get(begins.unwrap_or(0)..).unwrap_or_default();
    let pairs = interrupts.iter().zip(logged);
    match pairs.filter(|(shown, logged)| is(shown, logged)).count() {
        count if count > 0 && count == interrupts.len() => {
            Ok(format!("{count} interrupts and exceptions, each of them"))
        }
        _ => Err(format!(
            "perf shows {interrupts:x?}, not the first of {logged:x?}"
        )),
    }
}

fn of_cpu(said: &Printed<'_>, programs: bool) -> Verdict {
    let (logged, shown) = read(said.out)?;
    let mut follow = Follow {
        executed: said.executed,
        mnemonics: HashMap::new(),
        programs,
        logged: found(&logged, &shown)?.iter(),
        shown: shown.iter().peekable(),
        // A decoder begins with interrupts disabled.
        enabled: false,
        counts: [0; 3],
    };
    follow.all()?;
    let [interrupts, returns, flags] = follow.counts;
    Ok(format!(
        "{interrupts} interrupts and exceptions, {returns} returns, {flags} times that interrupts are enabled or disabled, each of them"
    ))
}

/// Compares the executed instructions with the events that perf shows.
struct Follow<'a> {
    executed: &'a Executed,
    mnemonics: HashMap<u64, Option<Mnemonic>>,
    /// Whether programs are traced, too.
    programs: bool,
    logged: std::slice::Iter<'a, Logged>,
    shown: std::iter::Peekable<std::slice::Iter<'a, Shown>>,
    enabled: bool,
    /// The numbers of interrupts, of returns, and of changes of the interrupt flag.
    counts: [usize; 3],
}

impl Follow<'_> {
    fn all(&mut self) -> Result<(), String> {
        self.may_change(true, 0);
        for step in self.executed.first() {
            // The trace may end before the event of the last instruction.
            if step.next.is_some() || self.shown.peek().is_some() {
                self.does(step)?;
            }
        }
        match self.shown.next() {
            None => Ok(()),
            more => Err(format!("all is executed, and perf shows {more:x?}")),
        }
    }

    fn does(&mut self, step: &Step) -> Result<(), String> {
        let Step { ip, next, .. } = *step;
        let is_program = |ip: u64| ip >> 63 == 0;
        let code = &self.executed.code;
        if is_program(ip) {
            if next.is_some_and(|next| code.has_name(next, "entry_SYSCALL")) {
                self.changes(false, true, ip)?;
            }
        } else {
            let mnemonic = self
                .mnemonics
                .entry(ip)
                .or_insert_with(|| code.mnemonic(ip));
            let returns = next.is_some_and(is_program);
            match mnemonic.unwrap_or(Mnemonic::INVALID) {
                Mnemonic::Cli => self.changes(false, false, step.behind())?,
                Mnemonic::Sti => self.changes(true, false, step.behind())?,
                Mnemonic::Popfq => self.may_change(false, step.behind()),
                Mnemonic::Iretq => {
                    self.counts[1] += 1;
                    self.expects(&Shown::Return(ip), step)?;
                    match returns {
                        true => self.changes(true, true, ip)?,
                        false => self.may_change(true, ip),
                    }
                }
                Mnemonic::Sysretq if self.programs => self.changes(true, true, ip)?,
                _ => {}
            }
        }
        match next {
            Some(next) if is_handler(code, step, next) => self.is_interrupted(step),
            _ => Ok(()),
        }
    }

    /// perf must show `right` next.
    fn expects(&mut self, right: &Shown, step: &Step) -> Result<(), String> {
        match self.shown.next() {
            Some(shown) if shown == right => Ok(()),
            shown => Err(format!(
                "after {:?} {right:x?} is right at {step:x?}, and perf shows {shown:x?}",
                self.counts
            )),
        }
    }

    /// Enables or disables interrupts. If this is a change, perf must show it next.
    fn changes(&mut self, enabled: bool, branch: bool, ip: u64) -> Result<(), String> {
        if std::mem::replace(&mut self.enabled, enabled) == enabled {
            return Ok(());
        }
        self.counts[2] += 1;
        let right = Shown::Flag {
            enabled,
            branch,
            ip,
        };
        match self.shown.next() {
            Some(shown) if *shown == right => Ok(()),
            shown => Err(format!(
                "after {:?} {right:x?} is right, and perf shows {shown:x?}",
                self.counts
            )),
        }
    }

    /// Interrupts may be enabled or disabled here. Whether they are is taken from the next event that perf shows.
    fn may_change(&mut self, by_branch: bool, at: u64) {
        if let Some(Shown::Flag {
            enabled,
            branch,
            ip,
        }) = self.shown.peek()
        {
            if *branch == by_branch && *ip == at {
                self.counts[2] += 1;
                self.enabled = *enabled;
                self.shown.next();
            }
        }
    }

    fn is_interrupted(&mut self, step: &Step) -> Result<(), String> {
        let logged = self.logged.next();
        let shown = self.shown.next();
        let (Some(logged), Some(shown)) = (logged, shown) else {
            return Err(format!(
                "{logged:x?} is behind {step:x?}, and perf shows {shown:x?}"
            ));
        };
        if !is(shown, logged) {
            return Err(format!("{logged:x?} is logged, and perf shows {shown:x?}"));
        }
        self.counts[0] += 1;
        let Shown::Interrupt { ip: Some(ip), .. } = *shown else {
            // The interrupted program is not traced.
            self.enabled = false;
            return Ok(());
        };
        if self.enabled != logged.enabled {
            return Err(format!(
                "by perf interrupts are enabled: {}, at {logged:x?}",
                self.enabled
            ));
        }
        self.changes(false, true, ip)
    }
}

/// Whether the instruction after a step begins a handler of interrupts or exceptions, to which the step itself has not branched.
fn is_handler(code: &Code, step: &Step, next: u64) -> bool {
    let branches = matches!(step.kind, Kind::Jump | Kind::Call | Kind::Conditional)
        && code.target(step.ip) == Some(next);
    let begins = code.has_name(next, "asm_") && code.function(next) == Some(next);
    let is_entry = |at| code.has_name(at, "irq_entries_start");
    !branches && (begins || is_entry(next) && !is_entry(step.ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "
     1: v=ec e=0000 i=0 cpl=0 IP=0010:0000000000001001 pc=1001 SP=0018:2000 env->regs[R_EAX]=0
RIP=0000000000001001 RFL=00000246 [---Z-P-] CPL=0
     2: v=0e e=0014 i=0 cpl=0 IP=0010:ffffffff80001002 pc=0 SP=0018:2000 CR2=0000000000007000
RIP=ffffffff80001002 RFL=00000246 [---Z-P-] CPL=0
     3: v=0e e=0014 i=0 cpl=3 IP=0033:0000000000401000 pc=0 SP=0018:2000 CR2=0000000000401000
RIP=0000000000401000 RFL=00000246 [---Z-P-] CPL=3
";

    /// `sti`, `nop`, a page fault, whose handler disables nothing more and returns, `cli`, `sysretq`.
    fn executed() -> Executed {
        let mut image = vec![0x90; 0x1000];
        image[0] = 0xfb;
        image[3] = 0xfa;
        image[4..7].copy_from_slice(&[0x48, 0x0f, 0x07]);
        image[0x101..0x103].copy_from_slice(&[0x48, 0xcf]);
        let symbols =
            "ffffffff80001000 t f\nffffffff80001100 t asm_exc_page_fault\nffffffff80001200 t g\n";
        let code = Code::of_kernel(&image, "0 1000 ffffffff80001000\n", symbols);
        let log = "ffffffff80001000 ffffffff80001001 ffffffff80001100 ffffffff80001101 ffffffff80001002 ffffffff80001003
            ffffffff80001004 401000 ffffffff80001100";
        Executed::by_cpu(log.split_whitespace(), code).unwrap()
    }

    const SHOWN: [&str; 9] = [
        "iflag:  IFLAG: 0->1 non branch  ffffffff80001001",
        "evt:  cfe: INTR IP: 1 vector: 14 PFA: 0x7000  ffffffff80001002",
        "iflag:  IFLAG: 1->0 via branch  ffffffff80001002",
        "evt:  cfe: IRET IP: 1 vector: 0  ffffffff80001101",
        "iflag:  IFLAG: 0->1 via branch  ffffffff80001101",
        "iflag:  IFLAG: 1->0 non branch  ffffffff80001004",
        "iflag:  IFLAG: 0->1 via branch  ffffffff80001004",
        "evt:  cfe: INTR IP: 1 vector: 14 PFA: 0x401000  401000",
        "iflag:  IFLAG: 1->0 via branch  401000",
    ];

    fn verdict(right: fn(&Printed<'_>) -> Verdict, log: &str, lines: &[&str]) -> Verdict {
        let (out, executed) = (format!("{log}\nshown\n{}\n", lines.join("\n")), executed());
        right(&Printed {
            out: &out,
            executed: &executed,
        })
    }

    #[test]
    fn each_event_is_needed() {
        verdict(events, LOG, &SHOWN).unwrap();
        for (at, line) in SHOWN.iter().enumerate() {
            let mut less = SHOWN.to_vec();
            less.remove(at);
            verdict(events, LOG, &less).expect_err(line);
            for (from, to) in [
                ("0->1", "1->0"),
                ("1->0", "0->1"),
                ("vector: 14", "vector: 13"),
                ("PFA: 0x7000", "PFA: 0x7001"),
                ("ffffffff8000100", "ffffffff8000200"),
                ("non branch", "via branch"),
                ("IRET", "INTR"),
            ] {
                let other = line.replace(from, to);
                if other != *line {
                    let mut others = SHOWN.to_vec();
                    others[at] = &other;
                    verdict(events, LOG, &others).expect_err(&other);
                }
            }
        }
        // The flag at an interrupt must be that in the log. No entry of the log in between may be missing.
        verdict(events, &LOG.replace("00000246", "00000046"), &SHOWN).unwrap_err();
        let between = LOG.replace("     3:", "     3: v=20 cpl=0 IP=0010:1 \nRFL=246\n     4:");
        verdict(events, &between, &SHOWN).unwrap_err();
    }

    #[test]
    fn a_program_is_taken_away() {
        let image = [0x90; 16];
        let code = Code::of_kernel(&image, "0 10 401000\n", "");
        let executed = Executed::by_cpu("401000".split(' '), code).unwrap();
        let begins = "iflag:  IFLAG: 0->1 via branch  0";
        let table = [
            (&[begins, SHOWN[7]][..], true),
            (&[begins], false),
            (&[SHOWN[7]], false),
            (&[begins, SHOWN[1]], false),
            (&[begins, SHOWN[7], SHOWN[8]], false),
        ];
        for (lines, right) in table {
            let out = format!("{LOG}\nshown\n{}\n", lines.join("\n"));
            let said = Printed {
                out: &out,
                executed: &executed,
            };
            assert_eq!(events_of_program(&said).is_ok(), right, "{lines:?}");
        }
    }
}
