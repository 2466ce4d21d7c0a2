package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ubcoll/ubcoll/internal/env"
	"github.com/ubcoll/ubcoll/internal/flight"
)

// Dumps. Each rank writes its own file: of its communicators, and of what the other ranks of its host have published there,
// who may be stopped or dead. See package flight.

// Laner is an attachment that can say which messages are under way, for any goroutine.
type Laner interface {
	Lanes() []flight.Lane
}

// domains are those of this process that have communicators.
var domains struct {
	sync.Mutex
	all     []*Domain
	signals int // how many have asked for dumps at a signal
}

// dumps makes c, which is open, part of dumps.
func (c *Comm) dumps() {
	d := c.dom
	domains.Lock()
	defer domains.Unlock()
	d.mu.Lock()
	if len(d.open) == 0 {
		domains.all = append(domains.all, d)
	}
	d.open = append(d.open, c)
	d.mu.Unlock()
	c.team.Dumps(domains.signals > 0)
}

// noDumps ends that. Afterwards no dump reads what c frees.
func (d *Domain) noDumps(c *Comm) {
	c.Polls.Drain()
	domains.Lock()
	defer domains.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.open, c)
	if i < 0 {
		return
	}
	if d.open = slices.Delete(d.open, i, i+1); len(d.open) == 0 {
		domains.all = slices.DeleteFunc(domains.all, func(e *Domain) bool { return e == d })
	}
}

// DumpAtSignal says that this process writes dumps when it gets a signal, so that others know that they may send it; or, once
// for each time that it has said so, that it no longer does.
func DumpAtSignal(on bool) {
	domains.Lock()
	defer domains.Unlock()
	if on {
		domains.signals++
	} else {
		domains.signals--
	}
	for _, d := range domains.all {
		d.mu.Lock()
		for _, c := range d.open {
			if c.Polls.Enter() {
				c.team.Dumps(domains.signals > 0)
			}
			c.Polls.Leave()
		}
		d.mu.Unlock()
	}
}

// DumpAll writes the dumps of all ranks of this process, and returns what they have written and to which folder, "" if
// none is named.
func DumpAll(why string) (all []*flight.Dump, folder string, err error) {
	domains.Lock()
	ds := slices.Clone(domains.all)
	domains.Unlock()
	folder, err = env.Dump.Get()
	for _, d := range ds {
		dump, e := d.write(why, folder)
		all, err = append(all, dump), errors.Join(err, e)
	}
	return all, folder, err
}

// dumpBroken writes a dump because a communicator has broken, if the user wants dumps.
func (d *Domain) dumpBroken(why error) {
	folder, err := env.Dump.Get()
	d.mu.Lock()
	none := len(d.open) == 0 // as long as the first one is being opened: that error says enough
	d.mu.Unlock()
	if err != nil || folder == "" || none {
		return
	}
	if _, err := d.write(why.Error(), folder); err != nil {
		d.log.Warn("ubcoll: no dump", "rank", d.rank, "folder", folder, "error", err)
	}
}

// write makes a dump, and writes it to folder, unless that is "".
func (d *Domain) write(why, folder string) (*flight.Dump, error) {
	d.dumping.Lock()
	defer d.dumping.Unlock()
	host, _ := os.Hostname()
	if d.hosts != nil {
		host = d.hosts[d.rank]
	}
	dump := &flight.Dump{Version: flight.Version, Job: fmt.Sprintf("%016x", d.job), Rank: d.rank, Size: int(d.size), Host: host,
		PID: os.Getpid(), Program: filepath.Base(os.Args[0]), Time: time.Now(), Why: why, Hosts: d.hosts}
	d.mu.Lock()
	cs := slices.Clone(d.open)
	d.mu.Unlock()
	for _, c := range cs {
		if c.Polls.Enter() {
			dump.Comms = append(dump.Comms, c.dump())
		}
		c.Polls.Leave()
	}
	if folder == "" {
		return dump, nil
	}
	return dump, dump.Write(folder)
}

// mostOfPeers is how many operations of each other rank of the host are in a dump.
const mostOfPeers = 8

// dump is c's part of a dump. The caller has entered Polls.
func (c *Comm) dump() flight.Comm {
	t := &c.team
	k := flight.Comm{ID: fmt.Sprintf("%016x", t.ID()), Rank: c.rank, Size: c.size, State: "open", Peer: -1,
		Side: t.Side(t.Rank(), math.MaxInt)}
	for _, r := range c.world {
		k.Members = append(k.Members, int(r))
	}
	if e := c.broken.Load(); e != nil {
		k.State, k.Peer = e.Error(), e.Peer
	}
	for r := range t.Peers {
		if r == t.Rank() || t.Peers[r].Area == nil {
			continue
		}
		pid, closed, dead := t.Shown(r)
		k.Local = append(k.Local, flight.Peer{Rank: t.Name(r), Host: c.Hostname(t.Name(r)), PID: pid, Closed: closed, Dead: dead,
			Side: t.Side(r, mostOfPeers)})
	}
	for _, a := range c.attached {
		if l, ok := a.(Laner); ok {
			k.Messages = append(k.Messages, l.Lanes()...)
		}
	}
	slices.SortStableFunc(k.Messages, func(a, b flight.Lane) int { return cmp.Compare(a.Peer, b.Peer) })
	if c.device != nil && c.dom.device != nil {
		k.Device = &flight.Device{Name: c.dom.device.Device().String(), Busy: c.device.Busy()}
	}
	return k
}
