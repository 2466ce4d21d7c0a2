package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ubcoll/ubcoll/hw/verbs"
)

// request is what A asks of B, reply what B answers.
type request struct {
	Do string
	QP []byte // for connect: A's queue pair
}

type reply struct {
	Error   string
	QP      []byte           // B's queue pair
	Regions map[string]grant // for open
}

// grant has all that a peer must know to use memory from afar.
type grant struct {
	Address uint64
	Key     verbs.RKey
}

// B's pages.
const (
	openPage  = iota // peers may do everything
	readPage         // peers may read
	writePage        // peers may write
	mailPage         // for messages: peers get no key for it
)

// counter is the offset in the open page of the number that peers update.
const counter = 1024

// peer is B.
type peer struct {
	*end
	regions map[int]*verbs.MR
	before  []byte // a copy of the memory, made when A asks for it
}

// serve does what A asks for until A is done or gone. The first request must be open.
func serve(l *link, o options, out io.Writer) (err error) {
	var first request
	if err := l.receive(&first); err != nil {
		return fmt.Errorf("B: A is gone: %w", err)
	}
	e, err := open("B", o, out)
	if err != nil {
		return errors.Join(err, l.send(reply{Error: err.Error()}))
	}
	b := &peer{end: e, regions: map[int]*verbs.MR{}}
	for q := first; ; {
		r, err := b.do(q)
		if err != nil {
			r.Error = err.Error()
		}
		err = errors.Join(err, l.send(r))
		switch {
		case q.Do == "close":
			return err
		case err == nil:
			q = request{}
			if err = l.receive(&q); err != nil {
				err = fmt.Errorf("B: A is gone: %w", err)
			}
		}
		if err != nil {
			return errors.Join(err, b.shut())
		}
	}
}

func (b *peer) do(q request) (r reply, err error) {
	switch q.Do {
	case "open":
		return b.register()
	case "address":
		r.QP, err = b.address()
		return r, err
	case "connect":
		return r, b.connect(q.QP, "A")
	case "show":
		b.say("finds %q, and %d in the counter", b.text(openPage), b.count())
	case "receive": // a receive for A's next message, which must be posted before A sends
		_, err := b.qp.PostReceive(verbs.Receive{ID: 1, Local: b.regions[mailPage].Address(), Length: page, Key: b.regions[mailPage].LKey()})
		return r, err
	case "received":
		return r, b.received()
	case "remember":
		b.before = slices.Clone(b.memory)
	case "unchanged":
		if !slices.Equal(b.before, b.memory) {
			return r, errors.New("B's memory has changed, which it must not")
		}
		b.say("finds all its memory as it was")
	case "deregister":
		if err := b.regions[openPage].Close(); err != nil {
			return r, err
		}
		delete(b.regions, openPage)
		b.say("deregistered page %d: the device has forgotten it, the memory is B's own again", openPage)
	case "close":
		return r, b.shut()
	default:
		return r, fmt.Errorf("B does not know how to %q: are both programs of one version?", q.Do)
	}
	return r, nil
}

// register registers each of B's pages with its flags, and grants A what A may use.
func (b *peer) register() (r reply, err error) {
	copy(b.memory[readPage*page:], "B's own words")
	r.Regions = map[string]grant{}
	for _, p := range []struct {
		page   int
		name   string
		access verbs.Access
	}{
		{openPage, "open", verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic},
		{readPage, "read", verbs.RemoteRead},
		{writePage, "write", verbs.LocalWrite | verbs.RemoteWrite}, // memory that others may write must be writable for this process, too
		{mailPage, "", verbs.LocalWrite},                           // the device writes received messages on B's behalf
	} {
		mr, err := b.end.register(p.page, p.access)
		if err != nil {
			return r, err
		}
		b.regions[p.page] = mr
		if p.name != "" {
			r.Regions[p.name] = grant{mr.Address(), mr.RKey()}
		}
	}
	r.QP, err = b.address()
	return r, err
}

func (b *peer) received() error {
	c, err := b.completion()
	if err == nil {
		err = b.cq.Failure(&c)
	}
	if err != nil {
		return err
	}
	if v, ok := c.Immediate(); ok {
		b.say("is told the number %d, and that %d bytes were written", v, c.Bytes)
		return nil
	}
	b.say("received %d bytes: %q", c.Bytes, b.text(mailPage))
	return nil
}

func (b *peer) count() uint64 { return binary.NativeEndian.Uint64(b.memory[openPage*page+counter:]) }

// shut deregisters what is still registered, and closes the rest.
func (b *peer) shut() error {
	var errs []error
	for _, mr := range b.regions {
		errs = append(errs, mr.Close())
	}
	err := errors.Join(append(errs, b.close())...)
	if err == nil {
		b.say("deregistered what was left, and closed all")
	}
	return err
}
