// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * ptwalk TRACE [mtc=TICKS:SHIFT] FILE:OFFSET:SIZE:ADDRESS...
 *
 * Follows a program along its Intel PT trace with libipt, and prints each instruction's address, each event, and each
 * error: a decoder that shares nothing with ours. The program's text is parts of files, at addresses (all in hex).
 * With mtc=, times are printed too: a tick of the coarse clock is TICKS of the time stamp counter, and there is an MTC
 * each 1 << SHIFT ticks of it (decimal).
 *
 *   gcc -O2 -o ptwalk ptwalk.c -lipt
 */
#include <intel-pt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const events[] = {
	[ptev_enabled] = "enabled",
	[ptev_disabled] = "disabled",
	[ptev_async_disabled] = "async disabled",
	[ptev_async_branch] = "async branch",
	[ptev_overflow] = "overflow",
	[ptev_exec_mode] = "mode",
	[ptev_stop] = "stop",
};

static int fail(const char *what)
{
	fprintf(stderr, "ptwalk: %s\n", what);
	return 1;
}

static int error(const struct pt_insn_decoder *decoder, int status)
{
	uint64_t at = 0;

	pt_insn_get_offset(decoder, &at);
	printf("error %s at %#" PRIx64 "\n", pt_errstr(pt_errcode(status)), at);
	return status;
}

static int take_events(struct pt_insn_decoder *decoder, int status)
{
	while (status >= 0 && (status & pts_event_pending)) {
		struct pt_event event;

		status = pt_insn_event(decoder, &event, sizeof(event));
		if (status < 0)
			break;
		if ((size_t)event.type < sizeof(events) / sizeof(*events) && events[event.type])
			printf("event %s\n", events[event.type]);
	}
	return status;
}

/* Prints the time if it is known, and another than the last. */
static void print_time(struct pt_insn_decoder *decoder)
{
	static uint64_t last;
	uint32_t lost_mtc, lost_cyc;
	uint64_t now;

	if (pt_insn_time(decoder, &now, &lost_mtc, &lost_cyc) < 0 || now == last)
		return;
	printf("time %" PRIu64 "\n", now);
	last = now;
}

static int walk(struct pt_insn_decoder *decoder, int times)
{
	for (;;) {
		int status = pt_insn_sync_forward(decoder);

		if (status == -pte_eos)
			return 0;
		while (status >= 0) {
			struct pt_insn insn = { .iclass = ptic_unknown };

			status = take_events(decoder, status);
			if (status < 0 || (status & pts_eos))
				break;
			status = pt_insn_next(decoder, &insn, sizeof(insn));
			/* It can be good although what follows is not. */
			if (insn.iclass != ptic_unknown)
				printf("%" PRIx64 "\n", insn.ip);
			if (times)
				print_time(decoder);
		}
		if (status >= 0 || status == -pte_eos)
			return 0;
		error(decoder, status);
	}
}

int main(int argc, char **argv)
{
	struct pt_config config;
	struct pt_insn_decoder *decoder;
	uint8_t *trace;
	unsigned int ticks, shift;
	int times, i;
	long size;
	FILE *file;

	if (argc < 2)
		return fail("give a trace, and parts of files");
	file = fopen(argv[1], "rb");
	if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET))
		return fail("cannot read the trace");
	trace = malloc(size + 1);
	if (!trace || fread(trace, 1, size, file) != (size_t)size)
		return fail("cannot read the trace");

	pt_config_init(&config);
	config.begin = trace;
	config.end = trace + size;
	times = argc > 2 && sscanf(argv[2], "mtc=%u:%u", &ticks, &shift) == 2;
	if (times) {
		config.cpuid_0x15_eax = 1;
		config.cpuid_0x15_ebx = ticks;
		config.mtc_freq = shift;
	}
	decoder = pt_insn_alloc_decoder(&config);
	if (!decoder)
		return fail("no decoder");
	for (i = times ? 3 : 2; i < argc; i++) {
		char *name = strtok(argv[i], ":");
		char *offset = strtok(NULL, ":");
		char *length = strtok(NULL, ":");
		char *address = strtok(NULL, ":");

		if (!address)
			return fail("a part of a file is FILE:OFFSET:SIZE:ADDRESS");
		if (pt_image_add_file(pt_insn_get_image(decoder), name, strtoull(offset, NULL, 16),
				      strtoull(length, NULL, 16), NULL, strtoull(address, NULL, 16)) < 0)
			return fail("cannot add a part of a file");
	}
	return walk(decoder, times) ? 1 : 0;
}
