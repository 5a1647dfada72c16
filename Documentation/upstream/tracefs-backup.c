// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The event files of a backup instance: see tracefs.md. As root, on a kernel with SLUB_DEBUG that was booted with
 * "reserve_mem=1M:4096:trace trace_instance=kept^traceoff@trace trace_instance=copied=kept":
 *
 *	gcc -Wall -o tracefs-backup tracefs-backup.c && ./tracefs-backup copied
 *
 * It removes the instance. The line ends with "as documented" or with "DEFECT". On a kernel with KASAN it can count nothing: kmemleak
 * shows the defect there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Far fewer than there are events. */
#define SOME 100

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* The number of struct trace_event_file, and of what else may share their cache. */
static long files(void)
{
	const char *path = "/sys/kernel/slab/trace_event_file/objects";
	FILE *file = fopen(path, "r");
	long number;

	if (!file || fscanf(file, "%ld", &number) != 1)
		die(path);
	fclose(file);
	return number;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "copied";
	char dir[256], own[256];
	long of_backup, of_own;

	/* A writable instance first: its files are freed. */
	snprintf(own, sizeof(own), "/sys/kernel/tracing/instances/%s-own", name);
	if (mkdir(own, 0700))
		die(own);
	of_own = files();
	if (rmdir(own))
		die(own);
	sleep(2);
	of_own -= files();
	of_backup = files();
	snprintf(dir, sizeof(dir), "/sys/kernel/tracing/instances/%s", name);
	if (rmdir(dir))
		die(dir);
	sleep(2);
	of_backup -= files();
	/* KASAN keeps memory that was freed, and then the numbers say nothing. */
	if (of_own < SOME) {
		fprintf(stderr, "an ordinary instance has freed %ld event files: nothing can be counted\n", of_own);
		return 1;
	}
	printf("removal frees the event files: %ld of an ordinary instance, %ld of a backup: %s\n", of_own,
	       of_backup, of_backup < SOME ? "DEFECT" : "as documented");
	return 0;
}
