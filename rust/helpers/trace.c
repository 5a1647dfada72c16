// SPDX-License-Identifier: GPL-2.0

#define CREATE_TRACE_POINTS
#include "trace.h"

#include "helpers.h"

/* Code in a driver tests the static keys, and calls a function below if its key is set. */
EXPORT_TRACEPOINT_SYMBOL_GPL(rust_perf_begin);
EXPORT_TRACEPOINT_SYMBOL_GPL(rust_perf_commit);

void rust_perf_trace_begin(struct perf_event *event, u64 aux_head, u64 space,
			   unsigned int reason)
{
	trace_rust_perf_begin(event, aux_head, space, reason);
}

void rust_perf_trace_commit(struct perf_event *event, u64 aux_head, u64 size,
			    u64 flags)
{
	trace_rust_perf_commit(event, aux_head, size, flags);
}

void rust_perf_trace_loss(struct perf_event *event, unsigned int cause,
			  bool known, u64 bytes)
{
	trace_rust_perf_loss(event, cause, known, bytes);
}
