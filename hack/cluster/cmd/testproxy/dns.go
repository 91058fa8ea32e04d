package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// resolver gives a name's addresses, and whether the name exists. Names end without a dot.
type resolver func(name string) (addresses []netip.Addr, exists bool)

// everyName has all names be at the same addresses, by which a client knows who answered.
func everyName(addresses ...netip.Addr) resolver {
	return func(string) ([]netip.Addr, bool) { return addresses, true }
}

// sidecarAddresses are the answers of a sidecar's resolver. They are for documentation (RFC 5737, RFC 3849), so no other server has them.
func sidecarAddresses() (a, aaaa netip.Addr) {
	return netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")
}

// resolve is a resolver outside pods, or with -services the cluster's.
func resolve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("resolve", flag.ContinueOnError)
	listen := flags.String("listen", "[::]:53", "comma-separated addresses to answer at")
	ofServices := flags.Bool("services", false, "answer with the addresses of the Services of the cluster that this pod is in, and no other names")
	a, aaaa := sidecarAddresses()
	flags.TextVar(&a, "a", a, "every name's IPv4 address")
	flags.TextVar(&aaaa, "aaaa", aaaa, "every name's IPv6 address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r := everyName(a, aaaa)
	if *ofServices {
		names, err := followServices(ctx, inClusterServices)
		if err != nil {
			return err
		}
		r = names.resolve
	}
	addresses := strings.Split(*listen, ",")
	failed := make(chan error, 2*len(addresses))
	for _, address := range addresses {
		if err := r.listen(ctx, address, failed); err != nil {
			return err
		}
	}
	return waitForEnd(ctx, failed)
}

// listen answers at an address by UDP and by TCP.
func (r resolver) listen(ctx context.Context, address string, failed chan<- error) error {
	packets, err := new(net.ListenConfig).ListenPacket(ctx, "udp", address)
	if err != nil {
		return fmt.Errorf("listen for lookups: %w", err)
	}
	streams, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for lookups: %w", err), packets.Close())
	}
	context.AfterFunc(ctx, func() { _, _ = packets.Close(), streams.Close() })
	go func() { failed <- r.servePackets(packets) }()
	go func() { failed <- r.serveStreams(streams) }()
	return nil
}

// The longest query that is read, and how long a client may take to ask.
const (
	maxQuery   = 4096
	queryLimit = 10 * time.Second
)

func (r resolver) servePackets(c net.PacketConn) error {
	query := make([]byte, maxQuery)
	for {
		n, from, err := c.ReadFrom(query)
		if err != nil {
			return err
		}
		if answer := r.answer(query[:n]); answer != nil {
			_, _ = c.WriteTo(answer, from) // the client may be gone
		}
	}
}

func (r resolver) serveStreams(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if c.SetDeadline(time.Now().Add(queryLimit)) == nil {
				for r.answerStream(c) {
				}
			}
		}()
	}
}

// answerStream answers one query; over TCP each message is preceded by its length (RFC 1035, 4.2.2).
func (r resolver) answerStream(c net.Conn) bool {
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return false
	}
	query := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(c, query); err != nil {
		return false
	}
	answer := r.answer(query)
	if answer == nil {
		return false
	}
	framed := binary.BigEndian.AppendUint16(nil, uint16(len(answer)))
	_, err := c.Write(append(framed, answer...))
	return err == nil
}

// answer returns the answer to a query, or nil if it is not a query with one question.
func (r resolver) answer(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || m.Response || len(m.Questions) != 1 {
		return nil
	}
	question := m.Questions[0]
	addresses, exists := r(strings.TrimSuffix(strings.ToLower(question.Name.String()), "."))
	// What else the query has is not repeated.
	out := dnsmessage.Message{Questions: m.Questions, Header: dnsmessage.Header{
		ID: m.ID, Response: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true,
	}}
	if !exists {
		out.RCode = dnsmessage.RCodeNameError
	}
	for _, address := range addresses {
		header := dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class, TTL: 1}
		switch {
		case question.Type == dnsmessage.TypeA && address.Is4():
			out.Answers = append(out.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: address.As4()}})
		case question.Type == dnsmessage.TypeAAAA && address.Is6():
			out.Answers = append(out.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: address.As16()}})
		} // other names have no such record
	}
	packed, _ := out.Pack() // nil if the name is too long
	return packed
}
