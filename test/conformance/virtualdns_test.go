package conformance

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// virtualDNS is a pod with DNS capture and a virtual machine behind it.
func virtualDNS(mode iptables.Mode, toProxy bool) configuration {
	return configuration{spec: with(func(s *iptables.Spec) {
		s.Mode, s.DNS, s.RerouteDNS, s.RerouteInterfaces = mode, iptables.DNSAll, toProxy, []string{"k6t-eth0"}
	})}
}

// listenEverywhere answers lookups as the agent of a proxy whose resolver listens at all addresses: from the address that was asked
// (IP_PKTINFO).
func (w world) listenEverywhere(t *testing.T) {
	t.Helper()
	w.tcp(t, "pod", kerneltest.Proxy, false, "", 15053, "PROXY")
	var c net.PacketConn
	err := kerneltest.As(w.pod(), kerneltest.Proxy, func() (err error) {
		c, err = new(net.ListenConfig).ListenPacket(t.Context(), "udp4", "0.0.0.0:15053")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	udp := c.(*net.UDPConn)
	raw, err := udp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) }); err != nil {
		t.Fatal(err)
	}
	go func() {
		text, control := make([]byte, 64), make([]byte, 64)
		for {
			_, n, _, from, err := udp.ReadMsgUDPAddrPort(text, control)
			if err != nil {
				return
			}
			messages, _ := unix.ParseSocketControlMessage(control[:n])
			info := unix.Inet4Pktinfo{Spec_dst: [4]byte(messages[0].Data[8:12])}
			_, _, _ = udp.WriteMsgUDPAddrPort([]byte("PROXY:15053 "+from.String()), unix.PktInfo4(&info), from)
		}
	}()
}

// listenOutbound opens the listeners that connections to the world can meet.
func (w world) listenOutbound(t *testing.T) {
	t.Helper()
	w.tcp(t, "pod", kerneltest.Proxy, false, "", 15001, "PROXY")
	w.tcp(t, "world", kerneltest.App, false, "", 7000, "WORLD")
	w.udp(t, "world", kerneltest.App, "0.0.0.0", 7000, "WORLD")
}

// A resolver that listens at all addresses answers lookups of the application, and of virtual machines if they are sent to it.
func TestVirtualMachine_resolverEverywhere_answersLookups(t *testing.T) {
	for name, way := range ways(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "4")
			w.listenOutbound(t)
			w.listenEverywhere(t)
			mustApply(t, way.backend, w, virtualDNS(way.mode, true))
			probes, want := parseLines(t, []string{
				"vm 0 udp 8.8.8.8:53 = PROXY:15053", "vm 0 tcp 8.8.8.8:53 = PROXY:15053", "vm 0 tcp 93.184.216.34:80 = PROXY:15001",
				"pod 1000 udp 8.8.8.8:53 = PROXY:15053", "pod 1000 tcp 8.8.8.8:53 = PROXY:15053", "pod 1337 udp 8.8.8.8:53 = WORLD:7000",
			})
			w.compare(t, probes, want)
		})
	}
}

// Lookups that go past the proxy get their answers, also if somebody translates them in the pod: those of a virtual machine, and the proxy's own.
// The ports that they are translated to are no client's own (net.ipv4.ip_local_port_range), so that each is translated.
func TestTranslatedLookups_getTheirAnswers(t *testing.T) {
	for name, way := range ways(t) {
		for _, control := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/control=%v", name, control), func(t *testing.T) {
				w := newWorld(t, "4")
				setup := virtualDNS(way.mode, false)
				w.listen(t, setup)
				kerneltest.Shell(t, w.pod(), `nft 'table ip machine { chain c { type nat hook postrouting priority 100;
ip saddr 192.168.60.2 masquerade; oifname eth0 udp dport 53 snat to 10.244.1.5:20000-20999; }; }'`, "")
				rules, ofProxy := setup.rules(t), "WORLD:7000"
				if control {
					rules, ofProxy = bothWays(rules), "NOBODY"
				}
				if _, err := way.backend.Apply(t.Context(), w.pod().Path(), rules); err != nil {
					t.Fatal(err)
				}
				probes, want := parseLines(t, []string{"vm 0 udp 8.8.8.8:53 = WORLD:7000", "pod 1337 udp 8.8.8.8:53 = " + ofProxy})
				w.compare(t, probes, want)
			})
		}
	}
}

// bothWays puts answers of resolvers into the zone of what was asked, too.
func bothWays(r iptables.Ruleset) iptables.Ruleset {
	for _, c := range r.Chains {
		for i := range c.Rules {
			if c.Rules[i].Action.Verb == iptables.ZoneOneWay {
				c.Rules[i].Action.Verb = iptables.Zone
			}
		}
	}
	return r
}

// While no proxy answers lookups they are refused at once, and not after the application's seconds of patience.
func TestDNSCapture_nobodyListens_isRefused(t *testing.T) {
	for name, way := range ways(t) {
		for _, resolver := range []string{"8.8.8.8:53", "[fd00:99::34]:53"} {
			t.Run(name+"/"+resolver, func(t *testing.T) {
				w := newWorld(t, "ds")
				mustApply(t, way.backend, w, configuration{spec: with(func(s *iptables.Spec) { s.Mode, s.DNS = way.mode, iptables.DNSAll })})
				err := kerneltest.As(w.pod(), kerneltest.App, func() error {
					c, err := new(net.Dialer).DialContext(t.Context(), "udp", resolver)
					if err != nil {
						return err
					}
					defer c.Close()
					errDeadline := c.SetDeadline(time.Now().Add(3 * time.Second))
					_, errWrite := c.Write([]byte("lookup"))
					_, errRead := c.Read(make([]byte, 1))
					return errors.Join(errDeadline, errWrite, errRead)
				})
				if !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("%v, want a refusal", err)
				}
			})
		}
	}
}

// A resolver on loopback alone never hears a virtual machine: a redirect leads to the interface's address, and the kernel drops what is
// translated to loopback, unless route_localnet is set.
func TestVirtualMachine_resolverOnLoopback_neverHearsIt(t *testing.T) {
	w := newWorld(t, "4")
	setup := virtualDNS(iptables.ModeRedirect, true)
	w.listen(t, setup)
	b := backends(t)[0]
	mustApply(t, b, w, setup)
	answeredBy := func(answer string) {
		t.Helper()
		probes, want := parseLines(t, []string{"vm 0 udp 8.8.8.8:53 = " + answer, "vm 0 tcp 8.8.8.8:53 = " + answer})
		w.compare(t, probes, want)
	}
	answeredBy("NOBODY")
	if _, err := b.Remove(t.Context(), w.pod().Path()); err != nil {
		t.Fatal(err)
	}
	kerneltest.Shell(t, w.pod(), "nft 'table ip x { chain c { type nat hook prerouting priority -100; iifname k6t-eth0 meta l4proto { tcp, udp } th dport 53 dnat to 127.0.0.1:15053; }; }'", "")
	answeredBy("NOBODY")
	kerneltest.Sysctl(t, w.pod(), "net/ipv4/conf/k6t-eth0/route_localnet", "1")
	answeredBy("PROXY:15053")
}
