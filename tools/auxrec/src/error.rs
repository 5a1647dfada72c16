// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Errors, which are those of [`auxview`], and helpers for their messages.

pub use auxview::{Error, Result};

/// Joins items for a sentence: `a`, `a or b`, `a, b or c`.
pub(crate) fn one_of<S: AsRef<str>>(items: &[S]) -> String {
    match items {
        [] => "nothing".to_owned(),
        [one] => one.as_ref().to_owned(),
        [front @ .., last] => {
            let front: Vec<&str> = front.iter().map(AsRef::as_ref).collect();
            format!("{} or {}", front.join(", "), last.as_ref())
        }
    }
}

/// Suggests the most similar word, as the end of a sentence. Empty if none is similar.
pub(crate) fn nearest<S: AsRef<str>>(word: &str, among: &[S]) -> String {
    among
        .iter()
        .map(|item| (strsim::damerau_levenshtein(word, item.as_ref()), item))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, item)| *distance <= 1 + item.as_ref().len() / 3)
        .map_or(String::new(), |(_, item)| {
            format!(" (did you mean `{}`?)", item.as_ref())
        })
}
