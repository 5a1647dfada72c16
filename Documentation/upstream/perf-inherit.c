// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A task that is forked while its parent's inherited events are enabled: see perf-core.md. It takes two CPUs:
 *
 *	gcc -Wall -o perf-inherit perf-inherit.c && ./perf-inherit [ROUNDS]
 *
 * The line ends with "as documented" or with "DEFECT". It is a race, which one of some rounds meets.
 */
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Many events, so that enabling them meets the fork that inherits them. */
#define EVENTS 200
/* Page faults of each of the two tasks, many more than they have otherwise. */
#define FAULTS 2000

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void go_to(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		die("sched_setaffinity");
}

static void take(int fd)
{
	char byte;

	if (read(fd, &byte, 1) != 1)
		die("read");
}

static void give(int fd, int bytes)
{
	if (write(fd, "..", bytes) != bytes)
		die("write");
}

/* Waits until all events are enabled, and has page faults. */
static void fault(int enabled)
{
	long page = sysconf(_SC_PAGESIZE);
	volatile char *area;
	int i;

	take(enabled);
	area = mmap(NULL, FAULTS * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		die("mmap");
	/* It fails where there are no huge pages. */
	madvise((void *)area, FAULTS * page, MADV_NOHUGEPAGE);
	for (i = 0; i < FAULTS; i++)
		area[i * page] = 1;
}

/* Returns the least count of page faults of the two tasks. */
static uint64_t round_of(int number)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_PAGE_FAULTS,
		.disabled = 1,
		.inherit = 1,
	};
	int fds[EVENTS], start[2], enabled[2], child, i, status;
	uint64_t value, least = UINT64_MAX;
	volatile int spin;

	if (pipe(start) || pipe(enabled))
		die("pipe");
	for (i = 0; i < EVENTS; i++) {
		fds[i] = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
		if (fds[i] < 0)
			die("perf_event_open");
	}
	child = fork();
	if (child < 0)
		die("fork");
	if (!child) {
		/* Its events are inherited, and so are those of the task that it forks. */
		int grandchild;

		go_to(1);
		take(start[0]);
		grandchild = fork();
		if (grandchild < 0)
			die("fork");
		fault(enabled[0]);
		if (grandchild)
			waitpid(grandchild, NULL, 0);
		_exit(0);
	}
	give(start[1], 1);
	for (spin = 0; spin < number % 64 * 2000; spin++)
		;
	/* Against the order in which they are inherited, so that the two meet. */
	for (i = EVENTS - 1; i >= 0; i--) {
		if (ioctl(fds[i], PERF_EVENT_IOC_ENABLE, 0))
			die("PERF_EVENT_IOC_ENABLE");
	}
	give(enabled[1], 2);
	if (waitpid(child, &status, 0) < 0 || status)
		die("waitpid");
	for (i = 0; i < EVENTS; i++) {
		if (read(fds[i], &value, sizeof(value)) != sizeof(value))
			die("read");
		if (value < least)
			least = value;
		close(fds[i]);
	}
	close(start[0]);
	close(start[1]);
	close(enabled[0]);
	close(enabled[1]);
	return least;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 500;
	uint64_t least = UINT64_MAX;
	int i;

	go_to(0);
	for (i = 0; i < rounds && least >= 2 * FAULTS; i++)
		least = round_of(i);
	printf("a task that is forked while its events are enabled counts, in %d rounds: %s\n", i,
	       least < 2 * FAULTS ? "DEFECT" : "as documented");
	return 0;
}
