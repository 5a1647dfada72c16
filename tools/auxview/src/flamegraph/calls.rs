// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tree of calls, with the number of instructions that each function executed there.

use std::collections::HashMap;
use std::io::{self, Write};

/// A name in a [`Tree`].
pub(crate) type Name = u32;

/// A place in a [`Tree`].
pub(super) type Node = u32;

/// Calls, and the instructions that were executed in each.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    names: Vec<String>,
    numbers: HashMap<String, Name>,
    nodes: Vec<Place>,
    children: HashMap<(Option<Node>, Name), Node>,
    /// Whether some calls were counted for their callers, because they are too deep or too many.
    pub(super) cut: bool,
}

#[derive(Debug)]
struct Place {
    parent: Option<Node>,
    name: Name,
    depth: u32,
    own: u64,
}

impl Tree {
    /// Maximum depth. Deeper calls are counted for the deepest caller in the tree.
    const DEPTH_MAX: u32 = 512;
    /// Maximum number of places.
    const NODES_MAX: usize = 1 << 20;

    /// The number of a name.
    pub(super) fn name(&mut self, text: &str) -> Name {
        if let Some(&name) = self.numbers.get(text) {
            return name;
        }
        let name = Name::try_from(self.names.len()).unwrap_or(Name::MAX);
        self.names.push(text.to_owned());
        self.numbers.insert(text.to_owned(), name);
        name
    }

    /// The name that has this number.
    pub(crate) fn text(&self, name: Name) -> &str {
        let name = usize::try_from(name).ok();
        name.and_then(|name| self.names.get(name))
            .map_or("", String::as_str)
    }

    fn place(&self, node: Node) -> Option<&Place> {
        self.nodes.get(usize::try_from(node).ok()?)
    }

    /// The place of the function `name` where `parent` calls it.
    pub(super) fn child(&mut self, parent: Option<Node>, name: Name) -> Node {
        if let Some(&node) = self.children.get(&(parent, name)) {
            return node;
        }
        let depth = parent
            .and_then(|parent| self.place(parent))
            .map_or(0, |place| place.depth + 1);
        if let Some(parent) = parent {
            if depth > Self::DEPTH_MAX || self.nodes.len() >= Self::NODES_MAX {
                self.cut = true;
                return parent;
            }
        }
        let node = Node::try_from(self.nodes.len()).unwrap_or(Node::MAX);
        self.nodes.push(Place {
            parent,
            name,
            depth,
            own: 0,
        });
        self.children.insert((parent, name), node);
        node
    }

    /// Adds to the instructions of a place.
    pub(super) fn add(&mut self, node: Node, count: u64) {
        let place = usize::try_from(node).ok();
        if let Some(place) = place.and_then(|place| self.nodes.get_mut(place)) {
            place.own = place.own.saturating_add(count);
        }
    }

    /// Writes a line for each place where instructions were executed: the names from the outermost on, and the number of instructions.
    pub(super) fn fold(&self, out: &mut impl Write) -> io::Result<()> {
        let mut lines: Vec<_> = self
            .nodes
            .iter()
            .filter(|place| place.own > 0)
            .map(|place| {
                let mut names = Vec::new();
                let mut at = Some(place);
                while let Some(place) = at {
                    names.push(self.text(place.name));
                    at = place.parent.and_then(|parent| self.place(parent));
                }
                names.reverse();
                // The format uses these two characters as separators.
                let names = names.iter().map(|name| name.replace([';', '\n'], ":"));
                (names.collect::<Vec<_>>().join(";"), place.own)
            })
            .collect();
        lines.sort();
        lines
            .into_iter()
            .try_for_each(|(line, count)| writeln!(out, "{line} {count}"))
    }
}

/// A function, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: Name,
    /// Whether a symbol names it. If not, only a place where a branch went is known.
    pub(super) named: bool,
    /// The file that it is in.
    pub(crate) image: usize,
    /// Whether this is its first instruction.
    pub(super) begins: bool,
    /// Offset in that file of its beginning; without a symbol, of the block.
    pub(crate) offset: u64,
}

/// A place in the code: the file, and the offset in it.
pub(crate) type Site = (usize, u64);

/// A change of a call stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A call or a jump to another function, from this place.
    Begin(Function, Option<Site>),
    /// The innermost function ended.
    End,
    /// Trace is missing: the functions are unknown from here on.
    Lost,
}

/// An event, and the number of instructions of the stack before it.
pub(crate) type Change = (u64, Event);

#[derive(Debug, Clone, Copy)]
struct Frame {
    node: Node,
    function: Function,
    /// Its return address, if it was called.
    back: Option<u64>,
}

/// The call stack of a thread.
#[derive(Debug)]
pub(super) struct Stack {
    root: Node,
    frames: Vec<Frame>,
    /// Where signals interrupted the thread, and how many frames there were.
    interrupted: Vec<(Left, usize)>,
    left: Option<Left>,
    /// Whether no instruction was executed since the last frame was added.
    fresh: bool,
    /// Number of instructions that were executed.
    executed: u64,
    /// Number of losses of trace when tracing ended.
    lost: u64,
    /// Changes since the last report, if there is a listener.
    changes: Option<Vec<Change>>,
}

/// Where tracing ended. It continues at `next`, or at `again` if the same system call is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) next: u64,
    pub(super) again: u64,
}

impl Left {
    fn is(&self, ip: u64) -> bool {
        self.next == ip || self.again == ip
    }
}

impl Stack {
    const FRAMES_MAX: usize = 1 << 16;
    const INTERRUPTED_MAX: usize = 64;

    /// The stack of a thread whose calls are not known.
    pub(super) fn new(root: Node, watched: bool) -> Self {
        Self {
            executed: 0,
            lost: 0,
            changes: watched.then(Vec::new),
            root,
            frames: Vec::new(),
            interrupted: Vec::new(),
            left: None,
            fresh: true,
        }
    }

    /// Forgets all calls, because trace is missing.
    pub(super) fn forget(&mut self) {
        self.frames.clear();
        self.interrupted.clear();
        self.left = None;
        self.note(Event::Lost);
    }

    /// Tracing ended at `left`.
    pub(super) fn leave(&mut self, left: Option<Left>) {
        self.left = left;
    }

    /// Tracing ended at `left`. `lost` is the number of losses up to now.
    pub(super) fn pause(&mut self, left: Left, lost: u64) {
        self.leave(Some(left));
        self.lost = lost;
    }

    /// Ends all calls.
    pub(super) fn end(&mut self) {
        self.truncate(0);
        self.interrupted.clear();
        self.left = None;
    }

    /// Tracing begins. If the number of losses has grown since it ended, the thread may have run in lost trace.
    pub(super) fn resume(&mut self, lost: u64) {
        if std::mem::replace(&mut self.lost, lost) != lost && self.left.is_some() {
            self.forget();
        }
    }

    fn note(&mut self, event: Event) {
        if let Some(changes) = &mut self.changes {
            changes.push((self.executed, event));
        }
    }

    /// Takes the changes since the last report, and the number of instructions up to now.
    pub(super) fn changes(&mut self) -> (Vec<Change>, u64) {
        let changes = self.changes.as_mut().map(std::mem::take);
        (changes.unwrap_or_default(), self.executed)
    }

    /// Ends the frames from index `depth` on.
    fn truncate(&mut self, depth: usize) {
        for _ in depth..self.frames.len() {
            self.note(Event::End);
        }
        self.frames.truncate(depth);
    }

    /// Tracing begins at `ip`: where it ended, where a signal interrupted the thread, in a signal handler, or where traced code is entered.
    pub(super) fn enter(&mut self, ip: u64, function: Function, tree: &mut Tree) {
        let Some(left) = self.left.take() else {
            return;
        };
        if left.is(ip) {
            return;
        }
        if let Some(n) = self.interrupted.iter().rposition(|(left, _)| left.is(ip)) {
            let depth = self.interrupted[n].1;
            self.interrupted.truncate(n);
            self.truncate(depth);
            return;
        }
        // If not all code is traced, tracing may end in a function and begin again at its return address.
        if let Some(n) = self.frames.iter().rposition(|frame| frame.back == Some(ip)) {
            self.truncate(n);
            return;
        }
        if self.fresh {
            self.at(function, tree);
            return;
        }
        if self.interrupted.len() == Self::INTERRUPTED_MAX {
            self.interrupted.remove(0);
        }
        self.interrupted.push((left, self.frames.len()));
        self.push(None, function, None, tree);
    }

    /// A call at `site` with the return address `back`.
    pub(super) fn call(
        &mut self,
        back: u64,
        function: Function,
        site: Option<Site>,
        tree: &mut Tree,
    ) {
        self.push(Some(back), function, site, tree);
    }

    fn push(&mut self, back: Option<u64>, function: Function, site: Option<Site>, tree: &mut Tree) {
        if self.frames.len() == Self::FRAMES_MAX {
            self.cut(Self::FRAMES_MAX / 2);
        }
        self.fresh = true;
        let parent = self.frames.last().map_or(self.root, |frame| frame.node);
        self.frames.push(Frame {
            node: tree.child(Some(parent), function.name),
            function,
            back,
        });
        self.note(Event::Begin(function, site));
    }

    /// Forgets the outermost frames. The other frames keep their places in the tree.
    fn cut(&mut self, count: usize) {
        self.frames.drain(..count);
        for (_, depth) in &mut self.interrupted {
            *depth = depth.saturating_sub(count);
        }
    }

    /// A return to `to`.
    pub(super) fn back(&mut self, to: u64, function: Function, tree: &mut Tree) {
        // This ends several frames if some were left without a return.
        match self.frames.iter().rposition(|frame| frame.back == Some(to)) {
            Some(n) => {
                self.truncate(n);
                self.at(function, tree);
            }
            None => self.at(function, tree),
        }
    }

    /// The thread is in `function`, but did not get there by a call.
    pub(super) fn at(&mut self, function: Function, tree: &mut Tree) {
        let Some(top) = self.frames.last().copied() else {
            self.push(None, function, None, tree);
            return;
        };
        let stays = if function.named {
            top.function.name == function.name
        } else {
            // Without symbols, a jump counts as one within the function.
            !top.function.named && top.function.image == function.image
        };
        if stays {
            return;
        }
        // A jump into the middle of a caller: longjmp(), or the handler of an exception.
        let caller = |frame: &Frame| frame.function.named && frame.function.name == function.name;
        if function.named && !function.begins {
            if let Some(n) = self.frames.iter().rposition(caller) {
                self.truncate(n + 1);
                return;
            }
        }
        let depth = self.frames.len() - 1;
        self.truncate(depth);
        self.push(top.back, function, None, tree);
        self.interrupted.retain(|(_, at)| *at <= depth + 1);
    }

    /// Counts instructions that were executed.
    pub(super) fn count(&mut self, count: u64, tree: &mut Tree) {
        self.fresh &= count == 0;
        self.executed += count;
        tree.add(
            self.frames.last().map_or(self.root, |frame| frame.node),
            count,
        );
    }
}
