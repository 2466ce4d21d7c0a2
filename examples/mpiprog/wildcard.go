//go:build mpi && cgo

package main

/*
// The same lines as gompi's, for Debian's Open MPI; CGO_CFLAGS and CGO_LDFLAGS from scripts/mpienv come before them.
#cgo linux CFLAGS: -I/usr/lib/x86_64-linux-gnu/openmpi/include -I/usr/lib/x86_64-linux-gnu/openmpi/include/openmpi
#cgo linux LDFLAGS: -L/usr/lib/x86_64-linux-gnu/openmpi/lib -lmpi
#include <mpi.h>
#include <stdint.h>

static MPI_Request wildcard;
static int32_t message; // in C memory: MPI keeps its address until the receive is done

// A receive that any message on MPI_COMM_WORLD matches, whatever its sender and tag.
static int post_wildcard(void) {
	return MPI_Irecv(&message, 1, MPI_INT32_T, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &wildcard);
}

static int test_wildcard(int *done) { return MPI_Test(&wildcard, done, MPI_STATUS_IGNORE); }

static int wait_wildcard(int *content, int *source) {
	MPI_Status status;
	int err = MPI_Wait(&wildcard, &status);
	*content = message;
	*source = status.MPI_SOURCE;
	return err;
}
*/
import "C"

import "fmt"

// gompi has no MPI_Irecv, so this program has its own, as a real one would.

func postWildcard() error {
	if rc := C.post_wildcard(); rc != 0 {
		return fmt.Errorf("MPI_Irecv failed: %d", rc)
	}
	return nil
}

// wildcardTaken reports whether a message has arrived at the posted receive.
func wildcardTaken() (bool, error) {
	var done C.int
	if rc := C.test_wildcard(&done); rc != 0 {
		return false, fmt.Errorf("MPI_Test failed: %d", rc)
	}
	return done != 0, nil
}

// waitWildcard waits for the message, and returns it and its sender.
func waitWildcard() (message, source int, err error) {
	var content, from C.int
	if rc := C.wait_wildcard(&content, &from); rc != 0 {
		return 0, 0, fmt.Errorf("MPI_Wait failed: %d", rc)
	}
	return int(content), int(from), nil
}
