package launch

import "time"

// Launcher and agent write each other lines of JSON, over the agent's standard input and output.

// version is the version of these lines. Both sides must have the same.
const version = 1

// hello is an agent's first line. Lines before it are from a login shell.
type hello struct {
	Agent      int      `json:"ubcoll_agent"` // its version
	Host       string   `json:"host"`
	Processors int      `json:"processors"`
	Addresses  []string `json:"addresses"` // of interfaces that are up, without loopback, IPv4 first
	Port       int      `json:"port"`      // a free one
}

// start is the launcher's first line.
type start struct {
	Dir        string        `json:"dir"`
	Env        []string      `json:"env"` // in addition to the agent's own
	Args       []string      `json:"args"`
	First      int           `json:"first"` // first rank of this agent
	Ranks      int           `json:"ranks"` // number of ranks of this agent
	Size       int           `json:"size"`
	Rendezvous string        `json:"rendezvous"`
	Secret     string        `json:"secret"` // never on a command line, which all users of a machine can see
	Grace      time.Duration `json:"grace"`
}

// order is any later line from the launcher. If the agent's input ends, the launcher is gone.
type order struct {
	Signal int `json:"signal"` // to be sent to all ranks
}

// event is any later line from the agent.
type event struct {
	Rank   int    `json:"rank"`
	Out    []byte `json:"out,omitempty"` // whole lines
	Err    []byte `json:"err,omitempty"`
	Ended  bool   `json:"ended,omitempty"`
	Code   int    `json:"code,omitempty"`   // exit code of a rank that has ended, in a shell's form
	Signal string `json:"signal,omitempty"` // the signal that killed it
	Fault  string `json:"fault,omitempty"`  // why it could not start
}
