// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Two defects of perf's core: see README.md. As root:
 *
 *	gcc -Wall -o perf-event-core perf-event-core.c && ./perf-event-core [PMU]
 *
 * A line for each ends with "as documented" or with "DEFECT". The second needs a PMU with an AUX area, as intel_pt; on a kernel
 * with the defect it leaves a warning in the log, and a ring buffer that is never released.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int event(uint32_t type, uint64_t config, int disabled, int leader)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = type,
		.config = config,
		.disabled = disabled,
		.exclude_kernel = 1,
	};
	int fd = syscall(SYS_perf_event_open, &attr, 0, -1, leader, 0);

	if (fd < 0)
		die("perf_event_open");
	return fd;
}

static uint64_t count(int fd)
{
	uint64_t value;

	if (read(fd, &value, sizeof(value)) != sizeof(value))
		die("read");
	return value;
}

/* A sibling of another PMU, which is enabled while its leader runs. */
static void sibling(void)
{
	int leader = event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY, 0, -1);
	int fd = event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, 1, leader);
	volatile unsigned int i;

	if (ioctl(fd, PERF_EVENT_IOC_ENABLE, 0))
		die("PERF_EVENT_IOC_ENABLE");
	/* Short, so that the leader is not scheduled anew. */
	for (i = 0; i < 100000; i++)
		;
	printf("a sibling that is enabled later counts: %s\n",
	       count(fd) ? "as documented" : "DEFECT");
	close(fd);
	close(leader);
}

/* The AUX area, mapped through an event that is redirected to the ring of another. */
static void redirected(const char *pmu)
{
	long page = sysconf(_SC_PAGESIZE);
	struct perf_event_mmap_page *base;
	int first, second;
	char path[256];
	void *area;
	FILE *file;
	int type;

	snprintf(path, sizeof(path), "/sys/bus/event_source/devices/%s/type", pmu);
	file = fopen(path, "r");
	if (!file || fscanf(file, "%d", &type) != 1)
		die(path);
	fclose(file);
	first = event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY, 1, -1);
	second = event(type, 0, 1, -1);
	base = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, first, 0);
	if (base == MAP_FAILED)
		die("mmap");
	if (ioctl(second, PERF_EVENT_IOC_SET_OUTPUT, first))
		die("PERF_EVENT_IOC_SET_OUTPUT");
	base->aux_offset = 2 * page;
	base->aux_size = 16 * page;
	area = mmap(NULL, 16 * page, PROT_READ | PROT_WRITE, MAP_SHARED, second, 2 * page);
	printf("an AUX area of another event's ring is not mapped: %s\n",
	       area == MAP_FAILED ? "as documented" : "DEFECT");
}

int main(int argc, char **argv)
{
	sibling();
	if (argc > 1)
		redirected(argv[1]);
	return 0;
}
