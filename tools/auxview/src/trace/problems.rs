// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The problems of a recording.

/// The first problems as sentences, and the number of further ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problems {
    kept: Vec<String>,
    more: u64,
}

impl Problems {
    /// How many problems are kept: a file with many problems must not fill the memory.
    pub const MAX: usize = 1000;

    pub(crate) fn add(&mut self, text: impl FnOnce() -> String) {
        if self.kept.len() < Self::MAX {
            self.kept.push(text());
        } else {
            self.more += 1;
        }
    }

    /// Number of further problems, which are not kept.
    #[must_use]
    pub fn more(&self) -> u64 {
        self.more
    }
}

/// The problems that are kept.
impl std::ops::Deref for Problems {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.kept
    }
}
