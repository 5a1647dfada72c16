/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints: generated code, which a decoder needs and which no file has,
 * and the instructions of traced tasks that are stepped.
 */

#undef TRACE_SYSTEM
#define TRACE_SYSTEM rust_stepping

#if !defined(_TRACE_RUST_STEPPING_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_RUST_STEPPING_H

#include <linux/tracepoint.h>

/* The longest instruction, in bytes. */
#define RUST_STEPPING_TEXT_MAX	15

/* Why an instruction was stepped: `Reason` in interpret.rs. */
#define RUST_STEPPING_REASONS			\
	EM(0, "first")				\
	EM(1, "left")				\
	EM(2, "limit")				\
	EM(3, "refused")			\
	EM(4, "state")				\
	EMe(5, "off")

#undef EM
#undef EMe
#define EM(value, name)		{ value, name },
#define EMe(value, name)	{ value, name }

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

TRACE_EVENT(rust_stepping_step,
	TP_PROTO(unsigned long address, const u8 *text, unsigned int len,
		 unsigned int reason, unsigned int instructions,
		 u64 interpreted),
	TP_ARGS(address, text, len, reason, instructions, interpreted),
	TP_STRUCT__entry(
		__field(u64, address)
		__field(u64, interpreted)
		__field(u32, instructions)
		__field(u32, reason)
		__field(u32, len)
		__array(u8, text, RUST_STEPPING_TEXT_MAX)
	),
	TP_fast_assign(
		__entry->address = address;
		__entry->interpreted = interpreted;
		__entry->instructions = instructions;
		__entry->reason = reason;
		__entry->len = min(len, RUST_STEPPING_TEXT_MAX);
		memset(__entry->text, 0, RUST_STEPPING_TEXT_MAX);
		memcpy(__entry->text, text, __entry->len);
	),
	TP_printk("address=%#llx text=%s reason=%s instructions=%u interpreted=%llu",
		  __entry->address,
		  __print_hex_str(__entry->text, __entry->len),
		  __print_symbolic(__entry->reason, RUST_STEPPING_REASONS),
		  __entry->instructions, __entry->interpreted)
);

#endif /* _TRACE_RUST_STEPPING_H */

#undef TRACE_INCLUDE_PATH
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_PATH .
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
