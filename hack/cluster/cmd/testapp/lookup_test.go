package main

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLookupAsksTheServerThatItIsGiven(t *testing.T) {
	server := startNameServer(t)
	var out strings.Builder
	if err := run(t.Context(), []string{"lookup", "-server", server.LocalAddr().String(), "a."}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(found{Name: "a.", Addresses: []string{"192.0.2.7"}}, decode[found](t, out.String())); diff != "" {
		t.Error(diff)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	args := []string{"lookup", "-timeout", "200ms", "-server", server.LocalAddr().String(), "a."}
	if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
		t.Error("no error though nobody answers")
	}
}

// startNameServer answers lookups of the name "a" with one IPv4 address and none of IPv6.
func startNameServer(t *testing.T) net.PacketConn {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { _ = server.Close(); <-ended })
	go func() {
		defer close(ended)
		query := make([]byte, 512)
		for {
			_, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			const flags, question = "\x81\x80\x00\x01", "\x01a\x00"
			kind := string(query[15:17]) // behind the header and the name
			answer := string(query[:2]) + flags + "\x00\x00\x00\x00\x00\x00" + question + kind + "\x00\x01"
			if kind == "\x00\x01" {
				answer = string(query[:2]) + flags + "\x00\x01\x00\x00\x00\x00" + question + kind + "\x00\x01" +
					"\xc0\x0c" + kind + "\x00\x01\x00\x00\x00\x01\x00\x04\xc0\x00\x02\x07"
			}
			_, _ = server.WriteTo([]byte(answer), from)
		}
	}()
	return server
}
