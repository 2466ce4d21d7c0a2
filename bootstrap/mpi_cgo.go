//go:build mpi && cgo

package bootstrap

// The same paths as in gompi, because cgo flags are per package. The flags of the environment (scripts/mpienv) come
// first.

/*
#cgo linux CFLAGS: -I/usr/lib/x86_64-linux-gnu/openmpi/include/openmpi -I/usr/lib/x86_64-linux-gnu/openmpi/include -pthread
#cgo linux LDFLAGS: -pthread -L/usr/lib/x86_64-linux-gnu/openmpi/lib -lmpi

#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

// The one communicator of this package and its pending requests. Only the MPI goroutine touches them.
static MPI_Comm ub_comm = MPI_COMM_NULL;
static MPI_Request ub_request = MPI_REQUEST_NULL;
static MPI_Request ub_pair[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};

static int ub_dup(void) {
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); // the duplicate inherits it
	return MPI_Comm_idup(MPI_COMM_WORLD, &ub_comm, &ub_request);
}
static int ub_allgather(const void *in, int n, void *out) {
	return MPI_Iallgather(in, n, MPI_BYTE, out, n, MPI_BYTE, ub_comm, &ub_request);
}
static int ub_allgatherv(const void *in, int n, void *out, const int *counts, const int *offsets) {
	return MPI_Iallgatherv(in, n, MPI_BYTE, out, counts, offsets, MPI_BYTE, ub_comm, &ub_request);
}
static int ub_barrier(void) { return MPI_Ibarrier(ub_comm, &ub_request); }
static int ub_test(int *done) { return MPI_Test(&ub_request, done, MPI_STATUS_IGNORE); }
static int ub_swap(const void *in, int n, void *out, int m, int peer) {
	int e = MPI_Irecv(out, m, MPI_BYTE, peer, 0, ub_comm, &ub_pair[0]);
	return e == MPI_SUCCESS ? MPI_Isend(in, n, MPI_BYTE, peer, 0, ub_comm, &ub_pair[1]) : e;
}
static int ub_testswap(int *done) {
	MPI_Status statuses[2]; // MPICH's header has compilers warn of MPI_STATUSES_IGNORE
	return MPI_Testall(2, ub_pair, done, statuses);
}
static void ub_abort(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

static void ub_error(int e, char text[MPI_MAX_ERROR_STRING]) {
	int n;
	if (MPI_Error_string(e, text, &n) != MPI_SUCCESS)
		strcpy(text, "unknown error");
}
static void ub_library(char text[MPI_MAX_LIBRARY_VERSION_STRING]) {
	int n;
	MPI_Get_library_version(text, &n);
}

// Go's runtime dies when a handler that was installed without SA_ONSTACK runs and calls Go's own, as MPICH's for
// SIGUSR1 does. The C library refuses its internal signals, which is right.
static void ub_mend(void) {
	for (int s = 1; s <= 64; s++) {
		struct sigaction a;
		if (sigaction(s, NULL, &a) != 0 || (a.sa_flags & SA_ONSTACK))
			continue;
		if (!(a.sa_flags & SA_SIGINFO) && (a.sa_handler == SIG_DFL || a.sa_handler == SIG_IGN))
			continue;
		a.sa_flags |= SA_ONSTACK;
		sigaction(s, &a, NULL);
	}
}
*/
import "C"

import (
	"fmt"
	"strings"
	"unsafe"
)

// mpiError turns the return code of an MPI call into an error with MPI's text.
func mpiError(call string, code C.int) error {
	if code == C.MPI_SUCCESS {
		return nil
	}
	var text [C.MPI_MAX_ERROR_STRING]C.char
	C.ub_error(code, &text[0])
	return fmt.Errorf("%s: %s", call, C.GoString(&text[0]))
}

// MPILibrary is the first line of the linked MPI library's version text, or "" if there is none. Local, does not block;
// it works before MPI starts and after it ends.
func MPILibrary() string {
	var text [C.MPI_MAX_LIBRARY_VERSION_STRING]C.char
	C.ub_library(&text[0])
	line, _, _ := strings.Cut(C.GoString(&text[0]), "\n")
	return strings.Join(strings.Fields(line), " ")
}

// mendSignalHandlers gives every handler that MPI installed the alternate stack that Go needs.
func mendSignalHandlers() { C.ub_mend() }

func mpiDup() error     { return mpiError("MPI_Comm_idup", C.ub_dup()) }
func mpiBarrier() error { return mpiError("MPI_Ibarrier", C.ub_barrier()) }
func mpiAbort(code int) { C.ub_abort(C.int(code)) }

// mpiTest reports whether the pending request has completed.
func mpiTest() (bool, error) {
	var done C.int
	err := mpiError("MPI_Test", C.ub_test(&done))
	return done != 0, err
}

// mpiSwap starts to send all of in to peer, and to receive from peer into out.
func mpiSwap(in, out cbuf, peer int) error {
	return mpiError("MPI_Isend and MPI_Irecv", C.ub_swap(in.p, C.int(in.n), out.p, C.int(out.n), C.int(peer)))
}

// mpiTestSwap reports whether both requests have completed.
func mpiTestSwap() (bool, error) {
	var done C.int
	err := mpiError("MPI_Testall", C.ub_testswap(&done))
	return done != 0, err
}

// cbuf is C memory, because MPI keeps pointers into it between calls.
type cbuf struct {
	p unsafe.Pointer
	n int
}

func newCbuf(n int) cbuf   { return cbuf{C.malloc(C.size_t(max(n, 1))), n} }
func (b cbuf) free()       { C.free(b.p) }
func (b cbuf) get() []byte { return unsafe.Slice((*byte)(b.p), b.n) }

// mpiAllGather starts the exchange of in.n bytes from each rank.
func mpiAllGather(in, out cbuf) error {
	return mpiError("MPI_Iallgather", C.ub_allgather(in.p, C.int(in.n), out.p))
}

// mpiAllGatherV starts the exchange of sizes[r] bytes from each rank r, packed in rank order. table has room for two C
// ints for each rank.
func mpiAllGatherV(in, out, table cbuf, sizes []int) error {
	t := unsafe.Slice((*C.int)(table.p), 2*len(sizes))
	counts, offsets := t[:len(sizes)], t[len(sizes):]
	at := 0
	for r, n := range sizes {
		counts[r], offsets[r] = C.int(n), C.int(at)
		at += n
	}
	return mpiError("MPI_Iallgatherv", C.ub_allgatherv(in.p, C.int(in.n), out.p, &counts[0], &offsets[0]))
}

const cintSize = C.sizeof_int
