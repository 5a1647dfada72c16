// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Threads one after the other, so that two runs are alike. */
#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int mine;
static long sum;

static void *work(void *argument)
{
	for (long i = 0; i < 200; i++) {
		pthread_mutex_lock(&lock);
		sum += i ^ (long)argument;
		mine++;
		pthread_mutex_unlock(&lock);
	}
	return (void *)(long)mine;
}

int main(void)
{
	for (long i = 0; i < 4; i++) {
		pthread_t thread;
		void *result;

		pthread_create(&thread, NULL, work, (void *)i);
		pthread_join(thread, &result);
		sum += (long)result;
	}
	printf("%ld\n", sum);
	return 0;
}
