package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"
)

// answer describes a connection as the server sees it, in one line of JSON.
type answer struct {
	// Banner identifies the server: the host name, which is the pod's name, unless another one is given.
	Banner string `json:"banner"`
	// Local and Peer are the connection's ends as the server sees them.
	Local string `json:"local"`
	Peer  string `json:"peer"`
	// Path and Host are the request's, for HTTP.
	Path string `json:"path,omitempty"`
	Host string `json:"host,omitempty"`
	// ClientCert is a mesh proxy's account of both ends' certificates (X-Forwarded-Client-Cert).
	ClientCert string `json:"clientCert,omitempty"`
	// Asked are the answers of the servers that this one has asked, in the order of -ask.
	Asked []answer `json:"asked,omitempty"`
}

// answerFor leaves out what only HTTP knows.
func answerFor(banner string, local, peer net.Addr) answer {
	return answer{Banner: banner, Local: plain(local), Peer: plain(peer)}
}

// plain writes an IPv4 address as such when it comes from a socket that serves both families.
func plain(a net.Addr) string {
	if a == nil {
		return ""
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String()
}

// writeAnswer ends with a newline, so that a client of the raw port knows that it has all.
func writeAnswer(w io.Writer, a answer) error {
	line, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// readAnswer refuses what another server sends: a connection that reached another server must not count as answered.
func readAnswer(r io.Reader) (answer, error) {
	line, err := bufio.NewReader(r).ReadBytes('\n')
	if err != nil {
		return answer{}, fmt.Errorf("read the answer: %w", err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{}, fmt.Errorf("not an answer of testapp: %q", line)
	}
	return a, nil
}

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
