// Command istio-pod-network-wait waits inside a pod, without privileges, until a connection of its own proves that the pod's
// redirection rules are in force. It is a separate program because the agent's needs four times the memory just to start. Exit status:
// 0 in force, 95 rules missing, 1 anything else; a line says why.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"istio-pod-network-controller/internal/redirection"
)

// Exit codes other than 0. Shells and runtimes do not use the second themselves.
const (
	exitError   = 1  // it could not be found out
	exitMissing = 95 // the rules are missing
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	o, err := parse(args, errOut)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return exitError // flag has printed the error
	}
	switch err := redirection.Run(ctx, o, out); {
	case err == nil:
		return 0
	case errors.Is(err, redirection.ErrMissing):
		_, _ = fmt.Fprintln(errOut, "error:", err)
		return exitMissing
	default:
		_, _ = fmt.Fprintln(errOut, "error:", err)
		return exitError
	}
}

func parse(args []string, errOut io.Writer) (redirection.Options, error) {
	o := redirection.DefaultOptions()
	fs := flag.NewFlagSet("istio-pod-network-wait", flag.ContinueOnError)
	fs.SetOutput(errOut)
	port := fs.Uint("port", uint(o.Port), "the proxy's port for inbound traffic, to which the rules redirect")
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "how long to wait for the rules")
	fs.BoolVar(&o.Once, "once", o.Once, "try once, for probes")
	// The downward API turns an absent annotation into an empty value; then the earlier value stays.
	lastNonEmpty := func(target *string) func(string) error {
		return func(value string) error {
			*target = cmp.Or(value, *target)
			return nil
		}
	}
	mode, ipv6 := "", ""
	fs.Func("mode", "the pod's interception mode: with NONE there are no rules to wait for; of several non-empty values the last counts", lastNonEmpty(&mode))
	fs.Func("ipv6", "capture, or direct if IPv6 has no rules; of several non-empty values the last counts", lastNonEmpty(&ipv6))
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.NoRules, o.DirectIPv6 = mode == "NONE", ipv6 == "direct"
	fault := ""
	switch {
	case fs.NArg() > 0:
		fault = fmt.Sprintf("argument %q: want none", fs.Arg(0))
	case *port == 0 || *port > 65535:
		fault = fmt.Sprintf("-port: value %d: want 1 to 65535", *port)
	}
	if fault != "" {
		_, _ = fmt.Fprintln(errOut, "error:", fault)
		return o, errors.New(fault)
	}
	o.Port = uint16(*port)
	return o, nil
}
