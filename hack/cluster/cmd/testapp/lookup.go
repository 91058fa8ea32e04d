package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// found is what a lookup gave: one line of JSON.
type found struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
}

// lookup asks for a name's addresses of both families: the resolvers of resolv.conf, or one server.
func lookup(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("lookup", flag.ContinueOnError)
	flags.SetOutput(progress)
	server := flags.String("server", "", "the server to ask, as ADDR:PORT (default: those of resolv.conf)")
	network := flags.String("network", "udp", "udp or tcp")
	timeout := flags.Duration("timeout", 5*time.Second, "limit of the lookup, whatever resolv.conf allows")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("lookup wants one name; with a dot at its end, to be asked for as it is")
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
		if *server != "" {
			address = *server
		}
		return new(net.Dialer).DialContext(ctx, *network, address)
	}}
	addresses, err := resolver.LookupHost(ctx, flags.Arg(0))
	if err != nil {
		return err
	}
	slices.Sort(addresses)
	if err := json.NewEncoder(out).Encode(found{Name: flags.Arg(0), Addresses: addresses}); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
