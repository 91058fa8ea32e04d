package node

import (
	"errors"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/home"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
	"istio-pod-network-controller/test/kerneltest"
)

// An application that listens where the proxy should is not taken for it, whatever it answers.
func TestAsk_applicationHasThePort_isRefused(t *testing.T) {
	const proxy, app = 1337, 1000
	for name, c := range map[string]struct {
		listens     map[string]int // users by address
		spec        profile.Spec
		wantedPorts string // in the error
		home        int    // whose the directory of the pod's proxies is; 0 is that there is none
	}{
		"the proxy":                              {listens: map[string]int{"0.0.0.0:7001": proxy, "[::]:7002": proxy}},
		"nobody on the ports for traffic":        {},
		"the proxy, of a pod with other users":   {listens: map[string]int{"0.0.0.0:7001": 101337, "127.0.0.1:7003": 101337}, home: 101337},
		"the node's user, in such a pod":         {listens: map[string]int{"0.0.0.0:7001": proxy, "127.0.0.1:7003": 101337}, home: 101337, wantedPorts: "user 1337, listens on port 7001"},
		"the application, on the readiness port": {listens: map[string]int{"127.0.0.1:7003": app}, wantedPorts: "user 1000, listens on port 7003"},
		"the application, on the readiness page's port": {
			listens: map[string]int{"127.0.0.1:7004": app}, spec: profile.Spec{Readiness: profile.Probe{HTTPGet: &profile.HTTPGet{Port: 7004}}},
			wantedPorts: "user 1000, listens on port 7004",
		},
		"root, on the readiness port":                {listens: map[string]int{"127.0.0.1:7003": 0}, wantedPorts: "user 0, listens on port 7003"},
		"the application, on the outbound port":      {listens: map[string]int{"0.0.0.0:7001": app}, wantedPorts: "user 1000, listens on port 7001"},
		"the application, on the inbound port, IPv6": {listens: map[string]int{"[::1]:7002": app}, wantedPorts: "user 1000, listens on port 7002"},
		"the application, beside the proxy":          {listens: map[string]int{"127.0.0.1:7001": proxy, "127.0.0.2:7001": app}, wantedPorts: "user 1000, listens on port 7001"},
		"the application, on a port of its own":      {listens: map[string]int{"0.0.0.0:8080": app}},
		"a transparent proxy, which is root":         {listens: map[string]int{"0.0.0.0:7001": 0}, spec: profile.Spec{Transparent: true}},
		"a user beside a transparent proxy": {
			listens: map[string]int{"0.0.0.0:7001": proxy}, spec: profile.Spec{Transparent: true},
			wantedPorts: "user 1337, listens on port 7001",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := kerneltest.New(t)
			for address, user := range c.listens {
				go kerneltest.Answer(kerneltest.ListenTCP(t, ns, kerneltest.Owner{UID: user, GID: user}, false, address), "x")
			}
			c.spec.RunAsUser, c.spec.Readiness.TCPPort = proxy, 7003
			c.spec.Network.OutboundPort, c.spec.Network.InboundPort = 7001, 7002
			if _, taken := c.listens["127.0.0.1:7003"]; !taken { // the proxy itself is ready
				owner := map[bool]int{false: proxy, true: 0}[c.spec.Transparent]
				go kerneltest.Answer(kerneltest.ListenTCP(t, ns, kerneltest.Owner{UID: owner, GID: owner}, false, "127.0.0.1:7003"), "x")
			}
			a := asker{namespaces: namespaces(t), homes: home.Homes{Root: t.TempDir()}}
			s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u1", ID: "s1", NetNS: ns.Path()}
			ownedBy(t, a.homes.Of(s.Key()), c.home)
			err := a.Ask(t.Context(), s, &profile.Version{Spec: c.spec}, 0, probe.Ready)
			if errors.Is(err, sidecars.ErrPortTaken) != (c.wantedPorts != "") || err != nil && !strings.Contains(err.Error(), c.wantedPorts) || c.wantedPorts == "" && err != nil {
				t.Errorf("error %v, want %q in it", err, c.wantedPorts)
			}
		})
	}
}

// ownedBy readies a home for proxies of a user, unless that is 0.
func ownedBy(t *testing.T, h home.Home, user int) {
	t.Helper()
	if user == 0 {
		return
	}
	if err := h.Prepare(home.Owner{UID: int64(user), GID: int64(user)}); err != nil {
		t.Fatal(err)
	}
}
