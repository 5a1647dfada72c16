// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Formats and parses sizes.

use crate::error::{Error, Result};

/// Formats a number of bytes exactly, in the largest unit that divides it.
#[must_use]
pub fn bytes(n: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if n != 0 && n % (1 << shift) == 0 {
            return format!("{} {unit}", n >> shift);
        }
    }
    format!("{n} B")
}

/// Parses a number of bytes, optionally with one of the units B, K, M, G.
///
/// # Errors
/// If the text is no size, or the size is too large.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let shift = match text.as_bytes().last() {
        Some(b'B') => Some(0),
        Some(b'K') => Some(10),
        Some(b'M') => Some(20),
        Some(b'G') => Some(30),
        _ => None,
    };
    let number = match shift {
        Some(_) => text.get(..text.len() - 1).unwrap_or_default(),
        None => text,
    };
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift.unwrap_or(0)))
        .ok_or_else(|| {
            Error::usage(format!(
                "`{text}` is not a size: give a number of bytes, or one with a unit (B, K, M or G), such as 64M"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_units() {
        for (text, size) in [
            ("64M", Some(64 << 20)),
            ("3", Some(3)),
            ("5B", Some(5)),
            ("2K", Some(2048)),
            ("", None),
            ("M", None),
            ("-1K", None),
            ("1T", None),
            ("99999999999999G", None),
        ] {
            assert_eq!(parse_bytes(text).ok(), size, "{text}");
        }
    }

    #[test]
    fn exact_in_the_largest_unit() {
        assert_eq!(bytes(1 << 21), "2 MiB");
        assert_eq!(bytes(1537), "1537 B");
    }
}
