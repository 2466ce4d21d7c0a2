//go:build !linux

package cpu

func identity(dir string) string { return dir } // there are no control groups
