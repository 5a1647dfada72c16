/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints of the AUX transaction: what a driver, or the framework for it,
 * has reported to perf.
 */

#undef TRACE_SYSTEM
#define TRACE_SYSTEM rust_perf

#if !defined(_TRACE_RUST_PERF_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_RUST_PERF_H

#include <linux/perf_event.h>
#include <linux/tracepoint.h>

/* Why a transaction was not begun; 0 if it was. */
#define RUST_PERF_BEGIN_REASONS			\
	EM(0, "begun")				\
	EM(1, "no_ring")			\
	EM(2, "not_mapped")			\
	EM(3, "no_space")			\
	EM(4, "foreign")			\
	EM(5, "refused")			\
	EM(6, "offline")			\
	EMe(7, "in_use")

/* Why trace was lost. */
#define RUST_PERF_LOSSES			\
	EM(0, "none")				\
	EM(1, "gap")				\
	EM(2, "no_space")			\
	EMe(3, "collision")

#undef EM
#undef EMe
#define EM(value, name)		{ value, name },
#define EMe(value, name)	{ value, name }

TRACE_EVENT(rust_perf_begin,
	TP_PROTO(struct perf_event *event, u64 aux_head, u64 space, unsigned int reason),
	TP_ARGS(event, aux_head, space, reason),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u32, type)
		__field(unsigned int, reason)
		__field(u64, aux_head)
		__field(u64, space)
	),
	TP_fast_assign(
		__entry->id = event->id;
		__entry->type = event->attr.type;
		__entry->reason = reason;
		__entry->aux_head = aux_head;
		__entry->space = space;
	),
	TP_printk("type=%u id=%llu %s head=%#llx space=%#llx",
		  __entry->type, __entry->id,
		  __print_symbolic(__entry->reason, RUST_PERF_BEGIN_REASONS),
		  __entry->aux_head, __entry->space)
);

TRACE_EVENT(rust_perf_commit,
	TP_PROTO(struct perf_event *event, u64 aux_head, u64 size, u64 flags),
	TP_ARGS(event, aux_head, size, flags),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u32, type)
		__field(u64, aux_head)
		__field(u64, size)
		__field(u64, flags)
	),
	TP_fast_assign(
		__entry->id = event->id;
		__entry->type = event->attr.type;
		__entry->aux_head = aux_head;
		__entry->size = size;
		__entry->flags = flags;
	),
	TP_printk("type=%u id=%llu head=%#llx size=%#llx flags=%s",
		  __entry->type, __entry->id, __entry->aux_head, __entry->size,
		  __print_flags(__entry->flags, "|",
				{ PERF_AUX_FLAG_TRUNCATED, "truncated" },
				{ PERF_AUX_FLAG_OVERWRITE, "overwrite" },
				{ PERF_AUX_FLAG_PARTIAL, "partial" },
				{ PERF_AUX_FLAG_COLLISION, "collision" }))
);

TRACE_EVENT(rust_perf_loss,
	TP_PROTO(struct perf_event *event, unsigned int cause, bool known, u64 bytes),
	TP_ARGS(event, cause, known, bytes),
	TP_STRUCT__entry(
		__field(u64, id)
		__field(u32, type)
		__field(unsigned int, cause)
		__field(bool, known)
		__field(u64, bytes)
	),
	TP_fast_assign(
		__entry->id = event->id;
		__entry->type = event->attr.type;
		__entry->cause = cause;
		__entry->known = known;
		__entry->bytes = bytes;
	),
	TP_printk("type=%u id=%llu %s bytes=%llu%s",
		  __entry->type, __entry->id,
		  __print_symbolic(__entry->cause, RUST_PERF_LOSSES),
		  __entry->bytes, __entry->known ? "" : " (not known)")
);

#endif

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
