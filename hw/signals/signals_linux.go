//go:build linux && cgo && (amd64 || arm64)

package signals

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall
#include <signal.h>
#include <stdlib.h>

typedef struct {
	struct sigaction before[65];
} actions;

static actions *note(void) {
	actions *a = malloc(sizeof *a);
	for (int s = 1; a && s < 65; s++)
		if (sigaction(s, 0, &a->before[s]))
			a->before[s].sa_handler = SIG_ERR;
	return a;
}

// Whatever Go itself changes meanwhile has SA_ONSTACK, or is no handler.
static int restore(actions *a) {
	int undone = 0;
	for (int s = 1; a && s < 65; s++) {
		struct sigaction now;
		if (a->before[s].sa_handler == SIG_ERR || sigaction(s, 0, &now) || now.sa_handler == a->before[s].sa_handler)
			continue;
		if (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN && !(now.sa_flags & SA_ONSTACK))
			undone += sigaction(s, &a->before[s], 0) == 0;
	}
	free(a);
	return undone;
}
*/
import "C"

// Guard runs f, which calls a library, and then puts back the handlers that were replaced meanwhile by one without SA_ONSTACK. It
// returns how many. It makes some 130 system calls.
func Guard(f func()) int {
	before := C.note()
	f()
	return int(C.restore(before))
}
