// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The formats of AUX area trace, as `AUXTRACE_INFO` numbers them: `enum auxtrace_type` in perf's `util/auxtrace.h`.

/// `PERF_AUXTRACE_INTEL_PT`.
pub const INTEL_PT: u32 = 1;
/// `PERF_AUXTRACE_INTEL_BTS`.
pub const INTEL_BTS: u32 = 2;
/// `PERF_AUXTRACE_CS_ETM`.
pub const CS_ETM: u32 = 3;
/// `PERF_AUXTRACE_ARM_SPE`.
pub const ARM_SPE: u32 = 4;
/// `PERF_AUXTRACE_HISI_PTT`.
pub const HISI_PTT: u32 = 6;
