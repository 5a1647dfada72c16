// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Proves from the modules' objects that no callback of perf can panic.
//!
//! A panic in a callback stops the machine, since interrupts are off and locks are held. In Rust, any index or sum may panic. Where one can
//! panic, the object has a call of a panic function in `core`. So this check starts at each function that perf or a timer calls with
//! interrupts off. It follows all references: relocations, across all objects, and branches within a section. It must not reach a panic
//! function. A function whose address is taken counts as called.
//!
//! References within the kernel itself cannot be followed. So `KERNEL` lists the Rust functions of the kernel that a callback may call.

use crate::cache::Cache;
use crate::error::{Error, OnFile, Result};
use crate::kernel::Kernel;
use crate::modules::{self, Mode};
use crate::results::ktap::Case;
use iced_x86::{Decoder, DecoderOptions};
use object::{
    File, Object, ObjectSection, ObjectSymbol, Relocation, RelocationKind, RelocationTarget,
    SectionIndex, SectionKind, SymbolIndex, SymbolKind,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs;

/// Which drivers must have a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Every,
    /// At least one driver of the tree.
    One,
    /// Any number of drivers: on this kernel, there may be none.
    Any,
}

/// A callback: its name before and after the driver's name, and which drivers must have it.
type Callback = (&'static str, &'static str, Who);

/// The functions of the framework that the kernel calls with interrupts off, with one of its locks held, or on a path of every task. Each
/// driver has its own instances of them.
const CALLBACKS: [Callback; 15] = [
    ("perf::aux::vtable::add::<", ">", Who::Every),
    ("perf::aux::vtable::del::<", ">", Who::Every),
    ("perf::aux::vtable::start::<", ">", Who::Every),
    ("perf::aux::vtable::stop::<", ">", Who::Every),
    ("perf::aux::vtable::read::<", ">", Who::Every),
    ("perf::aux::vtable::snapshot_aux::<", ">", Who::Any),
    ("perf::vtable::addr_filters_sync::<", ">", Who::One),
    (TIMER, ">>::expired", Who::Every),
    ("<perf::aux::cpu::CpuState<", ">>::worked", Who::Every),
    ("<perf::interrupt::Entry<", ">>::interrupt", Who::Any),
    // Callbacks of drivers without an AUX area.
    ("perf::counter::add::<", ">", Who::Any),
    ("perf::counter::del::<", ">", Who::Any),
    ("perf::counter::start::<", ">", Who::Any),
    ("perf::counter::stop::<", ">", Who::Any),
    ("perf::counter::read::<", ">", Who::Any),
];

const TIMER: &str = "<perf::aux::cpu::CpuState<";

/// The crate of a driver that panics in `start()` and in `tick()`. [`SHOW`] has the callbacks of the framework that reach these panics.
const PANICS: &str = "hostile_panics::";
const SHOW: [&str; 2] = ["perf::aux::vtable::add::<", TIMER];

/// The functions of `stepping` that the kernel calls through hooks.
const HOOKS: [&str; 8] = [
    "rust_stepping_single_step",
    "rust_stepping_breakpoint",
    "rust_stepping_sys_enter",
    "rust_stepping_sys_exit",
    "rust_stepping_signal_deliver",
    "rust_stepping_sched_switch",
    "rust_stepping_rseq_abort",
    "stepping::work::run",
];

/// The functions with which `stepping` calls a tracer. There must be at least one instance of each.
const TRACERS: [&str; 2] = [
    "<stepping::tracer::Entry>::call_single_step::<",
    "<stepping::tracer::Entry>::call_transition::<",
];

/// Rust functions of the kernel that a callback may call, and why they do not panic.
const KERNEL: [(&str, &str); 1] = [(
    "kernel::error::to_result",
    "compares, and makes an Error of a negative number",
)];

/// Checks the objects of all modules, except for `hostile`, whose drivers do in callbacks what no callback may. Returns `None` if the
/// objects prove nothing:
/// - With `CONFIG_RUST_DEBUG_ASSERTIONS`, the compiler adds checks to every pointer access.
/// - With `CONFIG_KUNIT`, the modules contain the tests' drivers, which do the same as those of `hostile`.
///
/// # Errors
///
/// When they cannot be built or read.
pub fn run(cache: &Cache, kernel: &Kernel) -> Result<Option<Case>> {
    let name = format!("no callback can panic on {}", kernel.kind);
    let config = kernel.build_dir().join(".config");
    let config = fs::read_to_string(&config).on("read", &config)?;
    let has = |option: &str| config.lines().any(|line| line == option);
    if has("CONFIG_RUST_DEBUG_ASSERTIONS=y") || has("CONFIG_KUNIT=y") {
        return Ok(None);
    }
    if !has("CONFIG_RUST_OVERFLOW_CHECKS=y") {
        return Ok(Some(Case::fail(
            &name,
            "without CONFIG_RUST_OVERFLOW_CHECKS the objects do not show which sums may overflow",
        )));
    }
    modules::build(cache, kernel, Mode::Plain)?;
    let mut graph = Graph::default();
    for path in modules::objects(cache, kernel)? {
        // The object of the crate and that of the module have the same name.
        if path.ends_with("hostile.o") {
            continue;
        }
        let bytes = fs::read(&path).on("read", &path)?;
        graph.add(&bytes).map_err(|e| {
            Error::Other(format!(
                "{} is not what a compiler makes: {e}",
                path.display()
            ))
        })?;
    }
    Ok(Some(judge(&name, &graph)))
}

fn judge(name: &str, graph: &Graph) -> Case {
    let (panicking, roots): (Vec<Root>, Vec<Root>) = graph
        .callbacks()
        .into_iter()
        .partition(|root| root.driver.starts_with(PANICS));
    let with_aux = |root: &&Root| root.callback.2 == Who::Every;
    let drivers: BTreeSet<&str> = roots
        .iter()
        .filter(with_aux)
        .map(|root| root.driver.as_str())
        .collect();
    let mut complaints = Vec::new();
    // Without a driver, there is nothing to check, and the check would pass.
    if drivers.is_empty() {
        complaints.push("there is no driver".to_owned());
    }
    for callback @ (kind, function, who) in CALLBACKS {
        let has = |driver: &str| {
            let is_it = |root: &Root| root.driver == driver && root.callback == callback;
            roots.iter().any(is_it)
        };
        let missing = match who {
            Who::Every => drivers.iter().any(|driver| !has(driver)),
            Who::One => !drivers.iter().any(|driver| has(driver)),
            Who::Any => false,
        };
        if missing {
            complaints.push(format!("there is no {kind}…{function} ({who:?} driver)"));
        }
    }
    let mut nodes: Vec<usize> = roots.iter().map(|root| root.node).collect();
    let hooks = HOOKS.map(|name| (name, graph.defined(|n| n == name)));
    let tracers = TRACERS.map(|name| (name, graph.defined(|n| n.starts_with(name))));
    for (name, found) in hooks.into_iter().chain(tracers) {
        if found.is_empty() {
            complaints.push(format!("there is no {name}"));
        }
        nodes.extend(found);
    }
    complaints.extend(graph.panics(nodes.into_iter()));
    for prefix in SHOW {
        let shows = |root: &&Root| root.callback.0 == prefix;
        let nodes = panicking.iter().filter(shows).map(|root| root.node);
        if graph.panics(nodes).is_empty() {
            complaints.push(format!(
                "the panic of {PANICS} behind {prefix} is not found"
            ));
        }
    }
    if complaints.is_empty() {
        return Case::pass(name);
    }
    let reason = format!(
        "{} paths to a panic, or to an unknown function",
        complaints.len()
    );
    Case::fail(name, &reason).with_log(complaints)
}

/// A callback of a driver.
struct Root {
    driver: String,
    callback: Callback,
    node: usize,
}

/// Functions and data, and the references between them.
#[derive(Debug, Default)]
struct Graph {
    nodes: Vec<Node>,
    /// The node of each global name, whether it is defined or only referred to.
    globals: HashMap<String, usize>,
}

#[derive(Debug)]
struct Node {
    /// Demangled.
    name: String,
    defined: bool,
    refers: BTreeSet<usize>,
}

impl Graph {
    /// Adds an object.
    fn add(&mut self, bytes: &[u8]) -> Result<(), object::Error> {
        let file = File::parse(bytes)?;
        // The beginning of each symbol, as section and address, with its end and its node.
        let mut places: BTreeMap<(usize, u64), (u64, usize)> = BTreeMap::new();
        let mut symbols: HashMap<SymbolIndex, usize> = HashMap::new();
        for symbol in file.symbols() {
            let name = symbol.name()?;
            if name.is_empty() || symbol.kind() == SymbolKind::File {
                continue;
            }
            let node = if symbol.is_local() {
                self.node(name)
            } else {
                self.global(name)
            };
            symbols.insert(symbol.index(), node);
            if let (Some(section), true) = (symbol.section_index(), symbol.size() > 0) {
                self.nodes[node].defined = true;
                places.insert(
                    (section.0, symbol.address()),
                    (symbol.address() + symbol.size(), node),
                );
            }
        }
        // A constant has no symbol. So each address that something refers to counts as the beginning of a constant, which ends at the next.
        let mut constants: BTreeSet<(usize, u64)> = BTreeSet::new();
        let mut sections: HashMap<SectionIndex, usize> = HashMap::new();
        for section in file.sections() {
            sections.insert(section.index(), self.node(section.name()?));
            for (_, relocation) in section.relocations() {
                constants.extend(
                    target(&file, &relocation)?.filter(|place| !places.contains_key(place)),
                );
            }
        }
        for (section, address) in &constants {
            let index = SectionIndex(*section);
            let section_of = file.section_by_index(index)?;
            let within = places
                .range(..=(*section, *address))
                .next_back()
                .is_some_and(|((s, _), (end, _))| s == section && address < end);
            if within || section_of.kind() == SectionKind::Text {
                continue;
            }
            let next = constants
                .range((*section, address.saturating_add(1))..)
                .next()
                .filter(|(s, _)| s == section);
            let end = next.map_or(section_of.size(), |(_, next)| *next);
            let node = self.node(&format!("{}+{address:#x}", section_of.name()?));
            places.insert((*section, *address), (end, node));
        }
        let at = |(section, address): (usize, u64)| {
            let before = places.range(..=(section, address)).next_back();
            match before {
                Some(((s, _), (end, node))) if *s == section && address < *end => Some(*node),
                _ => sections.get(&SectionIndex(section)).copied(),
            }
        };
        let mut edges = Vec::new();
        for section in file.sections() {
            for (offset, relocation) in section.relocations() {
                let RelocationTarget::Symbol(index) = relocation.target() else {
                    continue;
                };
                let to = match target(&file, &relocation)? {
                    Some(place) => at(place),
                    None => symbols.get(&index).copied(),
                };
                if let (Some(from), Some(to)) = (at((section.index().0, offset)), to) {
                    edges.push((from, to));
                }
            }
            if section.kind() == SectionKind::Text {
                let code = section.data()?;
                let relocated: BTreeSet<u64> = section.relocations().map(|(at, _)| at).collect();
                let functions: Vec<_> = places
                    .range((section.index().0, 0)..=(section.index().0, u64::MAX))
                    .map(|((_, start), (end, node))| (*start, *end, *node))
                    .collect();
                for (start, end, from) in functions {
                    for address in branches(code, start, end, &relocated) {
                        edges.extend(at((section.index().0, address)).map(|to| (from, to)));
                    }
                }
            }
        }
        for (from, to) in edges {
            self.nodes[from].refers.insert(to);
        }
        Ok(())
    }

    fn node(&mut self, name: &str) -> usize {
        self.nodes.push(Node {
            name: format!("{:#}", rustc_demangle::demangle(name)),
            defined: false,
            refers: BTreeSet::new(),
        });
        self.nodes.len() - 1
    }

    fn global(&mut self, name: &str) -> usize {
        if let Some(node) = self.globals.get(name) {
            return *node;
        }
        let node = self.node(name);
        self.globals.insert(name.to_owned(), node);
        node
    }

    /// The functions that are defined and for whose name `is_it` returns true.
    fn defined(&self, is_it: impl Fn(&str) -> bool) -> Vec<usize> {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .filter(|(_, node)| node.defined && is_it(&node.name))
            .map(|(index, _)| index)
            .collect()
    }

    fn callbacks(&self) -> Vec<Root> {
        let mut roots = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.defined) {
            for callback in CALLBACKS {
                let driver = node
                    .name
                    .strip_prefix(callback.0)
                    .and_then(|rest| rest.strip_suffix(callback.1))
                    // Callbacks for the test bench of the framework, which replaces perf's core, do not run in production.
                    .filter(|driver| !driver.contains("perf::testing::"))
                    .map(|driver| driver.trim_end_matches(", perf::aux::core::Perf"));
                roots.extend(driver.map(|driver| Root {
                    driver: driver.to_owned(),
                    callback,
                    node: index,
                }));
            }
        }
        roots
    }

    /// The shortest path to each reachable function that panics or is unknown.
    fn panics(&self, roots: impl Iterator<Item = usize>) -> Vec<String> {
        let mut came_from: HashMap<usize, Option<usize>> = roots.map(|root| (root, None)).collect();
        let mut queue: VecDeque<usize> = came_from.keys().copied().collect();
        let mut paths = Vec::new();
        while let Some(index) = queue.pop_front() {
            let node = &self.nodes[index];
            if is_panic(&node.name) || (!node.defined && is_unknown(&node.name)) {
                let mut path = vec![node.name.clone()];
                let mut at = index;
                while let Some(Some(before)) = came_from.get(&at) {
                    path.push(self.nodes[*before].name.clone());
                    at = *before;
                }
                path.reverse();
                paths.push(path.join(" -> "));
                continue;
            }
            for next in &node.refers {
                came_from.entry(*next).or_insert_with(|| {
                    queue.push_back(*next);
                    Some(index)
                });
            }
        }
        paths
    }
}

/// The targets of branches in the code from `start` to `end`, as addresses in its section. An assembler makes no relocations for branches
/// within a section.
fn branches(code: &[u8], start: u64, end: u64, relocated: &BTreeSet<u64>) -> Vec<u64> {
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let Some(code) = range.and_then(|(start, end)| code.get(start..end)) else {
        return Vec::new();
    };
    Decoder::with_ip(64, code, start, DecoderOptions::NONE)
        .into_iter()
        .filter(|instruction| {
            instruction.is_call_near()
                || instruction.is_jmp_short_or_near()
                || instruction.is_jcc_short_or_near()
        })
        // A branch with a relocation is followed by the relocation.
        .filter(|instruction| {
            relocated
                .range(instruction.ip()..instruction.next_ip())
                .next()
                .is_none()
        })
        .map(|instruction| instruction.near_branch_target())
        .collect()
}

/// The target of a relocation, as section and address, if the relocation refers to a section instead of a symbol in it.
fn target(file: &File, relocation: &Relocation) -> Result<Option<(usize, u64)>, object::Error> {
    let RelocationTarget::Symbol(index) = relocation.target() else {
        return Ok(None);
    };
    let symbol = file.symbol_by_index(index)?;
    let (SymbolKind::Section, Some(section)) = (symbol.kind(), symbol.section_index()) else {
        return Ok(None);
    };
    // The processor adds the distance to the address after the 4 bytes of the relocation.
    let behind = match relocation.kind() {
        RelocationKind::Relative | RelocationKind::PltRelative => 4,
        _ => 0,
    };
    let address = u64::try_from(relocation.addend().saturating_add(behind)).unwrap_or(0);
    Ok(Some((section.0, address)))
}

/// Whether a function with this name starts a panic.
fn is_panic(name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or_default();
    name.starts_with("core::")
        && (name.contains("::panicking::") || last.ends_with("_fail") || last.ends_with("_failed"))
}

/// Whether this is the name of a Rust function that is not listed in [`KERNEL`].
fn is_unknown(name: &str) -> bool {
    let listed = KERNEL.iter().any(|(known, _)| *known == name);
    name.contains("::") && !listed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver with its callbacks. `start` refers to the first name in `path`, and each name to the next one.
    fn graph(path: &[&str]) -> Graph {
        let mut graph = Graph::default();
        let callbacks = CALLBACKS.iter().filter(|(_, _, who)| *who != Who::Any);
        for (kind, function, _) in callbacks {
            let name = format!("{kind}a::Driver{function}");
            let node = graph.node(&name);
            graph.nodes[node].defined = true;
        }
        let panic = graph.node("core::panicking::panic_bounds_check");
        for prefix in SHOW {
            let suffix = CALLBACKS.iter().find(|c| c.0 == prefix).map_or("", |c| c.1);
            let node = graph.node(&format!("{prefix}{PANICS}Panics{suffix}"));
            graph.nodes[node].defined = true;
            graph.nodes[node].refers.insert(panic);
        }
        let tracers = TRACERS.map(|name| format!("{name}a::Tracer>"));
        for name in HOOKS.map(str::to_owned).into_iter().chain(tracers) {
            let node = graph.node(&name);
            graph.nodes[node].defined = true;
        }
        let mut before = 2;
        for name in path {
            let node = graph.node(name);
            graph.nodes[node].defined = !name.contains("::");
            graph.nodes[before].refers.insert(node);
            before = node;
        }
        graph
    }

    #[test]
    fn paths() {
        // The references from `start` on, and the number of complaints.
        let table: [(&[&str], usize); 5] = [
            (&[], 0),
            (&["helper", "ktime_get"], 0),
            (&["helper", "kernel::error::to_result"], 0),
            (
                &["helper", "vtable", "core::panicking::panic_fmt", "behind"],
                1,
            ),
            (&["core::fmt::write"], 1),
        ];
        for (path, complaints) in table {
            let case = judge("x", &graph(path));
            assert_eq!(case.log.len(), complaints, "{path:?}: {:?}", case.log);
        }
        assert!(!judge("x", &Graph::default()).log.is_empty());
        let mut lacks = graph(&[]);
        lacks.nodes[4].defined = false;
        assert_eq!(judge("x", &lacks).log.len(), 1);
        let mut unhooked = graph(&[]);
        for node in &mut unhooked.nodes {
            node.defined &= !node.name.contains("stepping");
        }
        assert_eq!(judge("x", &unhooked).log.len(), HOOKS.len() + TRACERS.len());
    }

    /// The panics of the driver that panics on purpose must be found. There is a complaint for each one that is not.
    #[test]
    fn panics_on_purpose() {
        for (panics, complaints) in [(2, 0), (1, 1), (0, 2)] {
            let mut graph = graph(&[]);
            let on_purpose = |node: &&mut Node| node.name.contains(PANICS);
            for node in graph.nodes.iter_mut().filter(on_purpose).skip(panics) {
                node.refers.clear();
            }
            let case = judge("x", &graph);
            assert_eq!(case.log.len(), complaints, "{panics}: {:?}", case.log);
        }
    }

    #[test]
    fn branches_within_a_section() {
        // nop; call 16; call by a relocation; je 2; ret
        let code = [0x90, 0xe8, 10, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0x74, 0xf5, 0xc3];
        let relocated = BTreeSet::from([7]);
        assert_eq!(branches(&code, 0, 14, &relocated), [16, 2]);
        assert_eq!(branches(&code, 1, 6, &relocated), [16]);
        assert!(branches(&code, 0, 15, &relocated).is_empty());
    }

    #[test]
    fn names() {
        let table = [
            ("core::panicking::panic_bounds_check", true),
            (
                "core::panicking::panic_const::panic_const_add_overflow",
                true,
            ),
            ("core::slice::index::slice_start_index_len_fail", true),
            ("core::option::unwrap_failed", true),
            ("core::fmt::write", false),
            ("<perf::aux::gate::Gate>::leave_word", false),
            ("perf_aux_output_begin", false),
        ];
        for (name, wanted) in table {
            assert_eq!(is_panic(name), wanted, "{name}");
        }
        assert!(is_unknown("core::fmt::write"));
        assert!(!is_unknown("kernel::error::to_result"));
        assert!(!is_unknown("ktime_get"));
    }
}
