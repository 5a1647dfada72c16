// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Six defects of perf's core: see perf-core.md. As root:
 *
 *	gcc -Wall -o perf-event-core perf-event-core.c && ./perf-event-core [PMU [GROUP [CPU [OTHER]]]]
 *
 * A line for each ends with "as documented" or with "DEFECT". The second needs a PMU with an AUX area, as intel_pt; on a kernel
 * with the defect it leaves a warning in the log, and a ring buffer that is never released. The third needs a control group of
 * perf's that has no task, as /sys/fs/cgroup/NAME; on a kernel with the defect it leaves two warnings. The fourth takes a CPU offline
 * and online again; on a kernel with the defect it uses memory that was freed, which KASAN reports. "-" is no PMU and no group. The
 * fifth is a race of two CPUs, which one of some million reads meets. The sixth needs a second PMU with an AUX area, and runs alone:
 * on a kernel with the defect, a driver takes the memory of another one's for its own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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
	};
	int fd = syscall(SYS_perf_event_open, &attr, 0, -1, leader, 0);

	if (fd < 0)
		die("perf_event_open");
	return fd;
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
	void *area;

	first = event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY, 1, -1);
	second = event(type_of(pmu), 0, 1, -1);
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

/* An event in a ring that has the AUX area of another PMU. perf refuses that directly, but not by way of an event without AUX. */
static void foreign(const char *pmu, const char *other)
{
	long page = sysconf(_SC_PAGESIZE);
	int owner = event(type_of(pmu), 0, 1, -1);
	int between = event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY, 1, -1);
	int stranger = event(type_of(other), 0, 1, -1);
	struct perf_event_mmap_page *base;
	volatile unsigned int i;
	void *area;

	base = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, owner, 0);
	if (base == MAP_FAILED)
		die("mmap");
	base->aux_offset = 2 * page;
	base->aux_size = 16 * page;
	area = mmap(NULL, 16 * page, PROT_READ | PROT_WRITE, MAP_SHARED, owner, 2 * page);
	if (area == MAP_FAILED || ioctl(between, PERF_EVENT_IOC_SET_OUTPUT, owner))
		die("the ring of the first PMU");
	if (!ioctl(stranger, PERF_EVENT_IOC_SET_OUTPUT, between)) {
		if (ioctl(stranger, PERF_EVENT_IOC_ENABLE, 0))
			die("PERF_EVENT_IOC_ENABLE");
		for (i = 0; i < 100000000; i++)
			;
		if (ioctl(stranger, PERF_EVENT_IOC_DISABLE, 0))
			die("PERF_EVENT_IOC_DISABLE");
	}
	printf("another PMU does not write to an AUX area: %s\n",
	       base->aux_head ? "DEFECT" : "as documented");
}

/* Moves this process. */
static void enter(const char *group)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	file = fopen(path, "w");
	if (!file || fprintf(file, "%d", getpid()) < 0 || fclose(file))
		die(path);
}

/*
 * An event of a control group that is disabled from within, at the context switch that leaves the group: it counts context
 * switches, and the first one is its last. An event of the CPU beside it goes on counting.
 */
static void group(const char *path)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_CONTEXT_SWITCHES,
		.disabled = 1,
		.sample_period = 1,
	};
	int dir = open(path, O_RDONLY | O_DIRECTORY);
	uint64_t before;
	char parent[256];
	cpu_set_t cpus;
	int i, of_group, of_cpu;

	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	if (dir < 0 || sched_setaffinity(0, sizeof(cpus), &cpus))
		die(path);
	of_group = syscall(SYS_perf_event_open, &attr, dir, 0, -1, PERF_FLAG_PID_CGROUP);
	attr.sample_period = 0;
	attr.disabled = 0;
	of_cpu = syscall(SYS_perf_event_open, &attr, -1, 0, -1, 0);
	if (of_group < 0 || of_cpu < 0)
		die("perf_event_open");
	enter(path);
	if (ioctl(of_group, PERF_EVENT_IOC_REFRESH, 1))
		die("PERF_EVENT_IOC_REFRESH");
	usleep(1000);
	before = count(of_cpu);
	for (i = 0; i < 10; i++)
		usleep(1000);
	printf("an event of a CPU counts beside one of a group: %s\n",
	       count(of_cpu) > before ? "as documented" : "DEFECT");
	close(of_group);
	close(of_cpu);
	snprintf(parent, sizeof(parent), "%s/..", path);
	enter(parent);
}

static void switch_cpu(int cpu, const char *to)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/online", cpu);
	fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, to, 1) != 1)
		die(path);
	close(fd);
}

/* A sibling for a leader whose CPU has been offline. If it can be opened, it must count, and outlive its leader. */
static void offline(int cpu)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_CPU_CLOCK,
	};
	int leader = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, 0);
	int fd;

	if (leader < 0)
		die("perf_event_open");
	switch_cpu(cpu, "0");
	switch_cpu(cpu, "1");
	fd = syscall(SYS_perf_event_open, &attr, -1, cpu, leader, 0);
	usleep(100000);
	printf("a sibling of a leader that was taken off its CPU: %s\n",
	       fd < 0 || count(fd) ? "as documented" : "DEFECT");
	fflush(stdout);
	close(leader);
	/* The leader is freed after a grace period. */
	usleep(100000);
	if (fd >= 0)
		count(fd);
}

static void go_to(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		die("sched_setaffinity");
}

/* The times of an event whose task goes to sleep and wakes up on another CPU: it cannot have run for longer than it was enabled. */
static void times(void)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_DUMMY,
		.exclude_kernel = 1,
		.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING,
	};
	uint64_t values[3];
	int child, fd, i, wrong = 0;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		return;
	child = fork();
	if (child < 0)
		die("fork");
	if (!child) {
		go_to(1);
		for (;;)
			usleep(1);
	}
	go_to(0);
	fd = syscall(SYS_perf_event_open, &attr, child, -1, -1, 0);
	for (i = 0; fd >= 0 && !wrong && i < 20000000; i++) {
		if (read(fd, values, sizeof(values)) != sizeof(values)) {
			kill(child, SIGKILL);
			die("read");
		}
		wrong = values[2] > values[1];
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	if (fd < 0)
		die("perf_event_open");
	printf("an event runs no longer than it is enabled, in %d reads: %s\n", i,
	       wrong ? "DEFECT" : "as documented");
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc > 4) {
		foreign(argv[1], argv[4]);
		return 0;
	}
	sibling();
	if (argc > 1 && strcmp(argv[1], "-"))
		redirected(argv[1]);
	if (argc > 2 && strcmp(argv[2], "-"))
		group(argv[2]);
	if (argc > 3)
		offline(atoi(argv[3]));
	times();
	return 0;
}
