// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Functions that uprobes are put on: on instructions that the kernel emulates, and on one that it executes elsewhere; and a return probe. It
 * is stopped by no signal, and its flags do not show that it is traced.
 */
#include <signal.h>
#include <stdio.h>

int on_nop(int), on_lea(int), on_push(int), on_jump(int), on_return(int);

__asm__(".text\n"
	".globl on_nop, on_lea, on_push, on_jump, on_return\n"
	"on_nop:    nop; lea 1(%rdi), %eax; ret\n"
	"on_lea:    lea 2(%rdi), %eax; ret\n"
	"on_push:   push %rbx; mov %edi, %ebx; lea (%rbx, %rbx), %eax; pop %rbx; ret\n"
	"on_jump:   jmp 1f; ud2; 1: mov %edi, %eax; test $1, %al; ret\n"
	"on_return: mov %edi, %eax; call 2f; add $3, %eax; ret; 2: inc %eax; ret\n");

static unsigned long flags(void)
{
	unsigned long flags;

	__asm__ volatile("pushf; pop %0" : "=r"(flags));
	return flags;
}

int main(void)
{
	int sum = 0, seen = 0;

	for (int i = 0; i < 20; i++) {
		sum += on_nop(i) + on_lea(i) + on_push(i) + on_jump(i) + on_return(i);
		seen += !!(flags() & 0x100);
	}
	/* The same instructions, whether a debugger is seen or not. */
	printf("%d, trap flag %c\n", sum, 'n' + 11 * !!seen);
	return 0;
}
