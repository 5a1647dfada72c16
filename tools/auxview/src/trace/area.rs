// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Positions in an AUX area, in its two modes.

/// Mode of the AUX area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Non-overwrite mode: the recorder reads every byte. Trace for which there is no space is lost.
    #[default]
    Normal,
    /// Overwrite mode: the newest bytes overwrite the oldest. The recorder reads the area when it
    /// takes a snapshot.
    Overwrite,
}

/// Number of bytes written between two heads in overwrite mode. If `head` is less than `before`, it is an offset in the area of `size`
/// bytes.
#[must_use]
pub fn since(size: u64, before: u64, head: u64) -> u64 {
    match head.checked_sub(before) {
        Some(distance) => distance,
        None => head.wrapping_sub(before).checked_rem(size).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_goes_back_is_an_offset() {
        for (before, head, distance) in
            [(0, 8, 8), (8, 100, 92), (60, 4, 8), (100, 4, 32), (0, 0, 0)]
        {
            assert_eq!(since(64, before, head), distance, "{before} {head}");
        }
    }
}
