package cluster

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/cluster/internal/daemon"
	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// grace is how long a daemon that a test stops has for an orderly end.
const grace = 10 * time.Second

// Start starts a daemon that was stopped, and waits for the container runtime to answer if it is that one.
func (c *Cluster) Start(ctx context.Context, name string) error {
	return c.change(name, func(s *state.State) error {
		if s.Daemons[name].Alive() {
			return fmt.Errorf("%s runs already", name)
		}
		return c.startAgain(ctx, s, name)
	})
}

// Stop ends a daemon in order. Containers go on without the kubelet and the container runtime, as on a real node.
func (c *Cluster) Stop(name string) error {
	return c.change(name, func(s *state.State) error { return s.Daemons[name].Stop(grace) })
}

// Restart is Stop and Start at once.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	return c.change(name, func(s *state.State) error {
		if err := s.Daemons[name].Stop(grace); err != nil {
			return err
		}
		return c.startAgain(ctx, s, name)
	})
}

// Signal sends a signal to a daemon that runs. After KILL, Start starts it again; STOP suspends it until CONT.
func (c *Cluster) Signal(name string, signal unix.Signal) error {
	return c.change(name, func(s *state.State) error {
		if !s.Daemons[name].Alive() {
			return fmt.Errorf("%s does not run", name)
		}
		if err := unix.Kill(s.Daemons[name].PID, signal); err != nil {
			return fmt.Errorf("send %s to %s: %w", unix.SignalName(signal), name, err)
		}
		return nil
	})
}

// change is withState for one of the daemons.
func (c *Cluster) change(name string, f func(*state.State) error) error {
	return c.withState(func(s *state.State) error {
		if _, ok := s.Daemons[name]; !ok {
			return fmt.Errorf("no daemon %q: there are %s", name, strings.Join(slices.Sorted(maps.Keys(s.Daemons)), ", "))
		}
		return f(s)
	})
}

// withState runs f on the recorded state, one command at a time.
func (c *Cluster) withState(f func(*state.State) error) error {
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	s, err := c.State()
	if err != nil {
		return err
	}
	return f(s)
}

// startAgain records the process before it waits: a daemon that never answers can still be stopped.
func (c *Cluster) startAgain(ctx context.Context, s *state.State, name string) error {
	if _, err := c.launch(s, name); err != nil {
		return err
	}
	if err := s.Save(c.Layout.State()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, n := range c.nodes(s) {
		if name == n.Own(s.Runtime) {
			r := run{cluster: c, state: s}
			return r.awaitRuntime(ctx, n)
		}
	}
	return nil
}

// launch starts one daemon in its namespaces and records it in s.
func (c *Cluster) launch(s *state.State, name string) (ended <-chan error, err error) {
	cmd := commands(c.Plan, c.Layout, s)[name]
	log, err := os.OpenFile(c.logFile(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer log.Close()
	err = space.Do(cmd.holder.PID, cmd.where, func() error {
		var err error
		s.Daemons[name], ended, err = daemon.Start(daemon.Spec{Argv: cmd.argv, Env: Environ(s), Log: log})
		return err
	})
	return ended, err
}

// logFile is where a daemon writes, through all its restarts.
func (c *Cluster) logFile(name string) string { return filepath.Join(c.Layout.Logs(), name+".log") }

// Dialer connects from the control plane's namespace. The socket stays there, whichever namespace its user is in.
func (c *Cluster) Dialer(s *state.State) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = space.Do(s.ControlPlane.PID, space.ControlPlane, func() error {
			var d net.Dialer
			conn, err = d.DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}
