// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sizes for people.

/// Bytes for people: exact, in the largest unit that is.
#[must_use]
pub fn bytes(n: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if n != 0 && n % (1 << shift) == 0 {
            return format!("{} {unit}", n >> shift);
        }
    }
    format!("{n} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_in_the_largest_unit() {
        assert_eq!(bytes(1 << 21), "2 MiB");
        assert_eq!(bytes(1537), "1537 B");
    }
}
