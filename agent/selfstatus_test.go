package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables/kernel"
)

func TestWhatTheAgentSaysAboutItself(t *testing.T) {
	a := &agent{core: newCoreHolder(), ready: &readiness{}, Options: Options{Build: Build{Version: "1.2.3", Revision: "abc"}, CNI: CNIInstall}}
	a.backends = kernel.New(kernel.Namespaces{}, fakeDriver{})
	a.ready.add("cache", a.core.check)
	a.ready.add("runtime", func(context.Context) error { return nil })
	a.inspect.Store(&agentstatus.Inspect{Port: 1})
	seen := &outcomes{Reporter: &keptReports{}}
	s := a.status(t.Context(), seen)
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
	if s = a.status(t.Context(), seen); !s.Ready || !s.Entrance[0].Up {
		t.Errorf("later: %+v", s)
	}
}

func TestOutcomes_failedReports_rememberTheNewest(t *testing.T) {
	passed := &keptReports{}
	o := &outcomes{Reporter: passed}
	for _, r := range []controllers.Report{
		{Sandbox: podnet.Sandbox{Namespace: "shop", Name: "a"}, Status: controllers.StatusFailed, Message: "of a"},
		{Sandbox: podnet.Sandbox{Namespace: "shop", Name: "b"}, Status: controllers.StatusFailed, Message: "of b"},
		{Sandbox: podnet.Sandbox{Namespace: "shop", Name: "c"}, Status: controllers.StatusInitialized},
	} {
		o.Report(r)
		if passed.last.Sandbox != r.Sandbox {
			t.Errorf("passed on last: %+v", passed.last)
		}
	}
	if e := o.last.Load(); e == nil || e.Pod != "shop/b" || e.Message != "of b" || e.Time.IsZero() {
		t.Errorf("the newest failure is %+v", e)
	}
}

// Pods that fail for good take turns, each at its next try, and must not make the agent write for ever.
func TestOutcomes_twoPodsFailForADay_writeTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &outcomes{Reporter: &keptReports{}}
		writes := 0
		report := agentstatus.Report{
			Look: func(context.Context) agentstatus.Status {
				return agentstatus.Status{Ready: true, LastError: o.last.Load(), Time: time.Now()}
			},
			Write: func(context.Context, agentstatus.Status) error { writes++; return nil },
			Log:   logr.Discard(),
		}
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		ended := make(chan struct{})
		go func() { defer close(ended); report.Start(ctx) }()
		for ctx.Err() == nil {
			for _, pod := range []string{"a", "b"} {
				<-time.After(8 * time.Second)
				o.Report(controllers.Report{Sandbox: podnet.Sandbox{Name: pod, UID: pod}, Status: controllers.StatusFailed, Message: "of " + pod})
			}
		}
		<-ended
		if writes != 2 { // the first one, and the failures
			t.Errorf("%d requests", writes)
		}
	})
}

func TestOutcomes_sameFailureLater_isNewAfterASuccess(t *testing.T) {
	o := &outcomes{Reporter: &keptReports{}}
	fails := func(uid string) *agentstatus.Error {
		o.Report(controllers.Report{Sandbox: podnet.Sandbox{UID: uid}, Status: controllers.StatusFailed, Message: "no"})
		return o.last.Load()
	}
	first := fails("a")
	if fails("a") != first {
		t.Error("a repetition is new")
	}
	o.Report(controllers.Report{Sandbox: podnet.Sandbox{UID: "a"}, Status: controllers.StatusInitialized})
	second := fails("a")
	o.Forget("a")
	if third := fails("a"); second == first || third == second {
		t.Error("one after a success, or after the pod was forgotten, is not new")
	}
	for i := range 3 * maxOutcomes {
		fails(fmt.Sprint(i))
	}
	if len(o.failures) > maxOutcomes {
		t.Errorf("%d failures are remembered", len(o.failures))
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
