// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The types of records: those of the kernel, and those that recorders add.

macro_rules! record_types {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal,)*) => {
        /// `perf_event_header.type`.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct RecordType(pub u32);

        impl RecordType {
            $($(#[doc = $doc])+ pub const $name: Self = Self($value);)*

            /// The name without `PERF_RECORD_`, if it is known.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

record_types! {
    /// Executable mapping.
    MMAP = 1,
    /// Records that the kernel dropped because the data ring was full.
    LOST = 2,
    /// A thread's name.
    COMM = 3,
    /// A thread's end.
    EXIT = 4,
    /// The kernel throttles an event: too many interrupts.
    THROTTLE = 5,
    /// The end of throttling.
    UNTHROTTLE = 6,
    /// A new thread.
    FORK = 7,
    /// A counter's value.
    READ = 8,
    /// A sample.
    SAMPLE = 9,
    /// Mapping with inode or build-id.
    MMAP2 = 10,
    /// Data was written into the AUX area.
    AUX = 11,
    /// Tracing of a thread began.
    ITRACE_START = 12,
    /// Samples that were lost.
    LOST_SAMPLES = 13,
    /// Context switch of the traced task.
    SWITCH = 14,
    /// Context switch of a traced CPU.
    SWITCH_CPU_WIDE = 15,
    /// Namespaces.
    NAMESPACES = 16,
    /// Kernel symbol.
    KSYMBOL = 17,
    /// BPF program.
    BPF_EVENT = 18,
    /// Cgroup.
    CGROUP = 19,
    /// Kernel text changed.
    TEXT_POKE = 20,
    /// Hardware id of an AUX output.
    AUX_OUTPUT_HW_ID = 21,
    /// A user-space callchain that was left out of a sample and recorded later.
    CALLCHAIN_DEFERRED = 22,
    /// An event, in a file in pipe mode.
    HEADER_ATTR = 64,
    /// The name of an event, in files of old recorders.
    HEADER_EVENT_TYPE = 65,
    /// Formats of tracepoints, in a file in pipe mode.
    HEADER_TRACING_DATA = 66,
    /// A build-id, in a file in pipe mode.
    HEADER_BUILD_ID = 67,
    /// The recorder has read every ring once.
    FINISHED_ROUND = 68,
    /// The ids of the events.
    ID_INDEX = 69,
    /// Information that a decoder of the trace needs.
    AUXTRACE_INFO = 70,
    /// A piece of the AUX area; its payload follows.
    AUXTRACE = 71,
    /// An error that a decoder reports.
    AUXTRACE_ERROR = 72,
    /// Threads that are recorded.
    THREAD_MAP = 73,
    /// CPUs that are recorded.
    CPU_MAP = 74,
    /// Configuration of `perf stat`.
    STAT_CONFIG = 75,
    /// A counter of `perf stat`.
    STAT = 76,
    /// An interval of `perf stat`.
    STAT_ROUND = 77,
    /// Name, unit, scale or CPUs of an event.
    EVENT_UPDATE = 78,
    /// Conversion of the cycle counter to perf's clock.
    TIME_CONV = 79,
    /// A feature section, in a file in pipe mode.
    HEADER_FEATURE = 80,
    /// Records of the kernel, compressed. Its length need not be a multiple of 8.
    COMPRESSED = 81,
    /// The synthesised records are all written.
    FINISHED_INIT = 82,
    /// Records of the kernel, compressed and padded.
    COMPRESSED2 = 83,
    /// Metadata of a BPF program.
    BPF_METADATA = 84,
    /// Scheduler statistics of a CPU.
    SCHEDSTAT_CPU = 85,
    /// Scheduler statistics of a domain.
    SCHEDSTAT_DOMAIN = 86,
    /// A compressed part of a piece of the AUX area: see [`AuxtraceZstd`](super::AuxtraceZstd).
    /// The number is `AUXZ`, far from those of perf. perf skips records of types that it does not
    /// know.
    AUXTRACE_ZSTD = 0x5a58_5541,
}

impl RecordType {
    /// Whether a recorder wrote the record, and not the kernel.
    #[must_use]
    pub fn is_user(self) -> bool {
        self.0 >= 64
    }

    /// Whether a record of this type can have this length, which the caller has checked to be at least that of the header. perf aligns all
    /// records but COMPRESSED.
    pub(crate) fn is_aligned(self, size: u16) -> bool {
        size % 8 == 0 || self == Self::COMPRESSED
    }
}

impl std::fmt::Debug for RecordType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "RecordType({})", self.0),
        }
    }
}
