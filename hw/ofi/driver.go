//go:build linux && cgo && (amd64 || arm64)

package ofi

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall
#cgo LDFLAGS: -ldl
#cgo noescape uof_post
#cgo nocallback uof_post
#cgo noescape uof_poll
#cgo nocallback uof_poll
#include <stdlib.h>
#include "lib.h"
*/
import "C"

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ubcoll/ubcoll/hw"
	"github.com/ubcoll/ubcoll/hw/signals"
	"github.com/ubcoll/ubcoll/internal/env"
)

// load is the library's loading, once per process.
var load = sync.OnceValues(func() (Library, error) {
	lib := Library{Path: "libfabric.so.1"}
	path, err := env.OFILibrary.Get()
	if err != nil {
		return lib, err
	}
	if path != "" {
		lib.Path = path
	}
	c := C.CString(lib.Path)
	defer C.free(unsafe.Pointer(c))
	var why [512]C.char
	var missing *C.char
	var version C.uint32_t
	var before C.int
	var ok C.int
	guard(func() { ok = C.uof_load(c, &why[0], C.size_t(len(why)), &missing, &version, &before) })
	lib.Shared = before != 0
	major, minor := version>>16, version&0xffff
	lib.Version = fmt.Sprintf("%d.%d", major, minor)
	switch {
	case ok == 0 && missing != nil:
		return lib, fmt.Errorf("%s has no %s: it is no libfabric, or older than 1.9: %w", lib.Path, C.GoString(missing), hw.ErrNotSupported)
	case ok == 0:
		return lib, fmt.Errorf("no libfabric: %s: %w", C.GoString(&why[0]), hw.ErrNotSupported)
	case major < 1 || major == 1 && minor < 9 || major > 2:
		return lib, fmt.Errorf("%s is libfabric %s: want one of 1.9 to 2.x: %w", lib.Path, lib.Version, hw.ErrNotSupported)
	}
	return lib, nil
})

// Load loads the library, libfabric.so.1 or the one that UBCOLL_OFI_LIB names, unless that has been done. It may block: some
// builds load many libraries.
func Load() (Library, error) {
	lib, err := load()
	lib.Signals = int(undone.Load())
	return lib, err
}

// undone counts handlers of signals that were taken away again: see [Library].Signals.
var undone atomic.Int64

// guard runs f, in which the library, or what it loads, may install such handlers.
func guard(f func()) { undone.Add(int64(signals.Guard(f))) }

// Have says whether this host has libfabric. Providers come from [List].
func Have() hw.Probe {
	_, err := load()
	return hw.Probe{Name: "libfabric", Err: err}
}

// Info is a way to other processes that [Open] opens.
type Info struct {
	Description
	raw *C.uof_info
}

// asking is full while somebody asks the library, which starts its providers at the first question.
var asking = make(chan struct{}, 1)

// List asks which providers there are: those that [Open] can open, in libfabric's order, best first; and the others, with what
// is missing. provider and domain select, if they are not "": see [Description.Matches]. It may block for as long as providers
// take to look for their devices, until ctx ends; a thread may then stay behind. No provider at all is no error.
// (fi_getinfo)
func List(ctx context.Context, provider, domain string) ([]*Info, []Refused, error) {
	if _, err := load(); err != nil {
		return nil, nil, err
	}
	late := func() error {
		return fmt.Errorf("fi_getinfo, which asks all providers for their devices, has not answered: %w", context.Cause(ctx))
	}
	select {
	case asking <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, late()
	}
	type answer struct {
		infos   []*Info
		refused []Refused
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		defer func() { <-asking }()
		var a answer
		a.infos, a.refused, a.err = list(provider, domain)
		answers <- a
	}()
	select {
	case a := <-answers:
		return a.infos, a.refused, a.err
	case <-ctx.Done():
		return nil, nil, late()
	}
}

// list asks several times: a provider that lacks one of the capabilities that are asked for does not answer, and of what it can
// do it says only what is asked for, unless that is nothing.
func list(provider, domain string) (infos []*Info, refused []Refused, err error) {
	all, err := getinfo(provider, domain, 0, ^uint64(0), ^C.int(3), 0)
	if err != nil {
		return nil, nil, err
	}
	hmem := map[string]bool{}
	for _, i := range all {
		hmem[i.key()] = hmem[i.key()] || i.Caps.Has(Devices)
	}
	taken := map[string]bool{}
	for _, caps := range []Caps{Messages | RMA | Atomics | Remote, Messages | RMA | Remote, Messages | Remote} {
		some, err := getinfo(provider, domain, caps, servedModes, C.int(served), C.UOF_EP_RDM)
		if err != nil {
			return nil, nil, err
		}
		for _, i := range some {
			k := i.key()
			if taken[k] || i.lacks() != nil {
				continue
			}
			taken[k] = true
			if hmem[k] {
				i.Caps |= Devices
			}
			infos = append(infos, i)
		}
	}
	better := map[string]bool{} // of these there is a way, or the reason was said
	for _, i := range infos {
		better[i.Core()+" "+i.Domain] = true
	}
	for _, rdm := range []bool{true, false} { // first those that come nearest
		for _, i := range all {
			k := i.Core() + " " + i.Domain
			if better[k] || rdm != i.rdm {
				continue
			}
			why := i.lacks()
			if why == nil {
				why = fmt.Errorf("has no combination of what is needed: %w", hw.ErrNotSupported)
			}
			better[k] = true
			refused = append(refused, Refused{i.Description, why})
		}
	}
	return infos, refused, nil
}

// known has what the library has said of each way that can be opened, for as long as the process lives: an Info has nothing to
// close, and a machine has few ways. Only who has its turn in asking uses it.
var known = map[string]*C.uof_info{}

// getinfo asks once.
func getinfo(provider, domain string, caps Caps, mode uint64, mr C.int, ep C.int) ([]*Info, error) {
	var p, d *C.char
	if provider != "" {
		p = C.CString(provider)
		defer C.free(unsafe.Pointer(p))
	}
	if domain != "" {
		d = C.CString(domain)
		defer C.free(unsafe.Pointer(d))
	}
	var raw *C.uof_info
	var code C.int
	guard(func() { code = C.uof_getinfo(p, d, C.uint64_t(caps), C.uint64_t(mode), mr, ep, &raw) })
	if code != 0 {
		if code == noData {
			return nil, nil
		}
		return nil, &Error{Call: "fi_getinfo", Code: Code(code), Text: text(code)}
	}
	defer C.uof_free(raw)
	var infos []*Info
	for r := raw; r != nil; r = r.next {
		i := &Info{Description: describe(r)}
		if !i.Matches(provider) || domain != "" && i.Domain != domain { // some providers leave that to others
			continue
		}
		what := fmt.Sprintf("%s\x00%x", i.key(), caps)
		if known[what] == nil && caps != 0 { // what was asked for nothing is not opened
			if known[what] = C.uof_dup(r); known[what] == nil {
				return nil, &Error{Call: "fi_dupinfo", Code: Code(syscall.ENOMEM), Text: text(C.int(syscall.ENOMEM))}
			}
		}
		i.raw = known[what]
		infos = append(infos, i)
	}
	return infos, nil
}

// noData is what fi_getinfo returns if no provider fits.
const noData = C.int(syscall.ENODATA)

func text(code C.int) string { return C.GoString(C.uof_text(code)) }

// key is what tells ways apart.
func (d *Description) key() string {
	return d.Provider + "\x00" + d.Domain + "\x00" + d.Fabric + "\x00" + d.source
}

func describe(r *C.uof_info) Description {
	f, a := r.fabric_attr, r.domain_attr
	d := Description{
		Provider: C.GoString(f.prov_name), Fabric: C.GoString(f.name), Domain: C.GoString(a.name),
		Version: fmt.Sprintf("%d.%d", f.prov_version>>16, f.prov_version&0xffff),
		Caps:    Caps(r.caps), MRMode: MRMode(a.mr_mode), Manual: a.data_progress == C.UOF_PROGRESS_MANUAL,
		MaxMessage: most(uint64(r.ep_attr.max_msg_size)), Inline: most(uint64(r.tx_attr.inject_size)), Work: most(uint64(r.tx_attr.size)),
		Receives: most(uint64(r.rx_attr.size)), DataBytes: most(uint64(a.cq_data_size)), KeyBytes: most(uint64(a.mr_key_size)),
		SendsLast: r.tx_attr.msg_order&C.UOF_ORDER_SAW != 0,
		serial:    a.threading != C.UOF_THREAD_SAFE, rdm: r.ep_attr._type == C.UOF_EP_RDM,
		asks: uint64(r.mode | r.tx_attr.mode | r.rx_attr.mode),
	}
	if r.src_addr != nil {
		b := C.GoBytes(r.src_addr, C.int(r.src_addrlen))
		d.source = string(b)
		switch {
		case r.addr_format == C.UOF_SOCKADDR_IN && len(b) >= 8: // struct sockaddr_in
			d.Address, _ = netip.AddrFromSlice(b[4:8])
		case r.addr_format == C.UOF_SOCKADDR_IN6 && len(b) >= 24: // struct sockaddr_in6
			d.Address, _ = netip.AddrFromSlice(b[8:24])
		}
	}
	if r.nic != nil && r.nic.link_attr != nil {
		d.Gbits = float64(r.nic.link_attr.speed) / 1e9
		d.Down = r.nic.link_attr.state == C.UOF_LINK_DOWN
	}
	return d
}
