package connectivity

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/diagnostics/connectivity/originaldst"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/test/kerneltest"
)

// Both pods' addresses.
const (
	client4, client6 = "192.0.2.1", "2001:db8::1"
	server4, server6 = "192.0.2.2", "2001:db8::2"
)

// pair is the two pods on a link of their own, without rules.
type pair struct {
	client, server         *netns.NS
	clientPod, serverPod   *corev1.Pod
	targets                []netip.Addr
	clientName, serverName string
}

func newPair(t *testing.T) pair {
	t.Helper()
	maker := podMaker{run: "run", namespace: "test", image: "image"}
	p := pair{client: kerneltest.New(t), server: kerneltest.New(t), targets: []netip.Addr{netip.MustParseAddr(server4), netip.MustParseAddr(server6)}}
	kerneltest.JoinByVeth(t, p.client, "eth0", p.server, "eth0")
	kerneltest.AddAddresses(t, p.client, "eth0", client4+"/24", client6+"/64")
	kerneltest.AddAddresses(t, p.server, "eth0", server4+"/24", server6+"/64")
	p.serverPod = maker.server(0, "node")
	p.clientPod = maker.client(0, "node", p.serverPod.Name, p.targets, time.Second)
	p.clientName, p.serverName = p.clientPod.Name, p.serverPod.Name
	p.serve(t, p.client, p.clientName, RoleOutbound, RoleInbound)
	p.serve(t, p.server, p.serverName, RoleOutbound, RoleInbound, RoleApplication)
	return p
}

// as dials inside a namespace as an owner.
func as(ns *netns.NS, owner kerneltest.Owner) Dialer {
	return func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = kerneltest.As(ns, owner, func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return c, err
	}
}

func (p pair) serve(t *testing.T, ns *netns.NS, name string, roles ...Role) {
	t.Helper()
	s := Server{Pod: name, Dst: originaldst.Of, Dial: as(ns, kerneltest.Proxy)}
	ports := map[Role][]uint16{
		RoleOutbound: {portOutbound}, RoleInbound: {portInbound}, RoleApplication: {portCaptured, portEntering, portExcluded},
	}
	for _, role := range roles {
		for _, port := range ports[role] {
			l := kerneltest.ListenTCP(t, ns, kerneltest.App, false, fmt.Sprintf("[::]:%d", port))
			go s.accept(t.Context(), l, role) //nolint:errcheck // ends with the test
		}
	}
}

// apply puts the rules that a pod asks for into its namespace; change may be nil.
func apply(t *testing.T, ns *netns.NS, pod *corev1.Pod, change func(*iptables.Spec)) {
	t.Helper()
	asks, err := intent.Of(pod, nil, intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()})
	if err != nil || !asks.Redirect {
		t.Fatalf("%+v, %v", asks, err)
	}
	if change != nil {
		change(&asks.Spec)
	}
	rules, err := iptables.Rules(asks.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nftables.New().Apply(t.Context(), ns, rules); err != nil {
		t.Fatal(err)
	}
}

func (p pair) prove(t *testing.T, patience time.Duration) []Proof {
	t.Helper()
	c := Client{Pod: p.clientName, Server: p.serverName, Targets: p.targets, For: patience, Dial: as(p.client, kerneltest.App)}
	var out bytes.Buffer
	if err := c.Prove(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if out.Len() > 4096 {
		t.Errorf("%d bytes, more than a termination message has", out.Len())
	}
	var proofs []Proof
	if err := json.Unmarshal(out.Bytes(), &proofs); err != nil {
		t.Fatal(err)
	}
	return proofs
}

func TestPodsProveTheRulesOfTheirOwnAnnotations(t *testing.T) {
	p := newPair(t)
	apply(t, p.client, p.clientPod, nil)
	apply(t, p.server, p.serverPod, nil)
	proofs := p.prove(t, 10*time.Second)
	if len(proofs) != 8 || slices.ContainsFunc(proofs, func(p Proof) bool { return p.Why != "" }) {
		t.Errorf("%+v", proofs)
	}
}

func TestMissingRulesAreNotProven(t *testing.T) {
	for name, tc := range map[string]struct {
		client, server func(*testing.T, pair)
		want           map[Kind]string // a part of the reason
	}{
		"no pod has rules": {want: map[Kind]string{
			KindOutbound: "reached the application of server-run-0", KindProxy: "not tried", KindInbound: "reached the application of server-run-0",
		}},
		"the client has no rules": {
			server: func(t *testing.T, p pair) { t.Helper(); apply(t, p.server, p.serverPod, nil) },
			want:   map[Kind]string{KindOutbound: "reached the proxy of server-run-0 (inbound side)", KindProxy: "not tried"},
		},
		"the server has no rules": {
			client: func(t *testing.T, p pair) { t.Helper(); apply(t, p.client, p.clientPod, nil) },
			want:   map[Kind]string{KindInbound: "reached the application of server-run-0"},
		},
		"the rules take another user for the proxy": {
			client: func(t *testing.T, p pair) {
				t.Helper()
				apply(t, p.client, p.clientPod, func(s *iptables.Spec) { s.ProxyUID, s.ProxyGID = 7777, 7777 })
			},
			server: func(t *testing.T, p pair) { t.Helper(); apply(t, p.server, p.serverPod, nil) },
			want:   map[Kind]string{KindProxy: "came back"},
		},
		"excluded ports are captured": {
			client: func(t *testing.T, p pair) { t.Helper(); apply(t, p.client, p.clientPod, nil) },
			server: func(t *testing.T, p pair) {
				t.Helper()
				apply(t, p.server, p.serverPod, func(s *iptables.Spec) { s.ExcludeInboundPorts = nil })
			},
			want: map[Kind]string{KindExcluded: "reached the proxy of server-run-0 (inbound side)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			for _, program := range []func(*testing.T, pair){tc.client, tc.server} {
				if program != nil {
					program(t, p)
				}
			}
			for _, proof := range p.prove(t, time.Millisecond) {
				want := tc.want[proof.Kind]
				if (proof.Why == "") != (want == "") || !strings.Contains(proof.Why, want) {
					t.Errorf("%s %s: %q, want %q", proof.Family, proof.Kind, proof.Why, want)
				}
			}
		})
	}
}
