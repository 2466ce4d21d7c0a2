package launch

import "time"

// Launcher and agent write each other lines of JSON, over the agent's standard input and output.

// version is of these lines; both sides have to have the same.
const version = 1

// hello is an agent's first line. Whatever a login shell writes before it is not ours.
type hello struct {
	Agent      int      `json:"ubcoll_agent"` // its version
	Host       string   `json:"host"`
	Processors int      `json:"processors"`
	Addresses  []string `json:"addresses"` // of interfaces that are up, without loopback, IPv4 first
	Port       int      `json:"port"`      // one that is free
}

// start is the launcher's first line.
type start struct {
	Dir        string        `json:"dir"`
	Env        []string      `json:"env"` // beside what the agent itself has
	Args       []string      `json:"args"`
	First      int           `json:"first"` // of this agent's ranks
	Ranks      int           `json:"ranks"` // of this agent
	Size       int           `json:"size"`
	Rendezvous string        `json:"rendezvous"`
	Secret     string        `json:"secret"` // on no command line, which all users of a machine see
	Grace      time.Duration `json:"grace"`
}

// order is any later line of the launcher. The end of the agent's input means that the launcher is gone.
type order struct {
	Signal int `json:"signal"` // for all ranks
}

// event is any later line of the agent.
type event struct {
	Rank   int    `json:"rank"`
	Out    []byte `json:"out,omitempty"` // whole lines
	Err    []byte `json:"err,omitempty"`
	Ended  bool   `json:"ended,omitempty"`
	Code   int    `json:"code,omitempty"`   // of a rank that has ended, as a shell has it
	Signal string `json:"signal,omitempty"` // which killed it
	Fault  string `json:"fault,omitempty"`  // why it could not start
}
