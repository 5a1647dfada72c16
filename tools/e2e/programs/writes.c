// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * PTWRITE with operands of each kind, and the function that perf takes for a PTWRITE. Prints each payload with the address of its
 * instruction, or with 0 for the function. Where nothing executes PTWRITE, a signal handler skips it, so that the output is the same.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#define MOST 64

static struct {
	uint64_t payload, address;
} written[MOST];
static unsigned int count;

/* Where the program continues if the processor does not know PTWRITE. */
void *after;

void skip(int signal, siginfo_t *info, void *context)
{
	ucontext_t *user = context;

	(void)signal;
	(void)info;
	user->uc_mcontext.gregs[REG_RIP] = (greg_t)after;
}

/* What perf's manual page has as an example of a PTWRITE that is emulated: the magic is behind a jump, and a branch has each bit. */
void perf_emulate_ptwrite(uint64_t payload);

asm(".text\n"
    ".globl perf_emulate_ptwrite\n"
    ".type perf_emulate_ptwrite, @function\n"
    "perf_emulate_ptwrite:\n"
    "\tjmp 1f\n"
    "\tud2\n"
    "\t.ascii \"perf,ptwrite  \"\n"
    "1:\tmov %rdi, %rax\n"
    ".rept 64\n"
    "1:\tshl %rax\n"
    "\tjc 1f\n"
    ".endr\n"
    "1:\tret\n"
    ".size perf_emulate_ptwrite, . - perf_emulate_ptwrite\n");

static void wrote(uint64_t payload, uint64_t address)
{
	if (count < MOST) {
		written[count].payload = payload;
		written[count].address = address;
		count++;
	}
}

/* Executes a PTWRITE, which may use these operands, and notes the payload. */
#define WRITE(payload, insn, ...)					\
	do {								\
		uint64_t address;					\
									\
		asm volatile("lea 2f(%%rip), %0\n\t"			\
			     "mov %0, after(%%rip)\n\t"			\
			     "lea 1f(%%rip), %0\n"			\
			     "1:\t" insn "\n"				\
			     "2:"					\
			     : "=&r"(address) : __VA_ARGS__ : "memory"); \
		wrote(payload, address);				\
	} while (0)

static uint64_t array[4] = { 0x1111, 0x2222, 0x3333, 0xfedcba9876543210 };
static __thread uint64_t local = 0x5555666677778888;

static void after_a_system_call(void)
{
	uint64_t address, result;

	/* lseek(-1, 0, 0): there is no such file. */
	asm volatile("lea 2f(%%rip), %0\n\t"
		     "mov %0, after(%%rip)\n\t"
		     "lea 1f(%%rip), %0\n\t"
		     "syscall\n"
		     "1:\tptwriteq %%rax\n"
		     "2:"
		     : "=&r"(address), "=a"(result)
		     : "a"(8L), "D"(-1L), "S"(0L), "d"(0L)
		     : "rcx", "r11", "memory");
	wrote(result, address);
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = skip, .sa_flags = SA_SIGINFO };
	uint64_t value = 0x123456789abcdef0, zero = 0;
	register uint64_t last asm("r15") = 0xffffffffffffffff;
	struct sched_param first = { .sched_priority = 1 };

	/*
	 * perf gathers a payload from 64 branches, and gives up if the trace ends in between. So no other program may take the processor.
	 * Where the priority is not allowed, the payloads are right all the same.
	 */
	(void)sched_setscheduler(0, SCHED_FIFO, &first);
	if (sigaction(SIGILL, &action, NULL)) {
		puts("there is no handler");
		return 1;
	}
	for (uint64_t i = 0; i < 3; i++) {
		WRITE(value + i, "ptwriteq %1", "r"(value + i));
		perf_emulate_ptwrite(value + i);
		wrote(value + i, 0);
	}
	/* The lower half only. */
	WRITE((uint32_t)value, "ptwritel %k1", "r"(value));
	WRITE(zero, "ptwriteq %1", "r"(zero));
	WRITE(last, "ptwriteq %1", "r"(last));
	WRITE((uint32_t)last, "ptwritel %k1", "r"(last));
	WRITE(array[3], "ptwriteq 24(%1)", "r"(array));
	WRITE((uint32_t)array[3], "ptwritel 24(%1)", "r"(array));
	WRITE(array[2], "ptwriteq (%1, %2, 8)", "r"(array), "r"(2L));
	WRITE(array[1], "ptwriteq 8+%c1(%%rip)", "i"(array));
	WRITE(local, "ptwriteq %%fs:%1", "m"(*(uint64_t *)((char *)&local - (char *)__builtin_thread_pointer())));
	WRITE(0x77, "ptwritel %k1", "r"(0x77L));
	for (unsigned int i = 0; i < 3; i++)
		after_a_system_call();

	for (unsigned int i = 0; i < count; i++)
		printf("%#" PRIx64 " %#" PRIx64 "\n", written[i].payload, written[i].address);
	return 0;
}
