package conformance

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// talk is a TCP connection with both its ends.
type talk struct {
	name           string
	client, server net.Conn
	serverFirst    bool // after the programming the server speaks first
}

// openTalk connects from one namespace to an address, where a listener of another namespace has to answer.
func openTalk(t *testing.T, name string, from, to *netns.NS, dst, listener string, serverFirst bool) talk {
	t.Helper()
	l := kerneltest.ListenTCP(t, to, kerneltest.App, false, listener)
	defer l.Close()
	o := talk{name: name, serverFirst: serverFirst}
	err := kerneltest.As(from, kerneltest.App, func() (err error) {
		d := net.Dialer{Timeout: 2 * time.Second}
		o.client, err = d.DialContext(t.Context(), "tcp", dst)
		return err
	})
	if err == nil {
		o.server, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = o.client.Close(), o.server.Close() })
	return o
}

// goOn sends data both ways, a few times.
func (o talk) goOn(limit time.Duration) error {
	first, second := o.client, o.server
	if o.serverFirst {
		first, second = second, first
	}
	for range 3 {
		for _, way := range [][2]net.Conn{{first, second}, {second, first}} {
			if err := way[1].SetReadDeadline(time.Now().Add(limit)); err != nil {
				return err
			}
			if _, err := way[0].Write([]byte("data")); err != nil {
				return err
			}
			if _, err := io.ReadFull(way[1], make([]byte, 4)); err != nil {
				return err
			}
		}
	}
	return nil
}

// openTalks are connections in both directions and both families.
func openTalks(t *testing.T, pod, world *netns.NS) (out []talk) {
	t.Helper()
	port := 8100
	for _, serverFirst := range []bool{false, true} {
		for _, c := range []struct {
			name     string
			from, to *netns.NS
			host     string
		}{
			{"inbound IPv4", world, pod, kerneltest.Pod4},
			{"inbound IPv6", world, pod, kerneltest.Pod6},
			{"outbound IPv4", pod, world, kerneltest.Outside4},
			{"outbound IPv6", pod, world, kerneltest.Outside6},
		} {
			port++
			dst := net.JoinHostPort(c.host, fmt.Sprint(port))
			out = append(out, openTalk(t, fmt.Sprintf("%s, server first: %v", c.name, serverFirst), c.from, c.to, dst, dst, serverFirst))
		}
	}
	return out
}

// A running pod is programmed in place: open connections stay open, and new ones are captured.
func TestApply_openConnections_liveOn(t *testing.T) {
	t.Parallel()
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			for name, cut := range map[string]bool{"with our rule": false, "without it, as a control": true} {
				t.Run(fmt.Sprintf("%s/%s/%s", b.Name(), mode, name), func(t *testing.T) {
					t.Parallel() // the control waits for what does not come
					programWhileOpen(t, b, mode, cut)
				})
			}
		}
	}
}

func programWhileOpen(t *testing.T, b backend, mode iptables.Mode, cut bool) {
	t.Helper()
	pod, world := kerneltest.NewPod(t)
	talks := openTalks(t, pod, world)
	rules, patience := configuration{spec: with(func(s *iptables.Spec) { s.Mode, s.DropInvalid = mode, true })}.rules(t), 3*time.Second
	if cut {
		rules, patience = withoutRules(rules, "older than the rules"), 300*time.Millisecond
	}
	if _, err := b.Apply(t.Context(), pod.Path(), rules); err != nil {
		t.Fatal(err)
	}
	for _, o := range talks {
		if err := o.goOn(patience); (err != nil) != cut {
			t.Errorf("%s: %v", o.name, err)
		}
	}
	mustCaptureAll(t, pod, world)
}

// mustCaptureAll connects in both directions and both families, and wants the proxy every time.
func mustCaptureAll(t *testing.T, pod, world *netns.NS) {
	t.Helper()
	listenAsProxy(t, pod)
	for _, s := range []struct {
		from     *netns.NS
		dst, who string
	}{
		{world, kerneltest.Pod4 + ":8080", "PROXY:15006"},
		{world, "[" + kerneltest.Pod6 + "]:8080", "PROXY:15006"},
		{pod, kerneltest.Outside4 + ":80", "PROXY:15001"},
		{pod, "[" + kerneltest.Outside6 + "]:80", "PROXY:15001"},
	} {
		got, err := kerneltest.Dial(t.Context(), s.from, kerneltest.App, "", s.dst)
		if err != nil || got.Banner != s.who {
			t.Errorf("%s answered by %q, want %s (%v)", s.dst, got.Banner, s.who, err)
		}
	}
}

func listenAsProxy(t *testing.T, pod *netns.NS) {
	t.Helper()
	for port, who := range map[string]string{"15001": "PROXY:15001", "15006": "PROXY:15006"} {
		l := kerneltest.ListenTCP(t, pod, kerneltest.Owner{UID: 0, GID: 1337}, true, "[::]:"+port)
		go kerneltest.Answer(l, who)
	}
}

// withoutRules leaves the rules out whose comment contains a text.
func withoutRules(r iptables.Ruleset, comment string) iptables.Ruleset {
	for i, c := range r.Chains {
		r.Chains[i].Rules = slices.DeleteFunc(slices.Clone(c.Rules), func(rule iptables.Rule) bool { return strings.Contains(rule.Comment, comment) })
	}
	return r
}
