// SPDX-License-Identifier: GPL-2.0

//! Losses of trace.

use super::Mode;
use crate::bindings;

/// What was lost between the start of a transaction and its end.
///
/// `bytes` is [`None`] if the unit does not know.
///
/// C counterpart: `PERF_AUX_FLAG_*`; the bytes have none.
///
/// # Examples
///
/// ```
/// use perf::aux::Loss;
///
/// /// From a unit's counter of bytes that found no space.
/// fn loss(lost: u64) -> Loss {
///     match lost {
///         0 => Loss::None,
///         bytes => Loss::NoSpace { bytes: Some(bytes) },
///     }
/// }
///
/// assert!(loss(0) == Loss::None);
/// assert!(loss(8) == Loss::NoSpace { bytes: Some(8) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Loss {
    /// Nothing.
    None,
    /// Trace is missing though there was space, for example because the unit overflowed inside.
    /// `PERF_AUX_FLAG_PARTIAL`.
    Gap {
        /// Bytes lost.
        bytes: Option<u64>,
    },
    /// The AUX area was full. `PERF_AUX_FLAG_TRUNCATED`: perf disables the event until user space
    /// has made space and enables it again.
    ///
    /// An AUX area in overwrite mode is never full; there this is a [`Loss::Gap`].
    NoSpace {
        /// Bytes lost.
        bytes: Option<u64>,
    },
    /// The unit reports that samples collided. `PERF_AUX_FLAG_COLLISION`.
    Collision {
        /// Bytes lost.
        bytes: Option<u64>,
    },
}

/// What was lost, for each cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Losses {
    gap: Bytes,
    no_space: Bytes,
    collision: Bytes,
    /// Whether there is any.
    any: bool,
}

/// What was lost for one cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Bytes {
    #[default]
    None,
    /// This many bytes.
    Known(u64),
    /// The unit does not know how many.
    Unknown,
}

impl Bytes {
    fn and(self, bytes: Option<u64>) -> Self {
        match (self, bytes) {
            (Self::None, Some(bytes)) => Self::Known(bytes),
            (Self::Known(before), Some(bytes)) => Self::Known(before.saturating_add(bytes)),
            // A sum with an unknown number is unknown.
            (Self::Unknown, _) | (_, None) => Self::Unknown,
        }
    }

    /// As a loss of that cause.
    fn as_loss(self, cause: fn(Option<u64>) -> Loss) -> Option<Loss> {
        match self {
            Self::None => None,
            Self::Known(bytes) => Some(cause(Some(bytes))),
            Self::Unknown => Some(cause(None)),
        }
    }
}

impl From<Loss> for Losses {
    #[inline]
    fn from(loss: Loss) -> Self {
        Self::default().and(loss)
    }
}

impl Losses {
    /// Adds a loss.
    #[inline]
    #[must_use]
    pub(super) fn and(mut self, loss: Loss) -> Self {
        let (place, bytes) = match loss {
            Loss::None => return self,
            Loss::Gap { bytes } => (&mut self.gap, bytes),
            Loss::NoSpace { bytes } => (&mut self.no_space, bytes),
            Loss::Collision { bytes } => (&mut self.collision, bytes),
        };

        *place = place.and(bytes);
        self.any = true;
        self
    }

    /// Whether there is any.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Each of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Loss> {
        [
            self.gap.as_loss(|bytes| Loss::Gap { bytes }),
            self.no_space.as_loss(|bytes| Loss::NoSpace { bytes }),
            self.collision.as_loss(|bytes| Loss::Collision { bytes }),
        ]
        .into_iter()
        .flatten()
    }

    /// As flags of a record.
    pub(super) fn flags(&self, mode: Mode) -> u64 {
        self.iter().fold(0, |flags, loss| {
            flags
                | u64::from(match (loss, mode) {
                    (Loss::None, _) => 0,
                    (Loss::NoSpace { .. }, Mode::Normal) => bindings::PERF_AUX_FLAG_TRUNCATED,
                    (Loss::Gap { .. } | Loss::NoSpace { .. }, _) => bindings::PERF_AUX_FLAG_PARTIAL,
                    (Loss::Collision { .. }, _) => bindings::PERF_AUX_FLAG_COLLISION,
                })
        })
    }
}

#[::kernel::prelude::kunit_tests(rust_perf_aux_loss)]
mod tests {
    use super::*;

    #[test]
    fn causes_stay_apart() {
        let gap = |bytes| Loss::Gap { bytes };
        let full = |bytes| Loss::NoSpace { bytes };
        let collision = |bytes| Loss::Collision { bytes };
        const PARTIAL: u32 = bindings::PERF_AUX_FLAG_PARTIAL;
        const TRUNCATED: u32 = bindings::PERF_AUX_FLAG_TRUNCATED;
        const COLLISION: u32 = bindings::PERF_AUX_FLAG_COLLISION;
        // What was lost, the sum for each cause, and the flags: non-overwrite mode, overwrite mode.
        let table = [
            ([Loss::None; 3], [Loss::None; 3], 0, 0),
            (
                [gap(Some(64)), Loss::None, gap(Some(2))],
                [gap(Some(66)), Loss::None, Loss::None],
                PARTIAL,
                PARTIAL,
            ),
            (
                [full(Some(u64::MAX)), full(Some(1)), gap(Some(1))],
                [gap(Some(1)), full(Some(u64::MAX)), Loss::None],
                PARTIAL | TRUNCATED,
                PARTIAL,
            ),
            (
                [collision(Some(1)), full(None), collision(None)],
                [full(None), collision(None), Loss::None],
                COLLISION | TRUNCATED,
                COLLISION | PARTIAL,
            ),
        ];

        for (all, expected, normal, overwrite) in table {
            let losses = all.into_iter().fold(Losses::default(), Losses::and);

            assert!(losses
                .iter()
                .eq(expected.into_iter().filter(|loss| *loss != Loss::None)));
            assert_eq!(losses.flags(Mode::Normal), u64::from(normal));
            assert_eq!(losses.flags(Mode::Overwrite), u64::from(overwrite));
        }
    }
}
