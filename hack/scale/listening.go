package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"
)

// listensOn are the ports of a pod's application.
var listensOn = []string{"0.0.0.0:8080", "[::]:9090", "127.0.0.1:9901"}

// reportPause is how long the agent does not read the ports of a pod after a change.
const reportPause = time.Minute

// listening measures what pods cost of which only the ports are captured on which somebody listens: the agent reads those when it compares
// a sandbox. The same node's agents are started in turn, twice each, and the least of each counts: whatever else the machine does only adds.
func (b bench) listening(ctx context.Context, dir string) (rows []row, err error) {
	n, err := b.newNode(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.runtime.stop(), n.server.stop()) }()
	n.namespaces = 1
	if err := makeNamespaces(ctx, n.server.admin, n.namespaces); err != nil {
		return nil, err
	}
	if err := n.fill(ctx); err != nil {
		return nil, err
	}
	for _, s := range n.runtime.all() {
		stop, err := s.listen()
		if err != nil {
			return nil, err
		}
		n.runtime.containers.closed = append(n.runtime.containers.closed, stop)
	}
	if err := n.program(ctx); err != nil {
		return nil, err
	}
	load := map[string]float64{"all": math.Inf(1), "listening": math.Inf(1)}
	for _, ports := range []string{"all", "listening", "all", "listening"} {
		n.calm = settled
		if ports == "listening" {
			n.calm += reportPause
		}
		seen, err := n.restart(ctx, interval, "--inbound-ports="+ports)
		if err != nil {
			return nil, err
		}
		load[ports] = min(load[ports], seen.load)
	}
	of := fmt.Sprintf("CPU with %d sandboxes whose listening ports are captured, each compared every %s, against those with all ports", n.here, interval)
	return []row{newRow(of, "% of a core", load["listening"], load["all"], "< 1")}, nil
}

// listen has the sandbox's application listen on its ports.
func (s *sandbox) listen() (stop func() error, err error) {
	if err := s.up(); err != nil {
		return nil, err
	}
	var open []net.Listener
	err = s.mounted.Inside(func() error {
		for _, address := range listensOn {
			l, err := net.Listen("tcp", address)
			if err != nil {
				return err
			}
			open = append(open, l)
		}
		return nil
	})
	return func() (err error) {
		for _, l := range open {
			err = errors.Join(err, l.Close())
		}
		return err
	}, err
}
