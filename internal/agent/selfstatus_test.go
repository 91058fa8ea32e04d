package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/podnet"
)

// knownPods are pods by UID.
type knownPods map[string]bool

func (k knownPods) exists(_ context.Context, s podnet.Sandbox) bool { return k[s.UID] }

func TestWhatTheAgentSaysAboutItself(t *testing.T) {
	a := &agent{core: &coreHolder{}, ready: &readiness{}, Options: Options{Build: Build{Version: "1.2.3", Revision: "abc"}, CNI: CNIInstall}}
	a.backends = Exclusive{chosen: fakeBackend{}}
	a.ready.add("cache", a.core.check)
	a.ready.add("runtime", func(context.Context) error { return nil })
	a.inspect = func() *agentstatus.Inspect { return &agentstatus.Inspect{Port: 1} }
	seen := newOutcomes(&keptReports{})
	seen.Report(controllers.Report{Sandbox: podnet.Sandbox{UID: "skipped"}, Reason: controllers.ReasonNotRequired, Event: true})
	count := map[controllers.State]int{controllers.Programmed: 2, controllers.ContendedPod: 1}

	s := a.status(t.Context(), count, seen, knownPods{"skipped": true})
	want := map[string]int{"programmed": 2, "contended": 1, "skipped": 1}
	if diff := cmp.Diff(want, s.Pods); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if s.Version != "1.2.3" || s.Revision != "abc" || s.Backend != "fake" || s.Inspect == nil || s.Time.IsZero() {
		t.Errorf("%+v", s)
	}
	if s.Ready || len(s.NotReady) != 1 || !strings.HasPrefix(s.NotReady[0], "cache: ") {
		t.Errorf("ready %t, not ready: %q", s.Ready, s.NotReady)
	}
	names := ""
	for _, e := range s.Entrance {
		names += e.Name + " "
		if e.Up || e.Message == "" {
			t.Errorf("before the API server was reached: %+v", e)
		}
	}
	if names != "watch cni " {
		t.Errorf("entrances %s", names)
	}
	a.core.set(core{})
	if s = a.status(t.Context(), count, seen, knownPods{}); !s.Ready || !s.Entrance[0].Up || s.Pods["skipped"] != 0 {
		t.Errorf("later: %+v", s)
	}
}

func TestTheNewestFailureAndPodsWithoutRulesAreRemembered(t *testing.T) {
	passed := &keptReports{}
	o := newOutcomes(passed)
	report := func(uid string, status controllers.Status, reason string, event bool) {
		o.Report(controllers.Report{
			Sandbox: podnet.Sandbox{Namespace: "shop", Name: uid, UID: uid}, Status: status, Reason: reason, Message: "of " + uid, Event: event,
		})
	}
	report("asked", "", controllers.ReasonNotRequired, true)
	report("gated", "", controllers.ReasonNotRequired, false)
	report("a", controllers.StatusFailed, controllers.ReasonRedirectFailed, false)
	report("b", controllers.StatusFailed, controllers.ReasonPreempted, false)
	report("c", controllers.StatusInitialized, controllers.ReasonInitialized, false)
	if passed.last.Sandbox.UID != "c" {
		t.Errorf("passed on last: %+v", passed.last)
	}
	if e := o.lastError(); e == nil || e.Pod != "shop/b" || e.Message != "of b" || e.Time.IsZero() {
		t.Errorf("the newest failure is %+v", e)
	}
	all := knownPods{"asked": true, "gated": true, "gone": true, "later": true}
	if n := o.skippedPods(t.Context(), all); n != 1 {
		t.Errorf("%d pods without rules, want the one that asked", n)
	}
	report("gone", "", controllers.ReasonNotRequired, true)
	report("later", "", controllers.ReasonNotRequired, true)
	report("later", controllers.StatusInitialized, controllers.ReasonInitialized, false)
	if n := o.skippedPods(t.Context(), all); n != 2 {
		t.Errorf("%d pods without rules, want 2", n)
	}
	if n := o.skippedPods(t.Context(), knownPods{"asked": true}); n != 1 || len(o.skipped) != 1 {
		t.Errorf("%d pods without rules, %d remembered, want the one that is there", n, len(o.skipped))
	}
	o.Forget("asked")
	if n := o.skippedPods(t.Context(), all); n != 0 {
		t.Errorf("%d pods without rules after the last was forgotten", n)
	}
}

// refusingReader answers with an error.
type refusingReader struct {
	client.Reader
	err error
}

func (r refusingReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return r.err
}

// A pod is dropped from the count once it is known to be gone, not while that cannot be found out.
func TestOnlyAPodThatIsGoneIsDropped(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"gone":               {apierrors.NewNotFound(corev1.Resource("pods"), "cart"), false},
		"it cannot be asked": {errors.New("the cache is not there yet"), true},
	} {
		from := refusingReader{err: tc.err}
		if got := (podReader{controllers.Reader{Cache: from, Live: from}}).exists(t.Context(), podnet.Sandbox{Name: "cart", UID: "1"}); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

func TestMessagesAreOneShortLine(t *testing.T) {
	for want, in := range map[string]string{"two lines": "two\nlines ", "a?b": "a\xffb", "tab and x": "tab\tand\r\nx"} {
		if got := oneLine(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := oneLine(strings.Repeat("ä", 1000)); len(got) > maxSelfMessage || !utf8.ValidString(got) || !strings.HasSuffix(got, "...") {
		t.Errorf("%d bytes, %q", len(got), got)
	}
}
