// SPDX-License-Identifier: GPL-2.0 OR MIT
/* setjmp and longjmp through many frames, and contexts with stacks of their own. */
#include <setjmp.h>
#include <stdio.h>
#include <ucontext.h>

static jmp_buf back;
static ucontext_t main_context, other;
static int turns;

__attribute__((noinline)) static int down(int n)
{
	if (n == 0)
		longjmp(back, 7);
	return down(n - 1) + 1;
}

static void run(void)
{
	for (int i = 0; i < 20; i++) {
		turns++;
		swapcontext(&other, &main_context);
	}
}

int main(void)
{
	static char stack[64 * 1024];
	volatile int jumps = 0;

	for (volatile int i = 0; i < 10; i++)
		if (setjmp(back) == 0)
			down(i * 3);
		else
			jumps++;
	getcontext(&other);
	other.uc_stack.ss_sp = stack;
	other.uc_stack.ss_size = sizeof(stack);
	other.uc_link = &main_context;
	makecontext(&other, run, 0);
	for (int i = 0; i < 20; i++)
		swapcontext(&main_context, &other);
	printf("%d %d\n", jumps, turns);
	return 0;
}
