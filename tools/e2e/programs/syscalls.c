// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Little else than system calls, some of which are interrupted and restarted. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	long sum = 0;

	for (int i = 0; i < 500; i++) {
		sum += syscall(SYS_getppid) > 0;
		sum += syscall(SYS_read, -1, NULL, 0) == -1 && errno == EBADF;
		sum += syscall(-1L) == -1 && errno == ENOSYS;
	}
	printf("%ld\n", sum);
	return 0;
}
