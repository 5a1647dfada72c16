// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The lines `field:TYPE NAME; offset:N; size:N; signed:N;` of tracefs.

use crate::error::{Error, Result};

/// A declaration of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Declaration<'a> {
    /// Offset in the text.
    pub at: usize,
    /// Type and name, in C.
    pub declared: &'a str,
    pub offset: usize,
    pub size: usize,
    pub signed: bool,
}

impl<'a> Declaration<'a> {
    /// The field's name: the last word of the declaration, without the length of an array.
    pub(crate) fn name(&self) -> &'a str {
        let name = self.declared.rsplit([' ', '\t', '*']).next();
        let name = name.unwrap_or(self.declared);
        name.split('[').next().unwrap_or(name)
    }
}

/// Parses a number of at most 32 bits. No number of tracefs is longer, and sums of a few such numbers do not overflow.
pub(crate) fn number(text: &str) -> Option<usize> {
    let number: u32 = text.parse().ok()?;
    usize::try_from(number).ok()
}

/// The offset in `text` at which `part` begins; the length of `text` if `part` is not a part of it.
pub(crate) fn offset_in(text: &str, part: &str) -> usize {
    let distance = part.as_ptr().addr().checked_sub(text.as_ptr().addr());
    distance.map_or(text.len(), |n| n.min(text.len()))
}

/// The declarations in a text; other lines are skipped.
pub(crate) fn declarations<'a>(what: &'static str, text: &'a str) -> Result<Vec<Declaration<'a>>> {
    let mut all = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.trim_start().strip_prefix("field:") {
            all.push(declaration(what, text, rest)?);
        }
    }
    Ok(all)
}

fn declaration<'a>(what: &'static str, text: &'a str, rest: &'a str) -> Result<Declaration<'a>> {
    let at = offset_in(text, rest);
    let mut parts = rest.split(';').map(str::trim);
    let declared = parts.next().unwrap_or_default();
    let (mut offset, mut size, mut signed) = (None, None, None);
    for part in parts.filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once(':').unwrap_or((part, ""));
        let slot = match key {
            "offset" => &mut offset,
            "size" => &mut size,
            "signed" => &mut signed,
            // A kernel may add further keys.
            _ => continue,
        };
        let value = number(value).ok_or_else(|| {
            Error::malformed(
                what,
                offset_in(text, part),
                format!("{key}: {value} is no number"),
            )
        })?;
        *slot = Some(value);
    }
    let missing = |name| move || Error::malformed(what, at, format!("no {name}"));
    let found = Declaration {
        at,
        declared,
        offset: offset.ok_or_else(missing("offset"))?,
        size: size.ok_or_else(missing("size"))?,
        signed: signed.ok_or_else(missing("signed"))? != 0,
    };
    if found.name().is_empty() {
        return Err(Error::malformed(what, at, "a field without a name"));
    }
    Ok(found)
}
