package nftables

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// What the kernel has against a transaction is known, however long the message that it refuses.
func TestARefusedTransactionSaysWhy(t *testing.T) {
	for name, ports := range map[string]int{"a short one": 1, "a long one": 1000, "one that needs larger buffers": 30000} {
		t.Run(name, func(t *testing.T) {
			set := iptables.Set{Name: "exclude-inbound", Kind: iptables.PortSet}
			for n := range ports {
				set.Ports = append(set.Ports, binary.BigEndian.Uint16([]byte{byte(n >> 8), byte(n)}))
			}
			if err := addSet(set, ".0", 1)[1:].commit(t.Context(), kerneltest.New(t)); !errors.Is(err, unix.ENOENT) {
				t.Errorf("elements of a set that does not exist: %v", err)
			}
		})
	}
}

// A transaction that is recorded once makes the same table as often as it is sent, in place of another, too.
func TestATransactionIsRecordedOnce(t *testing.T) {
	r, want, other := newRecorded(), rules(t, nil), rules(t, func(s *iptables.Spec) { s.InboundPort = 16006 })
	ns := kerneltest.New(t)
	for i, c := range []struct {
		rules iptables.Ruleset
		hash  uint64
	}{{want, 1}, {other, 2}, {want, 1}} {
		fresh, err := r.of(c.rules, c.hash)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := r.of(c.rules, c.hash); err != nil || &again[0] != &fresh[0] {
			t.Errorf("recorded twice, error %v", err)
		}
		if err := replace(t.Context(), ns, i > 0, fresh); err != nil {
			t.Fatal(err)
		}
		c.rules.Loopback = nil // no transaction makes an address
		mustHold(t, ns, c.rules)
	}
	for hash := range uint64(2 * maxRecorded) {
		if _, err := r.of(want, hash); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.known) > maxRecorded {
		t.Errorf("%d transactions are kept", len(r.known))
	}
	want.Sets = []iptables.Set{{Name: "exclude-inbound", Kind: iptables.PortSet, Ports: make([]uint16, usualSize)}}
	if _, err := r.of(want, 1000); err != nil || r.known[1000] != nil {
		t.Errorf("a long transaction is kept, error %v", err)
	}
}
