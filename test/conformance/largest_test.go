package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// list joins n items, which item makes of their numbers.
func list(n int, item func(i int) string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = item(i)
	}
	return strings.Join(items, ",")
}

// largestPod asks for as much as a pod may ask for.
func largestPod() *corev1.Pod {
	ports := list(1000, func(i int) string { return fmt.Sprint(20000 + 2*i) })
	cidrs := func(v4, v6 int) string {
		return list(1000, func(i int) string {
			if i%2 == 0 {
				return fmt.Sprintf("fd%02x:%x::/32", v6, i)
			}
			return fmt.Sprintf("%d.%d.%d.0/28", v4, i/256, i%256)
		})
	}
	ranges := func(first int) string {
		return list(1000, func(i int) string { return fmt.Sprintf("%d-%d", first+4*i, first+4*i+2) })
	}
	interfaces := func(prefix string) string { return list(16, func(i int) string { return fmt.Sprint(prefix, i) }) }
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "largest", Annotations: map[string]string{
			intent.KeyInitialize:                               "true",
			"sidecar.istio.io/interceptionMode":                "TPROXY",
			"traffic.sidecar.istio.io/includeInboundPorts":     ports,
			"traffic.sidecar.istio.io/includeOutboundPorts":    ports,
			"traffic.sidecar.istio.io/excludeOutboundPorts":    ports,
			"traffic.sidecar.istio.io/includeOutboundIPRanges": cidrs(10, 1),
			"traffic.sidecar.istio.io/excludeOutboundIPRanges": cidrs(11, 2),
			"traffic.sidecar.istio.io/excludeInterfaces":       interfaces("x"),
			"istio.io/reroute-virtual-interfaces":              interfaces("r"),
			intent.KeyIncludeInboundPorts:                      ranges(30000),
			intent.KeyIncludeOutboundPorts:                     ranges(30000),
			intent.KeyExcludeOutboundPorts:                     ranges(40000),
			intent.KeyExcludeSources:                           cidrs(12, 3),
			intent.KeyExcludeUsers:                             list(64, func(i int) string { return fmt.Sprintf("%d-%d:443", 5000+20*i, 5010+20*i) }),
			intent.KeyDNSCapture:                               "all",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: intent.ProxyContainer, Env: []corev1.EnvVar{
			{Name: "ISTIO_OUTBOUND_OWNER_GROUPS", Value: "*"},
			{Name: "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", Value: list(64, func(i int) string { return fmt.Sprint(3000 + 2*i) })},
		}}}},
	}
}

// The largest pod is programmed within the time that a runtime waits for an NRI plugin (2 s), but with iptables.
//
// Not parallel: it measures by the process' CPU time, so that other processes of the machine do not count, and by ten times as much on the
// clock, so that waits do.
func TestApply_largestPod_isInTime(t *testing.T) {
	in, err := intent.Of(largestPod(), nil, intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := iptables.Rules(in.Spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range backends(t) {
		limit := map[string]time.Duration{"nftables": time.Second, "iptables": 30 * time.Second}[b.Name()] // a tenth of it on most machines
		best := limit + 1
		for range 3 { // the machine may have other work
			if best = min(best, applied(t, b, rules)); best < limit {
				break
			}
		}
		if t.Logf("%s: %s", b.Name(), best); best > limit {
			t.Errorf("%s took %s, want at most %s", b.Name(), best, limit)
		}
	}
}

// applied is how long a backend needs for the rules of a fresh namespace, where it finds nothing to do the second time.
func applied(t *testing.T, b backend, rules iptables.Ruleset) time.Duration {
	t.Helper()
	ns := kerneltest.New(t)
	start, spent := time.Now(), cpuTime(t)
	out, err := b.Apply(t.Context(), ns.Path(), rules)
	took := max(cpuTime(t)-spent, time.Since(start)/10)
	if err != nil || !out.Changed() {
		t.Fatalf("%s: changed %q, error %v", b.Name(), out.Drift, err)
	}
	if out, err = b.Apply(t.Context(), ns.Path(), rules); err != nil || out.Changed() {
		t.Fatalf("%s, again: changed %q, error %v", b.Name(), out.Drift, err)
	}
	return took
}

// cpuTime is what this process and those that it has waited for have used.
func cpuTime(t *testing.T) (all time.Duration) {
	t.Helper()
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if err := unix.Getrusage(who, &used); err != nil {
			t.Fatal(err)
		}
		all += time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	return all
}
