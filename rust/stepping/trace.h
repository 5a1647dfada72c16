/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The tracepoint of generated code: what a decoder needs, and no file has.
 */

#undef TRACE_SYSTEM
#define TRACE_SYSTEM rust_stepping

#if !defined(_TRACE_RUST_STEPPING_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_RUST_STEPPING_H

#include <linux/tracepoint.h>

TRACE_EVENT(rust_stepping_code,
	TP_PROTO(unsigned long address, const u8 *text, unsigned int len),
	TP_ARGS(address, text, len),
	TP_STRUCT__entry(
		__field(u64, address)
		__field(u32, len)
		__dynamic_array(u8, text, len)
	),
	TP_fast_assign(
		__entry->address = address;
		__entry->len = len;
		memcpy(__get_dynamic_array(text), text, len);
	),
	TP_printk("address=%#llx text=%s", __entry->address,
		  __print_hex_str(__get_dynamic_array(text), __entry->len))
);

#endif /* _TRACE_RUST_STEPPING_H */

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
