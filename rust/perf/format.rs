// SPDX-License-Identifier: GPL-2.0

//! The `config` words of `perf_event_attr`, by which user space configures an event.
//!
//! [`format!`](crate::format!) declares the terms once. The declaration gives the accessors, the
//! check that no unknown bit is set, and the files in sysfs `format/` from which perf learns the
//! terms.

use crate::sysfs;
use kernel::prelude::*;

/// The words that terms may live in: `config`, `config1`, `config2` and `config3`.
///
/// C counterpart: the fields of those names in `struct perf_event_attr`.
pub const WORDS: usize = 4;

/// A term: a range of bits in one of the words.
#[derive(Clone, Copy)]
pub struct Term {
    word: usize,
    first: u32,
    mask: u64,
}

impl Term {
    /// Bits `first` to `last`, both included, of the word with this name.
    ///
    /// Made at compile time only; a wrong declaration does not compile.
    pub const fn new(word: &str, first: u32, last: u32) -> Self {
        assert!(
            first <= last && last < 64,
            "bits are 0 to 63, the lower first"
        );

        let word = match word.as_bytes() {
            b"config" => 0,
            b"config1" => 1,
            b"config2" => 2,
            b"config3" => 3,
            _ => panic!("terms live in config, config1, config2 or config3"),
        };

        // Computed here, at compile time: in a callback a shift must not panic.
        let mask = u64::MAX >> (63 - last) & u64::MAX << first;

        Self { word, first, mask }
    }

    /// The value of the term. Does not panic in a callback: the term is a constant.
    #[inline]
    pub const fn get(self, words: &[u64; WORDS]) -> u64 {
        (words[self.word] & self.mask) >> self.first
    }

    /// The bits that the terms use. Two terms that share a bit do not compile.
    pub const fn used(terms: &[Self]) -> [u64; WORDS] {
        let mut used = [0; WORDS];
        let mut i = 0;

        while i < terms.len() {
            let term = terms[i];

            assert!(used[term.word] & term.mask == 0, "two terms share a bit");
            used[term.word] |= term.mask;
            i += 1;
        }

        used
    }
}

/// The configuration of an event; implemented by [`format!`](crate::format!).
pub trait Config: Sized + Send + Sync + 'static {
    /// The files of `format/`.
    fn attributes() -> &'static [sysfs::Attribute];

    /// Takes the words of an attr; [`EINVAL`] if a bit is set that no term has.
    fn new(words: [u64; WORDS]) -> Result<Self>;
}

/// No terms: every bit set is refused, and there is no `format/` file.
impl Config for () {
    fn attributes() -> &'static [sysfs::Attribute] {
        &[]
    }

    fn new(words: [u64; WORDS]) -> Result<Self> {
        if words == [0; WORDS] {
            Ok(())
        } else {
            Err(EINVAL)
        }
    }
}

/// Declares the terms of a PMU's events.
///
/// # Examples
///
/// ```
/// perf::format! {
///     /// What an event of this PMU asks for.
///     pub struct Config {
///         /// Bytes a second.
///         rate: config[0..=31],
///         /// Whether to compress.
///         compress: config1[0],
///     }
/// }
/// # use perf::format::Config as _;
///
/// // What perf makes of `-e my_pmu/rate=512,compress/`.
/// let config = Config::new([512, 1, 0, 0])?;
/// assert_eq!(config.rate(), 512);
/// assert_eq!(config.compress(), 1);
///
/// // No term has this bit.
/// assert!(Config::new([1 << 32, 0, 0, 0]).err() == Some(EINVAL));
/// # assert_eq!(Config::attributes().len(), 2);
/// # Ok::<(), Error>(())
/// ```
///
/// The files are `format/rate`, which reads `config:0-31`, and `format/compress`, which reads
/// `config1:0`.
///
/// C counterpart: `PMU_FORMAT_ATTR()`.
#[macro_export]
macro_rules! format {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Name:ident {
            $(
                $(#[$term_meta:meta])*
                $term:ident: $word:ident[$first:literal $(..= $last:literal)?]
            ),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        $vis struct $Name([u64; $crate::format::WORDS]);

        impl $Name {
            $(
                $(#[$term_meta])*
                $vis fn $term(&self) -> u64 {
                    const TERM: $crate::format::Term =
                        $crate::format!(@term $word, $first $(, $last)?);

                    TERM.get(&self.0)
                }
            )*
        }

        impl $crate::format::Config for $Name {
            fn attributes() -> &'static [$crate::sysfs::Attribute] {
                static ATTRIBUTES: &[$crate::sysfs::Attribute] = &[$(
                    $crate::sysfs::Attribute::new(
                        ::kernel::c_str!(::core::stringify!($term)),
                        ::kernel::c_str!(::core::concat!(
                            ::core::stringify!($word), ":", $first $(, "-", $last)?
                        )),
                    ),
                )*];

                ATTRIBUTES
            }

            fn new(words: [u64; $crate::format::WORDS]) -> ::kernel::error::Result<Self> {
                const USED: [u64; $crate::format::WORDS] = $crate::format::Term::used(&[$(
                    $crate::format!(@term $word, $first $(, $last)?),
                )*]);

                if words.iter().zip(USED).any(|(word, used)| word & !used != 0) {
                    return ::core::result::Result::Err(::kernel::error::code::EINVAL);
                }

                ::core::result::Result::Ok(Self(words))
            }
        }
    };
    (@term $word:ident, $bit:literal) => {
        $crate::format::Term::new(::core::stringify!($word), $bit, $bit)
    };
    (@term $word:ident, $first:literal, $last:literal) => {
        $crate::format::Term::new(::core::stringify!($word), $first, $last)
    };
}

#[kunit_tests(rust_perf_format)]
mod tests {
    use super::*;

    crate::format! {
        struct Sample {
            low: config[0..=3],
            bit: config[4],
            high: config[60..=63],
            all: config2[0..=63],
            last: config3[63],
        }
    }

    #[test]
    fn terms_are_cut_out_of_their_words() -> Result {
        let sample = Sample::new([0xa000_0000_0000_0015, 0, u64::MAX, 1 << 63])?;

        assert_eq!(sample.low(), 5);
        assert_eq!(sample.bit(), 1);
        assert_eq!(sample.high(), 0xa);
        assert_eq!(sample.all(), u64::MAX);
        assert_eq!(sample.last(), 1);
        Ok(())
    }

    #[test]
    fn bits_of_no_term_are_refused() {
        for bit in 0..64 {
            let known = bit <= 4 || bit >= 60;

            assert_eq!(Sample::new([1 << bit, 0, 0, 0]).is_ok(), known);
            assert!(Sample::new([0, 1 << bit, 0, 0]).is_err());
            assert!(Sample::new([0, 0, 1 << bit, 0]).is_ok());
            assert_eq!(Sample::new([0, 0, 0, 1 << bit]).is_ok(), bit == 63);
            assert!(<()>::new([0, 0, 0, 1 << bit]).is_err());
        }
        assert!(<()>::new([0; WORDS]).is_ok());
    }

    #[test]
    fn there_is_a_file_for_each_term() {
        assert_eq!(Sample::attributes().len(), 5);
        assert!(<()>::attributes().is_empty());
    }
}
