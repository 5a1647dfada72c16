// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Emulates events of PMUs that this machine does not have, for an unmodified recorder. LD_PRELOAD makes these functions override those of
 * the C library. Any event can be opened. Its file descriptor is a memfd, in which the recorder maps its rings. It never becomes ready.
 * Once both rings of an event are mapped, they hold one piece of trace, read from the file EVENTS_TRACE, and the records about it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* File descriptors of events are below this number. */
#define FILES 4096
/* Bytes of an event's memfd: more than the largest rings need. */
#define SPACE (64L << 20)

static struct {
	uint64_t id; /* 0: the file descriptor is no event. */
	uint64_t since;
	struct perf_event_attr attr;
	int pid, cpu;
	int is_full;
} events[FILES];

static long call(long number, long a, long b, long c, long d, long e, long f)
{
	static long (*next)(long, ...);

	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	return next(number, a, b, c, d, e, f);
}

static int is_event(int fd)
{
	return fd >= 0 && fd < FILES && events[fd].id;
}

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

/* The conversion from the cycle counter to the clock. No machine has these parameters by chance. */
static const struct perf_event_mmap_page control = {
	.cap_user_time = 1,
	.cap_user_time_zero = 1,
	.time_shift = 31,
	.time_mult = 0x12345678,
	.time_zero = 0x1122334455667788,
};

static long perf_event_open(const struct perf_event_attr *attr, int pid, int cpu, unsigned long flags)
{
	static uint64_t last;
	long known = PERF_FLAG_FD_NO_GROUP | PERF_FLAG_FD_OUTPUT | PERF_FLAG_PID_CGROUP | PERF_FLAG_FD_CLOEXEC;
	int fd;

	if (flags & ~known) {
		errno = EINVAL;
		return -1;
	}
	fd = memfd_create("event", MFD_CLOEXEC);
	if (fd < 0)
		return -1;
	if (fd >= FILES || ftruncate(fd, SPACE) || pwrite(fd, &control, sizeof(control), 0) != sizeof(control)) {
		close(fd);
		errno = EMFILE;
		return -1;
	}
	events[fd].since = now();
	events[fd].attr = *attr;
	events[fd].pid = pid;
	events[fd].cpu = cpu;
	events[fd].is_full = 0;
	events[fd].id = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
	return fd;
}

long syscall(long number, ...)
{
	va_list list;
	long arg[6];

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		arg[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_perf_event_open)
		return perf_event_open((const struct perf_event_attr *)arg[0], arg[1], arg[2], arg[4]);
	return call(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}

/* Appends a record with `count` words to the data ring, whose head is `at`. Returns the new head. */
static uint64_t append(int fd, uint64_t at, uint32_t type, const uint64_t *words, int count)
{
	uint64_t record[16], wanted = events[fd].attr.sample_type;
	uint32_t pid = events[fd].pid > 0 ? events[fd].pid : 1;
	uint32_t cpu = events[fd].cpu < 0 ? 0 : events[fd].cpu;
	struct perf_event_header header = { .type = type };
	int n = 1;

	while (count--)
		record[n++] = *words++;
	if (wanted & PERF_SAMPLE_TID)
		record[n++] = (uint64_t)pid << 32 | pid;
	if (wanted & PERF_SAMPLE_TIME)
		record[n++] = control.time_zero + 1000000;
	if (wanted & PERF_SAMPLE_CPU)
		record[n++] = cpu;
	if (wanted & PERF_SAMPLE_IDENTIFIER)
		record[n++] = events[fd].id;
	header.size = n * sizeof(*record);
	memcpy(record, &header, sizeof(header));
	if (pwrite(fd, record, header.size, sysconf(_SC_PAGESIZE) + at) != header.size)
		abort();
	return at + header.size;
}

/* Writes the trace and its records, if there is an AUX area. For CoreSight, a record with the CPU's trace ID precedes them. */
static void trace(int fd)
{
	const char *path = getenv("EVENTS_TRACE");
	const char *coresight = getenv("EVENTS_CORESIGHT");
	char bytes[4096];
	struct perf_event_mmap_page *page;
	uint64_t head = 0, id, cpu, sink, flags = 0;
	int file;
	ssize_t len;

	if (!path || events[fd].is_full)
		return;
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		abort();
	if (page->aux_size) {
		file = open(path, O_RDONLY);
		len = call(SYS_read, file, (long)bytes, sizeof(bytes), 0, 0, 0);
		close(file);
		if (len <= 0 || pwrite(fd, bytes, len, page->aux_offset) != len)
			abort();
		if (coresight) {
			cpu = events[fd].cpu < 0 ? 0 : events[fd].cpu;
			/* All CPUs have the same sink, but with raw format (TRBE) each has its own. */
			sink = 0x200;
			if (!strcmp(coresight, "raw")) {
				flags = PERF_AUX_FLAG_CORESIGHT_FORMAT_RAW;
				sink = 0x100 + cpu;
			}
			/* Version 0.1 of the format: the ID of the sink, and the CPU's trace ID. */
			id = 1ull << 56 | sink << 8 | (0x10 + 2 * cpu);
			head = append(fd, head, PERF_RECORD_AUX_OUTPUT_HW_ID, &id, 1);
		}
		head = append(fd, head, PERF_RECORD_AUX, (uint64_t[]){ 0, len, flags }, 3);
		page->aux_head = len;
		page->data_head = head;
		events[fd].is_full = 1;
	}
	munmap(page, sizeof(*page));
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	long arg;

	va_start(list, request);
	arg = va_arg(list, long);
	va_end(list);
	if (!is_event(fd))
		return call(SYS_ioctl, fd, request, arg, 0, 0, 0);
	if (request == PERF_EVENT_IOC_ID)
		*(uint64_t *)arg = events[fd].id;
	/* Redirects another event to the rings of the event `arg`, so the recorder has already mapped these. */
	if (request == PERF_EVENT_IOC_SET_OUTPUT && is_event(arg))
		trace(arg);
	return 0;
}

/* The count and the number of lost records are 0. The event has been enabled and running since it was opened. */
ssize_t read(int fd, void *to, size_t len)
{
	uint64_t words[5] = { 0 };
	int count = 1;

	if (!is_event(fd))
		return call(SYS_read, fd, (long)to, len, 0, 0, 0);
	if (events[fd].attr.read_format & PERF_FORMAT_TOTAL_TIME_ENABLED)
		words[count++] = now() - events[fd].since;
	if (events[fd].attr.read_format & PERF_FORMAT_TOTAL_TIME_RUNNING)
		words[count++] = now() - events[fd].since;
	if (events[fd].attr.read_format & PERF_FORMAT_ID)
		words[count++] = events[fd].id;
	if (events[fd].attr.read_format & PERF_FORMAT_LOST)
		count++;
	if (len < count * sizeof(*words)) {
		errno = ENOSPC;
		return -1;
	}
	memcpy(to, words, count * sizeof(*words));
	return count * sizeof(*words);
}

int close(int fd)
{
	if (is_event(fd))
		events[fd].id = 0;
	return call(SYS_close, fd, 0, 0, 0, 0, 0);
}

int epoll_ctl(int set, int what, int fd, struct epoll_event *event)
{
	if (is_event(fd))
		return 0;
	return call(SYS_epoll_ctl, set, what, fd, (long)event, 0, 0);
}

/* Programs that the recorder starts run without this library. */
__attribute__((constructor)) static void here(void)
{
	unsetenv("LD_PRELOAD");
}
