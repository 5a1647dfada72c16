// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sizes of rings, as users give them.

use crate::error::{Error, Result};

/// Sizes of the two rings in bytes; [`None`] where the user gave no size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingSizes {
    /// Size of the data ring.
    pub data: Option<usize>,
    /// Size of the AUX area.
    pub aux: Option<usize>,
}

/// Parses a number of pages, or of bytes with one of the units B, K, M, G. Returns bytes.
///
/// # Errors
/// If the text is not a size, or the size is too large.
pub fn parse_size(text: &str, page: usize) -> Result<usize> {
    let bad = || {
        Error::usage(format!(
            "`{text}` is not a size: give a number of pages, or of bytes with a unit (B, K, M or G), such as 16 or 64K"
        ))
    };
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'B' | 'b')) => (&text[..at], 1),
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, page),
    };
    number
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or_else(bad)
}

/// Checks that a size is a power of two of pages, which both rings need to be.
///
/// # Errors
/// If it is not; the error names the nearest valid sizes.
pub fn check_ring(what: &str, bytes: usize, page: usize) -> Result<usize> {
    let pages = bytes / page;
    if bytes % page == 0 && pages.is_power_of_two() {
        return Ok(bytes);
    }
    let above = bytes.div_ceil(page).max(1).next_power_of_two();
    let below = above / 2;
    let name = |pages: usize| format!("{pages} pages ({} KiB)", pages * page / 1024);
    let nearest = if below == 0 {
        name(above)
    } else {
        format!("{} and {}", name(below), name(above))
    };
    let is = if bytes % page == 0 {
        format!("{pages} pages")
    } else {
        format!("{bytes} bytes, with pages of {page} bytes")
    };
    Err(Error::usage(format!(
        "the size of the {what} must be a power of two of pages, and {is} is not; the nearest are {nearest}"
    )))
}

/// Parses the sizes of the data ring and the AUX area: `DATA`, `DATA,AUX` or `,AUX`.
///
/// # Errors
/// If a part is not a size, or not a power of two of pages.
pub fn parse_rings(text: &str, page: usize) -> Result<RingSizes> {
    let (data, aux) = text
        .split_once(',')
        .map_or((text, ""), |(data, aux)| (data, aux));
    let part = |what, text: &str| {
        if text.is_empty() {
            return Ok(None);
        }
        check_ring(what, parse_size(text, page)?, page).map(Some)
    };
    Ok(RingSizes {
        data: part("data ring", data)?,
        aux: part("AUX area", aux)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes() {
        let rings = |text| parse_rings(text, 4096).unwrap();
        assert_eq!(
            rings("16,2"),
            RingSizes {
                data: Some(65536),
                aux: Some(8192)
            }
        );
        assert_eq!(
            rings("64K"),
            RingSizes {
                data: Some(65536),
                aux: None
            }
        );
        assert_eq!(
            rings(",4M"),
            RingSizes {
                data: None,
                aux: Some(4 << 20)
            }
        );
        for (text, says) in [
            ("16,3", "AUX area must be a power of two of pages, and 3 pages is not; the nearest are 2 pages (8 KiB) and 4 pages (16 KiB)"),
            ("0", "data ring must be a power of two of pages, and 0 pages is not; the nearest are 1 pages"),
            ("5K", "5120 bytes, with pages of 4096 bytes is not; the nearest are 1 pages (4 KiB) and 2 pages"),
            ("x", "`x` is not a size"),
            ("1T", "`1T` is not a size"),
            ("K", "`K` is not a size"),
            ("99999999999999999999", "is not a size"),
            ("99999999999G", "is not a size"),
        ] {
            let error = parse_rings(text, 4096).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_an_error(text in ".{0,12}") {
            if let Ok(rings) = parse_rings(&text, 4096) {
                for size in [rings.data, rings.aux].into_iter().flatten() {
                    prop_assert!(size.is_power_of_two() && size >= 4096);
                }
            }
        }
    }
}
