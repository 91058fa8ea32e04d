package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The resolvers that the pods' resolv.conf names: the cluster's, and one that the pods add. Nothing answers at either address.
const (
	clusterDNS  = "10.96.0.10"
	clusterDNS6 = "fd00:10:96::a"
)

// The answers of the two resolvers: the test proxy's, and the world's. They show which one a lookup reached.
func proxysAnswer() []string { return []string{"192.0.2.53", "2001:db8::53"} }
func worldsAnswer() []string { return []string{"2001:db8:1::53", "203.0.113.53"} }

// lookups are the ways to ask, as arguments of testapp.
func lookups() map[string][]string {
	w4, w6 := "203.0.113.53:53", "[2001:db8:1::53]:53"
	return map[string][]string{
		"resolv.conf":               {},
		"resolv.conf, by TCP":       {"-network=tcp"},
		"resolv.conf's IPv4 server": {"-server=" + clusterDNS + ":53"},
		"resolv.conf's IPv6 server": {"-server=[" + clusterDNS6 + "]:53"},
		"another server":            {"-server=" + w4},
		"another server, by IPv6":   {"-server=" + w6},
		"another server, by TCP":    {"-server=" + w4, "-network=tcp"},
		"another, by TCP and IPv6":  {"-server=" + w6, "-network=tcp"},
		"itself, without a server":  {"-server=127.0.0.1:53"},
	}
}

//e2e:rounds core nftables iptables
func TestLookupsAreCapturedAsThePodSays(t *testing.T) {
	t.Parallel()
	serveNames(t)
	s := newSpace(t, asked())
	capture := corev1.EnvVar{Name: "ISTIO_META_DNS_CAPTURE", Value: "true"}
	for name, c := range map[string]struct {
		annotations map[string]string
		env         []corev1.EnvVar
		// who answers lookups by the resolvers of resolv.conf, by others, and by the pod itself
		own, others, itself []string
	}{
		"off-unless-asked-for":          {others: worldsAnswer()},
		"all-by-istios-environment":     {env: []corev1.EnvVar{capture}, own: proxysAnswer(), others: proxysAnswer(), itself: proxysAnswer()},
		"all-by-annotation":             {annotations: map[string]string{keyDNSCapture: "all"}, own: proxysAnswer(), others: proxysAnswer(), itself: proxysAnswer()},
		"off-wins-over-the-environment": {annotations: map[string]string{keyDNSCapture: "off"}, env: []corev1.EnvVar{capture}, others: worldsAnswer()},
		"only-its-own-resolvers":        {annotations: map[string]string{keyDNSCapture: "resolv.conf"}, own: proxysAnswer(), others: worldsAnswer()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := meshPod(name, c.annotations)
			pod.Spec.Containers[1].Env = c.env
			pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{clusterDNS6}}
			pod = s.startMesh(t, pod)
			var all sync.WaitGroup // in parallel, since some run into their timeout
			for how, args := range lookups() {
				want := c.others
				switch {
				case strings.Contains(how, "resolv.conf"):
					want = c.own
				case strings.HasPrefix(how, "itself"):
					want = c.itself
				}
				all.Go(func() {
					if got, err := s.lookup(t, pod, args...); !slices.Equal(got, want) {
						t.Errorf("%s: %v, %v; want %v", how, got, err, want)
					}
				})
			}
			all.Wait()
			wantTCPLookupsProxied(t, pod, slices.Equal(c.others, worldsAnswer()))
		})
	}
}

// wantTCPLookupsProxied checks whether lookups over TCP went through the proxy as ordinary outbound traffic.
func wantTCPLookupsProxied(t *testing.T, pod *corev1.Pod, proxied bool) {
	t.Helper()
	for i, f := range families() {
		last := []byte{53, 0x53}[i] // of 203.0.113.53 and of 2001:db8:1::53
		if n := took(t, pod, outbound, f.at(last, 53)); (n > 0) != proxied {
			t.Errorf("%s: the proxy took %d connections to the world's resolver, want some: %v", f.name, n, proxied)
		}
	}
}

// lookup has the pod's application look a name up.
func (s *space) lookup(t *testing.T, pod *corev1.Pod, args ...string) ([]string, error) {
	t.Helper()
	out, err := s.tryFrom(t, pod, append(append([]string{"lookup", "-timeout=2s"}, args...), "some.name.example.")...)
	if err != nil {
		return nil, err
	}
	return decode[struct{ Addresses []string }](t, out).Addresses, nil
}

// serveNames runs the world's resolver while the test runs.
func serveNames(t *testing.T) {
	t.Helper()
	serveNamesAt(t, worldsAnswer(), "203.0.113.53:53", "[2001:db8:1::53]:53")
}

// serveNamesAt runs a resolver while the test runs, for which all names have the same two addresses, the one of IPv6 first.
func serveNamesAt(t *testing.T, addresses []string, servers ...string) {
	t.Helper()
	server := exec.CommandContext(t.Context(), "testproxy", "resolve",
		"-listen="+strings.Join(servers, ","), "-a="+addresses[1], "-aaaa="+addresses[0])
	server.Stderr = os.Stderr
	must(t, server.Start())
	t.Cleanup(func() { _ = server.Wait() }) // by then its context has ended it
	for _, address := range servers {
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "udp", address)
		}}
		eventually(t, "the world's resolver", func(ctx context.Context) error {
			got, err := resolver.LookupHost(ctx, "some.name.example.")
			if err == nil && len(got) != len(addresses) {
				err = fmt.Errorf("it answers %v", got)
			}
			return err
		})
	}
}
