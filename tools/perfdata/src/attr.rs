// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `struct perf_event_attr`, which describes an event to the kernel and in the file.

use crate::bytes::{to_u64, Cursor};
use crate::{Error, Result};

bitflags::bitflags! {
    /// `perf_event_attr.sample_type`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct SampleType: u64 {
        /// Instruction pointer.
        const IP = 1 << 0;
        /// Process and thread.
        const TID = 1 << 1;
        /// Time of the event's clock.
        const TIME = 1 << 2;
        /// Address.
        const ADDR = 1 << 3;
        /// Values that the event or its group has counted, as `read_format` asks.
        const READ = 1 << 4;
        /// Callchain.
        const CALLCHAIN = 1 << 5;
        /// Id of the event; if it is inherited, the id of the event that it was inherited from.
        const ID = 1 << 6;
        /// CPU.
        const CPU = 1 << 7;
        /// Period.
        const PERIOD = 1 << 8;
        /// Id of the event itself, also if it is inherited.
        const STREAM_ID = 1 << 9;
        /// Raw data, such as the fields of a tracepoint.
        const RAW = 1 << 10;
        /// Source of the data in the memory hierarchy.
        const DATA_SRC = 1 << 15;
        /// Physical address of the data.
        const PHYS_ADDR = 1 << 19;
        /// Part of the AUX area of the group's leader.
        const AUX = 1 << 20;
        /// Id of the event, at a place that does not depend on the other bits.
        const IDENTIFIER = 1 << 16;
        const _ = !0;
    }

    /// `perf_event_attr.read_format`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ReadFormat: u64 {
        /// How long the event was enabled.
        const TOTAL_TIME_ENABLED = 1 << 0;
        /// How long the event ran on the PMU.
        const TOTAL_TIME_RUNNING = 1 << 1;
        /// Id of the event.
        const ID = 1 << 2;
        /// Values of the whole group in one read.
        const GROUP = 1 << 3;
        /// How many samples were lost.
        const LOST = 1 << 4;
        const _ = !0;
    }

    /// The bit field of `perf_event_attr`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Flags: u64 {
        /// The event starts disabled.
        const DISABLED = 1 << 0;
        /// Child tasks inherit the event.
        const INHERIT = 1 << 1;
        /// The event must always be on the PMU.
        const PINNED = 1 << 2;
        /// The group must be the only one on the PMU.
        const EXCLUSIVE = 1 << 3;
        /// Excludes user mode.
        const EXCLUDE_USER = 1 << 4;
        /// Excludes the kernel.
        const EXCLUDE_KERNEL = 1 << 5;
        /// Excludes the hypervisor.
        const EXCLUDE_HV = 1 << 6;
        /// MMAP records for executable mappings.
        const MMAP = 1 << 8;
        /// COMM records.
        const COMM = 1 << 9;
        /// `sample_period` is a frequency.
        const FREQ = 1 << 10;
        /// The next exec enables the event.
        const ENABLE_ON_EXEC = 1 << 12;
        /// FORK and EXIT records.
        const TASK = 1 << 13;
        /// `wakeup` is in bytes.
        const WATERMARK = 1 << 14;
        /// Every record of the kernel ends with a sample id.
        const SAMPLE_ID_ALL = 1 << 18;
        /// Excludes the host.
        const EXCLUDE_HOST = 1 << 19;
        /// Excludes guests.
        const EXCLUDE_GUEST = 1 << 20;
        /// MMAP2 in place of MMAP.
        const MMAP2 = 1 << 23;
        /// COMM records of an exec have a flag in `misc`.
        const COMM_EXEC = 1 << 24;
        /// Times are of the clock `clockid`.
        const USE_CLOCKID = 1 << 25;
        /// SWITCH records.
        const CONTEXT_SWITCH = 1 << 26;
        /// The data ring is written from its end to its beginning.
        const WRITE_BACKWARD = 1 << 27;
        /// NAMESPACES records.
        const NAMESPACES = 1 << 28;
        /// KSYMBOL records.
        const KSYMBOL = 1 << 29;
        /// BPF_EVENT records.
        const BPF_EVENT = 1 << 30;
        /// The event's data go into the AUX area of its leader.
        const AUX_OUTPUT = 1 << 31;
        /// CGROUP records.
        const CGROUP = 1 << 32;
        /// TEXT_POKE records.
        const TEXT_POKE = 1 << 33;
        /// Build-ids in MMAP2 records.
        const BUILD_ID = 1 << 34;
        /// The next exec removes the event.
        const REMOVE_ON_EXEC = 1 << 36;
        const _ = !0;
    }
}

/// Attributes of an event. Unused fields are 0.
///
/// ```
/// use perfdata::{Attr, Flags};
///
/// let plain = Attr { config: 9, ..Attr::default() };
/// assert_eq!(plain.encode().len(), 64);
/// // A field beyond the first layout makes it as long as that field needs, and no longer.
/// let traced = Attr { aux_watermark: 4096, ..plain };
/// assert_eq!(traced.encode().len(), 112);
/// assert_eq!(Attr::decode(&traced.encode(), 0)?, traced);
/// # Ok::<(), perfdata::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Attr {
    /// `type`: the number of the PMU.
    pub kind: u32,
    /// Which event of the PMU.
    pub config: u64,
    /// Period or frequency.
    pub sample_period: u64,
    /// Fields of samples and sample ids.
    pub sample_type: SampleType,
    /// Fields that `read` returns.
    pub read_format: ReadFormat,
    /// The bit field.
    pub flags: Flags,
    /// Number of events, or of bytes with [`Flags::WATERMARK`], after which the kernel wakes the reader of the data ring.
    pub wakeup: u32,
    /// Type of the breakpoint.
    pub bp_type: u32,
    /// More config (or the breakpoint's address).
    pub config1: u64,
    /// More config (or the breakpoint's length).
    pub config2: u64,
    /// Which branches to sample.
    pub branch_sample_type: u64,
    /// Which user registers to sample.
    pub sample_regs_user: u64,
    /// Bytes of user stack to sample.
    pub sample_stack_user: u32,
    /// Clock of the times, with [`Flags::USE_CLOCKID`].
    pub clockid: i32,
    /// Which interrupted registers to sample.
    pub sample_regs_intr: u64,
    /// Number of bytes in the AUX area after which the kernel wakes the reader.
    pub aux_watermark: u32,
    /// Maximum number of frames in a callchain.
    pub sample_max_stack: u16,
    /// Bytes of the AUX area in a sample.
    pub aux_sample_size: u32,
    /// Whether the event pauses or resumes AUX tracing, or starts paused.
    pub aux_action: u32,
    /// User data in the signal that the event sends.
    pub sig_data: u64,
    /// More config.
    pub config3: u64,
    /// More config.
    pub config4: u64,
}

/// Lengths of all versions of `struct perf_event_attr`.
const SIZES: [usize; 10] = [64, 72, 80, 96, 104, 112, 120, 128, 136, 144];

impl Attr {
    /// Encodes the attributes for the kernel and the file, in the shortest layout that has all used fields. Programs refuse a file whose
    /// attributes are longer than those they know.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_at_least(0)
    }

    /// As [`encode`](Self::encode), but at least as long as the layout of `len` bytes.
    #[must_use]
    pub fn encode_at_least(&self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(144);
        out.extend(self.kind.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.config.to_le_bytes());
        out.extend(self.sample_period.to_le_bytes());
        out.extend(self.sample_type.bits().to_le_bytes());
        out.extend(self.read_format.bits().to_le_bytes());
        out.extend(self.flags.bits().to_le_bytes());
        out.extend(self.wakeup.to_le_bytes());
        out.extend(self.bp_type.to_le_bytes());
        out.extend(self.config1.to_le_bytes());
        out.extend(self.config2.to_le_bytes());
        out.extend(self.branch_sample_type.to_le_bytes());
        out.extend(self.sample_regs_user.to_le_bytes());
        out.extend(self.sample_stack_user.to_le_bytes());
        out.extend(self.clockid.to_le_bytes());
        out.extend(self.sample_regs_intr.to_le_bytes());
        out.extend(self.aux_watermark.to_le_bytes());
        out.extend(self.sample_max_stack.to_le_bytes());
        out.extend([0; 2]);
        out.extend(self.aux_sample_size.to_le_bytes());
        out.extend(self.aux_action.to_le_bytes());
        out.extend(self.sig_data.to_le_bytes());
        out.extend(self.config3.to_le_bytes());
        out.extend(self.config4.to_le_bytes());

        let used = out
            .iter()
            .rposition(|&b| b != 0)
            .map_or(0, |last| last + 1)
            .max(len);
        // With a clock, the layout must have `clockid` even if that is 0.
        let used = if self.flags.contains(Flags::USE_CLOCKID) {
            used.max(96)
        } else {
            used
        };
        let size = SIZES.into_iter().find(|&size| size >= used).unwrap_or(144);
        out.truncate(size);
        let size = u32::try_from(size).unwrap_or(0);
        out[4..8].copy_from_slice(&size.to_le_bytes());
        out
    }

    /// The reverse of [`encode`](Self::encode). `base` is the file offset of `bytes`, for errors. Accepts a layout that is longer than
    /// those known here if its additional bytes are 0.
    ///
    /// # Errors
    /// If `bytes` are too short, or use fields that are not known here.
    pub fn decode(bytes: &[u8], base: u64) -> Result<Self> {
        let mut c = Cursor::new(bytes, base);
        let kind = c.u32("attr.type")?;
        let at = c.offset();
        let size = c.u32("attr.size")?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size < 64 || size % 8 != 0 || size > bytes.len() {
            return Err(Error::Invalid {
                field: "attr.size",
                offset: at,
                value: to_u64(size),
                why: "no such layout, or longer than the place it has",
            });
        }
        let known = size.min(144);
        if bytes[known..size].iter().any(|&b| b != 0) {
            return Err(Error::Invalid {
                field: "attr.size",
                offset: at,
                value: to_u64(size),
                why: "uses fields that are newer than this program",
            });
        }
        let mut full = [0; 144];
        full[..known].copy_from_slice(&bytes[..known]);
        let mut c = Cursor::new(&full, base);
        c.take(8, "attr")?;
        let attr = Self {
            kind,
            config: c.u64("attr.config")?,
            sample_period: c.u64("attr.sample_period")?,
            sample_type: SampleType::from_bits_retain(c.u64("attr.sample_type")?),
            read_format: ReadFormat::from_bits_retain(c.u64("attr.read_format")?),
            flags: Flags::from_bits_retain(c.u64("attr.flags")?),
            wakeup: c.u32("attr.wakeup_events")?,
            bp_type: c.u32("attr.bp_type")?,
            config1: c.u64("attr.config1")?,
            config2: c.u64("attr.config2")?,
            branch_sample_type: c.u64("attr.branch_sample_type")?,
            sample_regs_user: c.u64("attr.sample_regs_user")?,
            sample_stack_user: c.u32("attr.sample_stack_user")?,
            clockid: c.i32("attr.clockid")?,
            sample_regs_intr: c.u64("attr.sample_regs_intr")?,
            aux_watermark: c.u32("attr.aux_watermark")?,
            sample_max_stack: c.u16("attr.sample_max_stack")?,
            aux_sample_size: {
                c.u16("attr.__reserved_2")?;
                c.u32("attr.aux_sample_size")?
            },
            aux_action: c.u32("attr.aux_action")?,
            sig_data: c.u64("attr.sig_data")?,
            config3: c.u64("attr.config3")?,
            config4: c.u64("attr.config4")?,
        };
        Ok(attr)
    }
}
