package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// holding is a bench whose pods' connections wait, and its Parking.
func holding(b *bench) *fakeParking {
	b.Config.Defaults["hold-seconds"] = "30"
	parking := &fakeParking{}
	b.Parking = parking
	return parking
}

// fakeParking remembers calls.
type fakeParking struct {
	calls []string
	err   error
}

func (p *fakeParking) Learn(_ context.Context, s podnet.Sandbox, proxy string, _ iptables.Spec) error {
	p.calls = append(p.calls, "learn "+s.ID+" "+proxy)
	return p.err
}

func (p *fakeParking) Park(_ context.Context, s podnet.Sandbox, proxy string, _ iptables.Spec, until time.Time) error {
	p.calls = append(p.calls, fmt.Sprintf("park %s %s for %s", s.ID, proxy, time.Until(until)))
	return p.err
}

func (p *fakeParking) Leave(sandboxID string) { p.calls = append(p.calls, "leave "+sandboxID) }

// take returns the calls since the last one.
func (p *fakeParking) take() string {
	out := strings.Join(p.calls, "; ")
	p.calls = nil
	return out
}

// holds reports whether the kernel has rules that hold.
func (b *bench) holds() bool { return strings.Contains(b.backend.held["/netns/1"], "held: ") }

func (b *bench) visit(t *testing.T) {
	t.Helper()
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err != nil {
		t.Fatal(err)
	}
}

// lateEvents are the events about proxies that have not come in time.
func (b *bench) lateEvents() []string {
	return slices.DeleteFunc(slices.Clone(b.reporter.events), func(e string) bool { return !strings.HasPrefix(e, podreport.ReasonProxyLate) })
}

// The rules of a pod whose proxy the agent runs hold from the first transaction on, while the proxy is ready, and whenever it is missed, for 30 s.
func TestHold_managedProxy_isWaitedForWheneverItIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxies := &fakeProxies{known: true}
		b := choosing(t, "edge", proxies)
		parking := holding(b)
		step := func(name string, after time.Duration, wantHolds bool, wantCalls string, wantEvents int) {
			t.Helper()
			<-time.After(after)
			b.visit(t)
			if got := parking.take(); b.holds() != wantHolds || got != wantCalls || len(b.lateEvents()) != wantEvents {
				t.Errorf("%s: holds %v, calls %q, events %q", name, b.holds(), got, b.lateEvents())
			}
		}
		if _, err := b.Ensure(t.Context(), CNI, announcedSandbox()); err != nil {
			t.Fatal(err)
		}
		if got := parking.take(); !b.holds() || got != "park sandbox-1 edge for 30s" {
			t.Errorf("at first: holds %v, calls %q", b.holds(), got)
		}
		step("it starts", 10*time.Second, true, "park sandbox-1 edge for 20s", 0)
		if wait := b.schedule().wait(b.Ledger.Of("uid-1")); wait != 20*time.Second {
			t.Errorf("the next visit is due in %s", wait)
		}
		proxies.ready = true
		step("it is ready", time.Second, true, "learn sandbox-1 edge; leave sandbox-1", 0)
		step("it stays ready", time.Hour, true, "leave sandbox-1", 0)
		proxies.ready = false
		step("it has crashed", time.Second, true, "park sandbox-1 edge for 30s", 0)
		step("it does not come back", 29*time.Second, true, "park sandbox-1 edge for 1s", 0)
		step("it is late", time.Second, false, "leave sandbox-1", 1)
		step("it stays away", time.Hour, false, "leave sandbox-1", 1)
		proxies.ready = true
		step("it is back", time.Second, true, "learn sandbox-1 edge; leave sandbox-1", 1)
		want := podreport.ReasonProxyLate + " nobody listens on 15001 and 15006 after 30s: connections that waited for the proxy are refused from now on (" + intent.KeyHoldSeconds + ")"
		if got := b.lateEvents(); len(got) != 1 || got[0] != want {
			t.Errorf("events %q", got)
		}
		if repairs := slices.ContainsFunc(b.reporter.events, func(e string) bool { return strings.HasPrefix(e, podreport.ReasonRulesRepaired) }); repairs {
			t.Errorf("the agent's own changes count as repairs: %q", b.reporter.events)
		}
	})
}

// What the reports on the pod say of the rules is the same with and without a hold.
func TestHold_specHash_staysTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxies := &fakeProxies{known: true}
		b := choosing(t, "edge", proxies)
		holding(b)
		b.visit(t)
		held := b.lastReport(t).SpecHash
		<-time.After(time.Minute)
		b.visit(t)
		if got := b.lastReport(t).SpecHash; b.holds() || got != held || got == "" {
			t.Errorf("holds %v, %q after %q", b.holds(), got, held)
		}
	})
}

// heldFor visits a pod with a proxy in its spec whenever it is due, until its rules no longer hold. The proxy listens after a time; 0 is never.
func (b *bench) heldFor(t *testing.T, l *fakeListeners, listensAfter time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	if _, err := b.Ensure(t.Context(), NRI, announcedSandbox()); err != nil || !b.holds() {
		t.Fatalf("holds %v, error %v", b.holds(), err)
	}
	for b.holds() && time.Since(began) < time.Minute {
		wait := b.schedule().wait(b.Ledger.Of("uid-1"))
		if wait <= 0 || wait > time.Second {
			t.Fatalf("the next look is due in %s", wait)
		}
		<-time.After(wait)
		if listensAfter > 0 && time.Since(began) >= listensAfter {
			l.ports = []uint16{15001, 15006}
		}
		b.visit(t)
	}
	return time.Since(began)
}

// The proxy in a pod's spec is waited for until it listens, and once.
func TestHold_proxyInTheSpec_isWaitedForOnce(t *testing.T) {
	for name, c := range map[string]struct {
		listensAfter, heldFor time.Duration
		events                int
	}{
		"it listens soon": {listensAfter: 5 * time.Second, heldFor: 5 * time.Second},
		"it never comes":  {heldFor: 30 * time.Second, events: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, l := newBench(t), &fakeListeners{}
				holding(b)
				b.Listeners = l
				if held := b.heldFor(t, l, c.listensAfter); held != c.heldFor || len(b.lateEvents()) != c.events {
					t.Errorf("held for %s, events %q", held, b.lateEvents())
				}
				l.ports, l.looks = nil, 0
				for range 5 { // nothing is held: nobody looks
					<-time.After(time.Second)
					b.visit(t)
				}
				if b.holds() || l.looks != 0 {
					t.Errorf("afterwards: holds %v, %d looks", b.holds(), l.looks)
				}
			})
		})
	}
}

// Init containers before the proxy would wait in vain: the hold begins with the first container that they come before.
func TestHold_initContainersBeforeTheProxy_areNotHeld(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, c := range map[string]struct {
		init  []corev1.Container
		steps []string // containers as the runtime creates them; > marks what the hold begins with
	}{
		"none":                       {steps: []string{"> the sandbox"}},
		"one":                        {init: []corev1.Container{{Name: "migrate"}}, steps: []string{"the sandbox", "migrate", "> istio-proxy", "> app"}},
		"the application is first":   {init: []corev1.Container{{Name: "migrate"}}, steps: []string{"the sandbox", "migrate", "> app"}},
		"before a native sidecar":    {init: []corev1.Container{{Name: "migrate"}, {Name: "istio-proxy", RestartPolicy: &always}, {Name: "behind"}}, steps: []string{"the sandbox", "migrate", "> istio-proxy"}},
		"behind a native sidecar":    {init: []corev1.Container{{Name: "istio-proxy", RestartPolicy: &always}, {Name: "behind"}}, steps: []string{"> the sandbox"}},
		"one that runs as the proxy": {init: []corev1.Container{{Name: "early", SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(1337))}}}, steps: []string{"> the sandbox"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { startOf(c.init).wantHeldFrom(t, c.steps) })
		})
	}
}

// start is a pod with init containers that starts: behind them come app, and istio-proxy if it is none of them.
type start struct{ spec corev1.PodSpec }

func startOf(init []corev1.Container) start {
	s := start{corev1.PodSpec{InitContainers: init, Containers: []corev1.Container{{Name: "app"}}}}
	if !slices.ContainsFunc(init, func(c corev1.Container) bool { return c.Name == intent.ProxyContainer }) {
		s.spec.Containers = append(s.spec.Containers, corev1.Container{Name: intent.ProxyContainer})
	}
	return s
}

func (s start) wantHeldFrom(t *testing.T, steps []string) {
	t.Helper()
	b := newBench(t)
	holding(b)
	b.Listeners = &fakeListeners{}
	b.pods.pod.Spec = s.spec
	for _, step := range steps {
		name, want := strings.CutPrefix(step, "> ")
		var err error
		if name == "the sandbox" {
			_, err = b.Ensure(t.Context(), NRI, announcedSandbox())
		} else {
			err = b.Creating(t.Context(), announcedSandbox(), name)
		}
		if err != nil || b.holds() != want {
			t.Errorf("%s: holds %v, error %v", step, b.holds(), err)
		}
	}
}

// A visit that comes while the runtime's call is at work goes by what that has decided: the application may dial from then on.
func TestHold_visitDuringTheRuntimesCall_staysHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		holding(b)
		b.Listeners = &fakeListeners{}
		b.pods.pod.Spec = startOf([]corev1.Container{{Name: "migrate"}}).spec
		b.visit(t)
		working, visited := make(chan struct{}), make(chan struct{})
		b.backend.during = sync.OnceFunc(func() { <-working })
		go func() {
			if err := b.Creating(t.Context(), announcedSandbox(), "app"); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		go func() { b.visit(t); close(visited) }()
		synctest.Wait()
		close(working)
		if <-visited; !b.holds() {
			t.Error("it does not hold")
		}
	})
}

// Without NRI the pod's status says that the proxy's container was created.
func TestHold_withoutNRI_beginsWithTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		holding(b)
		b.Listeners = &fakeListeners{}
		b.pods.pod.Spec.InitContainers = []corev1.Container{{Name: "migrate"}}
		b.visit(t)
		if b.holds() {
			t.Error("it holds while init containers run")
		}
		b.pods.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: intent.ProxyContainer, User: &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1337}}}}
		if b.visit(t); !b.holds() {
			t.Error("it does not hold")
		}
	})
}

// A proxy in the pod's spec that is made anew is waited for again.
func TestCreating_proxyIsMadeAnew_isWaitedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, l := newBench(t), &fakeListeners{ports: []uint16{15001, 15006}}
		holding(b)
		b.Listeners = l
		if _, err := b.Ensure(t.Context(), NRI, announcedSandbox()); err != nil {
			t.Fatal(err)
		}
		if b.visit(t); b.holds() {
			t.Fatal("it holds although the proxy listens")
		}
		l.ports = nil
		for container, want := range map[string]bool{"app": false} {
			if err := b.Creating(t.Context(), announcedSandbox(), container); err != nil || b.holds() != want {
				t.Errorf("%s: holds %v, error %v", container, b.holds(), err)
			}
		}
		if err := b.Creating(t.Context(), announcedSandbox(), intent.ProxyContainer); err != nil || !b.holds() {
			t.Errorf("the proxy: holds %v, error %v", b.holds(), err)
		}
	})
}

func TestHold_switchedOff_neverHolds(t *testing.T) {
	for name, change := range map[string]func(*bench){
		"the flag":      func(b *bench) { b.Config.Defaults["hold-seconds"] = "0" },
		"the pod":       func(b *bench) { b.pods.pod.Annotations[intent.KeyHoldSeconds] = "0" },
		"the namespace": func(b *bench) { b.pods.ns.Annotations = map[string]string{intent.KeyHoldSeconds: "0"} },
	} {
		proxies := &fakeProxies{known: true}
		b := choosing(t, "edge", proxies)
		parking := holding(b)
		change(b)
		b.visit(t)
		if got := parking.take(); b.holds() || got != "leave sandbox-1" {
			t.Errorf("%s: holds %v, calls %q", name, b.holds(), got)
		}
	}
}

// A ready proxy may listen in one family alone: there connections wait in the moment of its crash, and in the other one they are refused.
func TestHold_readyProxy_holdsInItsFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proxies, l := &fakeProxies{known: true}, &fakeListeners{families: iptables.HoldIPv4}
		b := choosing(t, "edge", proxies)
		holding(b)
		b.Listeners, b.VerifyInterval = l, 15*time.Second
		hold := func() iptables.Hold { e, _ := b.Ledger.Of("uid-1"); return e.hold.in }
		if b.visit(t); hold() != iptables.HoldBoth {
			t.Errorf("before it listens: %d", hold())
		}
		proxies.ready = true
		if b.visit(t); hold() != iptables.HoldIPv4 || !b.holds() {
			t.Errorf("ready: %d", hold())
		}
		proxies.ready = false
		if b.visit(t); hold() != iptables.HoldIPv4 {
			t.Errorf("crashed: %d", hold())
		}
		proxies.ready, l.families = true, iptables.HoldBoth
		if b.visit(t); hold() != iptables.HoldBoth {
			t.Errorf("its successor: %d", hold())
		}
		l.families, l.looks = iptables.HoldIPv6, 0
		for range 8 { // two minutes
			<-time.After(15 * time.Second)
			if _, err := b.Ensure(t.Context(), Verify, b.sandbox); err != nil {
				t.Fatal(err)
			}
		}
		if hold() != iptables.HoldIPv6 || l.looks != 2 {
			t.Errorf("after two minutes: %d, %d looks", hold(), l.looks)
		}
	})
}
