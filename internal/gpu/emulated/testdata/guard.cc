// Faults of guarded code: accesses to unmapped memory, and traps.
#include "fiber.h"
#include <initializer_list>
#include <mutex>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

namespace {

// The handler takes the faults of guarded code, and passes all others to the previous handler.
thread_local sigjmp_buf *guarded;
thread_local void *fault_at;
thread_local int fault_signal;
thread_local char *alternate;
struct sigaction before[NSIG];

void on_fault(int sig, siginfo_t *info, void *uc) {
	if (guarded) {
		fault_at = info->si_addr;
		fault_signal = sig;
		siglongjmp(*guarded, 1);
	}
	struct sigaction &b = before[sig];
	if (b.sa_flags & SA_SIGINFO)
		b.sa_sigaction(sig, info, uc);
	else if (b.sa_handler != SIG_DFL && b.sa_handler != SIG_IGN)
		b.sa_handler(sig);
	else
		sigaction(sig, &b, 0); // the default action: to return repeats the fault, and kills the process
}

} // namespace

void emu_guard(void) {
	static std::once_flag once;
	std::call_once(once, [] {
		struct sigaction a = {};
		a.sa_sigaction = on_fault;
		a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
		sigfillset(&a.sa_mask);
		for (int sig : {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE})
			sigaction(sig, &a, &before[sig]);
	});
	alternate = (char *)malloc(64 << 10);
	stack_t s = {};
	s.ss_sp = alternate;
	s.ss_size = 64 << 10;
	sigaltstack(&s, 0);
}

void emu_unguard(void) {
	stack_t s = {};
	s.ss_flags = SS_DISABLE;
	sigaltstack(&s, 0);
	free(alternate);
	alternate = 0;
}

emu_result emu_try(const char *what, void (*f)(void *), void *arg) {
	sigjmp_buf jump;
	if (!sigsetjmp(jump, 1)) {
		guarded = &jump;
		f(arg);
		guarded = 0;
		return EMU_DONE;
	}
	guarded = 0;
	bool touch = fault_signal == SIGSEGV || fault_signal == SIGBUS;
	const char *how = touch ? "nothing can be reached at" : "the kernel trapped at";
	fprintf(stderr, "emulated GPU: %s: %s %p\n", what, how, fault_at);
	return touch ? EMU_FAULT : EMU_TRAP;
}
