package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// holding are the rules of a mode that have connections wait for the proxy.
func holding(t *testing.T, mode iptables.Mode) iptables.Ruleset {
	t.Helper()
	r, err := iptables.HoldingRules(with(func(s *iptables.Spec) { s.Mode = mode }), iptables.HoldBoth)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// early is a connection that is opened before the proxy listens.
type early struct {
	name string
	from string // pod or world
	dst  string
	port int // of the proxy
}

func tooEarly() []early {
	return []early{
		{"outbound IPv4", "pod", net.JoinHostPort(kerneltest.Outside4, "80"), 15001},
		{"outbound IPv6", "pod", net.JoinHostPort(kerneltest.Outside6, "80"), 15001},
		{"inbound IPv4", "world", net.JoinHostPort(kerneltest.Pod4, "8080"), 15006},
		{"inbound IPv6", "world", net.JoinHostPort(kerneltest.Pod6, "8080"), 15006},
	}
}

// dial opens the connection, and returns the answer.
func (e early) dial(ctx context.Context, pod, world *netns.NS) (answer string, err error) {
	from := map[string]*netns.NS{"pod": pod, "world": world}[e.from]
	r, err := kerneltest.Dial(ctx, from, kerneltest.App, "", e.dst)
	return r.Banner, err
}

// Connections that are earlier than their proxy are neither refused nor let by: they are answered after a retransmission.
func TestHold_connectionsBeforeTheProxy_wait(t *testing.T) {
	t.Parallel()
	eachMode(t, wantWaiting)
}

// wantWaiting wants connections of a pod without a proxy to be answered once that listens.
func wantWaiting(t *testing.T, b backend, mode iptables.Mode) {
	t.Helper()
	pod, world := kerneltest.NewPod(t)
	kerneltest.Listen(t, pod, kerneltest.App, "application", 8080)
	kerneltest.Listen(t, world, kerneltest.App, "outside", 80)
	if _, err := b.Apply(t.Context(), pod.Path(), holding(t, mode)); err != nil {
		t.Fatal(err)
	}
	results := dialAll(t, pod, world)
	awaitHeld(t, b, pod, map[iptables.Mode]uint64{iptables.ModeRedirect: 4, iptables.ModeTProxy: 2}[mode]) // what TPROXY diverts is not counted
	for _, port := range []int{15001, 15006} {
		go kerneltest.Answer(kerneltest.ListenTCP(t, pod, kerneltest.Proxy, mode == iptables.ModeTProxy, fmt.Sprintf("[::]:%d", port)), fmt.Sprintf("proxy:%d", port))
	}
	for range tooEarly() {
		r := <-results
		if want := fmt.Sprintf("proxy:%d", r.port); r.err != nil || r.answer != want {
			t.Errorf("%s: %q, error %v", r.name, r.answer, r.err)
		}
	}
}

// dialled is what became of a connection.
type dialled struct {
	early
	answer string
	err    error
}

// dialAll opens all connections at once.
func dialAll(t *testing.T, pod, world *netns.NS) <-chan dialled {
	t.Helper()
	results := make(chan dialled, len(tooEarly()))
	for _, e := range tooEarly() {
		go func() {
			r := dialled{early: e}
			r.answer, r.err = e.dial(t.Context(), pod, world)
			results <- r
		}()
	}
	return results
}

// awaitHeld waits until so many packets were held.
func awaitHeld(t *testing.T, b backend, pod *netns.NS, want uint64) {
	t.Helper()
	kerneltest.Eventually(t, "packets are held", func() bool {
		listing, _, err := b.List(t.Context(), pod.Path())
		packets, _ := iptables.HeldPackets(listing.Lines)
		return err == nil && packets >= want
	})
}

// Without the chain connections are refused as before, also those that wait already. What TPROXY diverts is dropped, as before.
func TestHold_ends_connectionsAreRefused(t *testing.T) {
	t.Parallel()
	for _, b := range backends(t) {
		t.Run(b.Name(), func(t *testing.T) {
			t.Parallel()
			wantEnd(t, b)
		})
	}
}

// Where the proxy listens in one family alone, connections of the other one are refused at once.
func TestHold_oneFamily_theOtherIsRefused(t *testing.T) {
	t.Parallel()
	for _, b := range backends(t) {
		for families, refused := range map[iptables.Hold]string{iptables.HoldIPv4: "IPv6", iptables.HoldIPv6: "IPv4"} {
			t.Run(fmt.Sprintf("%s/%s is refused", b.Name(), refused), func(t *testing.T) {
				t.Parallel()
				wantRefused(t, b, families, refused)
			})
		}
	}
}

// wantRefused wants connections of one family to be refused by rules that hold those of the others.
func wantRefused(t *testing.T, b backend, families iptables.Hold, refused string) {
	t.Helper()
	pod, world := kerneltest.NewPod(t)
	rules, err := iptables.HoldingRules(iptables.DefaultSpec(), families)
	if err == nil {
		_, err = b.Apply(t.Context(), pod.Path(), rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	if drift, err := b.Verify(t.Context(), pod.Path(), rules); err != nil || len(drift) > 0 {
		t.Errorf("drift %q, error %v", drift, err)
	}
	for _, e := range tooEarly() {
		_, err := e.dial(t.Context(), pod, world)
		if isRefused := errors.Is(err, syscall.ECONNREFUSED); err == nil || isRefused != strings.HasSuffix(e.name, refused) {
			t.Errorf("%s: error %v", e.name, err)
		}
	}
}

func wantEnd(t *testing.T, b backend) {
	t.Helper()
	pod, world := kerneltest.NewPod(t)
	if _, err := b.Apply(t.Context(), pod.Path(), holding(t, iptables.ModeRedirect)); err != nil {
		t.Fatal(err)
	}
	results := dialAll(t, pod, world)
	awaitHeld(t, b, pod, 4)
	if _, err := b.Apply(t.Context(), pod.Path(), configuration{spec: iptables.DefaultSpec()}.rules(t)); err != nil {
		t.Fatal(err)
	}
	for range tooEarly() {
		if r := <-results; !errors.Is(r.err, syscall.ECONNREFUSED) {
			t.Errorf("%s: error %v", r.name, r.err)
		}
	}
	for _, e := range tooEarly() {
		if _, err := e.dial(t.Context(), pod, world); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s after the hold: error %v", e.name, err)
		}
	}
}
