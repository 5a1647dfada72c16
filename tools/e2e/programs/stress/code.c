// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Code that is odd, moves, goes away or changes.
 */
#include "stress.h"

#include <fcntl.h>

static sigjmp_buf back;
static unsigned char *base;
static long seen;

/* Notes what the signal says, with addresses relative to `base`. */
static void note(int signal, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	long at = (long)info->si_addr - (long)base, ip = regs[REG_RIP] - (long)base;

	seen = mix(seen, signal);
	seen = mix(seen, info->si_code);
	seen = mix(seen, regs[REG_TRAPNO] * 64 + regs[REG_ERR]);
	seen = mix(seen, at >= 0 && at < 1 << 20 ? at : at >> 60);
	seen = mix(seen, ip >= 0 && ip < 1 << 20 ? ip : ip >> 60);
	siglongjmp(back, 1);
}

static void catch(void)
{
	static const int signals[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP };

	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		handle(signals[i], note, SA_NODEFER | SA_ONSTACK);
}

/* Calls `at`, and notes its result or its signal. */
static void attempt(const void *at)
{
	if (!sigsetjmp(back, 1))
		seen = mix(seen, ((int (*)(void))at)());
}

static unsigned char *code(const void *text, size_t length)
{
	base = map(4, PROT_READ | PROT_WRITE | PROT_EXEC);
	memcpy(base, text, length);
	return base;
}

#define CODE(text) code(text, sizeof(text) - 1)

/* `mov eax, imm32` whose number is `add eax, 5; ret; nop`. */
static long middle(void)
{
	unsigned char *at = CODE("\xb8\x83\xc0\x05\xc3\xc3\x31\xc0\xeb\xf7");

	catch();
	for (int i = 0; i < 50; i++) {
		attempt(at);
		attempt(at + 6); /* Into the middle. */
	}
	return seen;
}

static long nowhere(void)
{
	/* Not 0: that is no address for perf. */
	static const unsigned long to[] = { 0x8000000000000000, 0x7fffffffffff, 0x800000000000, -4096ul, 8 };

	catch();
	base = map(1, PROT_READ);
	for (size_t i = 0; i < sizeof(to) / sizeof(*to); i++) {
		attempt((void *)to[i]);
		if (!sigsetjmp(back, 1))
			asm volatile("jmp *%0" : : "r"(to[i]));
		if (!sigsetjmp(back, 1))
			asm volatile("push %0\n\tret" : : "r"(to[i]) : "memory");
	}
	return seen;
}

/* Code that runs off the end of what a program may have. */
static long end_of_memory(void)
{
	unsigned long last = 0x7fffffffe000;
	unsigned char *at = mmap((void *)last, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	/* Where the stack is in the way, it is the code's end that matters. */
	if (at == MAP_FAILED)
		at = map(1, PROT_READ | PROT_WRITE | PROT_EXEC);
	catch();
	base = at;
	memset(at, 0x90, PAGE);
	attempt(at + PAGE - 40);
	memcpy(at + PAGE - 3, "\x48\xb8\x01", 3); /* The beginning of `movabs`. */
	attempt(at + PAGE - 40);
	memcpy(at + PAGE - 2, "\xeb\x7f", 2); /* A jump behind the end. */
	attempt(at + PAGE - 40);
	return seen;
}

static long long_instructions(void)
{
	unsigned char *at = code("", 0);

	catch();
	for (int prefixes = 8; prefixes < 18; prefixes++) {
		memset(at, 0x66, prefixes);
		memcpy(at + prefixes, "\x90\xb8\x07\x00\x00\x00\xc3", 7);
		attempt(at);
		/* The last of them at the end of what can be executed. */
		CHECK(!mprotect(at + PAGE, PAGE, PROT_NONE));
		memcpy(at + PAGE - prefixes, at, prefixes);
		attempt(at + PAGE - prefixes);
		CHECK(!mprotect(at + PAGE, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC));
	}
	return seen;
}

static long refused(void)
{
	static const struct {
		const char *text;
		size_t length;
	} all[] = {
#define TEXT(text) { text, sizeof(text) - 1 }
		TEXT("\xf4"),			 /* hlt */
		TEXT("\x0f\x0b"),		 /* ud2 */
		TEXT("\xcd\x81"),		 /* int 0x81 */
		TEXT("\xec"),			 /* in */
		TEXT("\xfa"),			 /* cli */
		TEXT("\x0f\x30"),		 /* wrmsr */
		TEXT("\xf0\x90"),		 /* lock nop */
		TEXT("\xf0\x01\xc0"),		 /* lock add eax, eax */
		TEXT("\x0f\x20\xc0"),		 /* mov rax, cr0 */
		TEXT("\xcc"),			 /* int3 */
		TEXT("\x0e"),			 /* push cs */
		TEXT("\x8e\xc8"),		 /* mov cs, eax */
		TEXT("\xc5\xfb\x90\xff\xff"),	 /* VEX that is none */
		TEXT("\x0f\xff\xc0"),		 /* ud0 */
		TEXT("\x31\xc9\xf7\xf1"),	 /* div by 0 */
		TEXT("\xb9\x01\x00\x00\x00\x89\xc8\x89\xca\xf7\xf9"), /* idiv that overflows */
	};

	catch();
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		unsigned char *at = CODE("\x90\x90\x90");

		memcpy(at + 3, all[i].text, all[i].length);
		at[3 + all[i].length] = 0xc3;
		attempt(at);
		CHECK(!munmap(at, 4 * PAGE));
	}
	return seen;
}

/* A system call that takes the memory away in which it is. */
static long unmaps_itself(void)
{
	unsigned char *at;

	catch();
	for (int i = 0; i < 10; i++) {
		at = CODE("\xb8\x0b\x00\x00\x00\x48\x8d\x3d\xf4\xff\xff\xff\xbe\x00\x10\x00\x00\x0f\x05\x90\x90\xc3");
		attempt(at);
		CHECK(!munmap(at, 4 * PAGE));
	}
	return seen;
}

static long moves(void)
{
	unsigned char *from, *to = map(1, PROT_NONE);

	catch();
	for (int i = 0; i < 20; i++) {
		from = CODE("\xb8\x01\x00\x00\x00\xc3");
		from[1] = i;
		attempt(from);
		CHECK(mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		attempt(from);
		base = to;
		attempt(to);
		to = from;
	}
	return seen;
}

/* Instructions that write over those behind them. */
static long writes_itself(void)
{
	/* mov byte [rip+1], 9; mov eax, 1; ret */
	unsigned char *at = CODE("\xc6\x05\x01\x00\x00\x00\x09\xb8\x01\x00\x00\x00\xc3");

	catch();
	for (int i = 0; i < 100; i++) {
		at[6] = i;
		attempt(at);
	}
	/* The same through another mapping of the page. */
	int file = memfd_create("code", 0);
	CHECK(file >= 0 && !ftruncate(file, PAGE));
	unsigned char *written = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	unsigned char *executed = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
	CHECK(written != MAP_FAILED && executed != MAP_FAILED);
	base = executed;
	for (int i = 0; i < 100; i++) {
		memcpy(written, "\xb8\x00\x00\x00\x00\xc3", 6);
		written[1] = i;
		attempt(executed);
	}
	return seen;
}

/*
 * Adds up a number in its own text, and counts that number up through another
 * mapping: `xor edx, edx; mov eax, imm32; add edx, eax; inc byte [rdi]; dec
 * ecx; jnz -13; mov eax, edx; ret`. The loop is one block for the interpreter.
 */
static const char sums[] = "\x31\xd2\xb8\0\0\0\0\x01\xc2\xfe\x07\xff\xc9\x75\xf3\x89\xd0\xc3";

static void sum_by(int file, int keep)
{
	unsigned char *written, *executed;
	int (*sum)(unsigned char *, long, long, int);

	CHECK(file >= 0 && pwrite(file, sums, sizeof(sums), 0) == sizeof(sums));
	CHECK(!ftruncate(file, PAGE));
	written = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	executed = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, keep ? MAP_PRIVATE : MAP_SHARED, file, 0);
	CHECK(written != MAP_FAILED && executed != MAP_FAILED);
	if (!keep)
		CHECK(!close(file));
	sum = (int (*)(unsigned char *, long, long, int))executed;
	/* Few rounds: each is new code, of which the tracer tells. */
	for (int i = 0; i < 3; i++) {
		written[3] = 0;
		CHECK(sum(written + 3, 0, 0, 100) == 99 * 50);
	}
	seen = mix(seen, written[3]);
}

/* A file on tmpfs without a name: the tracer tells of its code, as no decoder can read it. */
static int opened(void)
{
	static const char name[] = "/tmp/sums";
	int file = open(name, O_RDWR | O_CREAT | O_EXCL, 0700);

	CHECK(file >= 0 && !unlink(name));
	return file;
}

/* The other mapping is of a memfd, of a file that is closed, and of one that is still open. */
static long sums_itself(void)
{
	sum_by(memfd_create("code", 0), 0);
	sum_by(opened(), 0);
	sum_by(opened(), 1);
	return seen;
}

static unsigned char *shared;
static atomic_int done;

static void *changer(void *with)
{
	uint64_t text[2];

	(void)with;
	memcpy(&text[0], "\xb8\x11\x11\x11\x11\xc3\x90\x90", 8);
	memcpy(&text[1], "\xb8\x22\x22\x22\x22\xc3\x90\x90", 8);
	for (int i = 0; i < 3000; i++)
		atomic_store((_Atomic uint64_t *)shared, text[i % 2]);
	done = 1;
	return NULL;
}

/* Another thread changes code that is being executed: always one or the other. */
static long changed_by_another(void)
{
	pthread_t other;
	long wrong = 0;

	shared = CODE("\xb8\x11\x11\x11\x11\xc3\x90\x90");
	other = thread(changer, NULL);
	while (!done) {
		int got = ((int (*)(void))shared)();

		wrong += got != 0x11111111 && got != 0x22222222;
	}
	pthread_join(other, NULL);
	return wrong;
}

#define TURNS 20

/* `mov eax, 1; ret`, and `jmp +1; int3; xor eax, eax; ret`. */
static const char before[] = "\xb8\x01\x00\x00\x00\xc3", between[] = "\xeb\x01\xcc\x31\xc0\xc3";
static atomic_int turn;

/* On a CPU of its own, if there is one. */
static void stay_on(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

static long calls(void)
{
	long sum = 0;

	for (int i = 0; i < 8; i++)
		sum += ((int (*)(void))shared)();
	return sum;
}

static void *changes_back(void *with)
{
	unsigned int times = 0;

	(void)with;
	stay_on(1);
	for (int i = 0; i < TURNS; i++) {
		while (turn % 2 == 0)
			pause_for(&times);
		memcpy(shared, between, sizeof(between));
		CHECK(calls() == 0);
		memcpy(shared, before, sizeof(before));
		turn++;
	}
	return NULL;
}

/* Another thread changes the code, executes it, and changes it back. */
static long changed_back_by_another(void)
{
	unsigned int times = 0;
	pthread_t other;
	long sum = 0;

	shared = CODE("");
	memcpy(shared, before, sizeof(before));
	other = thread(changes_back, NULL);
	stay_on(0);
	for (int i = 0; i < TURNS; i++) {
		sum += calls();
		turn++;
		while (turn % 2 == 1)
			pause_for(&times);
	}
	pthread_join(other, NULL);
	return sum;
}

#define PLACES 500
#define STRIDE 64

static atomic_int now_at;

static void *resizer(void *with)
{
	unsigned int times = 0;

	(void)with;
	for (int i = 0; i < PLACES; i++) {
		while (now_at < i)
			pause_for(&times);
		for (volatile int wait = i % 100; wait > 0; wait--)
			;
		atomic_store((_Atomic unsigned char *)shared + i * STRIDE, 0x90);
	}
	return NULL;
}

/*
 * Another thread changes the length of an instruction that is being executed: RDTSC in front of ROL by 0 becomes NOP in front of XOR. The
 * processor may execute another instruction than the tracer has read.
 */
static long resized_by_another(void)
{
	unsigned int times = 0;
	pthread_t other;

	shared = map(PLACES * STRIDE / PAGE + 1, PROT_READ | PROT_WRITE | PROT_EXEC);
	for (int i = 0; i < PLACES; i++)
		memcpy(shared + i * STRIDE, "\x0f\x31\xc0\xc3\x00\xc3", 6);
	other = thread(resizer, NULL);
	for (int i = 0; i < PLACES; i++) {
		_Atomic unsigned char *place = (_Atomic unsigned char *)shared + i * STRIDE;

		now_at = i;
		/* Few, because the tracer reports the code in each round. */
		for (int n = 0; n < 8; n++)
			((void (*)(void))place)();
		while (*place != 0x90)
			pause_for(&times);
		((void (*)(void))place)();
	}
	pthread_join(other, NULL);
	return 0;
}

static void *unmapper(void *with)
{
	(void)with;
	for (int i = 0; i < 300; i++) {
		CHECK(!mprotect(shared, PAGE, i % 2 ? PROT_READ | PROT_EXEC : PROT_READ));
		if (i % 10 == 9) {
			CHECK(mmap(shared, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == shared);
			memcpy(shared, "\xb8\x07\x00\x00\x00\xc3", 6);
		}
	}
	CHECK(!mprotect(shared, PAGE, PROT_READ | PROT_EXEC));
	done = 1;
	return NULL;
}

static void again(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	/* Nothing but the page's own faults. */
	if (info->si_addr < (void *)shared || info->si_addr >= (void *)(shared + PAGE))
		_exit(2);
	sched_yield();
	siglongjmp(back, 1);
}

/* Another thread takes the right to execute away, and the page, and gives it back. */
static long protected_by_another(void)
{
	pthread_t other;
	volatile long wrong = 0;

	handle(SIGSEGV, again, SA_NODEFER);
	/* In a page that is new there is nothing yet. */
	handle(SIGBUS, again, SA_NODEFER);
	shared = CODE("\xb8\x07\x00\x00\x00\xc3");
	other = thread(unmapper, NULL);
	while (!done)
		if (!sigsetjmp(back, 1))
			wrong += ((int (*)(void))shared)() != 7;
	pthread_join(other, NULL);
	return wrong;
}

const struct stress code_cases[] = {
	{ "middle of an instruction", middle },
	{ "code nowhere", nowhere },
	{ "code at the end of memory", end_of_memory },
	{ "long instructions", long_instructions },
	{ "instructions that are refused", refused },
	{ "code that unmaps itself", unmaps_itself },
	{ "code that moves", moves },
	{ "code that writes itself", writes_itself },
	{ "a loop that writes itself through another mapping", sums_itself },
	{ "code that another thread writes", changed_by_another },
	{ "code that another thread changes back", changed_back_by_another },
	{ "code whose length another thread changes", resized_by_another },
	{ "code that another thread protects", protected_by_another },
	{ NULL, NULL },
};
