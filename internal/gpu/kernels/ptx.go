package kernels

import (
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
)

//go:generate ../../../scripts/kernels

// Compressed, since every program that imports the collectives carries all of it: 2.2 MiB instead of 11.
//
//go:embed ptx/*.ptx.gz
var ptx embed.FS

// variant is a module for devices from sm_90 on (early), or for older ones.
type variant struct {
	module string
	early  bool
}

// texts has the variants that were requested, each a func() (string, error): a process decompresses a module once,
// however many of its ranks load it.
var texts sync.Map

// source returns the PTX of a module for a device.
func source(module string, early bool) (string, error) {
	v := variant{module, early}
	text, ok := texts.Load(v)
	if !ok {
		text, _ = texts.LoadOrStore(v, sync.OnceValues(func() (string, error) {
			text, err := decompress(ptx, file(module))
			return assembly(text, early), err
		}))
	}
	return text.(func() (string, error))()
}

// file returns the name of a module's PTX in the embedded files.
func file(module string) string { return "ptx/" + module + ".ptx.gz" }

// decompress returns the PTX in a file as it was built.
func decompress(from fs.FS, name string) (string, error) {
	f, err := from.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	var text strings.Builder
	if _, err := io.Copy(&text, z); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return text.String(), nil
}

// assembly returns PTX for a device. For early it enables the instructions for sm_90, which are in comments. With
// these, kernels wait themselves for the kernel before them in their stream, so that they can be launched early.
func assembly(text string, early bool) string {
	if !early {
		return text
	}
	text = strings.Replace(text, ".target sm_80", ".target sm_90", 1)
	var b strings.Builder
	b.Grow(len(text))
	for found := true; found; {
		var before, hidden string
		before, text, found = strings.Cut(text, "/*sm_90 ")
		hidden, text, _ = strings.Cut(text, " sm_90*/")
		b.WriteString(before)
		b.WriteString(hidden)
	}
	return b.String()
}
