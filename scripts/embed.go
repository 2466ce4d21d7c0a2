// Package scripts has the scripts that programs embed.
package scripts

import _ "embed"

// MPIEnv is mpienv, which ubcoll env runs where there is no repository.
//
//go:embed mpienv
var MPIEnv string
