// SPDX-License-Identifier: GPL-2.0 OR MIT
/* fork, vfork with execve of itself, posix_spawn, a child that is killed. */
#define _GNU_SOURCE
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int end_of(pid_t pid)
{
	int status;

	waitpid(pid, &status, 0);
	return status;
}

int main(int argc, char **argv)
{
	char *again[] = { argv[0], "again", NULL };
	volatile int sum = 0;
	pid_t pid;

	if (argc > 1)
		return 3;
	pid = fork();
	if (pid == 0)
		_exit(5);
	sum += end_of(pid);
	pid = vfork();
	if (pid == 0) {
		execve(argv[0], again, environ);
		_exit(127);
	}
	sum += end_of(pid);
	if (!posix_spawn(&pid, argv[0], NULL, NULL, again, environ))
		sum += end_of(pid);
	pid = fork();
	if (pid == 0) {
		kill(getpid(), SIGKILL);
		_exit(1);
	}
	sum += end_of(pid);
	printf("%d\n", sum);
	return 0;
}
