package routing

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// Programs for VPNs and second interfaces add rules without a priority, which the kernel puts in front of ours when they come later.
func TestBefore_rulesInFront_areNamed(t *testing.T) {
	for name, c := range map[string]struct {
		spoil string
		want  []string
	}{
		"nothing":                    {"true", nil},
		"source based routing":       {"ip rule add from 10.0.0.5 lookup 100", []string{"policy rule of IPv4, priority 999: to table 100"}},
		"the pair of a VPN":          {"ip rule add not fwmark 51820 table 51820; ip rule add table main suppress_prefixlength 0", []string{"policy rule of IPv4, priority 998: to table 254", "policy rule of IPv4, priority 999: to table 51820"}},
		"of IPv6":                    {"ip -6 rule add from fd00::5 lookup 100", []string{"policy rule of IPv6, priority 999: to table 100"}},
		"lets nothing through":       {"ip rule add pref 7 fwmark 0x539 blackhole", []string{"policy rule of IPv4, priority 7: lets nothing through"}},
		"for a part of the mark":     {"ip rule add pref 7 fwmark 0x38/0xff lookup 100; ip rule add pref 8 fwmark 0x39/0xff lookup 100", []string{"policy rule of IPv4, priority 8: to table 100"}},
		"for another mark":           {"ip rule add pref 7 fwmark 7 lookup 100", nil},
		"local addresses once more":  {"ip rule add pref 7 lookup local", nil},
		"behind ours":                {"ip rule add pref 1001 lookup 100; ip rule add pref 1000 lookup 100", nil},
		"of the priority, and first": {"ip rule del pref 1000; ip rule add pref 1000 from 10.0.0.5 lookup 100; ip rule add pref 1000 fwmark 1337 lookup 15006", []string{"policy rule of IPv4, priority 1000: to table 100"}},
		"ours is missing":            {"ip rule add pref 7 lookup 100; ip rule del pref 1000", nil},
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			change(t, ns, tproxy())
			kerneltest.Shell(t, ns, c.spoil, "")
			if got, err := Before(ns); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q, error %v, want %q", got, err, c.want)
			}
		})
	}
}

// A namespace full of rules is looked at in bounds.
func TestBefore_manyRules_areBounded(t *testing.T) {
	ns := kerneltest.New(t)
	change(t, ns, tproxy())
	kerneltest.Shell(t, ns, "ip -batch -", strings.Repeat("rule add lookup 100\n", 500)+"\n")
	if got, err := Before(ns); err != nil || len(got) != maxBefore {
		t.Errorf("%d lines, error %v", len(got), err)
	}
}

// A program for a VPN sets src_valid_mark when it starts.
func TestAround_srcValidMark_isMadeHarmless(t *testing.T) {
	const vpn = "echo 1 >/proc/sys/net/ipv4/conf/all/src_valid_mark"
	for name, early := range map[string]bool{"before the rules": true, "behind them": false} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			if early {
				kerneltest.Shell(t, ns, vpn, "")
			}
			change(t, ns, tproxy())
			if !early {
				kerneltest.Shell(t, ns, vpn, "")
				drift, err := Drift(ns, tproxy())
				if text := drift.String(); err != nil || !strings.Contains(text, "accept_local=1") || !slices.Equal(drift.Kinds(), []iptables.Kind{iptables.KindRoute}) {
					t.Errorf("drift %q, error %v", text, err)
				}
				if drift, err := Drift(ns, redirect()); err != nil || strings.Contains(drift.String(), "accept_local") {
					t.Errorf("where nothing is marked: drift %q, error %v", drift, err)
				}
				change(t, ns, tproxy())
			}
			wantRead(t, ns, "mended", tproxy())
			if both := kerneltest.Shell(t, ns, "cd /proc/sys/net/ipv4/conf/all; cat src_valid_mark accept_local", ""); both != "1\n1\n" {
				t.Errorf("src_valid_mark and accept_local are %q", both)
			}
		})
	}
}

// While somebody changes rules of others, the kernel's list may lack ours, or have it twice, if it takes more than one message. Ours are there all
// the time.
func TestRead_othersChangeRules_oursAreSeen(t *testing.T) {
	ns := kerneltest.New(t)
	change(t, ns, tproxy())
	var changes strings.Builder // which move ours over the ends of messages
	for _, what := range []string{"add", "del"} {
		for i := range 200 {
			fmt.Fprintf(&changes, "rule %s pref 50 lookup %d\n", what, 100+i)
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				kerneltest.Shell(t, ns, "ip -batch -", changes.String())
			}
		}
	}()
	for range 4000 {
		if drift, err := Drift(ns, tproxy()); err != nil || len(drift) > 0 {
			t.Errorf("drift %q, error %v", drift, err)
		}
	}
	close(stop)
	<-done
	if n := pieces(t, ns); n != 4 {
		t.Errorf("%d pieces are there, want a rule and a route of each family", n)
	}
}
