package redirection

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/test/kerneltest"
)

func TestFamilies_addresses_equalTheRules(t *testing.T) {
	for i, f := range families() {
		ip, _ := netip.AddrFromSlice(f.validation)
		if want := iptables.Validation()[i]; netip.AddrPortFrom(ip, validationPort) != want {
			t.Errorf("%s: %s port %d, and the rules have %s", f.name, ip, validationPort, want)
		}
	}
}

// apply puts rules into a namespace; with keep, only those that it likes.
func apply(t *testing.T, ns *netns.NS, change func(*iptables.Spec), keep func(iptables.Rule) bool) {
	t.Helper()
	spec := iptables.DefaultSpec()
	if change != nil {
		change(&spec)
	}
	rules, err := iptables.Rules(spec)
	if err != nil {
		t.Fatal(err)
	}
	if keep != nil {
		c := &rules.Chains[0]
		c.Rules = slices.DeleteFunc(c.Rules, func(r iptables.Rule) bool { return !keep(r) })
	}
	if _, err := nftables.New().Apply(t.Context(), ns, rules); err != nil {
		t.Fatal(err)
	}
}

// try makes one try inside a namespace.
func try(t *testing.T, ns *netns.NS) (proof Proof, err error) {
	t.Helper()
	errDo := ns.Inside(func() error {
		proof, err = Wait(t.Context(), Options{Port: 15006, Once: true})
		return nil
	})
	if errDo != nil {
		t.Fatal(errDo)
	}
	return proof, err
}

// Whatever traffic a pod includes or excludes, its rules are proven.
func TestWait_anySpec_isProven(t *testing.T) {
	for name, change := range map[string]func(*iptables.Spec){
		"by default": nil,
		"TPROXY":     func(s *iptables.Spec) { s.Mode = iptables.ModeTProxy },
		"nothing included": func(s *iptables.Spec) {
			s.IncludeCIDRs, s.IncludeInboundPorts = iptables.CIDRs{}, iptables.Ports{}
		},
		"everything excluded": func(s *iptables.Spec) {
			s.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
			s.ExcludeOutboundPorts = []uint16{validationPort}
			s.ExcludeInboundPorts = []uint16{validationPort, 15006}
			s.ExcludeInterfaces = []string{"lo", "eth0"}
			s.OwnerGroups = iptables.Groups{List: []uint32{7}}
		},
		"loopback included": func(s *iptables.Spec) {
			s.IncludeCIDRs = iptables.CIDRs{List: []netip.Prefix{netip.MustParsePrefix("127.1.2.3/32")}}
		},
		"lookups captured, invalid packets dropped": func(s *iptables.Spec) { s.DNS, s.DropInvalid = iptables.DNSAll, true },
	} {
		t.Run(name, func(t *testing.T) {
			pod, _ := kerneltest.NewPod(t)
			apply(t, pod, change, nil)
			proof, err := try(t, pod)
			if err != nil || !slices.Equal(proof.Families, []string{"IPv4", "IPv6"}) || proof.ByProxy {
				t.Errorf("proven %+v, error %v", proof, err)
			}
		})
	}
}

func TestWait_missingRules_areNamed(t *testing.T) {
	without := func(family uint32) func(iptables.Rule) bool {
		return func(r iptables.Rule) bool {
			return !slices.ContainsFunc(r.Conds, func(c iptables.Cond) bool { return c.Field == iptables.Family && c.Num == family })
		}
	}
	const (
		none   = "IPv4: connection refused; IPv6: lo lacks the address that comes with the rules"
		both   = "IPv4: connection refused; IPv6: connection refused"
		astray = "IPv4: connected, but not to the inbound port; IPv6: connected, but not to the inbound port"
	)
	for name, c := range map[string]struct {
		inSix  bool // the address that comes with the rules is there
		rules  bool
		change func(*iptables.Spec)
		keep   func(iptables.Rule) bool
		listen uint16
		want   string
	}{
		"no rules":         {want: none},
		"none, with ::6":   {inSix: true, want: both},
		"for IPv4 alone":   {rules: true, keep: without(iptables.IPv6), want: "IPv6: connection refused"},
		"for IPv6 alone":   {rules: true, keep: without(iptables.IPv4), want: "IPv4: connection refused"},
		"for another port": {rules: true, change: otherPort, want: both},
		"for another port, where the proxy listens":     {rules: true, change: otherPort, listen: 16006, want: astray},
		"no rules, but somebody on the validation port": {inSix: true, listen: validationPort, want: astray},
		"no rules, but the proxy listens":               {listen: 15006, want: none},
	} {
		t.Run(name, func(t *testing.T) {
			pod, _ := kerneltest.NewPod(t)
			if c.inSix {
				kerneltest.AddAddresses(t, pod, "lo", "::6/128")
			}
			if c.rules {
				apply(t, pod, c.change, c.keep)
			}
			if c.listen != 0 {
				kerneltest.Listen(t, pod, kerneltest.Proxy, "OTHER", c.listen)
			}
			// For a moment the kernel may lack the route of an IPv6 address that it has.
			var err error
			kerneltest.Eventually(t, "rules missing: "+c.want, func() bool {
				_, err = try(t, pod)
				return err == nil || err.Error() == "rules missing: "+c.want
			})
			if !errors.Is(err, ErrMissing) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func otherPort(s *iptables.Spec) { s.InboundPort = 16006 }

// A proxy that runs already takes the connection: proof that it was redirected, as nobody listens where it was dialled.
func TestWait_runningProxy_isProof(t *testing.T) {
	pod, _ := kerneltest.NewPod(t)
	kerneltest.Listen(t, pod, kerneltest.Proxy, "PROXY", 15006)
	apply(t, pod, nil, nil)
	proof, err := try(t, pod)
	if err != nil || !proof.ByProxy || len(proof.Families) != 2 {
		t.Fatalf("proven %+v, error %v", proof, err)
	}
	kerneltest.Listen(t, pod, kerneltest.App, "APP", validationPort)
	if _, err := try(t, pod); err == nil || errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "nothing can be proven") {
		t.Errorf("with others on both ports: %v", err)
	}
}

func TestWait_withoutIPv6_asksForIPv4Only(t *testing.T) {
	pod := kerneltest.New(t)
	kerneltest.Sysctl(t, pod, "net/ipv6/conf/all/disable_ipv6", "1")
	apply(t, pod, nil, nil)
	if proof, err := try(t, pod); err != nil || !slices.Equal(proof.Families, []string{"IPv4"}) {
		t.Errorf("proven %+v, error %v", proof, err)
	}
}

// Connections of others to the inbound port are neither proof nor in the way.
func TestTry_foreignConnections_areNoProof(t *testing.T) {
	pod, _ := kerneltest.NewPod(t)
	in := func(f func() error) {
		t.Helper()
		if err := pod.Inside(f); err != nil {
			t.Fatal(err)
		}
	}
	var p *Prober
	in(func() (err error) {
		p, err = New(15006)
		return err
	})
	defer p.Close()
	missing := func() error {
		if _, err := p.Try(); !errors.Is(err, ErrMissing) {
			return fmt.Errorf("not missing: %w", err)
		}
		return nil
	}
	in(missing)
	f := families()[0]
	for range 3 {
		in(func() error {
			stranger, err := f.bind(f.loopback, 0)
			if err == nil {
				t.Cleanup(stranger.close)
				err = stranger.connect(f.address(f.loopback, 15006))
			}
			return err
		})
	}
	in(missing)
	apply(t, pod, nil, nil)
	in(func() error {
		_, err := p.Try()
		return err
	})
}

func TestRun_endings_areErrors(t *testing.T) {
	cause := errors.New("enough")
	for name, c := range map[string]struct {
		options Options
		cancel  bool
		want    string
	}{
		"when the time is up":        {Options{Port: 15006, Timeout: 120 * time.Millisecond}, false, "waited 120ms: rules missing: IPv4"},
		"when it is told to":         {Options{Port: 15006, Timeout: time.Minute}, true, "interrupted: enough"},
		"at once without a port":     {Options{Timeout: time.Minute}, false, "--port 0"},
		"at once without time":       {Options{Port: 15006}, false, "--timeout 0s"},
		"after one try when told so": {Options{Port: 15006, Once: true}, false, "rules missing: IPv4"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.cancel {
				cancel(cause)
			}
			var out bytes.Buffer
			var err error
			if errDo := kerneltest.New(t).Inside(func() error { err = Run(ctx, c.options, &out); return nil }); errDo != nil {
				t.Fatal(errDo)
			}
			if err == nil || !strings.HasPrefix(err.Error(), c.want) || out.Len() != 0 {
				t.Errorf("said %q, error %v; want %q", out.String(), err, c.want)
			}
		})
	}
}
