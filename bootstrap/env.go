package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/ubcoll/ubcoll/fault"
	"github.com/ubcoll/ubcoll/internal/env"
)

const (
	joinTimeout = time.Minute // for all processes to find rank 0
	minSecret   = 16          // bytes
)

// closeTimeout is how long Close waits for the other ranks.
const closeTimeout = time.Minute

// Env takes this process's rank from the environment: UBCOLL_RANK, UBCOLL_SIZE, UBCOLL_RENDEZVOUS (where rank 0
// listens: host:port, unix:@name for an abstract socket, or unix:/path) and UBCOLL_SECRET (at least 16 bytes; ranks
// prove to each other that they know it, and never send it). It is for processes without MPI. [EnvVars] makes the four
// variables.
//
// Without UBCOLL_RANK and UBCOLL_SIZE, the ranks are those of torchrun (RANK, WORLD_SIZE) or, where no mpirun started
// this process, of Slurm's srun (SLURM_PROCID and the variables of its step). On one host they meet at an abstract
// socket that admits this user alone, and UBCOLL_SECRET may be missing. On several hosts it is needed, and rank 0
// listens on the step's first node, or on MASTER_ADDR, at a port from 63001 to 65535 that the job's identity gives.
// UBCOLL_RENDEZVOUS replaces that place. Jobs that meet at one place by chance refuse each other.
//
// Env is collective over the processes of the job and blocks until all are there, for at most a minute. ErrArgument
// names all missing or malformed variables at once. ErrMismatch: two processes have the same rank, or ranks disagree on
// the size or the secret. ErrTimeout, on every rank that came: some rank never came.
//
// All messages go through rank 0, those of an Exchange ([Exchanger]) too: 64 MiB of a rank at most, and 1 GiB of all
// ranks together (ErrLimit). The connections are authenticated when they open, but not encrypted. If a rank dies, all
// others return ErrPeerLost with its name within 2 seconds. If a host dies, or is cut off, they do once it has answered
// nothing for as long as UBCOLL_NET_TIMEOUT says (5 seconds; other systems than Linux notice it later if data was on its
// way to that host). A process that is stopped is not lost, since its kernel answers. Over Unix sockets, rank 0 closes
// connections of other users before it reads anything. Connections that stay
// silent keep no rank out. Abstract and TCP rendezvous leave nothing on disk, however the job ends. A socket at a path
// is removed once all ranks are there, and the next job removes one that a killed process has left.
func Env() (Bootstrap, error) {
	c, err := envConfig()
	if err != nil {
		return nil, err
	}
	return c.join(joinTimeout)
}

// EnvVars returns the variables that [Env] needs in one process of a job, as NAME=value for exec.Cmd.Env. Local.
func EnvVars(rank, size int, rendezvous, secret string) []string {
	return []string{
		env.Rank.Name + "=" + strconv.Itoa(rank),
		env.Size.Name + "=" + strconv.Itoa(size),
		env.Rendezvous.Name + "=" + rendezvous,
		env.Secret.Name + "=" + secret,
	}
}

// config is one process's place in an Env job.
type config struct {
	rank, size    int
	network, addr string // where the others look for rank 0
	bind          string // where rank 0 listens, if not at addr
	secret        []byte
	netTimeout    time.Duration // how long another host may be silent; 0: as long as the system lets it

	job   string // as whose variables say, in words; "" for those of UBCOLL_
	peers bool   // no secret was given: a Unix socket admits this user alone, and rank 0 makes the key
}

// envConfig reads the variables of whoever started this process, and reports all faults at once.
func envConfig() (config, error) {
	var f faults
	var c config
	netTimeout, err := env.NetTimeout.Get()
	switch name, _ := Launcher(); {
	case env.Rank.IsSet() || env.Size.IsSet():
		c = f.ubcoll()
	case name == torchrun:
		c = f.torchrun()
	case name == srun:
		c = f.slurm()
	default:
		c = f.ubcoll()
	}
	c.netTimeout = netTimeout
	f.bad(err)
	if f != nil {
		var text []string
		for _, err := range f {
			text = append(text, err.Error())
		}
		return config{}, fmt.Errorf("bootstrap: %s: %w", strings.Join(text, "; "), fault.ErrArgument)
	}
	return c, nil
}

// ubcoll reads the project's own variables.
func (f *faults) ubcoll() (c config) {
	f.missing(env.Rank.Info, env.Rank.IsSet())
	f.missing(env.Size.Info, env.Size.IsSet())
	f.missing(env.Rendezvous.Info, env.Rendezvous.IsSet())
	f.missing(env.Secret.Info, env.Secret.IsSet())

	var err, err2 error
	c.rank, err = env.Rank.Get()
	f.bad(err)
	c.size, err2 = env.Size.Get()
	f.bad(err2)
	if err == nil && err2 == nil && env.Rank.IsSet() && env.Size.IsSet() && c.rank >= c.size {
		f.bad(fmt.Errorf("%s=%d does not fit %s=%d: ranks count from 0", env.Rank.Name, c.rank, env.Size.Name, c.size))
	}
	f.meet(&c)
	c.secret = f.secret()
	return c
}

// rendezvous splits the variable's value into the arguments of the net package.
func rendezvous(s string) (network, addr string, err error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if len(path) < 2 || path[0] != '@' && path[0] != '/' {
			return "", "", fmt.Errorf("%s=%q: want unix:@name or unix:/path", env.Rendezvous.Name, s)
		}
		return "unix", path, nil
	}
	host, port, err := net.SplitHostPort(s)
	n, err2 := strconv.ParseUint(port, 10, 16)
	if err != nil || err2 != nil || host == "" || n == 0 {
		return "", "", fmt.Errorf("%s=%q: want host:port, unix:@name or unix:/path", env.Rendezvous.Name, s)
	}
	return "tcp", s, nil
}

// join finds the other processes.
func (c config) join(timeout time.Duration) (Bootstrap, error) {
	find := c.host
	if c.rank != 0 {
		find = c.dial
		timeout += handshakeTimeout // wait for rank 0's answer: it knows who is missing, and its clock may have started later
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	b, err := find(ctx)
	if err == nil {
		return b, nil
	}
	if e, ok := errors.AsType[*fault.Error](err); ok { // some rank died meanwhile
		return nil, e
	}
	if !strings.Contains(err.Error(), c.addr) {
		err = fmt.Errorf("at %s: %w", c.addr, err)
	}
	if c.job != "" {
		err = fmt.Errorf("%s: %w", c.job, err)
	}
	return nil, &fault.Error{Op: "bootstrap", Rank: c.rank, Peer: -1, Step: "join", Err: err}
}
