// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * An AUX area for which there is no page: see perf-core.md. As root, on a kernel with FAULT_INJECTION, FAILSLAB, FAIL_PAGE_ALLOC and
 * DEBUG_KMEMLEAK, with debugfs mounted:
 *
 *	gcc -Wall -o perf-aux-pages perf-aux-pages.c && ./perf-aux-pages PMU
 *
 * Each allocation of the mapping fails in turn. The line ends with "as documented" or with "DEFECT".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEBUGFS "/sys/kernel/debug/"
#define PAGES 64

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die(path);
	close(fd);
}

static int type_of(const char *pmu)
{
	char path[256];
	FILE *file;
	int type;

	snprintf(path, sizeof(path), "/sys/bus/event_source/devices/%s/type", pmu);
	file = fopen(path, "r");
	if (!file || fscanf(file, "%d", &type) != 1)
		die(path);
	fclose(file);
	return type;
}

/* Maps an AUX area while the allocation of this number fails. Returns whether there were fewer allocations. */
static int map(int type, int number)
{
	struct perf_event_attr attr = { .size = sizeof(attr), .type = type, .disabled = 1 };
	long page = sysconf(_SC_PAGESIZE);
	struct perf_event_mmap_page *base;
	int fd, nth, fewer;
	char text[16];
	void *area;

	fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	if (fd < 0)
		die("perf_event_open");
	base = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		die("mmap");
	base->aux_offset = 2 * page;
	base->aux_size = PAGES * page;
	nth = open("/proc/thread-self/fail-nth", O_RDWR);
	snprintf(text, sizeof(text), "%d", number);
	if (nth < 0 || write(nth, text, strlen(text)) < 0)
		die("/proc/thread-self/fail-nth");
	area = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 2 * page);
	memset(text, 0, sizeof(text));
	if (pread(nth, text, sizeof(text) - 1, 0) < 0)
		die("/proc/thread-self/fail-nth");
	fewer = atoi(text) != 0;
	/* 0: nothing fails from here on. */
	if (pwrite(nth, "0", 1, 0) < 0)
		die("/proc/thread-self/fail-nth");
	close(nth);
	if (area != MAP_FAILED)
		munmap(area, PAGES * page);
	munmap(base, 2 * page);
	close(fd);
	return fewer;
}

/* Whether kmemleak knows memory that rb_alloc_aux() has allocated. */
static int leaked(void)
{
	static char line[4096];
	FILE *file;
	int found = 0;

	put(DEBUGFS "kmemleak", "scan");
	file = fopen(DEBUGFS "kmemleak", "r");
	if (!file)
		die(DEBUGFS "kmemleak");
	while (fgets(line, sizeof(line), file))
		found |= strstr(line, "rb_alloc_aux") != NULL;
	fclose(file);
	return found;
}

int main(int argc, char **argv)
{
	int type, number, found;

	if (argc != 2) {
		fprintf(stderr, "usage: %s PMU\n", argv[0]);
		return 2;
	}
	type = type_of(argv[1]);
	/* Allocations that may wait, and single pages, do not fail by default. */
	put(DEBUGFS "failslab/ignore-gfp-wait", "N");
	put(DEBUGFS "fail_page_alloc/ignore-gfp-wait", "N");
	put(DEBUGFS "fail_page_alloc/min-order", "0");
	for (number = 1; number < 1000 && !map(type, number); number++)
		;
	/* kmemleak reports only memory that is 5 seconds old. The first scan may still find an old pointer. */
	sleep(6);
	leaked();
	found = leaked();
	printf("an AUX area without a page leaves nothing behind, in %d failed mappings: %s\n",
	       number - 1, found ? "DEFECT" : "as documented");
	return 0;
}
