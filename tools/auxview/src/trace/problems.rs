// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is wrong with a recording.

/// What is wrong, in sentences: the first ones, and how many more there are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problems {
    kept: Vec<String>,
    more: u64,
}

impl Problems {
    /// So many are kept: a file in which everything is wrong must not fill the memory.
    pub const MAX: usize = 1000;

    pub(crate) fn add(&mut self, text: impl FnOnce() -> String) {
        if self.kept.len() < Self::MAX {
            self.kept.push(text());
        } else {
            self.more += 1;
        }
    }

    /// How many there are besides those that are kept.
    #[must_use]
    pub fn more(&self) -> u64 {
        self.more
    }
}

/// Those that are kept.
impl std::ops::Deref for Problems {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.kept
    }
}
