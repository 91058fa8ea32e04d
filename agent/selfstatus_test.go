package agent

import (
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
	"istio-pod-network-controller/iptables/kernel"
)

func TestWhatTheAgentSaysAboutItself(t *testing.T) {
	a := &agent{core: newCoreHolder(), ready: &readiness{}, Options: Options{Build: Build{Version: "1.2.3", Revision: "abc"}, CNI: CNIInstall}}
	a.backends = kernel.New(kernel.Namespaces{}, fakeDriver{})
	a.ready.add(part{name: "cache", check: a.core.check})
	a.ready.add(part{name: "runtime", check: func(context.Context) error { return nil }})
	a.inspect.Store(&agentstatus.Inspect{Port: 1})
	a.early = []hook{{by: controllers.CNI, state: a.cniState.Check}}
	self := selfStatus{build: a.Build, podsFrom: a.core.podsFrom, backend: a.backends.Name(), ready: a.ready, hooks: a.hooks(), inspect: &a.inspect}
	s := self.look(t.Context(), nil)
	if s.Version != "1.2.3" || s.Revision != "abc" || s.Backend != "fake" || s.Inspect == nil || s.Time.IsZero() {
		t.Errorf("%+v", s)
	}
	if s.Ready || len(s.NotReady) != 1 || !strings.HasPrefix(s.NotReady[0], "cache: ") {
		t.Errorf("ready %t, not ready: %q", s.Ready, s.NotReady)
	}
	names := ""
	for _, e := range s.Hook {
		names += e.Name + " "
		if e.Up || e.Message == "" {
			t.Errorf("before the API server was reached: %+v", e)
		}
	}
	if names != "watch cni " {
		t.Errorf("hooks %s", names)
	}
	a.core.set(core{})
	newest := failureNow(controllers.Report{Sandbox: podnet.Sandbox{Namespace: "shop", Name: "b"}, Status: podreport.StatusFailed, Message: "of\nb"})
	if s = self.look(t.Context(), newest); !s.Ready || !s.Hook[0].Up || s.LastError != newest {
		t.Errorf("later: %+v", s)
	}
	if newest.Pod != "shop/b" || newest.Message != "of b" || newest.Time.IsZero() {
		t.Errorf("the newest failure is %+v", newest)
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

// statesOf returns what the agent says of its hooks.
func statesOf(t *testing.T, a *agent) []agentstatus.Hook {
	t.Helper()
	return selfStatus{podsFrom: a.core.podsFrom, ready: a.ready, hooks: a.hooks(), inspect: &a.inspect}.look(t.Context(), nil).Hook
}
