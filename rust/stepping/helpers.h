/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions for what bindgen cannot see: static inlines, macros, and the
 * prototypes of tracepoints.
 */

#ifndef RUST_STEPPING_HELPERS_H
#define RUST_STEPPING_HELPERS_H

#include <linux/types.h>

struct callback_head;
struct k_sigaction;
struct kernel_siginfo;
struct module;
struct pt_regs;
struct task_struct;

/* Called by the C part, defined in handlers.rs and hooks.rs. */
bool rust_stepping_single_step(void);
bool rust_stepping_invalid_opcode(void);
void rust_stepping_breakpoint(unsigned long address);
void rust_stepping_sys_enter(void *data, struct pt_regs *regs, long number);
void rust_stepping_sys_exit(void *data, struct pt_regs *regs, long result);
void rust_stepping_sched_switch(void *data, bool preempt,
				struct task_struct *prev,
				struct task_struct *next,
				unsigned int prev_state);
void rust_stepping_signal_deliver(void *data, int signal,
				  struct kernel_siginfo *info,
				  struct k_sigaction *action);
void rust_stepping_rseq_abort(void *data, unsigned long ip,
			      unsigned long start_ip, unsigned long offset,
			      unsigned long abort_ip);
void rust_stepping_vsyscall(void *data, int nr);
bool rust_stepping_idle(void);

struct pt_regs *rust_stepping_user_regs(struct task_struct *task);
struct pt_regs *rust_stepping_frame(struct task_struct *task);
struct pt_regs *rust_stepping_running_user_regs(void);
struct pt_regs *rust_stepping_current_user_regs(void);
void rust_stepping_note_switch(struct task_struct *prev,
			       struct task_struct *next);
unsigned int rust_stepping_user_bits(struct pt_regs *regs);
unsigned long rust_stepping_read(void *to, unsigned long from,
				 unsigned long len);
unsigned long rust_stepping_read_file(void *to, unsigned long from,
				      unsigned long len);
unsigned long rust_stepping_probe_address(void);
bool rust_stepping_has_probes(void);
bool rust_stepping_has_probe_state(void);
bool rust_stepping_is_forced(struct pt_regs *regs);

/* Instructions that not all processors have. */
enum rust_stepping_feature {
	RUST_STEPPING_POPCNT,
	RUST_STEPPING_BMI1,
	RUST_STEPPING_BMI2,
	RUST_STEPPING_MOVBE,
};

bool rust_stepping_can_interpret(struct pt_regs *regs);
void rust_stepping_access_begin(void);
void rust_stepping_access_end(void);
/* A loaded number. @is_there is false if the access faults. */
struct rust_stepping_loaded {
	u64 value;
	bool is_there;
};

struct rust_stepping_loaded rust_stepping_load_1(unsigned long from);
struct rust_stepping_loaded rust_stepping_load_2(unsigned long from);
struct rust_stepping_loaded rust_stepping_load_4(unsigned long from);
struct rust_stepping_loaded rust_stepping_load_8(unsigned long from);
bool rust_stepping_store_1(unsigned long to, u64 value);
bool rust_stepping_store_2(unsigned long to, u64 value);
bool rust_stepping_store_4(unsigned long to, u64 value);
bool rust_stepping_store_8(unsigned long to, u64 value);
/* @value is whether memory was replaced. */
struct rust_stepping_loaded rust_stepping_replace_1(unsigned long at, u64 old,
						    u64 new);
struct rust_stepping_loaded rust_stepping_replace_2(unsigned long at, u64 old,
						    u64 new);
struct rust_stepping_loaded rust_stepping_replace_4(unsigned long at, u64 old,
						    u64 new);
struct rust_stepping_loaded rust_stepping_replace_8(unsigned long at, u64 old,
						    u64 new);
bool rust_stepping_can_execute(unsigned long at, bool *stays, bool *settled);
bool rust_stepping_is_generated(unsigned long at);
unsigned long long rust_stepping_space(void);
bool rust_stepping_reports_code(void);
u64 rust_stepping_report_code(unsigned long address, const u8 *text,
			      unsigned int len);
int rust_stepping_report_nested(unsigned long address, const u8 *text,
				unsigned int len, u64 *nested);
bool rust_stepping_is_replaced(unsigned long first, unsigned long last,
			       u64 report);
bool rust_stepping_reports_steps(void);
void rust_stepping_report_step(unsigned long address, const u8 *text,
			       unsigned int len, unsigned int reason,
			       unsigned int instructions, u64 interpreted);
u64 rust_stepping_generation(void);
bool rust_stepping_text(unsigned long from, u64 *to, unsigned int words);
bool rust_stepping_has_text(unsigned long at, const u64 *words,
			    unsigned int count, u64 first, u64 last);
unsigned long rust_stepping_fs_base(void);
bool rust_stepping_has(enum rust_stepping_feature feature);
/* Moves a register, or its lower half, from or to user memory. */
typedef bool (*rust_stepping_vector_move)(unsigned long at);
extern const rust_stepping_vector_move rust_stepping_vector_load_legacy[16];
extern const rust_stepping_vector_move rust_stepping_vector_load_low[16];
extern const rust_stepping_vector_move rust_stepping_vector_load_whole[16];
extern const rust_stepping_vector_move rust_stepping_vector_store[16];
extern const rust_stepping_vector_move rust_stepping_vector_store_whole[16];
bool rust_stepping_vector_get(unsigned int number, u64 words[4]);
bool rust_stepping_vector_set_legacy(unsigned int number, const u64 words[4]);
bool rust_stepping_vector_set_low(unsigned int number, const u64 words[4]);
bool rust_stepping_vector_set_whole(unsigned int number, const u64 words[4]);
bool rust_stepping_vector_are_there(void);
bool rust_stepping_vector_zero_upper(void);
void rust_stepping_vectors_begin(void);
void rust_stepping_vectors_end(void);
bool rust_stepping_in_nmi(void);
bool rust_stepping_may_sleep(void);
bool rust_stepping_signal_passes(int sig, struct k_sigaction *ka);
void *rust_stepping_alloc(size_t size);
void rust_stepping_free(void *memory);
int rust_stepping_task_work(struct callback_head *work);
int rust_stepping_hook_always(void);
void rust_stepping_unhook_always(void);
int rust_stepping_hook(void);
void rust_stepping_unhook(void);
void rust_stepping_idle_later(void);
void rust_stepping_idle_cancel(void);
void rust_stepping_synchronize_rcu_tasks(void);

#endif
