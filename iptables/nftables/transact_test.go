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
				port := binary.BigEndian.Uint16([]byte{byte(n >> 8), byte(n)})
				set.Ranges = append(set.Ranges, iptables.PortRange{First: port, Last: port})
			}
			if err := addSet(set, ".0", 1)[1:].commit(t.Context(), kerneltest.New(t), anyGeneration); !errors.Is(err, unix.ENOENT) {
				t.Errorf("elements of a set that does not exist: %v", err)
			}
		})
	}
}

// A transaction that is encoded once makes the same table as often as it is sent, in place of another, too.
func TestTransaction_sameRules_isEncodedOnce(t *testing.T) {
	c, ns := newCompiled(), kerneltest.New(t)
	want, other := rules(t, nil), rules(t, func(s *iptables.Spec) { s.InboundPort = 16006 })
	for i, r := range []iptables.Ruleset{want, other, want} {
		fresh, err := c.transaction(r)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := c.transaction(r); err != nil || &again[0] != &fresh[0] {
			t.Errorf("encoded twice, error %v", err)
		}
		if err := replace(t.Context(), ns, iptables.TableName, i > 0, fresh); err != nil {
			t.Fatal(err)
		}
		r.Loopback = false // no transaction makes an address
		mustHold(t, ns, r)
	}
	for port := range uint16(2 * maxRecorded) {
		if _, err := c.transaction(rules(t, func(s *iptables.Spec) { s.InboundPort = 16006 + port })); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.transactions) > maxRecorded {
		t.Errorf("%d transactions are kept", len(c.transactions))
	}
	before := len(c.transactions)
	want.Sets = []iptables.Set{{Name: "exclude-inbound", Kind: iptables.PortSet, Ranges: make([]iptables.PortRange, usualSize)}}
	if _, err := c.transaction(want); err != nil || len(c.transactions) != before {
		t.Errorf("a long transaction is kept, error %v", err)
	}
}
