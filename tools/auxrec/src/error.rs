// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sentences of errors. What can go wrong is what can go wrong in [`auxview`].

pub use auxview::{Error, Result};

/// `a`, `a or b`, `a, b or c`: for sentences.
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

/// What was probably meant, as the end of a sentence.
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
