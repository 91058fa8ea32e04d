package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// fakeDriver calls a test's functions with the path of each call.
type fakeDriver struct {
	Driver
	present   bool
	look      error // of Present
	apply     func(path string) error
	unchanged bool // apply finds nothing to do
}

func (b fakeDriver) Name() string { return "fake" }

func (b fakeDriver) BuiltIn() bool { return false }

func (b fakeDriver) Present(context.Context, *netns.NS) (bool, error) { return b.present, b.look }

func (b fakeDriver) Apply(_ context.Context, ns *netns.NS, _ iptables.Ruleset) (iptables.Outcome, error) {
	if b.unchanged {
		return iptables.Outcome{}, b.apply(ns.Path())
	}
	return iptables.Outcome{Drift: iptables.Drift{{Kind: iptables.KindAbsent}}}, b.apply(ns.Path())
}

func (b fakeDriver) Yield(_ context.Context, ns *netns.NS) (bool, error) {
	return false, b.apply(ns.Path())
}

func idOf(t *testing.T, e Backend, path string) podnet.Identity {
	t.Helper()
	id, err := e.Identify(path)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// The kernel re-uses inodes; the cookie distinguishes the namespaces.
func TestAnIdentityHasAllThatTheKernelTells(t *testing.T) {
	ns := kerneltest.New(t)
	want, err := ns.Identity()
	if err != nil {
		t.Fatal(err)
	}
	if got := idOf(t, New(namespaces(t), fakeDriver{}), ns.Path()); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Who cannot tell whether there are rules of ours writes none.
func TestNothingIsWrittenWhereNobodyCanLook(t *testing.T) {
	written := false
	e := New(namespaces(t), fakeDriver{look: errSome, apply: func(string) error { written = true; return nil }})
	ns := kerneltest.New(t)
	mustRun(t, ns, "nft add table inet before")
	if _, err := e.Apply(t.Context(), at(ns), iptables.Ruleset{}); !errors.Is(err, errSome) || written {
		t.Errorf("written %v, error %v", written, err)
	}
}

// Whatever a path leads to, only the namespace that was identified is worked on.
func TestAPlaceIsNotWorkedOnUnderAnotherIdentity(t *testing.T) {
	first, second := kerneltest.New(t), kerneltest.New(t)
	for name, e := range allBackends(t) {
		place := podnet.Place{Path: second.Path(), Identity: idOf(t, e, first.Path())}
		_, errApply := e.Apply(t.Context(), place, tproxyRules(t))
		_, errPresent := e.Present(t.Context(), place)
		_, errRemove := e.Remove(t.Context(), place)
		_, errLook := e.Look(t.Context(), place, nil)
		_, _, errList := e.List(t.Context(), place)
		for what, err := range map[string]error{
			"apply": errApply, "present": errPresent, "remove": errRemove, "look": errLook, "list": errList,
		} {
			if !errors.Is(err, podnet.ErrGone) {
				t.Errorf("%s: %s: error %v", name, what, err)
			}
		}
		if got := ours(t, second); got != "" {
			t.Fatalf("%s wrote %q", name, got)
		}
		place.Path = first.Path()
		if _, err := e.Apply(t.Context(), place, tproxyRules(t)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A path that is changed between two backends changes nothing: both work on what was opened before the first.
func TestAllBackendsWorkOnWhatWasOpened(t *testing.T) {
	first, second := kerneltest.New(t), kerneltest.New(t)
	path := filepath.Join(t.TempDir(), "netns")
	lead := func(to *netns.NS) {
		if err := errors.Join(os.RemoveAll(path), os.Symlink(to.Path(), path)); err != nil {
			t.Fatal(err)
		}
	}
	lead(first)
	var seen []netns.ID
	look := func(opened string) error {
		ns, err := netns.Open(opened)
		if err != nil {
			return err
		}
		seen = append(seen, ns.ID())
		lead(second)
		return ns.Close()
	}
	e := New(namespaces(t), fakeDriver{apply: look}, fakeDriver{apply: look})
	if _, err := e.Apply(t.Context(), podnet.Place{Path: path}, iptables.Ruleset{}); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 2 || seen[0] != first.ID() || seen[1] != first.ID() {
		t.Errorf("worked on %v, want twice %v", seen, first.ID())
	}
}

// outOfRange is what a decoder may do with what a pod wrote.
func outOfRange(text []error) error { return text[0] }

func TestAPanicIsAnErrorAndReported(t *testing.T) {
	ns := kerneltest.New(t)
	for name, apply := range map[string]func(string) error{
		"on the caller's goroutine": func(string) error { return outOfRange(nil) },
		"on a thread inside":        func(string) error { return ns.Inside(func() error { return outOfRange(nil) }) },
	} {
		reports := 0
		in := namespaces(t)
		in.panicked = func(_ context.Context, p *netns.PanicError) {
			if reports++; len(p.Stack) == 0 {
				t.Errorf("%s: no stack", name)
			}
		}
		_, err := New(in, fakeDriver{apply: apply}).Apply(t.Context(), at(ns), iptables.Ruleset{})
		if err == nil || !strings.Contains(err.Error(), "index out of range") || reports != 1 {
			t.Errorf("%s: error %v, reported %d times", name, err, reports)
		}
	}
}

// What another project has programmed is left alone, also while its rules would not be in the way.
func TestAnotherProjectsRulesAreRecognisedBeforeTheFirstWrite(t *testing.T) {
	for name, c := range map[string]struct{ ours, refused bool }{
		"none of ours are there": {refused: true},
		"ours are there":         {ours: true},
	} {
		ns := kerneltest.New(t)
		mustRun(t, ns, "iptables-nft -t nat -N ISTIO_OUTPUT && iptables-nft -t nat -A ISTIO_OUTPUT -j RETURN && iptables-nft -t nat -A OUTPUT -j ISTIO_OUTPUT")
		wrote := false
		e := New(namespaces(t), fakeDriver{present: c.ours, apply: func(string) error { wrote = true; return nil }})
		_, err := e.Apply(t.Context(), at(ns), iptables.Ruleset{})
		others, ok := errors.AsType[*podnet.ProgrammedByOthersError](err)
		if ok != c.refused || wrote == c.refused || ok && others.Owner != "Istio" {
			t.Errorf("%s: error %v, wrote %v", name, err, wrote)
		}
	}
}
