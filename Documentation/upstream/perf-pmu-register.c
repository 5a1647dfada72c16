// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * An event of a PMU whose directory has just appeared: see perf-core.md. As root, with two CPUs and any module that registers a PMU:
 *
 *	gcc -Wall -pthread -o perf-pmu-register perf-pmu-register.c && ./perf-pmu-register MODULE.ko MODULE PMU [ROUNDS]
 *
 * The line ends with "as documented" or with "DEFECT". It is a race, which one of some rounds meets.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static char path[256];
static volatile int stop;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* Waits for the file that names the PMU's type, and opens an event of it. Returns the error of perf_event_open(), or 0. */
static void *open_first(void *error)
{
	struct perf_event_attr attr = { .size = sizeof(attr), .disabled = 1 };
	char text[16] = { 0 };
	int fd = -1;

	while (!stop && (fd = open(path, O_RDONLY)) < 0)
		;
	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return NULL;
	attr.type = atoi(text);
	close(fd);
	fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
	*(int *)error = fd < 0 ? errno : 0;
	if (fd >= 0)
		close(fd);
	return NULL;
}

int main(int argc, char **argv)
{
	int module, rounds, i, error = 0;
	pthread_t thread;

	if (argc < 4) {
		fprintf(stderr, "usage: %s MODULE.ko MODULE PMU [ROUNDS]\n", argv[0]);
		return 2;
	}
	rounds = argc > 4 ? atoi(argv[4]) : 1000;
	snprintf(path, sizeof(path), "/sys/bus/event_source/devices/%s/type", argv[3]);
	module = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (module < 0)
		die(argv[1]);
	for (i = 0; i < rounds && error != ENOENT; i++) {
		stop = 0;
		error = 0;
		if (pthread_create(&thread, NULL, open_first, &error))
			die("pthread_create");
		if (syscall(SYS_finit_module, module, "", 0))
			die("finit_module");
		stop = 1;
		pthread_join(thread, NULL);
		if (syscall(SYS_delete_module, argv[2], O_NONBLOCK))
			die("delete_module");
	}
	printf("a PMU that has a directory has events, in %d rounds: %s\n", i,
	       error == ENOENT ? "DEFECT" : "as documented");
	return 0;
}
