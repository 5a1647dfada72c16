// SPDX-License-Identifier: GPL-2.0

#define CREATE_TRACE_POINTS
#include "trace.h"

#include "helpers.h"

bool rust_stepping_reports_code(void)
{
	return trace_rust_stepping_code_enabled();
}

bool rust_stepping_reports_steps(void)
{
	return trace_rust_stepping_step_enabled();
}

void rust_stepping_report_step(unsigned long address, const u8 *text,
			       unsigned int len, unsigned int reason,
			       unsigned int instructions, u64 interpreted)
{
	trace_rust_stepping_step(address, text, len, reason, instructions,
				 interpreted);
}
