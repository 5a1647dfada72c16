// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The callbacks from QEMU.

use crate::flow::{Block, State};
use crate::image::{Change, Image};
use crate::serve::{self, Engine};
use crate::source::{Clock, FromUser, Log, Packets, Request, Sink, Source};
use intel_pt::insn::{Insn, Mode};
use qemuplugin::biased;
use qemuplugin::inside::Inside;
use qemuplugin::registers::Registers;
use qemuplugin::{
    Discontinuities, Discontinuity, Executes, Flag, Machine, Options, Plugin, Sees, Translation,
    VirtualCpu, LEN_MAX,
};
use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod state;

use state::{Now, Places};

/// Number of bytes between two `PSB`s, for traces in files.
const PSB_PERIOD: u64 = 4096;

/// The plugin.
struct TraceUnit {
    source: Arc<Source>,
    sink: Box<dyn Sink>,
    engine: Arc<Qemu>,
    known: Mutex<Known>,
    places: Places,
    /// Files besides the trace, if `out=` is given.
    files: Option<Files>,
    /// Whether the trace in files has `CYC` packets.
    cyc: bool,
    /// Set with `from=user`: the trace begins with the first program.
    from_user: Option<FromUser>,
}

/// Callback data of blocks and instructions, so that QEMU gets the same one for each translation.
#[derive(Default)]
struct Known {
    blocks: HashSet<Begins>,
    instructions: HashMap<u64, &'static Begun>,
}

/// Files that a decoder needs besides the trace.
struct Files {
    prefix: String,
    image: Mutex<Image>,
    /// The file for changes of the code, if the trace is in files too.
    pokes: Option<Mutex<BufWriter<File>>>,
    log: bool,
}

qemuplugin::plugin!(
    TraceUnit,
    "traceunit",
    ["out", "log", "from", "cyc", "device"]
);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The functions of QEMU that the device uses.
struct Qemu {
    inside: Inside,
    whole: Flag,
}

/// The guest's time stamp counter.
struct Ticks(Inside);

impl Clock for Ticks {
    fn ticks(&self) -> u64 {
        self.0.ticks()
    }

    fn ticks_of(&self, instructions: usize) -> u64 {
        self.0.ticks_of(instructions)
    }

    fn ratio(&self) -> Option<u8> {
        // Both clocks count only while the guest runs.
        let (ticks, passed) = (self.0.ticks(), self.0.nanoseconds());
        let ratio = ticks.checked_mul(10)?.checked_add(passed / 2)?;
        u8::try_from(ratio.checked_div(passed)?).ok()
    }
}

impl Engine for Qemu {
    fn is_whole(&self, cpu: usize) -> bool {
        self.whole.is_set(cpu)
    }

    fn exclusively(&self, work: Box<dyn FnOnce() + Send>) {
        self.inside.exclusively(move |exclusive| {
            work();
            exclusive.forget_translations();
        });
    }
}

/// The files of a trace, one for each CPU.
struct Traces(Vec<Mutex<Trace>>);

struct Trace {
    file: BufWriter<File>,
    /// Whether a write has failed. The trace ends there.
    failed: bool,
}

impl Sink for Traces {
    fn put(&self, cpu: usize, packets: &Packets) {
        let Some(trace) = self.0.get(cpu) else {
            return;
        };
        let Trace { file, failed } = &mut *lock(trace);
        if !*failed {
            if let Err(error) = file.write_all(packets.as_bytes()) {
                eprintln!("traceunit: the trace ends early: {error}");
                *failed = true;
            }
        }
    }

    fn ends(&self) {
        for trace in &self.0 {
            complain(lock(trace).file.flush());
        }
    }
}

fn create(prefix: &str, what: &str) -> Result<File, String> {
    let path = format!("{prefix}.{what}");
    File::create(&path).map_err(|error| format!("cannot create {path}: {error}"))
}

/// A panic aborts QEMU. Otherwise a guest would wait for ever for a device whose thread has ended.
fn abort_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        say(panic);
        std::process::abort();
    }));
}

fn flag(options: &Options, name: &str, value: &str) -> Result<bool, String> {
    match options.get(name) {
        None => Ok(false),
        Some(found) if found == value => Ok(true),
        Some(found) => Err(format!(
            "{name}={found} is unknown: it can be {name}={value}"
        )),
    }
}

impl Plugin for TraceUnit {
    fn new(options: &Options, machine: &Machine) -> Result<Self, String> {
        let (prefix, socket) = (options.get("out"), options.get("device"));
        if prefix.is_none() && socket.is_none() {
            return Err(
                "it takes out=PREFIX for files, or device=SOCKET for vfio-user-pci".to_owned(),
            );
        }
        let log = match options.get("log") {
            None => None,
            Some("yes") => Some(u64::MAX),
            Some(max) => match max.parse() {
                Ok(max) => Some(max),
                Err(_) => {
                    return Err(format!(
                        "log={max} is unknown: it can be log=yes, or how many instructions"
                    ))
                }
            },
        };
        let from_user = flag(options, "from", "user")?;
        let cyc = flag(options, "cyc", "yes")?;
        match (prefix, socket) {
            (None, _) if log.is_some() => return Err("log= needs out=PREFIX".to_owned()),
            (_, Some(_)) if from_user || cyc => {
                return Err("from=user and cyc=yes go with out=, not with device=".to_owned())
            }
            _ => {}
        }
        let logs: Vec<_> = (0..machine.cpus)
            .map(|cpu| match (prefix, log) {
                (Some(prefix), Some(max)) => {
                    let file = create(prefix, &format!("cpu{cpu}.log"))?;
                    Ok(Some(Log::new(Box::new(file), max)))
                }
                _ => Ok(None),
            })
            .collect::<Result<_, String>>()?;
        biased::prepare()?;
        let inside = Inside::find()?;
        abort_on_panic();
        let source = Arc::new(Source::new(Box::new(Ticks(inside)), logs));
        let engine = Arc::new(Qemu {
            inside,
            whole: Flag::new(),
        });
        let sink: Box<dyn Sink> = match (socket, prefix) {
            (Some(socket), _) => {
                let (source, engine) = (source.clone(), engine.clone());
                Box::new(serve::serve(Path::new(socket), source, engine)?)
            }
            (None, prefix) => {
                source.arm(true);
                let trace = |cpu| {
                    let file = create(prefix.unwrap_or_default(), &format!("cpu{cpu}.pt"))?;
                    Ok(Mutex::new(Trace {
                        file: BufWriter::with_capacity(1 << 18, file),
                        failed: false,
                    }))
                };
                let traces = (0..machine.cpus)
                    .map(trace)
                    .collect::<Result<_, String>>()?;
                Box::new(Traces(traces))
            }
        };
        let files = match prefix {
            Some(prefix) => Some(Files {
                prefix: prefix.to_owned(),
                image: Mutex::default(),
                pokes: match socket {
                    Some(_) => None,
                    None => Some(Mutex::new(BufWriter::new(create(prefix, "pokes")?))),
                },
                log: log.is_some(),
            }),
            None => None,
        };
        let this = Self {
            source,
            sink,
            engine,
            known: Mutex::default(),
            places: Places::new(),
            files,
            cyc,
            from_user: from_user.then(FromUser::default),
        };
        if socket.is_none() && !from_user {
            this.start();
        }
        Ok(this)
    }

    fn translated(&'static self, translation: &Translation<'_>) {
        if !self.source.is_armed() {
            return;
        }
        let first = translation.address();
        let kernel = first >> 63 != 0;
        let known = &mut *lock(&self.known);
        let (mut others, mut behind_cli) = (Vec::new(), Vec::new());
        let mut code = Vec::new();
        let mut last = (Insn::UNKNOWN, Other::Nothing);
        let files = self.files.as_ref();
        let mut image = files.filter(|_| kernel).map(|files| lock(&files.image));
        for instruction in translation.instructions() {
            let mut buffer = [0; LEN_MAX];
            let bytes = instruction.bytes(&mut buffer);
            let address = instruction.address();
            let insn = Insn::decode(bytes, Mode::Bits64).unwrap_or(Insn::UNKNOWN);
            let (_, before) = std::mem::replace(&mut last, (insn, Other::of(bytes)));
            match address.wrapping_sub(first) {
                0 => {}
                offset => {
                    let offset = u16::try_from(offset).unwrap_or(u16::MAX);
                    others.push(offset);
                    behind_cli.extend((before == Other::Disables).then_some(offset));
                }
            }
            if let Some(change) = image.as_mut().and_then(|image| image.add(address, bytes)) {
                self.changes(&change);
            }
            if !kernel && self.is_in_files() {
                code.push(bytes.into());
            }
            if files.is_some_and(|files| files.log) {
                let make = || leak(Begun { of: self, address });
                instruction.on_execution(*known.instructions.entry(address).or_insert_with(make));
            }
        }
        let (insn, other) = last;
        let block = Block {
            first,
            last: others.last().copied().unwrap_or(0),
            others: others.into(),
            insn,
            writes_cr3: other == Other::WritesCr3,
            behind_cli: behind_cli.into(),
            may_enable: other == Other::MayEnable,
        };
        let same = |begins: &&Begins| {
            let known = begins.0.code.as_ref().map_or(&[][..], |code| &code.bytes);
            known == code
        };
        let begins = match known.blocks.get(&block).filter(same) {
            Some(begins) => begins.0,
            None => {
                let code = (!code.is_empty()).then(|| Code {
                    bytes: code,
                    known: Mutex::default(),
                });
                let begins = leak(Entered {
                    of: self,
                    block,
                    code,
                });
                known.blocks.replace(Begins(begins));
                begins
            }
        };
        translation.on_execution_with_registers(begins);
        translation.clears(self.engine.whole);
        if let Some(instruction) = translation.instructions().next_back() {
            instruction.sets(self.engine.whole);
        }
    }

    fn discontinuities(&'static self) -> Option<&'static dyn Discontinuities> {
        Some(self)
    }

    fn exits(&'static self) {
        for index in 0..self.source.cpus() {
            if let Some(mut cpu) = self.source.cpu(index) {
                cpu.stop(self.engine.is_whole(index));
                cpu.pass_all(index, &*self.sink);
                cpu.flush_log();
            }
        }
        self.sink.ends();
        if let Some(files) = &self.files {
            if let Some(pokes) = &files.pokes {
                complain(lock(pokes).flush());
            }
            let image = lock(&files.image);
            let create = |what: &str| File::create(format!("{}.{what}", files.prefix));
            complain(create("image").and_then(|pages| {
                image.write(BufWriter::new(pages), BufWriter::new(create("list")?))
            }));
            eprintln!("traceunit: {} instructions have changed", image.changes);
        }
    }
}

/// The effect of an instruction that is no branch, if it has packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    Nothing,
    /// `MOV` to `CR3`.
    WritesCr3,
    /// `CLI`.
    Disables,
    /// `STI` and `POPF`.
    MayEnable,
}

impl Other {
    fn of(bytes: &[u8]) -> Self {
        let bytes = match bytes {
            [0x40..=0x4f, rest @ ..] => rest,
            all => all,
        };
        match bytes {
            [0x0f, 0x22, modrm, ..] if modrm >> 3 & 7 == 3 => Self::WritesCr3,
            [0xfa] => Self::Disables,
            [0xfb | 0x9d] => Self::MayEnable,
            _ => Self::Nothing,
        }
    }
}

fn complain(result: io::Result<()>) {
    if let Err(error) = result {
        eprintln!("traceunit: cannot write: {error}");
    }
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl TraceUnit {
    /// Reports a change of the code to the decoder. libipt does not support changes, and takes the `PTW` for that of an instruction. Traces
    /// for libipt begin with `from=user`, when the kernel has already patched itself.
    fn changes(&self, change: &Change) {
        let files = self.files.as_ref().filter(|_| self.follows_changes());
        if let Some(pokes) = files.and_then(|files| files.pokes.as_ref()) {
            let when = self.source.changed(change.address);
            complain(change.write(when, &mut *lock(pokes)));
        }
    }

    /// Whether changes of the code are reported: the trace is in files, and has all code of the kernel.
    fn follows_changes(&self) -> bool {
        self.from_user.is_none() && self.is_in_files()
    }

    /// Whether the trace is in files, for a decoder that has the kernel's code from the image only.
    fn is_in_files(&self) -> bool {
        let files = self.files.as_ref();
        files.is_some_and(|files| files.pokes.is_some())
    }

    /// Starts the trace of kernel code on each CPU.
    fn start(&self) {
        let mut request = Request {
            tsc: true,
            cyc: self.cyc,
            psb_period: PSB_PERIOD,
            late: true,
            ..Request::default()
        };
        request.wanted.kernel = true;
        for index in 0..self.source.cpus() {
            if let Some(mut cpu) = self.source.cpu(index) {
                cpu.start(&request);
            }
        }
    }
}

impl Discontinuities for TraceUnit {
    fn discontinuity(&self, cpu: &mut VirtualCpu, kind: Discontinuity, from: u64, to: u64) {
        let index = cpu.index();
        if let Some(mut cpu) = self.source.tracing(cpu) {
            cpu.discontinuity(kind, from, to, self.engine.is_whole(index));
            cpu.pass(index, &*self.sink);
        }
    }
}

/// Callback data of a block.
struct Entered {
    of: &'static TraceUnit,
    block: Block,
    /// The bytes of the block, if the image may need them at kernel addresses.
    code: Option<Code>,
}

/// The bytes of a block that was translated below the kernel's addresses. The kernel, and each CPU, begins to execute at the addresses
/// where its image was loaded. QEMU later uses the same translation at the kernel's final addresses.
struct Code {
    /// The bytes of each instruction.
    bytes: Vec<Box<[u8]>>,
    /// The kernel addresses at which the image already has the block.
    known: Mutex<HashSet<u64>>,
}

impl Entered {
    /// The block is executed at this address. If that is a kernel address, adds the block to the image there.
    #[cold]
    fn is_at(&self, mut address: u64) {
        let (Some(code), Some(files)) = (&self.code, &self.of.files) else {
            return;
        };
        if address >> 63 == 0 || !lock(&code.known).insert(address) {
            return;
        }
        let mut image = lock(&files.image);
        for bytes in &code.bytes {
            if let Some(change) = image.add(address, bytes) {
                self.of.changes(&change);
            }
            address = address.wrapping_add(u64::try_from(bytes.len()).unwrap_or(0));
        }
    }
}

impl Sees for Entered {
    #[inline]
    fn executes(&'static self, cpu: &mut VirtualCpu, registers: &Registers<'_>) {
        let index = cpu.index();
        let state = Now {
            places: &self.of.places,
            registers,
        };
        let from_user = self.of.from_user.as_ref();
        if from_user.is_some_and(|from_user| from_user.begins(|| state.pc())) {
            self.of.start();
        }
        let Some(mut cpu) = self.of.source.tracing(cpu) else {
            return;
        };
        let whole = || self.of.engine.is_whole(index);
        if self.code.is_some() {
            if let Some(pc) = state.pc() {
                self.is_at(pc);
            }
        }
        cpu.executes(&self.block, whole, &state);
        cpu.pass(index, &*self.of.sink);
    }
}

/// Callback data of a block, with the block as key.
struct Begins(&'static Entered);

impl Borrow<Block> for Begins {
    fn borrow(&self) -> &Block {
        &self.0.block
    }
}

impl Hash for Begins {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.block.hash(state);
    }
}

impl PartialEq for Begins {
    fn eq(&self, other: &Self) -> bool {
        self.0.block == other.0.block
    }
}

impl Eq for Begins {}

/// Callback data of an instruction.
struct Begun {
    of: &'static TraceUnit,
    address: u64,
}

impl Executes for Begun {
    fn executes(&'static self, cpu: &mut VirtualCpu) {
        if let Some(mut cpu) = self.of.source.tracing(cpu) {
            cpu.begins(self.address);
        }
    }
}
