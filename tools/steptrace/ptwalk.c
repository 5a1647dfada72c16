// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * ptwalk TRACE [mtc=TICKS:SHIFT] FILE:OFFSET:SIZE:ADDRESS...
 * ptwalk --packets TRACE
 *
 * Follows a program along its Intel PT trace with libipt, and prints each instruction's address, each event, and each
 * error. This decoder shares no code with ours. The program's text is given as parts of files with their addresses (all
 * numbers in hex). With mtc=, times are printed too. A tick of the coarse clock is TICKS of the time stamp counter, and
 * there is an MTC for each 1 << SHIFT ticks of the coarse clock (both in decimal).
 *
 * With --packets it follows no program. It prints each packet from the first byte of the trace on: offset (in hex), name
 * and bytes. Packets of time are printed without their bytes. The last line is the end of the trace.
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

static const char *const packets[] = {
	[ppt_pad] = "PAD",
	[ppt_psb] = "PSB",
	[ppt_psbend] = "PSBEND",
	[ppt_fup] = "FUP",
	[ppt_tip] = "TIP",
	[ppt_tip_pge] = "TIP.PGE",
	[ppt_tip_pgd] = "TIP.PGD",
	[ppt_tnt_8] = "TNT",
	[ppt_tnt_64] = "TNT",
	[ppt_mode] = "MODE",
	[ppt_pip] = "PIP",
	[ppt_cbr] = "CBR",
	[ppt_tsc] = "TSC",
	[ppt_tma] = "TMA",
	[ppt_mtc] = "MTC",
	[ppt_cyc] = "CYC",
	[ppt_stop] = "TraceStop",
	[ppt_ovf] = "OVF",
	[ppt_ptw] = "PTW",
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
		/* Each PTWRITE is printed, with its payload and its address. */
		if (event.type == ptev_ptwrite) {
			printf("event ptwrite %#" PRIx64 " %#" PRIx64 "\n", event.variant.ptwrite.payload,
			       event.variant.ptwrite.ip);
			continue;
		}
		if ((size_t)event.type < sizeof(events) / sizeof(*events) && events[event.type])
			printf("event %s\n", events[event.type]);
	}
	return status;
}

/* Prints the time if it is known, and differs from the last one. */
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
			/* The instruction can be valid although an error follows it. */
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

static int is_time(enum pt_packet_type type)
{
	return type == ppt_tsc || type == ppt_tma || type == ppt_mtc || type == ppt_cyc || type == ppt_cbr;
}

static int print_packets(const struct pt_config *config)
{
	struct pt_packet_decoder *decoder = pt_pkt_alloc_decoder(config);
	uint64_t at = 0, size = config->end - config->begin;
	int status;

	if (!decoder)
		return fail("no decoder");
	status = pt_pkt_sync_set(decoder, 0);
	while (status >= 0) {
		struct pt_packet packet;
		const char *name = NULL;

		status = pt_pkt_next(decoder, &packet, sizeof(packet));
		if (status < 0)
			break;
		if ((size_t)packet.type < sizeof(packets) / sizeof(*packets))
			name = packets[packet.type];
		printf("%" PRIx64 " %s", at, name ? name : "unknown");
		for (int i = 0; i < status && !is_time(packet.type); i++)
			printf(" %02x", config->begin[at + i]);
		putchar('\n');
		at += status;
	}
	/* The last packet can be cut. */
	if (status == -pte_eos && at == size) {
		printf("%" PRIx64 " end\n", at);
		return 0;
	}
	printf("%" PRIx64 " error %s\n", at, pt_errstr(pt_errcode(status)));
	return 1;
}

/* Reads the trace into memory, which is never freed. */
static int read_trace(const char *name, struct pt_config *config)
{
	FILE *file = fopen(name, "rb");
	uint8_t *trace;
	long size;

	if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET))
		return fail("cannot read the trace");
	trace = malloc(size + 1);
	if (!trace || fread(trace, 1, size, file) != (size_t)size)
		return fail("cannot read the trace");
	fclose(file);

	pt_config_init(config);
	config->begin = trace;
	config->end = trace + size;
	return 0;
}

int main(int argc, char **argv)
{
	struct pt_config config;
	struct pt_insn_decoder *decoder;
	unsigned int ticks, shift;
	int times, i;

	if (argc == 3 && !strcmp(argv[1], "--packets"))
		return read_trace(argv[2], &config) || print_packets(&config);
	if (argc < 2)
		return fail("give a trace, and parts of files");
	if (read_trace(argv[1], &config))
		return 1;
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
