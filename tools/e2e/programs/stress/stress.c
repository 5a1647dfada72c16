// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Runs each case in a process of its own, and says its number and how it ended.
 */
#include "stress.h"

static void run(const struct stress *stress)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child) {
		long number = stress->run();

		if (number == ABSENT)
			printf("%s: the machine lacks something\n", stress->name);
		else
			printf("%s: %ld\n", stress->name, number);
		fflush(stdout);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	if (status)
		printf("%s: ended with %#x\n", stress->name, status);
}

int main(int argc, char **argv)
{
	static const struct stress *const all[] = { code_cases, memory_cases, order_cases, signal_cases, task_cases };

	cpu_set_t cpus;

	/* Threads meet on two CPUs, whoever has started this. */
	memset(&cpus, 0xff, sizeof(cpus));
	CHECK(!sched_setaffinity(0, sizeof(cpus), &cpus));
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		for (const struct stress *stress = all[i]; stress->name; stress++)
			if (argc < 2 || strstr(stress->name, argv[1]))
				run(stress);
	return 0;
}
