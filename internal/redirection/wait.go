package redirection

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// interval is the time between two tries of Wait.
const interval = 50 * time.Millisecond

// Options are the flags of the command `wait`.
type Options struct {
	// Port is the proxy's port for inbound traffic.
	Port    uint16
	Timeout time.Duration
	// Once makes one try and ignores Timeout.
	Once bool
	// NoRules is for a pod whose interception mode is NONE.
	NoRules bool
	// DirectIPv6 is for a pod whose IPv6 traffic is not redirected.
	DirectIPv6 bool
}

// DefaultOptions returns the options without flags.
func DefaultOptions() Options { return Options{Port: 15006, Timeout: time.Minute} }

// Run waits as the options say, and writes one line that says what was proven.
func Run(ctx context.Context, o Options, out io.Writer) error {
	switch {
	case o.Port == 0:
		return errors.New("--port 0: want 1 to 65535")
	case o.Timeout <= 0 && !o.Once:
		return errors.New("--timeout " + o.Timeout.String() + ": want more than 0; --once tries once")
	}
	if o.NoRules {
		_, err := io.WriteString(out, "the interception mode is NONE: there are no rules to wait for\n")
		return err
	}
	start := time.Now()
	proof, err := Wait(ctx, o)
	if err != nil {
		return err
	}
	text := append([]byte("redirection is in force after "), time.Since(start).Round(time.Millisecond).String()...)
	text = append(text, ':')
	for _, f := range proof.Families {
		text = append(append(text, ' '), f...)
	}
	if proof.ByProxy {
		text = append(text, ", by a connection that the process on port "+strconv.Itoa(int(o.Port))+" took"...)
	}
	_, err = out.Write(append(text, '\n'))
	return err
}

// Wait tries until redirection is proven for all families, or the time is up.
func Wait(ctx context.Context, o Options) (Proof, error) {
	p, err := New(o.Port)
	if err != nil {
		return Proof{}, err
	}
	defer p.Close()
	if o.DirectIPv6 {
		p.families = slices.DeleteFunc(p.families, func(f family) bool { return f.domain == syscall.AF_INET6 })
	}
	tick, end := time.NewTicker(interval), time.After(o.Timeout)
	defer tick.Stop()
	for {
		proof, err := p.Try()
		if o.Once || !errors.Is(err, ErrMissing) {
			return proof, err
		}
		select {
		case <-tick.C:
		case <-end:
			return proof, &triedError{"waited " + o.Timeout.String(), err}
		case <-ctx.Done():
			return proof, &triedError{"interrupted", context.Cause(ctx)}
		}
	}
}
