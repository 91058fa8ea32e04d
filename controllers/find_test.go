package controllers

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// The runtime knows a static pod by the hash of its file, the API server its mirror by another UID.
func TestFind_staticPod_byItsHash(t *testing.T) {
	b := newBench(t)
	b.Announcers = []func() bool{func() bool { return true }} // of all but static pods
	b.pods.pod.Annotations["kubernetes.io/config.mirror"] = "hash-1"
	b.finder.sandboxes = map[string]podnet.Sandbox{"hash-1": {ID: "sandbox-1", NetNS: "/netns/1"}}
	b.ensure(t, Changed)
	got := b.lastReport(t)
	if got.Sandbox.UID != "uid-1" || got.Sandbox.ID != "sandbox-1" || got.Status != podreport.StatusInitialized || b.backend.rules("/netns/1") == "" {
		t.Errorf("report %+v", got)
	}
	if e, ok := b.Ledger.Of("uid-1"); !ok || e.Sandbox.Pod() != "shop/cart" {
		t.Errorf("remembered %+v", e)
	}
	b.backend.err = errors.New("kernel says no")
	if result, err := b.Ensure(t.Context(), Watch, b.sandbox); result != Failed || absent(err) {
		t.Errorf("result %q, error %v", result, err)
	}
}

// No report and no rules where the API server's answer is missing: the hooks refuse the pod.
func TestEnsure_podUnreadable_fails(t *testing.T) {
	for name, change := range map[string]func(*bench){
		"the pod":       func(b *bench) { b.pods.err = errors.New("connection refused") },
		"its namespace": func(b *bench) { b.pods.errNS = errors.New("connection refused") },
	} {
		for _, by := range []Hook{Watch, Verify, NRI, CNI} {
			b := newBench(t)
			change(b)
			result, err := b.Ensure(t.Context(), by, b.known())
			if result != Failed || err == nil || absent(err) || Permanent(err) || !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("%s, %s: result %q, error %v", name, by, result, err)
			}
			if len(b.backend.held) != 0 || len(b.reporter.reports) != 0 {
				t.Errorf("%s, %s: rules %v, reports %+v", name, by, b.backend.held, b.reporter.reports)
			}
		}
	}
}

func TestEnsure_sandboxHasNameservers_capturesThem(t *testing.T) {
	resolvConf := func(b *bench) {
		b.pods.pod.Annotations[intent.KeyDNSCapture] = "resolv.conf"
		b.Programmer.Config.ClusterDNS = []netip.Addr{netip.MustParseAddr("192.0.2.99")} // until the runtime reports them
		b.finder.sandboxes["uid-1"] = podnet.Sandbox{ID: "sandbox-1", NetNS: "/netns/1", Nameservers: "192.0.2.53,2001:db8::53"}
	}
	b := newBench(t)
	resolvConf(b)
	b.ensure(t, Changed)
	rules := b.backend.rules("/netns/1")
	if !strings.Contains(rules, "192.0.2.53") || !strings.Contains(rules, "2001:db8::53") {
		t.Errorf("rules:\n%s", rules)
	}
	// NRI does not tell them: what is known of the sandbox stays known.
	if result, err := b.Ensure(t.Context(), NRI, b.known()); result != Unchanged || err != nil {
		t.Errorf("result %q, error %v", result, err)
	}

	b = newBench(t)
	resolvConf(b)
	b.Announcers = []func() bool{func() bool { return true }}
	if _, err := b.Ensure(t.Context(), NRI, b.known()); err != nil || b.finder.asked.Load() != 0 {
		t.Fatalf("asked %d times, error %v", b.finder.asked.Load(), err)
	}
	b.ensure(t, Changed)
	b.ensure(t, Unchanged)
	if b.backend.rules("/netns/1") != rules || b.finder.asked.Load() != 1 {
		t.Errorf("asked %d times, rules:\n%s", b.finder.asked.Load(), b.backend.rules("/netns/1"))
	}
}

func TestStarted(t *testing.T) {
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   bool
	}{
		"nothing is known":  {},
		"an address":        {status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}}, want: true},
		"a container":       {status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{ContainerID: "c"}}}, want: true},
		"a container to be": {status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c"}}}},
		"a sandbox": {
			status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}}, want: true,
		},
		"no sandbox": {
			status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}}},
		},
		"another condition": {status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}},
	} {
		if got := started(&corev1.Pod{Status: c.status}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// What was remembered of one sandbox does not count for the next.
func TestRecalled_otherSandbox_isNot(t *testing.T) {
	for name, c := range map[string]struct {
		known podnet.Sandbox
		want  bool
	}{
		"the same":        {known: podnet.Sandbox{ID: "sandbox-1", NetNS: "/netns/1"}, want: true},
		"another sandbox": {known: podnet.Sandbox{ID: "sandbox-0", NetNS: "/netns/1"}},
		"another path":    {known: podnet.Sandbox{ID: "sandbox-1", NetNS: "/netns/0"}},
	} {
		b := newBench(t)
		c.known.UID, c.known.Identity, c.known.CreatedAt, c.known.Attempt = "uid-1", podnet.Identity{Ino: 9}, 5, 6
		b.Ledger.Put(Entry{Sandbox: c.known})
		e, _ := b.Ledger.Of("uid-1")
		s := recalled(b.known(), e.Sandbox)
		if got := s.Identity.Ino == 9 && s.CreatedAt == 5 && s.Attempt == 6; got != c.want {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// cri-dockerd names a process that the agent may not see, and an event of NRI may name no path. A hook that announces sandboxes is no reason to wait
// for the kubelet's report, which comes after the refusal.
func TestEnsure_earlyHookKnowsNoPath_asksTheRuntime(t *testing.T) {
	for _, by := range []Hook{NRI, CNI} {
		b := newBench(t)
		b.Announcers = []func() bool{func() bool { return true }}
		s := b.sandbox
		s.ID = "sandbox-1"
		if got, err := b.Ensure(t.Context(), by, s); got != Changed || err != nil || b.backend.rules("/netns/1") == "" {
			t.Errorf("%s: result %q, error %v", by, got, err)
		}
		s.ID = "sandbox-2" // in the making, which the runtime does not list yet
		if _, err := b.Ensure(t.Context(), by, s); !errors.Is(err, podnet.ErrNotReady) {
			t.Errorf("%s, another sandbox: error %v", by, err)
		}
	}
}
