package controllers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// fakeProxies runs the proxies of the profile edge, and refuses those of any other.
type fakeProxies struct {
	followed     []string // IDs of sandboxes
	forgotten    []string // UIDs of pods
	led          []string // profiles
	moving       string   // the profile that the pod comes from, while the proxy of the one that it has chosen is not ready
	ready, known bool
	shared       bool // the node's pods share the proxy
	later        bool // rules come once the proxy is ready
}

func (p *fakeProxies) Managed(_ context.Context, _ podnet.Sandbox, profile string, _ *corev1.Pod, _ *corev1.Namespace) *intent.ManagedProxy {
	if profile == "" {
		return nil
	}
	if profile != "edge" {
		return &intent.ManagedProxy{Refused: "there is no profile " + profile}
	}
	if p.moving != "" {
		return &intent.ManagedProxy{Profile: p.moving, Owner: intent.Owner{UID: 1337}, OutboundPort: 15101, InboundPort: 15106}
	}
	return &intent.ManagedProxy{Profile: profile, Owner: intent.Owner{UID: 1337}, OutboundPort: 15001, InboundPort: 15006, Later: p.later, Shared: p.shared}
}

func (p *fakeProxies) Follow(s podnet.Sandbox, _ Hook, profile string) {
	if profile != "" || len(p.followed) > 0 {
		p.followed = append(p.followed, s.ID)
	}
}

func (p *fakeProxies) Led(_ podnet.Sandbox, to *intent.ManagedProxy) {
	profile := ""
	if to != nil {
		profile = to.Profile
	}
	p.led = append(p.led, profile)
}

func (p *fakeProxies) Forget(podUID string)                     { p.forgotten = append(p.forgotten, podUID) }
func (p *fakeProxies) Ready(podnet.Sandbox) (ready, known bool) { return p.ready, p.known }

// choosing is a bench whose pod has chosen a profile.
func choosing(t *testing.T, profile string, proxies *fakeProxies) *bench {
	t.Helper()
	b := newBench(t)
	b.Proxies = proxies
	b.pods.pod.Annotations = map[string]string{intent.KeySidecar: profile}
	return b
}

// The gate opens when the rules are in force and the proxy answers. An agent that starts does not close it before it has asked.
func TestAPodIsReadyWhenItsProxyIs(t *testing.T) {
	for name, c := range map[string]struct {
		proxies fakeProxies
		before  string // the reason that the pod shows, of the same sandbox
		details string // the details that the pod shows, if they are others
		want    string
	}{
		"it answers":                           {proxies: fakeProxies{ready: true, known: true}, want: podreport.ReasonInitialized},
		"it does not":                          {proxies: fakeProxies{known: true}, want: podreport.ReasonProxyNotReady},
		"it no longer does":                    {proxies: fakeProxies{known: true}, before: podreport.ReasonInitialized, want: podreport.ReasonProxyNotReady},
		"not known":                            {want: podreport.ReasonProxyNotReady},
		"not known by an agent that starts":    {before: podreport.ReasonInitialized, want: podreport.ReasonInitialized},
		"not known, and it did not do so then": {before: podreport.ReasonProxyNotReady, want: podreport.ReasonProxyNotReady},
		"not known, and another sandbox did":   {before: podreport.ReasonInitialized, details: `{"sandbox":"sandbox-0"}`, want: podreport.ReasonProxyNotReady},
		"not known, and nobody knows which":    {before: podreport.ReasonInitialized, details: `{"sandbox":`, want: podreport.ReasonProxyNotReady},
	} {
		t.Run(name, func(t *testing.T) {
			b := choosing(t, "edge", &c.proxies)
			if c.before != "" {
				r := Report{Sandbox: podnet.Sandbox{ID: "sandbox-1", UID: "uid-1"}, Status: podreport.StatusInitialized, Reason: c.before}
				b.says(t, r)
				b.pods.pod.Annotations[podreport.KeyDetails] = cmp.Or(c.details, `{"sandbox":"sandbox-1"}`)
			}
			b.ensure(t, Changed)
			got := b.lastReport(t)
			if got.Reason != c.want || got.Status != podreport.StatusInitialized {
				t.Errorf("reported %+v", got)
			}
			if want := c.want == podreport.ReasonInitialized; want != (got.condition() == corev1.ConditionTrue) {
				t.Errorf("condition %s", got.condition())
			}
			if len(c.proxies.followed) != 1 || c.proxies.followed[0] != "sandbox-1" {
				t.Errorf("followed %q", c.proxies.followed)
			}
		})
	}
}

// A pod whose profile cannot be used starts, is not ready, and says why.
func TestAPodWithoutAUsableProfileStarts(t *testing.T) {
	proxies := &fakeProxies{}
	b := choosing(t, "other", proxies)
	s := b.sandbox
	s.ID, s.NetNS = "sandbox-1", "/netns/1"
	for _, by := range []Hook{NRI, Watch} {
		if result, err := b.Ensure(t.Context(), by, s); result != Skipped || err != nil {
			t.Errorf("%s: %s, error %v", by, result, err)
		}
	}
	got := b.lastReport(t)
	if got.Reason != podreport.ReasonProxyRefused || got.condition() != corev1.ConditionFalse || !strings.Contains(got.Message, "no profile other") {
		t.Errorf("reported %+v", got)
	}
	if b.backend.applies != 0 {
		t.Errorf("%d times programmed", b.backend.applies)
	}
}

// The condition may be missing where the details are not: both are written by one request, and anybody may take one away.
func TestDetailsAloneDoNotMakeAProxyReady(t *testing.T) {
	b := choosing(t, "edge", &fakeProxies{})
	b.pods.pod.Annotations[podreport.KeyDetails] = `{"sandbox":"sandbox-1"}`
	b.ensure(t, Changed)
	if got := b.lastReport(t); got.Reason != podreport.ReasonProxyNotReady {
		t.Errorf("reported %+v", got)
	}
}

// An agent that runs proxies knows nothing of one that is in the pod's spec.
func TestAPodWithAProxyOfItsSpecIsReadyWithItsRules(t *testing.T) {
	b := newBench(t)
	b.Proxies = &fakeProxies{}
	b.ensure(t, Changed)
	if got := b.lastReport(t); got.Reason != podreport.ReasonInitialized {
		t.Errorf("reported %+v", got)
	}
}

// Where proxies are required, a pod that cannot have one does not start. One that runs with its rules stays.
func TestEnsure_proxiesAreRequired_earlyHooksRefuse(t *testing.T) {
	b := choosing(t, "other", &fakeProxies{})
	b.RequireProxies = true
	s := b.sandbox
	s.ID, s.NetNS = "sandbox-1", "/netns/1"
	for by, refused := range map[Hook]bool{NRI: true, CNI: true, Watch: false} {
		result, err := b.Ensure(t.Context(), by, s)
		if refused != (err != nil) || refused != (result == Failed) || refused && (!Permanent(err) || !strings.Contains(err.Error(), "no profile other")) {
			t.Errorf("%s: %s, error %v", by, result, err)
		}
		if got := b.lastReport(t); got.Reason != podreport.ReasonProxyRefused {
			t.Errorf("%s: reported %+v", by, got)
		}
	}
}

// A sandbox that is not there yet has no proxy to look after: what is kept of proxies is kept by its ID.
func TestASandboxThatIsNotFoundIsNotFollowed(t *testing.T) {
	proxies := &fakeProxies{}
	b := choosing(t, "other", proxies)
	b.finder.err = podnet.ErrNotReady
	b.ensure(t, Skipped)
	if got := b.lastReport(t); got.Reason != podreport.ReasonProxyRefused || len(proxies.followed) != 0 {
		t.Errorf("reported %+v, followed %q", got, proxies.followed)
	}
}

// A pod that opts out has its rules removed, and then its proxy ended.
func TestAPodThatOptsOutOfItsProxyIsLookedAtOnceMore(t *testing.T) {
	proxies := &fakeProxies{ready: true, known: true}
	b := choosing(t, "edge", proxies)
	b.ensure(t, Changed)
	b.pods.pod.Annotations[intent.KeySidecar] = intent.SidecarNone
	b.ensure(t, Changed)
	if b.backend.rules("/netns/1") != "" || len(proxies.followed) != 2 {
		t.Errorf("rules %q, followed %q", b.backend.rules("/netns/1"), proxies.followed)
	}
}

// A profile that is taken away takes no pod out of its Services: rules and proxy are there, and stay.
func TestAPodWhoseProfileIsGoneStaysReady(t *testing.T) {
	for name, c := range map[string]struct {
		ready, starts bool // starts: by an agent that has just started
		want          string
		state         State
	}{
		"its proxy answers":               {ready: true, want: podreport.ReasonInitialized, state: Programmed},
		"its proxy does not":              {want: podreport.ReasonProxyRefused, state: InvalidPod},
		"an agent that knows nothing yet": {starts: true, want: podreport.ReasonInitialized, state: Programmed},
	} {
		t.Run(name, func(t *testing.T) {
			proxies := &fakeProxies{ready: true, known: true}
			b := choosing(t, "edge", proxies)
			b.ensure(t, Changed)
			rules := b.backend.rules("/netns/1")
			proxies.ready, proxies.known, proxies.followed = c.ready, !c.starts, nil
			if c.starts {
				b.says(t, Report{Status: podreport.StatusInitialized, Reason: podreport.ReasonInitialized})
				b.pods.pod.Annotations[podreport.KeyDetails] = `{"sandbox":"sandbox-1"}`
				b.Ledger = NewLedger()
			}
			b.pods.pod.Annotations[intent.KeySidecar] = "gone"
			b.ensure(t, Skipped)
			b.remembers(t, c.state, false)
			got := b.lastReport(t)
			if got.Reason != c.want || !strings.Contains(got.Message, "no profile gone") {
				t.Errorf("reported %+v", got)
			}
			if len(proxies.followed) != 1 {
				t.Errorf("followed %q: a profile that is made would not be used", proxies.followed)
			}
			if b.backend.rules("/netns/1") != rules || rules == "" {
				t.Errorf("rules are %q, were %q", b.backend.rules("/netns/1"), rules)
			}
		})
	}
}

// remembers checks what is remembered of the pod. Checks work by that.
func (b *bench) remembers(t *testing.T, state State, retry bool) {
	t.Helper()
	if e, _ := b.Ledger.Of(b.sandbox.UID); e.State != state || e.Retry != retry {
		t.Errorf("remembered as %s, to be tried again %v; want %s, %v", e.State, e.Retry, state, retry)
	}
}

// Rules that could not be looked at are looked at again soon.
func TestAPodWhoseProfileIsGoneAndWhoseKernelFails(t *testing.T) {
	b := choosing(t, "edge", &fakeProxies{ready: true, known: true})
	b.ensure(t, Changed)
	b.pods.pod.Annotations[intent.KeySidecar] = "gone"
	b.backend.err = errors.New("the kernel says no")
	b.ensure(t, Skipped)
	b.remembers(t, InvalidPod, true)
	if got := b.lastReport(t); got.Reason != podreport.ReasonProxyRefused {
		t.Errorf("reported %+v", got)
	}
}

// Whatever a pod has chosen, its proxy is forgotten with it.
func TestAProxyIsForgottenWithItsPod(t *testing.T) {
	proxies := &fakeProxies{}
	b := choosing(t, "other", proxies)
	b.ensure(t, Skipped)
	b.pods.err = podnet.ErrNoPod
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); !errors.Is(err, podnet.ErrNoPod) {
		t.Errorf("error %v", err)
	}
	if len(proxies.forgotten) != 1 || proxies.forgotten[0] != b.sandbox.UID {
		t.Errorf("forgotten %q", proxies.forgotten)
	}
}

// What the rules lead to is said when they do, and not before.
func TestTheProxyIsToldWhereTheRulesLead(t *testing.T) {
	proxies := &fakeProxies{ready: true, known: true, moving: "old"}
	b := choosing(t, "edge", proxies)
	b.ensure(t, Changed)
	before := b.backend.rules("/netns/1")
	b.backend.err, proxies.moving = errors.New("the kernel says no"), ""
	if _, err := b.Ensure(t.Context(), Watch, b.sandbox); err == nil {
		t.Fatal("no error")
	}
	if want := []string{"old"}; !slices.Equal(proxies.led, want) {
		t.Errorf("led %q, want %q: the rules were not changed", proxies.led, want)
	}
	b.backend.err = nil
	b.ensure(t, Changed)
	if now := b.backend.rules("/netns/1"); now == before || !strings.Contains(now, "15006") {
		t.Errorf("rules %q", now)
	}
	b.pods.pod.Annotations[intent.KeySidecar] = "other" // which cannot be used: the rules stay
	b.ensure(t, Skipped)
	b.pods.pod.Annotations[intent.KeySidecar] = intent.SidecarNone
	b.ensure(t, Changed)
	if want := []string{"old", "edge", ""}; !slices.Equal(proxies.led, want) {
		t.Errorf("led %q, want %q", proxies.led, want)
	}
}

// A pod that runs when it chooses its first proxy stays as it was until that is ready: without rules, and without a report. So it is if it takes its
// choice back before.
func TestEnsure_firstProxyOfARunningPod_rulesComeWhenItIsReady(t *testing.T) {
	proxies := &fakeProxies{later: true, known: true}
	b := choosing(t, "edge", proxies)
	b.ensure(t, Skipped)
	if rules := b.backend.rules("/netns/1"); rules != "" || len(b.reporter.reports) > 0 || len(proxies.followed) != 1 || len(proxies.led) > 0 {
		t.Errorf("rules %q, reported %+v, followed %q, led %q", rules, b.reporter.reports, proxies.followed, proxies.led)
	}
	delete(b.pods.pod.Annotations, intent.KeySidecar)
	b.ensure(t, Skipped)
	if want := []string{""}; !slices.Equal(proxies.led, want) || len(proxies.followed) != 2 {
		t.Errorf("it takes its choice back: led %q, followed %q", proxies.led, proxies.followed)
	}
	b.pods.pod.Annotations[intent.KeySidecar] = "edge"
	b.ensure(t, Skipped)
	proxies.later, proxies.ready = false, true
	b.ensure(t, Changed)
	if got := b.lastReport(t); got.Reason != podreport.ReasonInitialized || b.backend.rules("/netns/1") == "" {
		t.Errorf("its proxy is ready: reported %+v", got)
	}
}
