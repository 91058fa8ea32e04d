package xtables

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/routing"
	"istio-pod-network-controller/test/kerneltest"
)

// blocks splits the input of a restore program into its transactions.
func blocks(input string) []string {
	all := strings.SplitAfter(input, "COMMIT\n")
	return all[:len(all)-1]
}

// listen opens what stands for the proxy, the application and the world.
func listen(t *testing.T, pod, world *netns.NS) {
	t.Helper()
	for port, banner := range map[int]string{15001: "PROXY", 15006: "PROXY", 15021: "PROXY", 8080: "APP", 9090: "APP"} {
		l := kerneltest.ListenTCP(t, pod, kerneltest.Owner{UID: 0, GID: 1337}, true, fmt.Sprintf("[::]:%d", port))
		go kerneltest.Answer(l, fmt.Sprintf("%s:%d", banner, port))
	}
	kerneltest.Listen(t, world, kerneltest.App, "WORLD", 80, 443)
}

// mustCapture connects in both directions and both families, and wants the proxy every time.
func mustCapture(t *testing.T, pod, world *netns.NS) {
	t.Helper()
	for _, s := range []struct {
		from     *netns.NS
		dst, who string
	}{
		{world, kerneltest.Pod4 + ":8080", "PROXY:15006"},
		{world, "[" + kerneltest.Pod6 + "]:8080", "PROXY:15006"},
		{pod, kerneltest.Outside4 + ":80", "PROXY:15001"},
		{pod, "[" + kerneltest.Outside6 + "]:80", "PROXY:15001"},
	} {
		got, err := askAgain(t, s.from, s.dst)
		if err != nil || got != s.who {
			t.Errorf("%s answered by %q, want %s (%v)", s.dst, got, s.who, err)
		}
	}
}

// askAgain connects always from the same port, whose last connection the other side remembers in TIME_WAIT: clients of a busy
// pod come to do that within seconds.
func askAgain(t *testing.T, from *netns.NS, dst string) (banner string, err error) {
	t.Helper()
	err = kerneltest.As(from, kerneltest.App, func() error {
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{Port: 20080}}
		c, err := d.DialContext(t.Context(), "tcp", dst)
		if err != nil {
			return err
		}
		defer c.Close()
		text, err := io.ReadAll(c)
		banner, _, _ = strings.Cut(string(text), " ")
		return err
	})
	return banner, err
}

// However far a change has come when it is cut off, everything that is to be captured is: a table is a transaction, and
// their order is such that two of them may capture the same, but never none.
func TestEveryStageOfAChangeCaptures(t *testing.T) {
	specs := map[string]iptables.Ruleset{
		"REDIRECT":     rules(t, nil),
		"TPROXY":       rules(t, tproxyAndDNS),
		"REDIRECT+DNS": rules(t, func(s *iptables.Spec) { s.DNS, s.DropInvalid = iptables.DNSAll, true }),
		"TPROXY list": rules(t, func(s *iptables.Spec) {
			s.Mode, s.IncludeInboundPorts = iptables.ModeTProxy, iptables.Ports{List: []uint16{8080}}
		}),
		"REDIRECT+VM": rules(t, func(s *iptables.Spec) { s.RerouteInterfaces = []string{"k6t-eth0"} }),
		"TPROXY+VM":   rules(t, func(s *iptables.Spec) { s.Mode, s.RerouteInterfaces = iptables.ModeTProxy, []string{"k6t-eth0"} }),
	}
	pod, world := kerneltest.NewPod(t)
	kerneltest.Sysctl(t, pod, "net/ipv4/conf/all/rp_filter", "0")
	kerneltest.Sysctl(t, pod, "net/ipv4/conf/eth0/rp_filter", "0")
	listen(t, pod, world)
	b := newBackend(t, NFT)
	for from, before := range specs {
		for to, after := range specs {
			if from != to {
				t.Run(from+" to "+to, func(t *testing.T) {
					mustApply(t, b, pod, before)
					stages(t, b, pod, after, func() { mustCapture(t, pod, world) })
				})
			}
		}
	}
}

// stages changes the rules of a pod to want, a transaction of each family at a time, and looks before each.
func stages(t *testing.T, b byPath, pod *netns.NS, want iptables.Ruleset, look func()) {
	t.Helper()
	have, err := b.own.read(t.Context(), pod, false)
	if err != nil {
		t.Fatal(err)
	}
	goal := wanted(have, want)
	err = routing.Around(pod, want, func() (err error) {
		for stage := range 4 {
			look()
			err = errors.Join(err, eachFamily(pod, func(family uint32) error {
				all := blocks(plan(have[family], goal[family]))
				if stage >= len(all) {
					return nil
				}
				_, err := b.own.programs.run(t.Context(), all[stage], b.own.programs.tools[family].restore, "--noflush")
				return err
			}))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	now, err := b.own.read(t.Context(), pod, false)
	for family := range now {
		if drift := iptables.TextDrift(goal[family].text(), now[family].text()); err != nil || len(drift) > 0 {
			t.Errorf("all the blocks are not the whole: %s, %v", drift, err)
		}
	}
}
