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

// Of RFC 1035 and RFC 3596.
const (
	headerSize  = 12
	typeA       = 1
	typeAAAA    = 28
	answeredTTL = 1
	// answered are the flags of an answer without an error, recursion available; the bit of recursion desired is the query's.
	answered         = 0x8080
	recursionDesired = 0x0100
	noSuchName       = 3
	// toQuestion is a name by reference: the one at the question's place.
	toQuestion = 0xc000 | headerSize
)

// answer returns the answer to a query, or nil if it is not a query with one question.
func (r resolver) answer(query []byte) []byte {
	if len(query) < headerSize || binary.BigEndian.Uint16(query[4:]) != 1 || query[2]&0x80 != 0 {
		return nil
	}
	var labels []string
	end := headerSize
	for end < len(query) && query[end] != 0 {
		next := end + 1 + int(query[end])
		if next > len(query) {
			return nil
		}
		labels, end = append(labels, string(query[end+1:next])), next
	}
	end += 1 + 4 // the root, type and class
	if end > len(query) {
		return nil
	}
	out := append([]byte{}, query[:end]...)
	binary.BigEndian.PutUint16(out[2:], answered|binary.BigEndian.Uint16(query[2:])&recursionDesired)
	copy(out[6:headerSize], make([]byte, 6)) // no answer yet, and what else the query has is not repeated
	addresses, exists := r(strings.ToLower(strings.Join(labels, ".")))
	if !exists {
		out[3] |= noSuchName
	}
	kind := binary.BigEndian.Uint16(query[end-4:])
	for _, address := range addresses {
		if kind != typeA && kind != typeAAAA || address.Is4() != (kind == typeA) {
			continue // such a name has no such record
		}
		out[7]++
		out = binary.BigEndian.AppendUint16(out, toQuestion)
		out = append(out, query[end-4:end]...)
		out = binary.BigEndian.AppendUint32(out, answeredTTL)
		out = binary.BigEndian.AppendUint16(out, uint16(address.BitLen()/8))
		out = append(out, address.AsSlice()...)
	}
	return out
}
