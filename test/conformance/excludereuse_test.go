package conformance

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// Connections of excluded clients and users are direct, and go on when the exclusion ends. A new one from the same port is direct as long as
// the exclusion lasts, whatever conntrack holds, and never afterwards.
func TestExcluded_portUsedAgain_goesByTheRulesOfTheDay(t *testing.T) {
	t.Parallel()
	for name, way := range ways(t) {
		for _, ends := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/the exclusion ends: %v", name, ends), func(t *testing.T) {
				t.Parallel() // dropped packets take their time
				reopenExcluded(t, way, ends)
			})
		}
	}
}

func reopenExcluded(t *testing.T, w way, ends bool) {
	t.Helper()
	pod, world := kerneltest.NewPod(t)
	rules := func(exclude bool) iptables.Ruleset {
		return configuration{spec: with(func(s *iptables.Spec) {
			if s.Mode = w.mode; exclude {
				s.ExcludeSources = prefixes(kerneltest.World4+"/32", kerneltest.World6+"/128")
				s.ExcludeUsers = []iptables.Users{{First: 1000, Last: 1000}}
			}
		})}.rules(t)
	}
	if _, err := w.backend.Apply(t.Context(), pod.Path(), rules(true)); err != nil {
		t.Fatal(err)
	}
	listenAsProxy(t, pod)
	talks := openTalks(t, pod, world)
	if _, err := w.backend.Apply(t.Context(), pod.Path(), rules(!ends)); err != nil {
		t.Fatal(err)
	}
	for _, o := range talks {
		if err := o.goOn(3 * time.Second); err != nil {
			t.Fatalf("%s: %v", o.name, err)
		}
		o.vanish(t)
	}
	var wg sync.WaitGroup
	for _, o := range talks {
		from, to := o.ends(pod, world)
		kerneltest.Listen(t, to, kerneltest.App, "DIRECT", uint16(o.server.LocalAddr().(*net.TCPAddr).Port))
		wg.Go(func() {
			if direct := o.reopen(t, from); direct == ends {
				t.Errorf("%s: a new connection from the same port is direct: %v", o.name, direct)
			}
		})
	}
	wg.Wait()
}

// A lookup of an excluded user does not take a captured one along that uses its port after it.
func TestExcluded_lookupsPortUsedAgain_meetsTheResolver(t *testing.T) {
	for _, b := range backends(t) {
		for name, control := range map[string]bool{"with our zones": false, "without them, as a control": true} {
			t.Run(b.Name()+"/"+name, func(t *testing.T) {
				w := newWorld(t, "4")
				setup := configuration{spec: with(func(s *iptables.Spec) {
					s.DNS, s.ExcludeUsers = iptables.DNSAll, []iptables.Users{{First: 2000, Last: 2999, Port: 53}}
				})}
				w.listen(t, setup)
				rules := setup.rules(t)
				if control {
					rules = withoutRules(rules, "excluded users asking")
				}
				if _, err := b.Apply(t.Context(), w.pod().Path(), rules); err != nil {
					t.Fatal(err)
				}
				if got := w.lookup(t, 2500); got != "WORLD:7000" {
					t.Errorf("an excluded user's lookup was answered by %q", got)
				}
				if got := w.lookup(t, 1000); (got == "PROXY:15053") == control {
					t.Errorf("a lookup from the same port was answered by %q", got)
				}
			})
		}
	}
}

// lookup asks a server outside of the pod from a fixed port, and returns who answers.
func (w world) lookup(t *testing.T, uid int) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	answer := make([]byte, 64)
	n := 0
	err := kerneltest.As(w.pod(), kerneltest.Owner{UID: uid, GID: uid}, func() error {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP("10.244.1.5"), Port: 40053}}
		c, err := d.DialContext(ctx, "udp", "8.8.8.8:53")
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
		n, err = c.Read(answer)
		return err
	})
	if err != nil {
		t.Log(err)
	}
	banner, _, _ := strings.Cut(string(answer[:n]), " ")
	return banner
}
