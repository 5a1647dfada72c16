// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Sets and changes each general register by constants, so that what is in it behind each instruction follows from the text alone. Some of
 * its instructions are left to the processor by what interprets the others. Only `mov`, `add`, `lea`, `pushf`, `syscall`, `dec` and `jne`,
 * which a test executes by itself.
 */
asm(".text\n"
    ".globl _start\n"
    "_start:\n"
    "\tmovabs $0x0123456789abcdef, %rax\n"
    "\tmovabs $0x1123456789abcdef, %rcx\n"
    "\tmovabs $0x2123456789abcdef, %rdx\n"
    "\tmovabs $0x3123456789abcdef, %rbx\n"
    "\tmovabs $0x4123456789abcdef, %rbp\n"
    "\tmovabs $0x5123456789abcdef, %rsi\n"
    "\tmovabs $0x6123456789abcdef, %rdi\n"
    "\tmovabs $0x7123456789abcdef, %r8\n"
    "\tmovabs $0x8123456789abcdef, %r9\n"
    "\tmovabs $0x9123456789abcdef, %r10\n"
    "\tmovabs $0xa123456789abcdef, %r11\n"
    "\tmovabs $0xb123456789abcdef, %r12\n"
    "\tmovabs $0xc123456789abcdef, %r13\n"
    "\tmovabs $0xd123456789abcdef, %r14\n"
    "\tmov $20, %r15d\n"
    "1:\tadd $0x01010101, %rax\n"
    "\tadd $0x11010101, %rcx\n"
    "\tadd $0x21010101, %rdx\n"
    "\tadd $0x31010101, %rbx\n"
    "\tadd $0x41010101, %rbp\n"
    "\tpushf\n"
    "\tadd $0x51010101, %rsi\n"
    "\tadd $0x61010101, %rdi\n"
    "\tadd $0x71010101, %r8\n"
    "\tadd $-0x01010101, %r9\n"
    "\tlea 8(%rsp), %rsp\n"
    "\tadd $-0x11010101, %r10\n"
    "\tadd $-0x21010101, %r12\n"
    /* getuid(): root has 0. */
    "\tmov $102, %eax\n"
    "\tsyscall\n"
    "\tadd $-0x31010101, %r13\n"
    "\tadd $-0x41010101, %r14\n"
    "\tdec %r15\n"
    "\tjne 1b\n"
    /* exit(0). */
    "\tmov $60, %eax\n"
    "\tmov $0, %edi\n"
    "\tsyscall\n");
