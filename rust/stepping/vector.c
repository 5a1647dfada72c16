// SPDX-License-Identifier: GPL-2.0
/*
 * The vector registers of the current task, which are in the processor while
 * the kernel does not use them.
 */

#include "helpers.h"

#include <linux/sched.h>
#include <linux/thread_info.h>
#include <linux/uaccess.h>
#include <asm/asm.h>
#include <asm/cpufeature.h>

struct vector {
	u64 words[4];
};

#define FOR_EACH_REGISTER(f, ...)					\
	f(0, __VA_ARGS__) f(1, __VA_ARGS__) f(2, __VA_ARGS__)		\
	f(3, __VA_ARGS__) f(4, __VA_ARGS__) f(5, __VA_ARGS__)		\
	f(6, __VA_ARGS__) f(7, __VA_ARGS__) f(8, __VA_ARGS__)		\
	f(9, __VA_ARGS__) f(10, __VA_ARGS__) f(11, __VA_ARGS__)		\
	f(12, __VA_ARGS__) f(13, __VA_ARGS__) f(14, __VA_ARGS__)	\
	f(15, __VA_ARGS__)

#define MOVE(n, before, after)						\
	case n:								\
		asm goto("1: " before #n after				\
			 _ASM_EXTABLE_UA(1b, %l1)			\
			 : : "r" (at) : "memory" : fault);		\
		break;

#define MOVES(before, after)						\
	switch (number) {						\
	FOR_EACH_REGISTER(MOVE, before, after)				\
	default:							\
		return false;						\
	}

/*
 * Between register `number` and memory, by one access; false if that faults.
 * The caller may access the memory.
 */
static __always_inline bool move(unsigned int number, const void *at,
				 enum rust_stepping_move what)
{
	switch (what) {
	case RUST_STEPPING_LOAD_LEGACY:
		MOVES("movdqu (%0), %%xmm", "\n");
		break;
	case RUST_STEPPING_LOAD_LOW:
		MOVES("vmovdqu (%0), %%xmm", "\n");
		break;
	case RUST_STEPPING_LOAD_WHOLE:
		MOVES("vmovdqu (%0), %%ymm", "\n");
		break;
	case RUST_STEPPING_STORE:
		MOVES("movdqu %%xmm", ", (%0)\n");
		break;
	case RUST_STEPPING_STORE_WHOLE:
		MOVES("vmovdqu %%ymm", ", (%0)\n");
		break;
	default:
		return false;
	}
	return true;
fault:
	return false;
}

static bool has_avx(void)
{
	return boot_cpu_has(X86_FEATURE_AVX);
}

/*
 * With interrupts off, in a trap: whether the registers are in the processor,
 * and whether it knows what is asked for.
 */
static bool can_move(enum rust_stepping_move what)
{
	if (test_thread_flag(TIF_NEED_FPU_LOAD))
		return false;
	return what == RUST_STEPPING_LOAD_LEGACY ||
	       what == RUST_STEPPING_STORE || has_avx();
}

/* Between a register and user memory. */
bool rust_stepping_vector_user(unsigned int number, unsigned long at,
			       enum rust_stepping_move what)
{
	void __user *user = (void __user *)at;
	unsigned int bytes = 16;
	bool moved;

	if (what == RUST_STEPPING_LOAD_WHOLE ||
	    what == RUST_STEPPING_STORE_WHOLE)
		bytes = 32;
	if (!can_move(what) || !user_access_begin(user, bytes))
		return false;
	moved = move(number, (__force const void *)user, what);
	user_access_end();
	return moved;
}

/* From a register: what is above 128 bits is 0 if the processor has none. */
bool rust_stepping_vector_get(unsigned int number, u64 words[4])
{
	struct vector value = {};

	if (!can_move(RUST_STEPPING_STORE) ||
	    !move(number, &value, has_avx() ? RUST_STEPPING_STORE_WHOLE :
					      RUST_STEPPING_STORE))
		return false;
	memcpy(words, value.words, sizeof(value));
	return true;
}

/* To a register. */
bool rust_stepping_vector_set(unsigned int number, const u64 words[4],
			      enum rust_stepping_move what)
{
	return can_move(what) && move(number, words, what);
}

bool rust_stepping_vector_zero_upper(void)
{
	if (!can_move(RUST_STEPPING_LOAD_LOW))
		return false;
	asm volatile("vzeroupper" : : : "memory");
	return true;
}
