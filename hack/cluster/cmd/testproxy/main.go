// Command testproxy is a fake of a sidecar's proxy in both families: it accepts redirected connections, finds out where they were
// going, forwards them, and reports which ones it saw. It also answers DNS lookups, as a sidecar's agent does. Unlike Envoy it needs no
// configuration.
//
//	testproxy [proxy sidecar] [-transparent] [flags]
//	testproxy -c FILE ...: in Envoy's place, as Istio's agent starts it; flags are in the environment, as TESTPROXY
//	testproxy validate [-within D] [flags]
//	testproxy resolve [-listen ADDR:PORT,...] [-services | [-a ADDR] [-aaaa ADDR]]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
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

// run takes the words that Istio's injector starts a sidecar with for what they are, so that a pod may be as it writes it.
func run(ctx context.Context, args []string) error {
	switch {
	case len(args) > 0 && args[0] == "validate":
		return validate(ctx, args[1:])
	case len(args) > 0 && args[0] == "resolve":
		return resolve(ctx, args[1:])
	case len(args) > 0 && args[0] == "-c":
		args = strings.Fields(os.Getenv("TESTPROXY"))
	case len(args) > 1 && slices.Equal(args[:2], []string{"proxy", "sidecar"}):
		args = args[2:]
	}
	return serve(ctx, args)
}

// serve listens on every port before it returns control to signals: once the readiness port answers, no redirected connection is
// refused.
func serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("testproxy", flag.ContinueOnError)
	outbound := flags.Uint("outbound", 15001, "port of redirected outbound connections")
	inbound := flags.Uint("inbound", 15006, "port of redirected inbound connections")
	transparent := flags.Bool("transparent", false, "take inbound connections by TPROXY, and go on in the client's name")
	dns := flags.Uint("dns", 15053, "port of lookups, on loopback")
	admin := flags.Uint("admin", 15000, "port of /connections and /counts, on loopback")
	ready := flags.Uint("ready", 15021, "port of /healthz/ready, /connections and /counts, on every address")
	after := flags.Duration("after", 0, "how long to wait before listening, as a proxy that starts slowly")
	if err := flags.Parse(args); err != nil {
		return err
	}
	<-time.After(*after)
	p := &proxy{log: newJournal(os.Stdout), transparent: *transparent}
	for _, port := range []uint{*outbound, *inbound, *admin, *ready} {
		p.own = append(p.own, uint16(port))
	}
	// One place a listener, so that none of them blocks when the proxy ends.
	failed := make(chan error, 12)
	for direction, port := range map[direction]uint{outboundDirection: *outbound, inboundDirection: *inbound} {
		if err := p.listen(ctx, direction, uint16(port), failed); err != nil {
			return err
		}
	}
	own := everyName(sidecarAddresses())
	for _, host := range []string{"127.0.0.1", "::1"} {
		if err := own.listen(ctx, hostPort(host, uint16(*dns)), failed); err != nil {
			return err
		}
	}
	if err := serveAdmin(ctx, p.log, uint16(*admin), uint16(*ready), failed); err != nil {
		return err
	}
	return waitForEnd(ctx, failed)
}

// waitForEnd waits for the end of ctx, or for the error of a listener.
func waitForEnd(ctx context.Context, failed <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return errors.Join(errors.New("a listener ended"), err)
	}
}
