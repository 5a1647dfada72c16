// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Datagrams that a BPF program sees, which the kernel has made machine code of. */
#include <linux/bpf.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_ATTACH_BPF
#define SO_ATTACH_BPF 50
#endif

#define INSN(CODE, DST, SRC, OFF, IMM) \
	{ .code = (CODE), .dst_reg = (DST), .src_reg = (SRC), .off = (OFF), .imm = (IMM) }

/* return helper() >> 63 ? 0 : -1, behind a loop. */
static const struct bpf_insn insns[] = {
	INSN(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_6, 0, 0, 5),
	INSN(BPF_ALU64 | BPF_SUB | BPF_K, BPF_REG_6, 0, 0, 1),
	INSN(BPF_JMP | BPF_JNE | BPF_K, BPF_REG_6, 0, -2, 0),
	INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_ktime_get_ns),
	INSN(BPF_ALU64 | BPF_RSH | BPF_K, BPF_REG_0, 0, 0, 63),
	INSN(BPF_JMP | BPF_JNE | BPF_K, BPF_REG_0, 0, 1, 0),
	INSN(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, -1),
	INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
};

int main(void)
{
	union bpf_attr attr = {
		.prog_type = BPF_PROG_TYPE_SOCKET_FILTER,
		.insns = (unsigned long)insns,
		.insn_cnt = sizeof(insns) / sizeof(*insns),
		.license = (unsigned long)"GPL",
		.prog_name = "sees",
	};
	char got[8];
	int ends[2];
	int program = syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));

	if (program < 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) ||
	    setsockopt(ends[1], SOL_SOCKET, SO_ATTACH_BPF, &program, sizeof(program))) {
		perror("filtered");
		return 1;
	}
	for (int i = 0; i < 3; i++)
		if (write(ends[0], "hello", 5) != 5 || read(ends[1], got, sizeof(got)) != 5)
			return 2;
	/* perf asks for the code when it has read that there is a program. */
	if (!fork()) {
		setsid();
		for (int fd = 0; fd < 3; fd++)
			close(fd);
		pause();
	}
	return 0;
}
