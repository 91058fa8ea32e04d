package xtables

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
	"istio-pod-network-controller/test/kerneltest"
)

// started gathers the processes that a Backend starts.
type started struct {
	mu    sync.Mutex
	names []string
}

func (s *started) observe(program string, _ time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, program)
}

// take gives the names of those since the last time, sorted.
func (s *started) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.names
	s.names = nil
	slices.Sort(names)
	return names
}

func flavours() []Flavour { return []Flavour{NFT, Legacy} }

// wants skips a test where the programs of a flavour are not installed.
func wants(t testing.TB, flavour Flavour) {
	t.Helper()
	kerneltest.ProgramPath(t, "iptables-"+string(flavour)+"-restore")
}

// byPath is a Backend whose calls open the namespace anew.
type byPath struct {
	kerneltest.ByPath
	own *Backend
}

func newByPath(t testing.TB, c Config) byPath {
	t.Helper()
	own := New(t.Context(), c)
	return byPath{kerneltest.NewByPath(t, own, routing.Remove), own}
}

func newBackend(t testing.TB, flavour Flavour) byPath {
	t.Helper()
	wants(t, flavour)
	b := newByPath(t, Config{Flavour: flavour})
	if b.own.programs.missing != nil {
		t.Fatal(b.own.programs.missing)
	}
	return b
}

func rules(t testing.TB, change func(*iptables.Spec)) iptables.Ruleset {
	t.Helper()
	s := iptables.DefaultSpec()
	if change != nil {
		change(&s)
	}
	r, err := iptables.Rules(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tproxyAndDNS(s *iptables.Spec) {
	s.Mode, s.DNS, s.DropInvalid = iptables.ModeTProxy, iptables.DNSAll, true
}

func mustApply(t testing.TB, b byPath, ns *netns.NS, r iptables.Ruleset) (changed bool) {
	t.Helper()
	out, err := b.Apply(t.Context(), ns.Path(), r)
	if err != nil {
		t.Fatal(err)
	}
	return out.Changed()
}

func mustHold(t testing.TB, b byPath, ns *netns.NS, r iptables.Ruleset) {
	t.Helper()
	if drift, err := b.Verify(t.Context(), ns.Path(), r); err != nil || len(drift) != 0 {
		t.Fatalf("drift:\n%s\nerror %v", drift, err)
	}
}

// shell runs a script inside ns and gives what it printed.
func shell(t testing.TB, ns *netns.NS, script string) string {
	t.Helper()
	var out []byte
	err := ns.Inside(func() (err error) {
		out, err = exec.CommandContext(t.Context(), "sh", "-ec", script).Output()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return string(out)
}

// everything is all that a backend could leave behind but empty tables of iptables, of which it shows rules and policies.
const everything = "for p in iptables-nft ip6tables-nft; do $p-save 2>/dev/null | grep -e ^-A -e DROP -e PODNET_ || true; done; nft list tables inet; ip rule; ip -6 rule; ip route show table 15006 2>/dev/null || true; ip -6 route show table 15006 2>/dev/null || true; ip -o addr show lo"

func legacyNames(t *testing.T, ns *netns.NS) string {
	t.Helper()
	return shell(t, ns, "cat /proc/self/net/ip_tables_names /proc/self/net/ip6_tables_names")
}

// What is read back is what was asked for, whatever the shape of the rules, and a second apply finds nothing to do.
func TestApplyThenVerifyFindsNoDrift(t *testing.T) {
	cases := map[string]func(*iptables.Spec){
		"the defaults":   nil,
		"TPROXY and DNS": tproxyAndDNS,
		"no capture at all": func(s *iptables.Spec) {
			s.IncludeCIDRs, s.IncludeInboundPorts = iptables.CIDRs{}, iptables.Ports{}
		},
		"lists of both families": func(s *iptables.Spec) {
			s.IncludeCIDRs = iptables.CIDRs{List: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/9"), netip.MustParsePrefix("fd00::/8")}}
			s.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/32"), netip.MustParsePrefix("fd00:8::/64"), netip.MustParsePrefix("::ffff:0:0/96")}
			s.IncludeOutboundPorts, s.IncludeInboundPorts = []uint16{443, 0, 65535}, iptables.Ports{List: []uint16{80}}
		},
		"64 owner groups": func(s *iptables.Spec) {
			s.OwnerGroups = iptables.Groups{}
			for g := range uint32(64) {
				s.OwnerGroups.List = append(s.OwnerGroups.List, 3*g)
			}
		},
		"1,000 CIDRs and 200 ports": func(s *iptables.Spec) {
			for i := range 1000 {
				s.ExcludeCIDRs = append(s.ExcludeCIDRs, netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)))
				s.ExcludeOutboundPorts = append(s.ExcludeOutboundPorts, uint16(20000+i%200))
			}
		},
	}
	for name, change := range cases {
		for _, flavour := range flavours() {
			t.Run(name+"/"+string(flavour), func(t *testing.T) {
				ns, b, want := kerneltest.New(t), newBackend(t, flavour), rules(t, change)
				if !mustApply(t, b, ns, want) {
					t.Error("the first apply changed nothing")
				}
				mustHold(t, b, ns, want)
				if mustApply(t, b, ns, want) {
					t.Error("the second apply changed something")
				}
			})
		}
	}
}

func TestBackend_eachCall_startsFewProcesses(t *testing.T) {
	both := func(flavour Flavour, what string) []string {
		return []string{fmt.Sprintf("ip6tables-%s-%s", flavour, what), fmt.Sprintf("iptables-%s-%s", flavour, what)}
	}
	for _, flavour := range flavours() {
		t.Run(string(flavour), func(t *testing.T) {
			var log started
			ns := kerneltest.New(t)
			wants(t, flavour)
			b := newByPath(t, Config{Flavour: flavour, Observe: log.observe})
			saves, restores := both(flavour, "save"), both(flavour, "restore")
			all := slices.Sorted(slices.Values(slices.Concat(saves, restores)))
			expect := func(step string, want []string) {
				t.Helper()
				if d := cmp.Diff(want, log.take()); d != "" {
					t.Errorf("%s: %s", step, d)
				}
			}
			mustApply(t, b, ns, rules(t, nil))
			expect("a fresh namespace", restores)
			mustApply(t, b, ns, rules(t, nil))
			expect("nothing to do", saves)
			mustApply(t, b, ns, rules(t, tproxyAndDNS))
			expect("a change of everything", all)
			mustHold(t, b, ns, rules(t, tproxyAndDNS))
			expect("verify", saves)
			if present, err := b.Present(t.Context(), ns.Path()); err != nil || !present {
				t.Error(present, err)
			}
			expect("present", map[Flavour][]string{NFT: nil, Legacy: saves}[flavour])
			if removed, err := b.Remove(t.Context(), ns.Path()); err != nil || !removed {
				t.Error(removed, err)
			}
			expect("remove", map[Flavour][]string{NFT: nil, Legacy: all}[flavour])
			if present, err := b.Present(t.Context(), kerneltest.New(t).Path()); err != nil || present {
				t.Error(present, err)
			}
			expect("present in a fresh namespace", nil)
		})
	}
}

// Absent is success, and nothing; what was there before, tables of others included, is there afterwards.
func TestRemove_foreignRules_stay(t *testing.T) {
	for _, before := range []string{"true", "iptables-nft -t nat -A OUTPUT -j RETURN; iptables-nft -t nat -A PREROUTING -j RETURN; nft add table inet foreign; iptables-nft -P FORWARD DROP"} {
		ns, b := kerneltest.New(t), newBackend(t, NFT)
		shell(t, ns, before)
		untouched := shell(t, ns, everything)
		for _, change := range []func(*iptables.Spec){nil, tproxyAndDNS, nil} {
			mustApply(t, b, ns, rules(t, change))
		}
		for _, want := range []bool{true, false} {
			removed, err := b.Remove(t.Context(), ns.Path())
			if err != nil || removed != want {
				t.Fatalf("removed %v, error %v; want %v", removed, err, want)
			}
		}
		if d := cmp.Diff(untouched, shell(t, ns, everything)); d != "" {
			t.Error(d)
		}
		if names := legacyNames(t, ns); names != "" {
			t.Errorf("legacy tables came into being: %s", names)
		}
	}
}

// The kernel keeps a legacy table until the namespace ends: it stays, with nothing in it.
func TestRemove_legacy_leavesEmptyTables(t *testing.T) {
	ns, b := kerneltest.New(t), newBackend(t, Legacy)
	mustApply(t, b, ns, rules(t, tproxyAndDNS))
	if removed, err := b.Remove(t.Context(), ns.Path()); err != nil || !removed {
		t.Fatal(removed, err)
	}
	for line := range strings.Lines(shell(t, ns, "iptables-legacy-save; ip6tables-legacy-save")) {
		if strings.HasPrefix(line, "-A") || strings.Contains(line, " - ") {
			t.Errorf("left behind: %s", line)
		}
	}
	if removed, err := b.Remove(t.Context(), ns.Path()); err != nil || removed {
		t.Errorf("removed %v, error %v", removed, err)
	}
}

// A backend that has taken over needs the addresses and routes.
func TestYield_addressesAndRoutes_stay(t *testing.T) {
	ns, b := kerneltest.New(t), newBackend(t, NFT)
	mustApply(t, b, ns, rules(t, tproxyAndDNS))
	for _, want := range []bool{true, false} {
		if removed, err := b.Yield(t.Context(), ns.Path()); err != nil || removed != want {
			t.Fatalf("removed %v, error %v", removed, err)
		}
	}
	if out := shell(t, ns, everything); !strings.Contains(out, "::6") || !strings.Contains(out, "lookup 15006") || strings.Contains(out, "PODNET_") {
		t.Error(out)
	}
}
