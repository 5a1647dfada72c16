// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What tracefs says of a mapped ring buffer, and does not: see tracefs.md. As root, on Linux 6.10 or later:
 *
 *	gcc -Wall -o tracefs-ring-buffer tracefs-ring-buffer.c && ./tracefs-ring-buffer
 *
 * A line for each defect ends with "as documented" or with "DEFECT".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GET_READER _IO('R', 0x20)

/* struct trace_buffer_meta of linux/trace_mmap.h */
struct meta {
	uint32_t meta_page_size, meta_struct_len, subbuf_size, nr_subbufs;
	struct {
		uint64_t lost_events;
		uint32_t id, read;
	} reader;
	uint64_t flags, entries, overrun, read;
};

static const char *top = "/sys/kernel/tracing";
static char dir[256];

static void die(const char *what)
{
	perror(what);
	rmdir(dir);
	exit(2);
}

static int openat_dir(const char *base, const char *file, int flags)
{
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", base, file);
	fd = open(path, flags);
	if (fd < 0)
		die(path);
	return fd;
}

/* Writes so many events on CPU 0. */
static void mark(int marker, int events)
{
	while (events--)
		if (write(marker, "0123456789012345678901234567890123456789\n", 41) != 41)
			die("trace_marker");
}

static int verdict(const char *what, int defect)
{
	printf("%s: %s\n", what, defect ? "DEFECT" : "as documented");
	return defect;
}

/* header_page: a file that is read in parts has all of its text. */
static int header(const char *name)
{
	char whole[4096], part[8], what[64];
	int fd = openat_dir(top, name, O_RDONLY);
	ssize_t all = read(fd, whole, sizeof(whole)), sum = 0, n;

	close(fd);
	fd = openat_dir(top, name, O_RDONLY);
	while ((n = read(fd, part, sizeof(part))) > 0)
		sum += n;
	close(fd);
	snprintf(what, sizeof(what), "%s: %zd bytes at once, %zd by eights", name, all, sum);
	return verdict(what, sum != all);
}

int main(void)
{
	cpu_set_t cpus;
	struct meta *meta;
	char what[128], *page;
	uint64_t overrun, before;
	int marker, raw, size, second, defects = 0;

	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		die("sched_setaffinity");
	snprintf(dir, sizeof(dir), "%s/instances/ring.%d", top, getpid());
	if (mkdir(dir, 0700))
		die(dir);
	size = openat_dir(dir, "buffer_size_kb", O_WRONLY);
	if (write(size, "32", 2) != 2)
		die("buffer_size_kb");
	close(size);
	marker = openat_dir(dir, "trace_marker", O_WRONLY);
	raw = openat_dir(dir, "per_cpu/cpu0/trace_pipe_raw", O_RDONLY | O_NONBLOCK);
	meta = mmap(NULL, getpagesize(), PROT_READ, MAP_SHARED, raw, 0);
	if (meta == MAP_FAILED)
		die("mmap");

	/* reader.lost_events: what was lost when the reader sub-buffer was swapped in. */
	mark(marker, 1);
	if (ioctl(raw, GET_READER))
		die("GET_READER");
	mark(marker, 5000);
	do {
		before = meta->reader.id;
		if (ioctl(raw, GET_READER))
			die("GET_READER");
	} while (meta->reader.id == before);
	overrun = meta->overrun;
	snprintf(what, sizeof(what), "%llu events overwritten, reader.lost_events is %llu",
		 (unsigned long long)overrun, (unsigned long long)meta->reader.lost_events);
	defects += verdict(what, overrun && !meta->reader.lost_events);

	/* A read() by another descriptor consumes events: the meta-page says so. */
	second = openat_dir(dir, "per_cpu/cpu0/trace_pipe_raw", O_RDONLY | O_NONBLOCK);
	page = malloc(meta->subbuf_size);
	before = meta->read;
	if (!page || read(second, page, meta->subbuf_size) <= 0)
		die("read");
	close(second);
	snprintf(what, sizeof(what), "read() of a sub-buffer beside a mapping moves the meta-page's read by %llu",
		 (unsigned long long)(meta->read - before));
	defects += verdict(what, meta->read == before);

	defects += header("events/header_page");
	defects += header("events/header_event");

	munmap(meta, getpagesize());
	close(raw);
	close(marker);
	rmdir(dir);
	return defects ? 1 : 0;
}
