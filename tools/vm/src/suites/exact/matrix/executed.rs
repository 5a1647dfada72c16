// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The instructions that programs executed, from the independent log, and the kind of each, as iced-x86 decodes the bytes of the file.
//! Nothing here comes from perf, from our encoder or from our classifier.

use crate::error::{Error, OnFile, Result};
use crate::step::Log;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The result of a row: a note, or why it fails.
pub(super) type Verdict = std::result::Result<String, String>;

/// The output of a row's command, and the instructions of the program.
pub(super) struct Printed<'a> {
    pub out: &'a str,
    pub executed: &'a Executed,
}

/// The effect of an instruction on the control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::suites::exact) enum Kind {
    Plain,
    Conditional,
    Jump,
    IndirectJump,
    Call,
    IndirectCall,
    Return,
    Syscall,
    /// `IRET` and `SYSRET`.
    FarReturn,
}

/// An executed instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::suites::exact) struct Step {
    pub ip: u64,
    pub len: u64,
    pub kind: Kind,
    /// The address of the next instruction of the same thread.
    pub next: Option<u64>,
}

impl Step {
    pub fn behind(&self) -> u64 {
        self.ip.wrapping_add(self.len)
    }

    /// The address to which it branched. `None` for a conditional branch that was not taken, and for a system call.
    pub fn target(&self) -> Option<u64> {
        match self.kind {
            Kind::Plain | Kind::Syscall => None,
            Kind::Conditional => self.next.filter(|next| *next != self.behind()),
            _ => self.next,
        }
    }

    pub fn is_call(&self) -> bool {
        matches!(self.kind, Kind::Call | Kind::IndirectCall)
    }
}

/// The code and the symbols of files.
#[derive(Default)]
pub(in crate::suites::exact) struct Code {
    segments: Vec<(u64, Vec<u8>)>,
    /// Functions by their addresses: size and names.
    functions: BTreeMap<u64, (u64, Vec<String>)>,
}

impl Code {
    /// The code of a program that is always loaded at the same address.
    pub fn of_program(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).on("read", path)?;
        let bad = |error| Error::Other(format!("{} is no program: {error}", path.display()));
        let file = object::File::parse(&*bytes).map_err(bad)?;
        let mut code = Self::default();
        for segment in file.segments() {
            let data = segment.data().map_err(bad)?;
            code.segments.push((segment.address(), data.to_vec()));
        }
        for symbol in file.symbols() {
            let name = symbol.name().unwrap_or_default();
            if symbol.kind() != SymbolKind::Text || name.is_empty() || symbol.is_undefined() {
                continue;
            }
            let (size, names) = code.functions.entry(symbol.address()).or_default();
            *size = (*size).max(symbol.size());
            names.push(name.to_owned());
        }
        Ok(code)
    }

    /// The code of a kernel. `parts` has lines of offset in `image`, length and address. `symbols` has lines of `/proc/kallsyms`.
    pub fn of_kernel(image: &[u8], parts: &str, symbols: &str) -> Self {
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let part = |line: &str| {
            let numbers: Option<Vec<u64>> = line.split(' ').map(hex).collect();
            let &[offset, len, address] = numbers?.as_slice() else {
                return None;
            };
            let offset = usize::try_from(offset).ok()?;
            let len = usize::try_from(len).ok()?;
            Some((address, image.get(offset..)?.get(..len)?.to_vec()))
        };
        let mut functions: BTreeMap<u64, (u64, Vec<String>)> = BTreeMap::new();
        for line in symbols.lines() {
            let mut words = line.split_whitespace();
            let at = words.next().and_then(hex);
            let is_code = words
                .next()
                .is_some_and(|kind| matches!(kind, "t" | "T" | "w" | "W"));
            if let (Some(at), true, Some(name)) = (at, is_code, words.next()) {
                functions.entry(at).or_default().1.push(name.to_owned());
            }
        }
        let starts: Vec<_> = functions.keys().copied().skip(1).collect();
        for ((at, (size, _)), next) in functions.iter_mut().zip(starts) {
            *size = next - at;
        }
        Self {
            segments: parts.lines().filter_map(part).collect(),
            functions,
        }
    }

    /// The bytes from an address on, at most `len`.
    pub fn bytes(&self, ip: u64, len: usize) -> &[u8] {
        let within = |(address, data): &'_ (u64, Vec<u8>)| {
            let at = usize::try_from(ip.checked_sub(*address)?).ok()?;
            (at < data.len()).then_some(at)
        };
        let found = self.segments.iter().find_map(|segment| {
            let at = within(segment)?;
            let end = at.saturating_add(len).min(segment.1.len());
            segment.1.get(at..end)
        });
        found.unwrap_or_default()
    }

    /// The first address of the function that contains this one.
    pub fn function(&self, ip: u64) -> Option<u64> {
        let (at, (size, _)) = self.functions.range(..=ip).next_back()?;
        (ip - at < *size).then_some(*at)
    }

    /// Whether a function that contains this address has this name. It may have several, of which perf shows one.
    pub fn is_in(&self, ip: u64, name: &str) -> bool {
        self.functions
            .range(..=ip)
            .rev()
            .take(8)
            .any(|(at, (size, names))| ip - at < (*size).max(1) && names.iter().any(|n| n == name))
    }

    /// Whether the last function up to this address has a name with this prefix.
    pub fn has_name(&self, ip: u64, prefix: &str) -> bool {
        let names = self.functions.range(..=ip).next_back();
        names.is_some_and(|(_, (_, names))| names.iter().any(|name| name.starts_with(prefix)))
    }

    /// The target of the direct branch at this address.
    pub fn target(&self, ip: u64) -> Option<u64> {
        self.decode(ip)?.2
    }

    /// Whether the instruction at this address may repeat itself. This includes an instruction whose code is unknown.
    pub fn repeats(&self, ip: u64) -> bool {
        let instruction = self.instruction(ip);
        instruction.is_none_or(|instruction| instruction.is_string_instruction())
    }

    /// The mnemonic of the instruction at this address.
    pub fn mnemonic(&self, ip: u64) -> Option<Mnemonic> {
        Some(self.instruction(ip)?.mnemonic())
    }

    /// Whether the instruction at this address is a `MOV` to `CR3`.
    pub fn sets_cr3(&self, ip: u64) -> bool {
        let instruction = self.instruction(ip);
        instruction.is_some_and(|instruction| instruction.op0_register() == Register::CR3)
    }

    /// The instruction at this address.
    pub fn instruction(&self, ip: u64) -> Option<Instruction> {
        let mut decoder = Decoder::with_ip(64, self.bytes(ip, 15), ip, DecoderOptions::NONE);
        let instruction = decoder.decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    fn decode(&self, ip: u64) -> Option<(u64, Kind, Option<u64>)> {
        let instruction = self.instruction(ip)?;
        let len = u64::try_from(instruction.len()).ok()?;
        Some((
            len,
            kind(&instruction),
            Some(instruction.near_branch_target()),
        ))
    }
}

fn kind(instruction: &Instruction) -> Kind {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch => Kind::Jump,
        FlowControl::IndirectBranch => Kind::IndirectJump,
        FlowControl::ConditionalBranch => Kind::Conditional,
        FlowControl::Return if is_far(instruction.mnemonic()) => Kind::FarReturn,
        FlowControl::Return => Kind::Return,
        FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => Kind::Syscall,
        FlowControl::Call => Kind::Call,
        FlowControl::IndirectCall => Kind::IndirectCall,
        _ => Kind::Plain,
    }
}

fn is_far(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq | Mnemonic::Sysret | Mnemonic::Sysretq
    )
}

/// Appends the next instruction of a thread or CPU.
fn push(steps: &mut Vec<Step>, ip: u64, len: u64, kind: Kind) {
    if let Some(last) = steps.last_mut() {
        last.next = Some(ip);
    }
    steps.push(Step {
        ip,
        len,
        kind,
        next: None,
    });
}

/// How a program ends. `steptrace` passes on its exit status.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::suites::exact) enum Ends {
    /// With status 0.
    Itself,
    /// By a signal.
    Killed,
}

/// The instructions of each thread, in the order in which the threads were created.
#[derive(Default)]
pub(in crate::suites::exact) struct Executed {
    pub threads: Vec<Vec<Step>>,
    pub code: Code,
}

impl Executed {
    /// Steps a program.
    pub fn stepped(dir: &Path, steptrace: &Path, program: &Path, ends: Ends) -> Result<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        let file = dir.join(format!("{name}.log"));
        let log = Log::create(&dir.join("steptrace.log"))?;
        let mut step = Command::new(steptrace);
        step.args(["record", "-o"])
            .arg(&file)
            .arg("--")
            .arg(program);
        let recorded = log.run("stepping a program", &mut step);
        if ends == Ends::Itself {
            recorded?;
        }
        let mut print = Command::new(steptrace);
        print.arg("print").arg(&file);
        let printed = log.output("printing the log of its steps", &mut print)?;
        Self::read(&printed, Code::of_program(program)?)
    }

    /// Parses lines of a thread's ID and an address, as `steptrace print` prints them.
    pub fn read(log: &str, code: Code) -> Result<Self> {
        let mut threads: BTreeMap<u32, Vec<Step>> = BTreeMap::new();
        let mut known: HashMap<u64, (u64, Kind)> = HashMap::new();
        for line in log.lines() {
            let parsed = line
                .split_once(' ')
                .and_then(|(tid, ip)| Some((tid.parse().ok()?, u64::from_str_radix(ip, 16).ok()?)));
            let Some((tid, ip)) = parsed else {
                return Err(Error::Other(format!("the log has the line `{line}`")));
            };
            let (len, kind) = match known.get(&ip) {
                Some(found) => *found,
                None => {
                    let Some((len, kind, _)) = code.decode(ip) else {
                        return Err(Error::Other(format!(
                            "no file has the instruction at {ip:x}"
                        )));
                    };
                    known.insert(ip, (len, kind));
                    (len, kind)
                }
            };
            push(threads.entry(tid).or_default(), ip, len, kind);
        }
        let executed = Self {
            threads: threads.into_values().collect(),
            code,
        };
        executed.check()?;
        Ok(executed)
    }

    /// The instructions of a CPU, from lines with addresses. An instruction whose code is unknown counts as `Plain`.
    pub fn by_cpu<'a>(log: impl Iterator<Item = &'a str>, code: Code) -> Result<Self> {
        let mut known: HashMap<u64, (u64, Kind)> = HashMap::new();
        let mut steps: Vec<Step> = Vec::new();
        for line in log {
            let ip = u64::from_str_radix(line, 16)
                .map_err(|_| Error::Other(format!("the log has the line `{line}`")))?;
            let decode = || code.decode(ip).map(|(len, kind, _)| (len, kind));
            let (len, kind) = *known
                .entry(ip)
                .or_insert_with(|| decode().unwrap_or((0, Kind::Plain)));
            push(&mut steps, ip, len, kind);
        }
        Ok(Self {
            threads: vec![steps],
            code,
        })
    }

    /// Checks that the lines have the addresses of all instructions. If there is only one thread, they must be in order, too.
    pub fn are(&self, lines: &[&str]) -> std::result::Result<(), String> {
        let logged: Option<Vec<_>> = lines
            .iter()
            .map(|line| u64::from_str_radix(line, 16).ok())
            .collect();
        let mut logged = logged.ok_or("a line is no address")?;
        let mut steps: Vec<_> = self.threads.iter().flatten().map(|step| step.ip).collect();
        if self.threads.len() > 1 {
            logged.sort_unstable();
            steps.sort_unstable();
        }
        let pairs = logged.iter().zip(&steps);
        let at = pairs.take_while(|(logged, step)| logged == step).count();
        match (logged.get(at), steps.get(at)) {
            (None, None) => Ok(()),
            (logged, step) => Err(format!(
                "after {at} instructions {logged:x?} is in the log, and {step:x?} is executed"
            )),
        }
    }

    /// Checks that each instruction can lead to the next. If not, log and files do not belong together.
    fn check(&self) -> Result<()> {
        for step in self.threads.iter().flatten() {
            let Some(next) = step.next else { continue };
            let (_, _, target) = self.code.decode(step.ip).unwrap_or((0, Kind::Plain, None));
            let fits = match step.kind {
                Kind::Plain | Kind::Syscall => next == step.behind(),
                Kind::Conditional => next == step.behind() || Some(next) == target,
                Kind::Jump | Kind::Call => Some(next) == target,
                _ => true,
            };
            if !fits {
                return Err(Error::Other(format!(
                    "the log has {next:x} behind {:x}, which is {:?}",
                    step.ip, step.kind
                )));
            }
        }
        Ok(())
    }

    /// The instructions of the first thread.
    pub fn first(&self) -> &[Step] {
        self.threads.first().map_or(&[], Vec::as_slice)
    }

    /// How many instructions are of this kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.threads
            .iter()
            .flatten()
            .filter(|step| step.kind == kind)
            .count()
    }

    /// How many instructions there are.
    pub fn total(&self) -> usize {
        self.threads.iter().map(Vec::len).sum()
    }
}
