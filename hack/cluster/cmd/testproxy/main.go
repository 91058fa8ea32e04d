// Command testproxy stands in for a sidecar's proxy in both families: it takes redirected connections, finds out where they were
// going, goes there, and tells which ones it saw. Unlike Envoy it needs no configuration.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testproxy: "+err.Error())
		os.Exit(1)
	}
}

// run listens on every port before it returns control to signals: once the readiness port answers, no redirected connection is
// refused.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("testproxy", flag.ContinueOnError)
	outbound := flags.Uint("outbound", 15001, "port of redirected outbound connections")
	inbound := flags.Uint("inbound", 15006, "port of redirected inbound connections")
	admin := flags.Uint("admin", 15000, "port of /connections and /counts, on loopback")
	ready := flags.Uint("ready", 15021, "port of /healthz/ready, /connections and /counts, on every address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p := &proxy{log: newJournal(os.Stdout)}
	for _, port := range []uint{*outbound, *inbound, *admin, *ready} {
		p.own = append(p.own, uint16(port))
	}
	// One place a listener, so that none of them blocks when the proxy ends.
	failed := make(chan error, 8)
	for direction, port := range map[direction]uint{outboundDirection: *outbound, inboundDirection: *inbound} {
		if err := p.listen(ctx, direction, uint16(port), failed); err != nil {
			return err
		}
	}
	if err := serveAdmin(ctx, p.log, uint16(*admin), uint16(*ready), failed); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return errors.Join(errors.New("a listener ended"), err)
	}
}
