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
#include <asm/fpu/api.h>

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

/* Moves data between register `number` and `at`, by one access. */
#define MOVES(before, after)						\
	switch (number) {						\
	FOR_EACH_REGISTER(MOVE, before, after)				\
	}

#define LOAD_LEGACY	MOVES("movdqu (%0), %%xmm", "\n")
#define LOAD_LOW	MOVES("vmovdqu (%0), %%xmm", "\n")
#define LOAD_WHOLE	MOVES("vmovdqu (%0), %%ymm", "\n")
#define STORE		MOVES("movdqu %%xmm", ", (%0)\n")
#define STORE_WHOLE	MOVES("vmovdqu %%ymm", ", (%0)\n")

/*
 * Whether the registers are in the processor. Called in a trap, with
 * interrupts off.
 */
static __always_inline bool are_there(void)
{
	return !test_thread_flag(TIF_NEED_FPU_LOAD);
}

/* AVX2 is required, as AVX alone lacks some of the instructions that are interpreted. */
static __always_inline bool have_avx(void)
{
	return are_there() && boot_cpu_has(X86_FEATURE_AVX2);
}

/*
 * Moves data between a register and user memory, by one access; false if that
 * faults. Each register has a function, since choosing the register takes
 * longer than the access.
 */
#define USER_ONE(n, name, can, before, after)				\
static bool name##_##n(unsigned long to)				\
{									\
	void __user *at = (void __user *)to;				\
									\
	if (!can)							\
		return false;						\
	at = masked_user_access_begin(at);				\
	asm goto("1: " before #n after					\
		 _ASM_EXTABLE_UA(1b, %l1)				\
		 : : "r" (at) : "memory" : fault);			\
	user_access_end();						\
	return true;							\
fault:									\
	user_access_end();						\
	return false;							\
}

#define USER_NAME(n, name) name##_##n,

#define USER(name, can, before, after)					\
FOR_EACH_REGISTER(USER_ONE, name, can, before, after)			\
const rust_stepping_vector_move rust_stepping_vector_##name[16] = {	\
	FOR_EACH_REGISTER(USER_NAME, name)				\
};

USER(load_legacy, are_there(), "movdqu (%0), %%xmm", "\n")
USER(load_low, have_avx(), "vmovdqu (%0), %%xmm", "\n")
USER(load_whole, have_avx(), "vmovdqu (%0), %%ymm", "\n")
USER(store, are_there(), "movdqu %%xmm", ", (%0)\n")
USER(store_whole, have_avx(), "vmovdqu %%ymm", ", (%0)\n")

/* Reads a register. The bits above 128 are 0 if the processor has none. */
bool rust_stepping_vector_get(unsigned int number, u64 words[4])
{
	u64 *at = words;

	if (have_avx()) {
		STORE_WHOLE
		return true;
	}
	if (!are_there())
		return false;
	words[2] = 0;
	words[3] = 0;
	STORE
	return true;
fault:
	return false;
}

/* Writes a register. */
#define SET(name, can, moves)						\
bool rust_stepping_vector_set_##name(unsigned int number, const u64 words[4]) \
{									\
	const u64 *at = words;						\
									\
	if (!can)							\
		return false;						\
	moves								\
	return true;							\
fault:									\
	return false;							\
}

SET(legacy, are_there(), LOAD_LEGACY)
SET(low, have_avx(), LOAD_LOW)
SET(whole, have_avx(), LOAD_WHOLE)

bool rust_stepping_vector_zero_upper(void)
{
	if (!have_avx())
		return false;
	asm volatile("vzeroupper" : : : "memory");
	return true;
}

/* Whether the registers are in the processor, so that it can compute. */
bool rust_stepping_vector_are_there(void)
{
	return are_there();
}

/*
 * Between these two the vector registers belong to the caller, all exceptions
 * are masked, and the task is not preempted.
 */
void rust_stepping_vectors_begin(void)
{
	kernel_fpu_begin();
}

void rust_stepping_vectors_end(void)
{
	kernel_fpu_end();
}
