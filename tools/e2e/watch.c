// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A program that checks whether it can see that it is single-stepped. It looks for the trap flag in three places: the flags that
 * PUSHF reads, the flags that SYSCALL leaves in R11, and the frames of its signals. It also repeats a computation whose result is known.
 *
 *	watch alone|threads|children|execs|asleep|refused FILE
 *
 * It prints "go" when it has started, and a dot after every few rounds. It exits when FILE exists. The exit status is 0 if it never
 * saw the trap flag and all results were right. Otherwise it is 1, and a line reports what was wrong.
 *
 *	watch exit|exec|kill|term|fault FILE
 *
 * The same rounds; but if nothing was wrong, the program then ends in the named way: it exits with 7, executes a shell, is killed by a
 * signal, or writes to a null pointer.
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define TF 0x100

static atomic_ulong seen, wrong;
static const char *file;
static volatile int *volatile nowhere;

static void look(unsigned long flags)
{
	if (flags & TF)
		seen++;
}

static void handle(int signal, siginfo_t *info, void *context)
{
	ucontext_t *frame = context;
	unsigned long flags;

	(void)signal;
	(void)info;
	look(frame->uc_mcontext.gregs[REG_EFL]);
	asm volatile("pushfq\n\tpop %0" : "=r"(flags));
	look(flags);
}

/* The result is the same each time. */
static unsigned long sum(void)
{
	unsigned long sum = 1;

	for (unsigned long i = 1; i < 300; i++)
		sum = sum * 6364136223846793005 + (i & 1 ? i : sum >> 60);
	return sum;
}

static unsigned long right;

/* A system call by INT 0x80, which preserves R11. Not all kernels support it. */
static unsigned long other_call(unsigned long r11)
{
	register unsigned long kept asm("r11") = r11;

	asm volatile("int $0x80" : "+r"(kept) : "a"(64) : "memory");
	return kept;
}

static int has_other_call(void)
{
	int status;
	pid_t child = fork();

	if (!child) {
		other_call(0);
		_exit(0);
	}
	return waitpid(child, &status, 0) == child && !status;
}

static int other;

/* Makes a seccomp filter refuse getppid(), before any tracer sees the call. Without seccomp, nothing changes. */
static void refuse(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 38),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(*code), code };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static void round_(void)
{
	unsigned long flags, result;

	asm volatile("pushfq\n\tpop %0" : "=r"(flags));
	look(flags);
	asm volatile("syscall\n\tmov %%r11, %0" : "=r"(flags) : "a"(SYS_getppid) : "rcx", "r11", "memory");
	look(flags);
	/* POPF loads the flags that PUSHF has stored: TF must not be in them. */
	asm volatile("pushfq\n\tpopfq\n\tpushfq\n\tpop %0" : "=r"(flags) : : "cc");
	look(flags);
	/* No system call has this number. */
	asm volatile("syscall\n\tmov %%r11, %1" : "=a"(result), "=r"(flags) : "a"(100000L) : "rcx", "r11", "memory");
	look(flags);
	if ((long)result != -38)
		wrong++;
	if (other && other_call(TF | 0xff) != (TF | 0xff))
		wrong++;
	if (syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1))
		wrong++;
	if (sum() != right)
		wrong++;
}

static int over(void)
{
	return !access(file, F_OK);
}

static void say(const char *text)
{
	if (write(1, text, strlen(text)) < 0)
		wrong++;
}

static void *rounds(void *quiet)
{
	while (!over()) {
		for (int i = 0; i < 4; i++)
			round_();
		if (!quiet)
			say(".");
	}
	return NULL;
}

static void children(void)
{
	while (!over()) {
		int status;
		pid_t child = fork();

		if (!child) {
			round_();
			_exit(seen || wrong);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			wrong++;
		round_();
		say(".");
	}
}

static int end(void)
{
	if (seen || wrong)
		printf("the trap flag was seen %lu times, %lu results were wrong\n", seen, wrong);
	return seen || wrong;
}

int main(int count, char **arguments)
{
	struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO };
	const char *what = arguments[1];
	pthread_t thread;

	if (count < 3)
		return 2;
	file = arguments[2];
	right = sum();
	other = has_other_call();
	if (!strcmp(what, "refused"))
		refuse();
	sigaction(SIGUSR1, &action, NULL);
	/* With "again" as third argument, the program has executed itself ("execs") and has printed "go" before. */
	if (count == 3)
		say("go");

	if (!strcmp(what, "threads")) {
		if (pthread_create(&thread, NULL, rounds, "quiet"))
			return 2;
		rounds(NULL);
		pthread_join(thread, NULL);
	} else if (!strcmp(what, "children")) {
		children();
	} else if (!strcmp(what, "execs")) {
		round_();
		say(".");
		if (!over() && !end())
			execl("/proc/self/exe", "watch", what, file, "again", NULL);
	} else if (!strcmp(what, "asleep")) {
		/* The program spends nearly all of its time in system calls. */
		while (!over()) {
			round_();
			usleep(1000);
			say(".");
		}
	} else {
		rounds(NULL);
	}
	if (end())
		return 1;

	if (!strcmp(what, "exec"))
		execl("/bin/busybox", "sh", "-c", "exit 7", NULL);
	else if (!strcmp(what, "kill"))
		raise(SIGKILL);
	else if (!strcmp(what, "term"))
		raise(SIGTERM);
	else if (!strcmp(what, "fault"))
		*nowhere = 1;
	else if (!strcmp(what, "exit"))
		return 7;
	return 0;
}
