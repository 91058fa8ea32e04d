package conformance

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
	"istio-pod-network-controller/test/kerneltest"
)

// istio programs a namespace as Istio does: its rules in one of its flavours, and what it adds beside them.
func istio(t *testing.T, ns *netns.NS, flavour string, mode iptables.Mode) {
	t.Helper()
	file := "istio/" + strings.ToLower(string(mode))
	if mode == iptables.ModeTProxy {
		program(t, ns, "", "sh", "-ec", `ip -6 addr show lo | grep -q '::6/128' || ip -6 addr add ::6/128 dev lo nodad
for f in -4 -6; do ip $f rule add fwmark 1337 lookup 133; ip $f route add local default dev lo table 133; done`)
	}
	if flavour == "native" {
		program(t, ns, string(read(t, file+".nft")), "nft", "-f", "-")
		return
	}
	for name, words := range map[string]*strings.Replacer{
		"iptables":  strings.NewReplacer("LOOPBACK", "127.0.0.1/32", "PASSTHROUGH", "127.0.0.6/32"),
		"ip6tables": strings.NewReplacer("LOOPBACK", "::1/128", "PASSTHROUGH", "::6/128"),
	} {
		program(t, ns, words.Replace(string(read(t, file+".rules"))), name+"-"+flavour+"-restore", "--noflush")
	}
}

func program(t *testing.T, ns *netns.NS, input, name string, args ...string) {
	t.Helper()
	err := ns.Inside(func() error {
		cmd := exec.CommandContext(t.Context(), kerneltest.ProgramPath(t, name), args...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w\n%s", name, err, out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mesh is a pod with a proxy that keeps connections open, and one with each direction and family through it.
type mesh struct {
	world
	outside *netns.NS
	talks   map[string]net.Conn
}

func newMesh(t *testing.T) *mesh {
	t.Helper()
	pod, outside := kerneltest.NewPod(t)
	for _, name := range []string{"all", "eth0", "lo"} {
		kerneltest.Sysctl(t, pod, "net/ipv4/conf/"+name+"/rp_filter", "0")
	}
	m := &mesh{world: world{spaces: map[string]*netns.NS{"pod": pod}}, outside: outside, talks: map[string]net.Conn{}}
	for port, banner := range map[int]string{15001: "OUTBOUND", 15006: "INBOUND"} {
		go kerneltest.Echo(kerneltest.ListenTCP(t, pod, kerneltest.Owner{UID: 0, GID: 1337}, true, fmt.Sprintf("[::]:%d", port)), banner)
	}
	kerneltest.Listen(t, pod, kerneltest.App, "APP", 8080)
	return m
}

// expect wants every open connection to go on, and new ones to be captured and to go on.
func (m *mesh) expect(t *testing.T, step string) {
	t.Helper()
	for name, c := range m.talks {
		if err := echoed(c); err != nil {
			t.Errorf("%s: a connection that was open, %s: %v", step, name, err)
		}
	}
	for _, d := range []struct {
		from      *netns.NS
		dst, want string
	}{
		{m.outside, kerneltest.Pod4 + ":8080", "INBOUND"},
		{m.outside, "[" + kerneltest.Pod6 + "]:8080", "INBOUND"},
		{m.pod(), kerneltest.Outside4 + ":80", "OUTBOUND"},
		{m.pod(), "[" + kerneltest.Outside6 + "]:80", "OUTBOUND"},
	} {
		c, err := captured(t, d.from, d.dst, d.want)
		if err != nil {
			t.Errorf("%s: to %s: %v", step, d.dst, err)
			continue
		}
		m.talks[fmt.Sprintf("%s since %s", d.dst, step)] = c
	}
}

// captured connects, and wants the proxy's banner.
func captured(t *testing.T, from *netns.NS, dst, want string) (c net.Conn, err error) {
	t.Helper()
	err = kerneltest.As(from, kerneltest.App, func() error {
		d := net.Dialer{Timeout: 2 * time.Second}
		if c, err = d.DialContext(t.Context(), "tcp", dst); err != nil {
			return err
		}
		t.Cleanup(func() { _ = c.Close() })
		banner := make([]byte, len(want)+1)
		if err := c.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, banner); err != nil || string(banner) != want+"\n" {
			return fmt.Errorf("answered by %q, want %s (%w)", banner, want, err)
		}
		return echoed(c)
	})
	return c, err
}

func echoed(c net.Conn) error {
	for range 3 {
		if err := c.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("data")); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			return err
		}
	}
	return nil
}

// inName wants the proxy to reach the application with a client's address as the source, as Envoy does with its mark.
func (m *mesh) inName(t *testing.T, step string) {
	t.Helper()
	for client, app := range map[string]string{kerneltest.Outside4: kerneltest.Pod4 + ":8080", kerneltest.Outside6: "[" + kerneltest.Pod6 + "]:8080"} {
		got, err := m.askInName(t.Context(), kerneltest.Owner{UID: 0, GID: 1337}, 1337, netip.MustParseAddr(client), app)
		if err != nil || !strings.HasPrefix(got, "APP:8080 ") {
			t.Errorf("%s: in the name of %s answered by %q, error %v", step, client, got, err)
		}
	}
}

// In whatever order Istio and we add and remove rules, open connections go on, and new ones are captured.
func TestRules_besideIstio_loseNoConnection(t *testing.T) {
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			for _, flavour := range []string{"native", "nft", "legacy"} {
				for order, oursFirst := range map[string]bool{"ours first": true, "Istio's first": false} {
					t.Run(strings.Join([]string{b.Name(), string(mode), "Istio " + flavour, order}, "/"), func(t *testing.T) {
						besideIstio(t, b, mode, flavour, oursFirst)
					})
				}
			}
		}
	}
}

func besideIstio(t *testing.T, b backend, mode iptables.Mode, flavour string, oursFirst bool) {
	t.Helper()
	m := newMesh(t)
	expect := func(step string) {
		t.Helper()
		m.expect(t, step)
		if mode == iptables.ModeTProxy {
			m.inName(t, step)
		}
	}
	ours := configuration{spec: with(func(s *iptables.Spec) { s.Mode = mode })}
	theirs := func() {
		istio(t, m.pod(), flavour, mode)
		found, err := foreign.Find(t.Context(), m.pod())
		if err != nil || found == nil || found.Owner != "Istio" {
			t.Errorf("Istio is not recognised: %v, %v", found, err)
		}
	}
	if oursFirst {
		mustApply(t, b, m.world, ours)
		expect("ours alone")
		theirs()
	} else {
		theirs()
		expect("theirs alone")
		if b.Name() == "iptables" && flavour != "nft" && mode == iptables.ModeTProxy {
			return // iptables has no priorities: what comes later runs first. A pod of Istio's is left alone.
		}
		mustApply(t, b, m.world, ours)
	}
	expect("both")
	mustApply(t, b, m.world, ours)
	expect("ours, kept up to date")
	if _, err := b.Remove(t.Context(), m.pod().Path()); err != nil {
		t.Fatal(err)
	}
	expect("ours are gone")
}
