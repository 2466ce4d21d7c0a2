package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/scripts"
)

const envUsage = `env

Prints what it takes to build and start programs with MPI, as lines for a shell:

	eval "$(ubcoll env)"
	go build -tags mpi ./prog && $MPIRUN -n 4 ./prog

MPICC decides which MPI (MPICC=mpicc.mpich), else MPI_HOME; else it is mpicc.openmpi or mpicc. The lines for Open MPI have
its launcher take more ranks than there are cores, and start for root if root asks for the lines. So that the other ranks go on
when one dies, a launcher needs an option: --enable-recovery (Open MPI), -disable-auto-cleanup (MPICH).
The library's own variables are in: ubcoll info -env.`

// mpiEnv is the command env. It runs the repository's script mpienv, for programs outside of the repository.
func mpiEnv(args []string, out io.Writer) error {
	fs := newFlags("env")
	if err := errors.Join(parseFlags(fs, args, envUsage, out), noArguments(fs)); err != nil {
		return err
	}
	cmd := exec.Command("sh", "-c", scripts.MPIEnv)
	cmd.Stdin = nil
	var said bytes.Buffer
	cmd.Stderr = &said
	lines, err := cmd.Output()
	if _, ended := errors.AsType[*exec.ExitError](err); ended {
		return fmt.Errorf("env: %s: %w", strings.TrimPrefix(strings.TrimSpace(said.String()), "mpienv: "), fault.ErrNotSupported)
	} else if err != nil {
		return err
	}
	for line := range strings.Lines(string(lines)) {
		fmt.Fprint(out, "export ", line)
	}
	_, err = os.Stderr.Write(said.Bytes())
	return err
}
