package conformance

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// detour is a state of the pod in which the kernel itself would find the application's listener for a client's packet.
type detour struct {
	name string
	// prepare brings the state about, for a client at src that will connect to dst.
	prepare func(t *testing.T, p guardedPod, src, dst string)
	// lives is whether the proxy still listens then, and reaches whether a client reaches it in TPROXY mode.
	lives, reaches bool
}

// guardedPod is a pod whose proxy listens; its application does not listen yet.
type guardedPod struct {
	pod, world *netns.NS
	proxy      net.Listener
}

func detours() []detour {
	return []detour{
		{name: "the proxy has died and left TIME_WAIT", prepare: timeWait},
		{name: "the proxy has died in a handshake", prepare: synReceived},
		{name: "the proxy answers by SYN cookies", prepare: cookies, lives: true},
		{name: "the pod has tried to connect to the client's port", prepare: synSent, lives: true, reaches: true},
	}
}

// What the proxy leaves in the kernel leads no client to the application, in a pod whose application lives on.
func TestTProxy_applicationListensToo_proxyAnswers(t *testing.T) {
	t.Parallel()
	for _, b := range backends(t) {
		for _, d := range detours() {
			for family, ends := range map[string][2]string{
				"IPv4": {kerneltest.World4 + ":4000", kerneltest.Pod4 + ":8080"},
				"IPv6": {"[" + kerneltest.World6 + "]:4000", "[" + kerneltest.Pod6 + "]:8080"},
			} {
				t.Run(b.Name()+"/"+d.name+"/"+family, func(t *testing.T) { d.test(t, b, ends[0], ends[1]) })
			}
		}
	}
}

func (d detour) test(t *testing.T, b backend, src, dst string) {
	t.Helper()
	for name, c := range map[string]struct {
		mode    iptables.Mode
		control bool
	}{
		"REDIRECT":                               {mode: iptables.ModeRedirect},
		"TPROXY":                                 {mode: iptables.ModeTProxy},
		"TPROXY without our rules, as a control": {mode: iptables.ModeTProxy, control: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // dropped packets take their time
			rules := configuration{spec: with(func(s *iptables.Spec) { s.Mode = c.mode })}.rules(t)
			if c.control {
				rules = unguarded(rules)
			}
			got := d.meet(t, b, rules, src, dst)
			for again := 0; c.control && got != "DIRECT" && again < 2; again++ { // it shows what can happen, and need not each time
				got = d.meet(t, b, rules, src, dst)
			}
			if want := d.want(c.mode, c.control); got != want && (c.mode == iptables.ModeTProxy || got == "DIRECT") {
				t.Errorf("answered by %q, want %q", got, want)
			}
		})
	}
}

func (d detour) want(mode iptables.Mode, control bool) string {
	switch {
	case control:
		return "DIRECT"
	case d.reaches && mode == iptables.ModeTProxy:
		return "PROXY"
	}
	return ""
}

// meet returns who answers the client. It waits for longer than the kernel waits before it sends again.
func (d detour) meet(t *testing.T, b backend, rules iptables.Ruleset, src, dst string) string {
	t.Helper()
	pod, world := kerneltest.NewPod(t)
	if _, err := b.Apply(t.Context(), pod.Path(), rules); err != nil {
		t.Fatal(err)
	}
	p := guardedPod{pod: pod, world: world, proxy: listenInbound(t, pod)}
	d.prepare(t, p, src, dst)
	if !d.lives {
		_ = p.proxy.Close()
	}
	go kerneltest.Answer(kerneltest.ListenTCP(t, pod, kerneltest.App, false, "[::]:8080"), "DIRECT")
	// A listener takes only the cookies that came after one of its own. The proxy connects to the application, so there is one.
	if _, err := kerneltest.Dial(t.Context(), pod, kerneltest.Proxy, "", "127.0.0.1:8080"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	reply, err := kerneltest.Dial(ctx, world, kerneltest.App, src, dst)
	t.Logf("answered by %q (%v)", reply.Banner, err)
	return reply.Banner
}

func listenInbound(t *testing.T, pod *netns.NS) net.Listener {
	t.Helper()
	l := kerneltest.ListenTCP(t, pod, kerneltest.Owner{UID: 0, GID: 1337}, true, "[::]:15006")
	go kerneltest.Answer(l, "PROXY")
	return l
}

// timeWait makes a connection that the proxy ends first.
func timeWait(t *testing.T, p guardedPod, src, dst string) {
	t.Helper()
	if _, err := kerneltest.Dial(t.Context(), p.world, kerneltest.App, src, dst); err != nil {
		t.Fatal(err)
	}
	kerneltest.Eventually(t, "TIME_WAIT", func() bool {
		return kerneltest.Shell(t, p.pod, `awk '$4 == "06"' /proc/net/tcp /proc/net/tcp6`, "") != ""
	})
}

// synReceived opens a connection whose client does not see the proxy's answer.
func synReceived(t *testing.T, p guardedPod, src, dst string) {
	t.Helper()
	p.dialInVain(t, p.world, kerneltest.App, src, dst)
}

// synSent leaves an entry in conntrack whose answers the client's packets seem to be.
func synSent(t *testing.T, p guardedPod, src, dst string) {
	t.Helper()
	p.dialInVain(t, p.pod, kerneltest.Proxy, dst, src)
}

// dialInVain tries to connect while the world receives nothing.
func (p guardedPod) dialInVain(t *testing.T, from *netns.NS, owner kerneltest.Owner, src, dst string) {
	t.Helper()
	kerneltest.Shell(t, p.world, "nft 'table inet deaf { chain c { type filter hook prerouting priority -310; meta l4proto tcp drop; }; }'", "")
	defer kerneltest.Shell(t, p.world, "nft delete table inet deaf", "")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if reply, err := kerneltest.Dial(ctx, from, owner, src, dst); err == nil {
		t.Fatalf("%s answered by %q", dst, reply.Banner)
	}
}

// cookies makes every listener answer by cookies, as each does whose backlog is full.
func cookies(t *testing.T, p guardedPod, _, _ string) {
	t.Helper()
	kerneltest.Sysctl(t, p.pod, "net/ipv4/tcp_syncookies", "2")
}

// unguarded leaves out what keeps clients from the application's listener.
func unguarded(r iptables.Ruleset) iptables.Ruleset {
	r = withoutRules(r, "nobody else answers clients")
	for _, c := range r.Chains {
		for i, rule := range c.Rules {
			if rule.Comment == "answers are not inbound" {
				c.Rules[i].Conds = withoutField(rule.Conds, iptables.TCPFlags)
			}
		}
	}
	return r
}

func withoutField(conds []iptables.Cond, f iptables.Field) []iptables.Cond {
	return slices.DeleteFunc(slices.Clone(conds), func(c iptables.Cond) bool { return c.Field == f })
}
