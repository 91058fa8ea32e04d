package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// Conntrack may hold connections that have ended. Whoever opens a new one from the same port must not pass the proxy by.
func TestRules_staleConntrackEntry_letsNobodyPass(t *testing.T) {
	t.Parallel()
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			for name, control := range map[string]bool{"with our rules": false, "without them, as a control": true} {
				for seen, talked := range map[string]func(t *testing.T, o talk, pod, world *netns.NS){"both ways": talkBothWays, "one way": talkOneWay} {
					t.Run(fmt.Sprintf("%s/%s/%s/%s", b.Name(), mode, name, seen), func(t *testing.T) {
						t.Parallel() // dropped packets take their time
						reopenStale(t, b, mode, control, talked)
					})
				}
			}
		}
	}
}

// talkBothWays has conntrack see packets of both directions.
func talkBothWays(t *testing.T, o talk, _, _ *netns.NS) {
	t.Helper()
	if err := o.goOn(3 * time.Second); err != nil {
		t.Fatalf("%s: %v", o.name, err)
	}
	o.vanish(t)
}

// talkOneWay has it see one direction only: the other end is kept from answering, before its conntrack.
func talkOneWay(t *testing.T, o talk, pod, world *netns.NS) {
	t.Helper()
	from, to := o.ends(pod, world)
	speaker, listens := o.client, to
	if o.serverFirst {
		speaker, listens = o.server, from
	}
	kerneltest.Shell(t, listens, "nft 'table inet mute { chain c { type filter hook output priority -310; meta l4proto tcp drop; }; }'", "")
	defer kerneltest.Shell(t, listens, "nft delete table inet mute", "")
	if _, err := speaker.Write([]byte("data")); err != nil {
		t.Fatalf("%s: %v", o.name, err)
	}
	<-time.After(20 * time.Millisecond) // the packet has arrived
	o.vanish(t)
}

// ends returns where the client is and where the server is.
func (o talk) ends(pod, world *netns.NS) (client, server *netns.NS) {
	if strings.HasPrefix(o.name, "inbound") {
		return world, pod
	}
	return pod, world
}

func reopenStale(t *testing.T, b backend, mode iptables.Mode, control bool, talked func(t *testing.T, o talk, pod, world *netns.NS)) {
	t.Helper()
	pod, world := kerneltest.NewPod(t)
	talks := openTalks(t, pod, world)
	rules := configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}.rules(t)
	if control {
		rules = withoutReused(rules)
	}
	if _, err := b.Apply(t.Context(), pod.Path(), rules); err != nil {
		t.Fatal(err)
	}
	for _, o := range talks {
		talked(t, o, pod, world)
	}
	listenAsProxy(t, pod)
	var passed atomic.Int64
	var wg sync.WaitGroup
	for _, o := range talks {
		from, to := o.ends(pod, world)
		kerneltest.Listen(t, to, kerneltest.App, "DIRECT", uint16(o.server.LocalAddr().(*net.TCPAddr).Port))
		wg.Go(func() {
			if !o.reopen(t, from) {
				return
			}
			passed.Add(1)
			if !control {
				t.Errorf("%s: a new connection from the same port passed the proxy by", o.name)
			}
		})
	}
	wg.Wait()
	if control && passed.Load() == 0 {
		t.Error("no connection passed the proxy by")
	}
}

// reopen connects again from the same port to the same address, and reports whether it passed the proxy by. It waits for longer than the
// kernel waits before it sends again.
func (o talk) reopen(t *testing.T, from *netns.NS) (passed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	reply, err := kerneltest.Dial(ctx, from, kerneltest.App, o.client.LocalAddr().String(), o.client.RemoteAddr().String())
	t.Logf("%s: answered by %q (%v)", o.name, reply.Banner, err)
	return strings.HasPrefix(reply.Banner, "DIRECT:")
}

// vanish ends both sockets without sending anything (TCP_REPAIR of tcp(7)): conntrack goes on to hold the connection.
func (o talk) vanish(t *testing.T) {
	t.Helper()
	for _, c := range []net.Conn{o.client, o.server} {
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err == nil {
			var repair error
			err = raw.Control(func(fd uintptr) { repair = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR, 1) })
			err = errors.Join(err, repair, c.Close())
		}
		if err != nil {
			t.Fatalf("%s: end a socket without a word: %v", o.name, err)
		}
	}
}

// withoutReused leaves out what keeps stale connections from passing.
func withoutReused(r iptables.Ruleset) iptables.Ruleset {
	r.Chains = slices.DeleteFunc(r.Chains, func(c iptables.Chain) bool {
		return strings.HasSuffix(c.Name, "-reused") || strings.HasSuffix(c.Name, "-lost")
	})
	for k, c := range r.Chains {
		r.Chains[k].Rules = slices.DeleteFunc(c.Rules, func(r iptables.Rule) bool { return strings.HasSuffix(r.Action.Chain, "-lost") })
	}
	for _, c := range r.Chains {
		for i, rule := range c.Rules {
			if rule.Action.Verb == iptables.Divert {
				c.Rules[i].Conds = withoutField(rule.Conds, iptables.TCPFlags)
			}
		}
	}
	return r
}
