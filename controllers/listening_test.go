package controllers

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables"
)

// fakeListeners are the listening sockets of all pods.
type fakeListeners struct {
	ports []uint16
	err   error
	asked int
	// looks counts questions about the proxy's ports.
	looks int
	// families are those in which the proxy listens.
	families iptables.Hold
}

func (f *fakeListeners) Unheard(_ context.Context, _ podnet.Place, of []uint16) ([]uint16, error) {
	f.looks++
	return slices.DeleteFunc(slices.Clone(of), func(p uint16) bool { return slices.Contains(f.ports, p) }), f.err
}

func (f *fakeListeners) Families(context.Context, podnet.Place, []uint16) (iptables.Hold, error) {
	f.looks++
	return f.families, f.err
}

func (f *fakeListeners) Listening(context.Context, podnet.Place, func(uint32) bool) ([]uint16, error) {
	f.asked++
	return slices.Clone(f.ports), f.err
}

// The kernel names users by the node's numbers, and a manifest by the pod's.
func TestIsProxy_podWithOwnUsers_isKnownByTheNodesNumber(t *testing.T) {
	v := visit{pod: askingPod(), intent: intent.Intent{Spec: iptables.DefaultSpec()}}
	for _, c := range []struct {
		own  bool
		uid  uint32
		want bool
	}{{false, 1337, true}, {false, 65536 + 1337, false}, {true, 3*65536 + 1337, true}, {true, 3*65536 + 1000, false}} {
		v.pod.Spec.HostUsers = new(!c.own)
		if got := v.isProxy(c.uid); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestAReportNamesThePortsThatAreCaptured(t *testing.T) {
	for name, c := range map[string]struct {
		annotations map[string]string
		by          Hook
		ports       []uint16
		err         error
		want        string
		wantAsked   int
	}{
		"a pod that asks for it":        {ports: []uint16{80, 8080}, want: "80,8080", wantAsked: 1},
		"nobody listens yet":            {wantAsked: 1},
		"excluded ports, and the proxy": {ports: []uint16{80, 15001, 15006, 15008, 15020, 15021}, want: "80", wantAsked: 1},
		"a list of ports": {
			annotations: map[string]string{"traffic.sidecar.istio.io/includeInboundPorts": "80,90"}, ports: []uint16{80, 8080, 15021}, want: "80", wantAsked: 1,
		},
		"more than are shown":            {ports: ports(70), want: listed(ports(64)) + " and 6 more", wantAsked: 1},
		"a pod that does not ask for it": {annotations: map[string]string{intent.KeyInboundPorts: "all"}, ports: []uint16{80}},
		"a sandbox that is being made":   {by: NRI, ports: []uint16{80}},
		"ports that cannot be read":      {err: errors.New("out of order"), wantAsked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b, l := newBench(t), &fakeListeners{ports: c.ports, err: c.err}
			b.Listeners = l
			b.pods.pod.Annotations[intent.KeyInboundPorts] = "listening"
			maps.Copy(b.pods.pod.Annotations, c.annotations)
			by := c.by
			if by == "" {
				by = Watch
			}
			s := b.sandbox
			s.ID, s.NetNS = "sandbox-1", "/netns/1"
			if _, err := b.Ensure(t.Context(), by, s); err != nil {
				t.Fatal(err)
			}
			r := b.lastReport(t)
			if r.Listening != c.want || l.asked != c.wantAsked || r.Status != podreport.StatusInitialized {
				t.Errorf("report %+v, asked %d times", r, l.asked)
			}
			told := slices.Contains(b.reporter.events, podreport.ReasonListening+" inbound ports that are captured now: "+c.want)
			if told != (c.want != "") {
				t.Errorf("events %q", b.reporter.events)
			}
		})
	}
}

// A pod that opens and closes ports all the time costs one report a minute.
func TestPortsThatChangeAllTheTimeAreReportedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, l := newBench(t), &fakeListeners{}
		b.Listeners = l
		b.pods.pod.Annotations[intent.KeyInboundPorts] = "listening"
		for i := range uint16(60) {
			l.ports = []uint16{8000 + i}
			if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err != nil {
				t.Fatal(err)
			}
			<-time.After(5 * time.Second)
		}
		if n := len(b.reporter.events); n != 5 {
			t.Errorf("%d events in 5 minutes: %q", n, b.reporter.events)
		}
		if got := b.lastReport(t).Listening; got != "8048" {
			t.Errorf("the last report has %s", got)
		}
	})
}

func TestPortsThatAreClosedAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, l := newBench(t), &fakeListeners{ports: []uint16{80}}
		b.Listeners = l
		b.pods.pod.Annotations[intent.KeyInboundPorts] = "listening"
		b.ensure(t, Changed)
		l.ports = nil
		<-time.After(listeningPause)
		b.ensure(t, Unchanged)
		if got := b.lastReport(t).Listening; got != "none" {
			t.Errorf("the last report has %q", got)
		}
	})
}

func ports(n int) (out []uint16) {
	for i := range n {
		out = append(out, uint16(100+i))
	}
	return out
}

// verified returns the report after a check, and how often the proxy's sockets were looked at until now.
func (b *bench) verified(t *testing.T, l *fakeListeners) (Report, int) {
	t.Helper()
	if _, err := b.Ensure(t.Context(), Verify, b.sandbox); err != nil {
		t.Fatal(err)
	}
	return b.lastReport(t), l.looks
}

// mustStay wants five checks, ten seconds apart, that report nothing and look at no socket.
func (b *bench) mustStay(t *testing.T, l *fakeListeners, want int) {
	t.Helper()
	for range 5 {
		<-time.After(10 * time.Second)
		if r, looks := b.verified(t, l); r.Message != "traffic is redirected" || looks != want {
			t.Errorf("within a minute: %q, %d looks", r.Message, looks)
		}
	}
}

// A proxy that does not listen is reported once its pod has had a minute, and until it listens. Looks at a proxy that listens are a minute apart.
func TestUnheard_proxyDoesNotListen_isReported(t *testing.T) {
	const silent = "traffic is redirected; nobody listens on 15001 and 15006: connections are refused"
	synctest.Test(t, func(t *testing.T) {
		b, l := newBench(t), &fakeListeners{}
		b.Listeners = l
		b.pods.pod.Status.Phase, b.pods.pod.Status.StartTime = corev1.PodRunning, new(metav1.Now())
		b.ensure(t, Changed)
		if r, looks := b.verified(t, l); r.Message != "traffic is redirected" || looks != 0 {
			t.Errorf("in its first minute: %q, %d looks", r.Message, looks)
		}
		<-time.After(proxyPatience)
		if r, looks := b.verified(t, l); r.Message != "traffic is redirected" || looks != 1 {
			t.Errorf("the first look: %q, %d looks", r.Message, looks)
		}
		if r, looks := b.verified(t, l); r.Message != silent || r.Reason != podreport.ReasonNoListener || r.condition() != corev1.ConditionTrue || looks != 2 {
			t.Errorf("nobody listens: %+v, %d looks", r, looks)
		}
		wantGauge(t, b, "no_listener_pods", 1)
		l.ports = []uint16{15006}
		if r, looks := b.verified(t, l); r.Message != "traffic is redirected; nobody listens on 15001: connections are refused" || looks != 3 {
			t.Errorf("inbound alone: %q, %d looks", r.Message, looks)
		}
		l.ports = []uint16{15001, 15006}
		if r, looks := b.verified(t, l); r.Message != "traffic is redirected" || r.Reason != podreport.ReasonInitialized || looks != 4 {
			t.Errorf("it listens: %q, %d looks", r.Message, looks)
		}
		l.ports = nil
		b.mustStay(t, l, 4)
		<-time.After(10 * time.Second)
		b.verified(t, l)
		if r, looks := b.verified(t, l); r.Message != silent || looks != 6 {
			t.Errorf("a minute later: %q, %d looks", r.Message, looks)
		}
		want := []string{
			podreport.ReasonNoListener + " nobody listens on 15001 and 15006: connections are refused",
			podreport.ReasonNoListener + " nobody listens on 15001 and 15006: connections are refused",
		}
		if !slices.Equal(b.reporter.events, want) {
			t.Errorf("events %q, want one each time", b.reporter.events)
		}
	})
}

// The watch cache keeps what patience depends on.
func TestContainersSince_podOfTheCache_isAfterItsInitContainers(t *testing.T) {
	pod, initialized := askingPod(), metav1.NewTime(time.Now().Truncate(time.Second))
	pod.Status.StartTime = new(metav1.NewTime(initialized.Add(-time.Hour)))
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: initialized}}
	if got := containersSince(StripPod(pod)); !got.Equal(initialized.Time) {
		t.Errorf("since %s, want %s", got, initialized)
	}
}

// A pod that showed NoListener before this agent came gets no second event. A pod that ends is left alone.
func TestUnheard_ownerKnows_makesNoEvent(t *testing.T) {
	b, l := newBench(t), &fakeListeners{}
	b.Listeners = l
	b.pods.pod.Status.Phase, b.pods.pod.Status.StartTime = corev1.PodRunning, new(metav1.NewTime(time.Now().Add(-time.Hour)))
	b.pods.pod.Status.Conditions = []corev1.PodCondition{{Type: podreport.Condition, Status: corev1.ConditionTrue, Reason: podreport.ReasonNoListener}}
	b.ensure(t, Changed)
	b.verified(t, l)
	if r, _ := b.verified(t, l); r.Reason != podreport.ReasonNoListener || len(b.reporter.events) > 0 {
		t.Errorf("reason %s, events %q", r.Reason, b.reporter.events)
	}
	b.pods.pod.DeletionTimestamp = new(metav1.Now())
	looks := l.looks
	if r, now := b.verified(t, l); r.Reason != podreport.ReasonNoListener || now != looks {
		t.Errorf("a pod that ends: reason %s, %d looks", r.Reason, now-looks)
	}
}

func TestUnheard_notAsked_isNotReported(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*bench, *fakeListeners)
		wantAsk bool
	}{
		"a pod that starts":              {change: func(b *bench, _ *fakeListeners) { b.pods.pod.Status.Phase = corev1.PodPending }},
		"a start of unknown time":        {change: func(b *bench, _ *fakeListeners) { b.pods.pod.Status.StartTime = nil }},
		"sockets that cannot be read":    {change: func(_ *bench, l *fakeListeners) { l.err = errors.New("out of order") }, wantAsk: true},
		"an agent that reads no sockets": {change: func(b *bench, _ *fakeListeners) { b.Listeners = nil }},
	} {
		b, l := newBench(t), &fakeListeners{}
		b.Listeners = l
		b.pods.pod.Status.Phase, b.pods.pod.Status.StartTime = corev1.PodRunning, new(metav1.NewTime(time.Now().Add(-time.Hour)))
		c.change(b, l)
		b.ensure(t, Changed)
		if r, looks := b.verified(t, l); r.Message != "traffic is redirected" || looks > 0 != c.wantAsk {
			t.Errorf("%s: %q, %d looks", name, r.Message, looks)
		}
	}
}

// A new agent goes on with what the pod shows, until it has looked itself: the condition does not change to and fro.
func TestUnheard_newAgent_keepsTheReport(t *testing.T) {
	const silent = "traffic is redirected; nobody listens on 15001 and 15006: connections are refused"
	b, l := newBench(t), &fakeListeners{}
	b.Listeners = l
	b.shows(t, podreport.Details{Sandbox: "sandbox-1"})
	b.pods.pod.Status.Phase, b.pods.pod.Status.StartTime = corev1.PodRunning, new(metav1.NewTime(time.Now().Add(-time.Hour)))
	b.pods.pod.Status.Conditions = []corev1.PodCondition{{Type: podreport.Condition, Status: corev1.ConditionTrue, Reason: podreport.ReasonNoListener, Message: silent}}
	b.ensure(t, Changed)
	if r := b.lastReport(t); r.Reason != podreport.ReasonNoListener || r.Message != silent {
		t.Errorf("before the first look: %+v", r)
	}
	if r, looks := b.verified(t, l); r.Reason != podreport.ReasonNoListener || r.Message != silent || looks != 1 || len(b.reporter.events) > 0 {
		t.Errorf("after %d looks: %+v, events %q", looks, r, b.reporter.events)
	}
	l.ports = []uint16{15001, 15006}
	if r, _ := b.verified(t, l); r.Reason != podreport.ReasonInitialized {
		t.Errorf("it listens: %+v", r)
	}
}

// A proxy starts after the init containers, and anew in each sandbox.
func TestUnheard_startedLongAgo_waitsForTheContainers(t *testing.T) {
	for _, began := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReadyToStartContainers} {
		b, l := newBench(t), &fakeListeners{}
		b.Listeners = l
		b.pods.pod.Status.Phase, b.pods.pod.Status.StartTime = corev1.PodRunning, new(metav1.NewTime(time.Now().Add(-time.Hour)))
		b.pods.pod.Status.Conditions = []corev1.PodCondition{{Type: began, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		b.ensure(t, Changed)
		if _, looks := b.verified(t, l); looks != 0 {
			t.Errorf("%s: %d looks", began, looks)
		}
	}
}

// A pod that no longer asks keeps its rules, and is not said to lack a proxy that has come.
func TestUnheard_podThatNoLongerAsks_isLookedAt(t *testing.T) {
	b, l := newBench(t), &fakeListeners{}
	b.Listeners = l
	b.pods.pod.Status.Phase, b.pods.pod.Status.StartTime = corev1.PodRunning, new(metav1.NewTime(time.Now().Add(-time.Hour)))
	b.ensure(t, Changed)
	b.verified(t, l)
	if r, _ := b.verified(t, l); r.Reason != podreport.ReasonNoListener {
		t.Fatalf("reason %s", r.Reason)
	}
	delete(b.pods.pod.Annotations, intent.KeyInitialize)
	if r, _ := b.verified(t, l); r.Reason != podreport.ReasonNoListener {
		t.Errorf("nobody listens: %+v", r)
	}
	b.shows(t, podreport.Details{Sandbox: "sandbox-1"})
	b.pods.pod.Status.Conditions = []corev1.PodCondition{{Type: podreport.Condition, Status: corev1.ConditionTrue, Reason: podreport.ReasonNoListener}}
	l.ports = []uint16{15001, 15006}
	if r, _ := b.verified(t, l); r.Reason != podreport.ReasonInitialized {
		t.Errorf("it listens: %+v", r)
	}
	wantGauge(t, b, "no_listener_pods", 0)
}
