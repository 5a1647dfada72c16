// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Two threads and the memory between them: no outcome that x86 forbids, and nothing lost.
 */
#include "stress.h"

#define ROUNDS 1000

/* Each in a line of its own. */
static struct {
	_Alignas(64) volatile int x;
	_Alignas(64) volatile int y;
	_Alignas(64) volatile int got[2];
	_Alignas(64) atomic_int gate;
} box;

/* Both come, then both go. */
static void meet(int round)
{
	unsigned int times = 0;

	atomic_fetch_add(&box.gate, 1);
	while (atomic_load(&box.gate) < 2 * (round + 1))
		pause_for(&times);
}

/* What the two do in each round; `who` is 0 or 1. */
typedef void (*part)(int who);

static part played;
static int (*is_forbidden)(void);

static void *second(void *with)
{
	(void)with;
	for (int i = 0; i < ROUNDS; i++) {
		meet(3 * i);
		played(1);
		meet(3 * i + 1);
		meet(3 * i + 2);
	}
	return NULL;
}

/* How often the outcome is forbidden. */
static long play(part each, int (*forbidden)(void))
{
	pthread_t other;
	long count = 0;

	played = each;
	is_forbidden = forbidden;
	box.gate = 0;
	other = thread(second, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		box.x = 0;
		box.y = 0;
		meet(3 * i);
		played(0);
		meet(3 * i + 1);
		count += is_forbidden();
		meet(3 * i + 2);
	}
	pthread_join(other, NULL);
	return count;
}

static void message(int who)
{
	if (!who) {
		box.x = 1;
		box.y = 1;
	} else {
		box.got[1] = box.y;
		box.got[0] = box.x;
	}
}

static int message_without_content(void)
{
	return box.got[1] && !box.got[0];
}

static long message_passing(void)
{
	return play(message, message_without_content);
}

static void stores(int who)
{
	if (!who) {
		box.x = 1;
		asm volatile("mfence" : : : "memory");
		box.got[0] = box.y;
	} else {
		box.y = 1;
		asm volatile("mfence" : : : "memory");
		box.got[1] = box.x;
	}
}

static int neither(void)
{
	return !box.got[0] && !box.got[1];
}

static long store_buffering(void)
{
	return play(stores, neither);
}

static void exchanges(int who)
{
	int one = 1;

	if (!who) {
		asm volatile("xchg %0, %1" : "+r"(one), "+m"(box.x));
		box.got[0] = box.y;
	} else {
		asm volatile("xchg %0, %1" : "+r"(one), "+m"(box.y));
		box.got[1] = box.x;
	}
}

static long store_buffering_by_exchange(void)
{
	return play(exchanges, neither);
}

static void loads(int who)
{
	if (!who) {
		box.got[0] = box.x;
		box.y = 1;
	} else {
		box.got[1] = box.y;
		box.x = 1;
	}
}

static int both(void)
{
	return box.got[0] && box.got[1];
}

static long load_buffering(void)
{
	return play(loads, both);
}

static void same_place(int who)
{
	if (!who) {
		box.x = 1;
	} else {
		box.got[0] = box.x;
		box.got[1] = box.x;
	}
}

static int backwards(void)
{
	return box.got[0] && !box.got[1];
}

static long read_twice(void)
{
	return play(same_place, backwards);
}

static void pairs(int who)
{
	if (!who) {
		box.x = 1;
		box.y = 2;
	} else {
		box.y = 1;
		box.x = 2;
	}
}

static int first_ones(void)
{
	return box.x == 1 && box.y == 1;
}

static long two_stores(void)
{
	return play(pairs, first_ones);
}

/* --- nothing is lost ------------------------------------------------------ */

#define ADDS 2000

static union {
	volatile long half[2];
	volatile __int128 whole;
} counter;
static void (*add)(void);

static void by_add(void)
{
	asm volatile("lock addq $1, %0" : "+m"(counter.half[0]) : : "cc");
}

static void by_xadd(void)
{
	long one = 1;

	asm volatile("lock xadd %0, %1" : "+r"(one), "+m"(counter.half[0]) : : "cc");
}

static void by_compare(void)
{
	long old = counter.half[0], new, was;

	for (;; old = was) {
		new = old + 1;
		was = old;
		asm volatile("lock cmpxchg %2, %1" : "+a"(was), "+m"(counter.half[0]) : "r"(new) : "cc");
		if (was == old)
			return;
	}
}

static void by_pairs(void)
{
	unsigned long low = counter.half[0], high = counter.half[1];
	unsigned char same;

	do {
		asm volatile("lock cmpxchg16b %1\n\tsete %0"
			     : "=q"(same), "+m"(counter.whole), "+a"(low), "+d"(high)
			     : "b"(low + 1), "c"(high + 3)
			     : "cc");
	} while (!same);
}

static atomic_flag held = ATOMIC_FLAG_INIT;

static void by_lock(void)
{
	unsigned int times = 0;

	while (atomic_flag_test_and_set(&held))
		pause_for(&times);
	counter.half[0] += 1;
	atomic_flag_clear(&held);
}

static void *adder(void *with)
{
	for (int i = 0; i < ADDS; i++)
		add();
	return with;
}

static long sum_of(void (*by)(void))
{
	pthread_t other;

	add = by;
	other = thread(adder, NULL);
	adder(NULL);
	pthread_join(other, NULL);
	return counter.half[0] + 1000003 * counter.half[1];
}

static long adds(void)
{
	return sum_of(by_add);
}

static long exchange_and_add(void)
{
	return sum_of(by_xadd);
}

static long compare_and_exchange(void)
{
	return sum_of(by_compare);
}

static long sixteen_bytes(void)
{
	return sum_of(by_pairs);
}

static long spin_lock(void)
{
	return sum_of(by_lock);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int turn;

static void *taker(void *with)
{
	int mine = with != NULL;

	for (int i = 0; i < 200; i++) {
		pthread_mutex_lock(&mutex);
		while (turn % 2 != mine)
			pthread_cond_wait(&turned, &mutex);
		turn++;
		pthread_cond_signal(&turned);
		pthread_mutex_unlock(&mutex);
	}
	return NULL;
}

static long turns(void)
{
	pthread_t other = thread(taker, &turn);

	taker(NULL);
	pthread_join(other, NULL);
	return turn;
}

/* --- a queue without a lock ----------------------------------------------- */

#define SLOTS 8
#define ITEMS 2000

static struct {
	_Alignas(64) volatile unsigned long head;
	_Alignas(64) volatile unsigned long tail;
	_Alignas(64) volatile unsigned long slots[SLOTS][2];
} queue;

static void *producer(void *with)
{
	unsigned int times = 0;

	for (unsigned long i = 0; i < ITEMS; i++) {
		while (queue.head - queue.tail == SLOTS)
			pause_for(&times);
		queue.slots[i % SLOTS][0] = i * 3;
		queue.slots[i % SLOTS][1] = ~i * 3;
		asm volatile("" : : : "memory");
		queue.head = i + 1;
	}
	return with;
}

static long queue_of_two(void)
{
	pthread_t other = thread(producer, NULL);
	unsigned int times = 0;
	long wrong = 0;

	for (unsigned long i = 0; i < ITEMS; i++) {
		while (queue.head == i)
			pause_for(&times);
		asm volatile("" : : : "memory");
		wrong += queue.slots[i % SLOTS][0] != i * 3 || queue.slots[i % SLOTS][1] != ~i * 3;
		queue.tail = i + 1;
	}
	pthread_join(other, NULL);
	return wrong;
}

/* --- no access is torn ----------------------------------------------------- */

static _Alignas(64) volatile unsigned char line[64];
static atomic_int ended;
static unsigned long at;

static void *writer(void *with)
{
	for (int i = 0; i < 4000; i++)
		*(volatile uint64_t *)(line + at) = i % 2 ? 0x1111111111111111 : 0x2222222222222222;
	ended = 1;
	return with;
}

static long torn(void)
{
	long wrong = 0;

	/* Within a line, aligned or not. */
	for (at = 0; at <= 56; at += 7) {
		pthread_t other;

		*(volatile uint64_t *)(line + at) = 0x1111111111111111;
		ended = 0;
		other = thread(writer, NULL);
		while (!ended) {
			uint64_t got = *(volatile uint64_t *)(line + at);

			/* Between 8-byte units an emulator may tear. */
			wrong += at % 8 == 0 && got != 0x1111111111111111 && got != 0x2222222222222222;
		}
		pthread_join(other, NULL);
	}
	return wrong;
}

const struct stress order_cases[] = {
	{ "message passing", message_passing },
	{ "store buffering with fences", store_buffering },
	{ "store buffering by exchange", store_buffering_by_exchange },
	{ "load buffering", load_buffering },
	{ "a place that is read twice", read_twice },
	{ "two places that are written twice", two_stores },
	{ "additions that are locked", adds },
	{ "exchange and add", exchange_and_add },
	{ "compare and exchange", compare_and_exchange },
	{ "compare and exchange of 16 bytes", sixteen_bytes },
	{ "lock by exchange", spin_lock },
	{ "turns by condition", turns },
	{ "queue of two threads", queue_of_two },
	{ "accesses that are not torn", torn },
	{ NULL, NULL },
};
