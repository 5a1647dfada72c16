/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What a program must not be able to tell apart: each case ends with a number that is the same whenever and on whichever CPU its
 * threads run.
 */
#pragma once
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096ul

struct stress {
	const char *name;
	/* Its number; ABSENT where the kernel or the processor lacks something. */
	long (*run)(void);
};

#define ABSENT (-77L)

/* Each ends with a case without a name. */
extern const struct stress code_cases[], memory_cases[], order_cases[], signal_cases[], task_cases[];

/* Says what is wrong, and ends the case. */
#define CHECK(what)								\
	do {									\
		if (!(what)) {							\
			printf("%s:%d: not %s\n", __FILE__, __LINE__, #what);	\
			fflush(stdout);						\
			_exit(1);						\
		}								\
	} while (0)

/* Anonymous memory. */
static inline unsigned char *map(size_t pages, int prot)
{
	void *at = mmap(NULL, pages * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

/* Runs `work` in a thread. */
static inline pthread_t thread(void *(*work)(void *), void *with)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, work, with));
	return thread;
}

static inline void handle(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags };

	CHECK(!sigaction(signal, &action, NULL));
}

/* While waiting for another thread, now and then. */
static inline void pause_for(unsigned int *times)
{
	if (++*times % 256 == 0)
		sched_yield();
}

static inline long mix(long sum, long more)
{
	return (sum * 31 + more) % 1000000007;
}
