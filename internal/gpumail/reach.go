package gpumail

import (
	"fmt"

	"github.com/ubcoll/ubcoll/hw/verbs"
	"github.com/ubcoll/ubcoll/internal/mail"
	"github.com/ubcoll/ubcoll/internal/team"
	"github.com/ubcoll/ubcoll/internal/transport/net/mr"
	"github.com/ubcoll/ubcoll/register"
)

// reach finds the registration by which RDMA devices read or write the memory of a message, or makes it if the policy allows. why is
// how they reach it or, if the claim is nil, why they do not; "" where nobody would expect that. stream says that the message is on a
// stream of the user's, again that its kernel runs more than once: then nothing is registered.
func (f *far) reach(v *team.Vec, recv, stream, again bool) (cl *register.Claim, why string) {
	c := f.m.c
	switch {
	case c.Domain().NICs() == nil:
		return nil, ""
	case v.Bytes() <= mail.BouncePart:
		return nil, fmt.Sprintf("as are all messages of up to %d bytes", mail.BouncePart)
	}
	if again {
		cl = c.Domain().Cache.FindGraph(uintptr(v.Ptr), v.Bytes(), 0)
	} else {
		var b team.Buf
		if err := c.Acquire(v, &b, false); err != nil {
			return nil, err.Error()
		}
		cl, why = b.Claim, b.Why
	}
	if cl == nil {
		return nil, why
	}
	why, err := wayOf(cl, recv)
	switch {
	case err != nil:
		why = err.Error()
	case recv && stream && !f.m.d.Domain.Ordered():
		why = fmt.Sprintf("%v shows only after a call of the driver what RDMA devices have written, and streams make none", v.Dev)
	default:
		return cl, why
	}
	cl.Release()
	return nil, why
}

// wayOf returns how RDMA devices reach a claim's memory, for puts from there or to it.
func wayOf(cl *register.Claim, recv bool) (string, error) {
	h, err := cl.Handle(register.NET)
	if err != nil {
		return "", err
	}
	region := h.(*mr.Region) // there are NICs, so that libfabric is not the backend
	access := verbs.Access(0)
	if recv {
		access = verbs.LocalWrite | verbs.RemoteWrite
	}
	_, err = region.For(access)
	return region.Way(), err
}

// bounced is why a message is not direct.
func bounced(why string) string {
	if why == "" {
		return whyBounced
	}
	return whyBounced + ": " + why
}
