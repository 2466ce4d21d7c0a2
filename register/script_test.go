package register

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/ubcoll/ubcoll/fault"
)

// TestScripts runs the transcripts in testdata. A command is one line. It prints what it returns, and, after "| ", the
// calls of backends, OnError and done that it causes:
//
//	new [regions=N] [bytes=N] [backends=(NET,IPC)]     memory NAME id=N gen=N base=N bytes=N
//	backend KIND [register=E] [deregister=E]           E is ok, fail or unsupported
//	register REF mem=NAME off=N n=N                    graph REF mem=NAME off=N n=N
//	auto USE mem=NAME off=N n=N                        close REF      acquire USE ref=REF
//	find USE mem=NAME off=N n=N [gen=N]                findgraph, likewise        release USE
//	handle USE kind=KIND                               valid USE
//	forget NAME      invalidate mem=NAME off=N n=N     explain mem=NAME off=N n=N     stats      shutdown
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{t: t, mems: map[string]Memory{}, refs: map[string]*Ref{}, uses: map[string]*Claim{}}
		datadriven.RunTest(t, path, s.run)
	})
}

type script struct {
	t     *testing.T
	cache *Cache
	fakes map[string]*fake
	mems  map[string]Memory
	refs  map[string]*Ref
	uses  map[string]*Claim
	said  []string
}

var (
	times = regexp.MustCompile(`(?:R|Der)egisterTime:\S+ ?`)
	idle  = regexp.MustCompile(`[A-Z]+:{Complete:0 Registered:0 Unsupported:0 Failures:0} ?`)
)

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.said = nil
	out := s.command(t, d)
	for _, line := range s.said {
		out += "\n| " + line
	}
	return strings.TrimSpace(out) + "\n"
}

func (s *script) say(line string) { s.said = append(s.said, line) }

func (s *script) command(t *testing.T, d *datadriven.TestData) string {
	num := func(key string) int {
		text := "0"
		d.MaybeScanArgs(t, key, &text)
		n, err := strconv.ParseInt(text, 0, 64)
		require.NoError(t, err, d.Pos)
		return int(n)
	}
	first := func() string {
		require.NotEmpty(t, d.CmdArgs, "%s: %s needs a name", d.Pos, d.Cmd)
		return d.CmdArgs[0].Key
	}
	where := func() (Memory, uintptr, int) {
		var name string
		d.ScanArgs(t, "mem", &name)
		m, ok := s.mems[name]
		require.True(t, ok, "%s: no memory %q", d.Pos, name)
		return m, m.Base + uintptr(num("off")), num("n")
	}
	result := func(cl *Claim, err error) string {
		if err != nil {
			return err.Error()
		}
		if cl == nil {
			return "miss"
		}
		s.uses[first()] = cl
		return cl.String()
	}
	opened := func(r *Ref, err error) string {
		if err != nil {
			return err.Error()
		}
		s.refs[first()] = r
		return r.Claim().String()
	}
	ok := func(err error) string {
		if err != nil {
			return err.Error()
		}
		return "ok"
	}
	switch d.Cmd {
	case "new":
		config := Config{MaxRegions: num("regions"), MaxBytes: int64(num("bytes")), PageSize: 4096,
			OnError: func(err error) { s.say("OnError: " + err.Error()) }}
		s.fakes = map[string]*fake{}
		for _, arg := range d.CmdArgs {
			if arg.Key != "backends" {
				continue
			}
			for _, name := range arg.Vals {
				f := &fake{kind: kindOf(t, name), log: s.say}
				s.fakes[name] = f
				config.Backends = append(config.Backends, f)
			}
		}
		s.cache = newCache(t, config)
		return "ok"
	case "memory":
		s.mems[first()] = mem(uint64(num("id")), uint64(num("gen")), uintptr(num("base")), num("bytes"))
		return s.mems[first()].String()
	case "backend":
		errs := map[string]error{"": nil, "ok": nil, "fail": errFake,
			"unsupported": fmt.Errorf("not exportable: %w", fault.ErrNotSupported)}
		var reg, dereg string
		d.MaybeScanArgs(t, "register", &reg)
		d.MaybeScanArgs(t, "deregister", &dereg)
		s.fakes[first()].fail(errs[reg], errs[dereg])
		return "ok"
	case "register":
		return opened(s.cache.Register(where()))
	case "graph":
		return opened(s.cache.RetainGraph(where()))
	case "auto":
		return result(s.cache.RegisterAuto(where()))
	case "close":
		return ok(s.refs[first()].Close())
	case "acquire":
		var name string
		d.ScanArgs(t, "ref", &name)
		return result(s.refs[name].Acquire())
	case "find":
		_, addr, n := where()
		return result(s.cache.FindLocal(addr, n, uint64(num("gen"))), nil)
	case "findgraph":
		_, addr, n := where()
		return result(s.cache.FindGraph(addr, n, uint64(num("gen"))), nil)
	case "release":
		s.uses[first()].Release()
		return "ok"
	case "handle":
		var name string
		d.ScanArgs(t, "kind", &name)
		h, err := s.uses[first()].Handle(kindOf(t, name))
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%v of memory %d", h.(*fakeHandle).kind, h.(*fakeHandle).mem.ID)
	case "valid":
		return ok(s.uses[first()].Valid())
	case "forget":
		m := s.mems[first()]
		return ok(s.cache.Forget(m, func(err error) {
			s.say(strings.TrimSuffix(fmt.Sprintf("memory %d is free; %v", m.ID, err), "; <nil>"))
		}))
	case "invalidate":
		_, addr, n := where()
		return ok(s.cache.Invalidate(addr, n))
	case "explain":
		_, addr, n := where()
		return s.cache.Explain(addr, n)
	case "stats":
		text := strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%+v", s.cache.Stats()), "{"), "}")
		return strings.TrimSpace(idle.ReplaceAllString(times.ReplaceAllString(text, ""), ""))
	case "shutdown":
		return ok(s.cache.Close())
	}
	d.Fatalf(t, "unknown command %q", d.Cmd)
	return ""
}

func kindOf(t *testing.T, name string) BackendKind {
	t.Helper()
	for k := NET; k < kinds; k++ {
		if k.String() == name {
			return k
		}
	}
	require.NoError(t, errors.New("no kind of backend is called "+name))
	return 0
}
