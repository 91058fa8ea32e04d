package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
)

// unusedPort has no listener: an answer there comes from the proxy, by redirection.
const unusedPort = 15002

// retryEvery is the pause between two tries of a probe.
const retryEvery = 50 * time.Millisecond

// validate makes Istio's acceptance test, which its istio-validation container makes before the proxy starts:
//   - listen in the proxy's place,
//   - in each family, connect from loopback to the address that the proxy binds towards its application, at unusedPort,
//   - succeed if both connections arrive, with unusedPort as their original destination, before the time is over.
func validate(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("validate", flag.ContinueOnError)
	outbound := flags.Uint("outbound", 15001, "the proxy's port of outbound connections")
	inbound := flags.Uint("inbound", 15006, "the proxy's port of inbound connections")
	within := flags.Duration("within", 5*time.Second, "how long to try")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *within)
	defer cancel()
	arrived := make(chan netip.AddrPort)
	for _, port := range []uint{*outbound, *inbound} {
		for network, host := range map[string]string{"tcp4": "0.0.0.0", "tcp6": "::"} {
			l, err := new(net.ListenConfig).Listen(ctx, network, hostPort(host, uint16(port)))
			if err != nil {
				return fmt.Errorf("listen in the proxy's place: %w", err)
			}
			defer l.Close()
			go report(ctx, l, arrived)
		}
	}
	for _, source := range []string{"127.0.0.1", "::1"} {
		if err := probe(ctx, netip.MustParseAddr(source), arrived); err != nil {
			return err
		}
	}
	return nil
}

// report sends the original destination on each connection.
func report(ctx context.Context, l net.Listener, arrived chan<- netip.AddrPort) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		dst := netip.AddrPort{}
		if tcp, ok := c.(*net.TCPConn); ok {
			dst, _ = originalDst(tcp) // one that is not known is not the one that is wanted
		}
		_ = c.Close()
		select {
		case arrived <- dst:
		case <-ctx.Done():
			return
		}
	}
}

// probe tries until a connection arrives as it should, or the time is over.
func probe(ctx context.Context, source netip.Addr, arrived <-chan netip.AddrPort) error {
	want := netip.AddrPortFrom(passthroughSource(source).AddrPort().Addr().Unmap(), unusedPort)
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), Timeout: time.Second}
	last := errors.New("no try")
	for tries := 0; ctx.Err() == nil; tries++ {
		c, err := d.DialContext(ctx, "tcp", want.String())
		switch {
		case err == nil:
			_ = c.Close()
			last = errors.New("it was answered by somebody else")
		case !os.IsTimeout(err) || tries == 0: // the last try is cut short, which explains nothing
			last = err
		}
		select {
		case dst := <-arrived:
			if dst == want {
				fmt.Printf("%s -> %s arrives at the proxy\n", source, want)
				return nil
			}
			last = fmt.Errorf("it arrived as one to %s", dst)
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("%s -> %s does not arrive at the proxy: %w", source, want, last)
}
