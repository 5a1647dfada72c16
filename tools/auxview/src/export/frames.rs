// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The functions of spans.

use std::collections::HashMap;
use std::path::Path;

use super::source_lines::SourceLines;
use crate::flamegraph::calls::{Function, Name, Site, Tree};
use crate::flamegraph::code::Code;

/// A function in [`Frames`].
pub(super) type FrameId = u32;

/// A function, as viewers show it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Frame {
    pub(super) name: String,
    /// The program or library that it is in.
    pub(super) module: String,
    /// Its source file, and the line where it begins; for an inlined function, the line of the call
    /// in it.
    pub(super) source: Option<(String, u32)>,
    pub(super) inlined: bool,
}

/// Stands for the functions where trace is missing.
pub(super) const GAP: FrameId = 0;

/// All functions that were seen. Their number is limited by that of the functions and calls in the
/// code.
#[derive(Debug)]
pub(super) struct Frames {
    all: Vec<Frame>,
    functions: HashMap<(Name, usize, u64), FrameId>,
    inlined: HashMap<Frame, FrameId>,
    sites: HashMap<Site, Vec<FrameId>>,
    lines: Option<SourceLines>,
}

impl Frames {
    /// Source lines come from the files below `root`.
    pub(super) fn new(root: Option<&Path>) -> Self {
        let gap = Frame {
            name: "[trace lost]".to_owned(),
            module: String::new(),
            source: None,
            inlined: false,
        };
        Self {
            all: vec![gap],
            functions: HashMap::new(),
            inlined: HashMap::new(),
            sites: HashMap::new(),
            lines: root.map(SourceLines::new),
        }
    }

    pub(super) fn get(&self, id: FrameId) -> Option<&Frame> {
        self.all.get(usize::try_from(id).ok()?)
    }

    /// The number of a function.
    pub(super) fn function(&mut self, function: &Function, tree: &Tree, code: &Code) -> FrameId {
        let key = (function.name, function.image, function.offset);
        if let Some(id) = self.functions.get(&key) {
            return *id;
        }
        let image = code.shown(function.image);
        let place = (function.image, function.offset);
        let source = self.lines.as_mut().and_then(|lines| {
            let frames = lines.frames(place, code);
            frames.into_iter().next_back()?.source
        });
        let frame = Frame {
            name: tree.text(function.name).to_owned(),
            module: image.to_owned(),
            source,
            inlined: false,
        };
        let id = self.add(frame);
        self.functions.insert(key, id);
        id
    }

    /// The functions that are inlined at the place of a call, the outermost first.
    pub(super) fn inlined(&mut self, site: Site, code: &Code) -> Vec<FrameId> {
        if let Some(ids) = self.sites.get(&site) {
            return ids.clone();
        }
        let mut found = match &mut self.lines {
            Some(lines) => lines.frames(site, code),
            None => Vec::new(),
        };
        // The outermost is the function itself.
        found.pop();
        let mut ids = Vec::new();
        for inline in found.into_iter().rev() {
            let frame = Frame {
                name: inline.name,
                module: code.shown(site.0).to_owned(),
                source: inline.source,
                inlined: true,
            };
            let id = match self.inlined.get(&frame) {
                Some(id) => *id,
                None => self.add(frame.clone()),
            };
            self.inlined.insert(frame, id);
            ids.push(id);
        }
        self.sites.insert(site, ids.clone());
        ids
    }

    fn add(&mut self, frame: Frame) -> FrameId {
        let id = FrameId::try_from(self.all.len()).unwrap_or(FrameId::MAX);
        self.all.push(frame);
        id
    }
}
