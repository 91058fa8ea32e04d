package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
)

// fakeShared serves whom a test says.
type fakeShared struct {
	mu       sync.Mutex
	serving  map[string]bool // by profile
	leaving  func()          // called when a proxy that is about to let the pod go is asked for its offer; nil: none is
	followed map[string]string
	rounds   []string
}

func (f *fakeShared) Follow(s podnet.Sandbox, profile string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.followed[s.UID] = profile
}
func (f *fakeShared) Keep(s podnet.Sandbox, profile string) { f.Follow(s, profile) }
func (f *fakeShared) Follows(podUID string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.followed[podUID] != ""
}

func (f *fakeShared) Unfollow(podUID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.followed, podUID)
}

func (f *fakeShared) Notify(profile string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rounds = append(f.rounds, profile)
}

func (f *fakeShared) Serves(profile string, _ podnet.Sandbox) (serves, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.serving[profile], true
}

func (f *fakeShared) Offers(profile string, s podnet.Sandbox) bool {
	if f.leaving != nil {
		f.leaving()
		return false
	}
	serves, _ := f.Serves(profile, s)
	return serves
}

// moving is a pod on a node whose proxies answer as the test says. It has chosen the profile edge, of the pod's own.
type moving struct {
	t *testing.T
	choosing
	*Proxies
	sandbox podnet.Sandbox
	node    *fakeShared
	dir     string
}

func newMoving(t *testing.T) *moving {
	t.Helper()
	m := &moving{t: t, choosing: newChoosing(), sandbox: theSandbox(), dir: t.TempDir(), node: &fakeShared{serving: map[string]bool{}, followed: map[string]string{}}}
	for name, change := range map[string]func(*v1alpha1.SidecarProfileSpec){
		"edge-2": func(s *v1alpha1.SidecarProfileSpec) { s.Network.OutboundPort, s.Network.InboundPort = 15201, 15206 },
		"edge-3": func(*v1alpha1.SidecarProfileSpec) {},
		"shared": func(s *v1alpha1.SidecarProfileSpec) {
			s.Mode, s.Network.OutboundPort, s.Network.InboundPort = v1alpha1.ModeShared, 15101, 15106
		},
		"shared-2": func(s *v1alpha1.SidecarProfileSpec) {
			s.Mode, s.Network.OutboundPort, s.Network.InboundPort = v1alpha1.ModeShared, 15301, 15306
		},
		"same-ports": func(s *v1alpha1.SidecarProfileSpec) { s.Mode, s.Network.OutboundPort = v1alpha1.ModeShared, 15101 },
		"other-group": func(s *v1alpha1.SidecarProfileSpec) {
			s.Mode, s.RunAsGroup, s.Network.OutboundPort, s.Network.InboundPort = v1alpha1.ModeShared, 1338, 15101, 15106
		},
	} {
		p := m.profile.DeepCopy()
		p.Name, p.Spec.DrainSeconds = name, 30
		change(&p.Spec)
		m.more = append(m.more, p)
	}
	m.restart()
	return m
}

// restart has another agent on the node, which knows only what is noted, and what the proxies answer.
func (m *moving) restart() {
	m.t.Helper()
	own := ownProxy{}
	if m.Proxies != nil {
		own = m.reports.chosen.own["u1"]
	}
	leads, err := newLeads(m.dir)
	if err != nil {
		m.t.Fatal(err)
	}
	m.Proxies = &Proxies{
		manager: &sidecars.Manager{Rollout: &sidecars.Rollouts{}}, shared: m.node, reports: newSidecarReports(nil, nil, "node-1"),
	}
	m.manager.Reporter = ownReporter{m.reports}
	m.choose(m.pod.Annotations[intent.KeySidecar])
	m.moves.leads, m.moves.serves, m.moves.offers = leads, m.serves, m.offers
	if own.ready {
		m.own(own.serves)
	}
}

// choose has the pod choose a profile.
func (m *moving) choose(profile string) {
	m.pod.Annotations[intent.KeySidecar] = profile
	cluster := m.read(m.t)
	m.profiles = cluster.profiles
	if m.moves == nil {
		m.moves = &moves{}
	}
	m.moves.profiles = m.profiles
}

// cluster is what the manager of own proxies reads.
func (m *moving) cluster() ownCluster {
	c := m.read(m.t)
	c.moves, c.profiles = m.moves, m.profiles
	return ownCluster{c, m.reports}
}

// own has the pod's own proxy be ready, of a profile.
func (m *moving) own(profile string) {
	ownReporter{m.reports}.Report(m.sandbox, sidecars.Status{Profile: profile, Ready: profile != "", Serves: profile})
}

// visit is what the Programmer does: it returns the profile that the rules lead to, or why there is none.
func (m *moving) visit() (leadsTo, refused string) {
	chosen := m.pod.Annotations[intent.KeySidecar]
	got := m.Managed(m.t.Context(), m.sandbox, chosen, m.pod, m.ns)
	if got.Refused == "" {
		m.Led(m.sandbox, got.Profile)
	}
	m.Follow(m.sandbox, controllers.Watch, chosen)
	return got.Profile, got.Refused
}

// must checks where the rules lead, and what the pod's own proxies are to do.
func (m *moving) must(step, leadsTo, name, held string, leaves bool) {
	m.t.Helper()
	if got, refused := m.visit(); got != leadsTo || refused != "" {
		m.t.Errorf("%s: the rules lead to %q (%s), want %q", step, got, refused, leadsTo)
	}
	c, err := m.cluster().Choice(m.t.Context(), m.sandbox)
	if err != nil || c.Name != name || c.Leaves != leaves || c.Held != held || name != "" && c.Profile == nil {
		m.t.Errorf("%s: the pod's own proxies are told %+v, error %v", step, c, err)
	}
	for _, profile := range []string{"shared", "shared-2"} {
		if want := leadsTo == profile; m.moves.hold(profile, m.sandbox) != want {
			m.t.Errorf("%s: %s holds the pod: %v", step, profile, !want)
		}
	}
}

// The rules follow a pod's choice once its proxy is ready, and the proxy to which they lead stays until then, whatever agent runs.
func TestThePodsRulesFollowItsProxy(t *testing.T) {
	for name, restarts := range map[string]bool{"one agent": false, "another agent at each step": true} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			next := func(f func()) {
				f()
				if restarts {
					m.restart()
				}
			}
			m.must("it starts", "edge", "edge", "", false)
			next(func() { m.own("edge") })
			m.must("its proxy is ready", "edge", "edge", "", false)
			next(func() { m.choose("shared") })
			m.must("it has chosen the shared one", "edge", "edge", "", true)
			next(func() { m.node.serving["shared"] = true })
			m.must("the shared one serves it", "shared", "", "", true)
			next(func() { m.own("") })
			m.must("the old one has ended", "shared", "", "", true)
			if ready, known := m.Ready(theSandbox()); !ready || !known {
				t.Errorf("ready %v, known %v", ready, known)
			}
			next(func() { m.choose("shared-2") })
			m.must("it has chosen another shared one", "shared", "", "", true)
			next(func() { m.node.serving["shared-2"] = true })
			m.must("that serves it", "shared-2", "", "", true)
			next(func() { m.choose("edge"); m.node.serving["shared"] = false })
			m.must("it has chosen one of its own", "shared-2", "edge", "", false)
			next(func() { m.own("edge") })
			m.must("that is ready", "edge", "edge", "", false)
			next(func() { m.choose("edge-2") })
			m.must("it has chosen one with other ports", "edge", "edge-2", "edge", false)
			next(func() { m.own("edge-2") })
			m.must("that one is ready", "edge-2", "edge-2", "", false)
			next(func() { m.choose("edge"); m.own("edge") })
			m.must("back", "edge", "edge", "", false)
			next(func() { m.choose("edge-3") })
			m.must("one of its own with the same ports", "edge-3", "edge-3", "", false)
		})
	}
}

// A shared proxy is known by its group alone: its last connections must not be taken for the application's.
func TestTheRulesKnowASharedProxyThatDrains(t *testing.T) {
	m := newMoving(t)
	m.choose("shared")
	m.must("it starts", "shared", "", "", true)
	m.node.serving["shared"] = true
	m.choose("edge")
	m.own("edge")
	for range 2 {
		got := m.Managed(t.Context(), theSandbox(), "edge", m.pod, m.ns)
		if got.Profile != "edge" || got.UID != 1337 || got.GID != 1337 {
			t.Errorf("the rules know %+v", got)
		}
		m.Led(theSandbox(), "edge")
	}
	l := m.moves.leads.known["u1"]
	l.Since = l.Since.Add(-31 * time.Second)
	m.moves.leads.known["u1"] = l
	if got := m.Managed(t.Context(), theSandbox(), "edge", m.pod, m.ns); got.UID != 1337 || got.GID != 0 {
		t.Errorf("after it has drained, the rules know %+v", got)
	}
}

// What two proxies cannot have at once is refused while the old one serves, and says what to do.
func TestAMoveThatCannotBeInPlaceIsRefused(t *testing.T) {
	for to, want := range map[string]string{"same-ports": "has port 15006", "other-group": "has runAsGroup 1338"} {
		m := newMoving(t)
		m.must("it starts", "edge", "edge", "", false)
		m.own("edge")
		m.choose(to)
		if _, refused := m.visit(); !strings.Contains(refused, want) || !strings.Contains(refused, `"none"`) {
			t.Errorf("%s: %q", to, refused)
		}
		if c, err := m.cluster().sidecarCluster.Choice(t.Context(), theSandbox()); err != nil || c.Profile != nil || !strings.Contains(c.Refusal, want) {
			t.Errorf("%s: the shared proxies are told %+v, error %v", to, c, err)
		}
		if c, err := m.cluster().Choice(t.Context(), theSandbox()); err != nil || c.Name != "edge" || c.Profile == nil {
			t.Errorf("%s: the pod's own proxies are told %+v, error %v", to, c, err)
		}
		if ready, known := m.Ready(theSandbox()); !ready || !known {
			t.Errorf("%s: the old proxy is ready %v, known %v", to, ready, known)
		}
		m.own("")
		if got, refused := m.visit(); refused != "" || (got == to) != (to == "same-ports") {
			t.Errorf("%s, and the old one does not serve: the rules lead to %q (%s)", to, got, refused)
		}
	}
}

// A profile that is deleted too early keeps its proxy until the other one is ready.
func TestAProfileIsDeletedDuringTheMove(t *testing.T) {
	m := newMoving(t)
	m.must("it starts", "edge", "edge", "", false)
	m.own("edge")
	old := m.profiles.known
	m.profile.Name = "unused"
	m.choose("shared")
	m.profiles.known = old
	if got, refused := m.visit(); got != "edge" || refused != "" {
		t.Errorf("the rules lead to %q (%s)", got, refused)
	}
	if c, err := m.cluster().Choice(t.Context(), theSandbox()); err != nil || c.Name != "edge" || !c.Leaves || c.Refusal == "" {
		t.Errorf("the pod's own proxies are told %+v, error %v", c, err)
	}
}

// A pod that opts out of a shared proxy is let go once its rules are gone, and one whose sandbox is made anew starts anew.
func TestAPodIsLetGo(t *testing.T) {
	m := newMoving(t)
	m.choose("shared")
	m.must("it starts", "shared", "", "", true)
	if !m.node.Follows("u1") {
		t.Error("not followed")
	}
	m.choose(intent.SidecarNone)
	if !m.moves.hold("shared", theSandbox()) {
		t.Error("let go before its rules are gone")
	}
	m.Led(theSandbox(), "")
	m.Follow(theSandbox(), controllers.Watch, "")
	if m.moves.hold("shared", theSandbox()) || m.node.Follows("u1") || len(m.node.rounds) != 1 {
		t.Errorf("kept, or no round: %q", m.node.rounds)
	}
	m.choose("shared")
	m.must("it comes back", "shared", "", "", true)
	m.choose("edge")
	anew := theSandbox()
	anew.ID = "s2"
	if got := m.Managed(t.Context(), anew, "edge", m.pod, m.ns); got.Profile != "edge" {
		t.Errorf("the rules of a new sandbox lead to %q", got.Profile)
	}
	m.Forget("u1")
	if l, err := newLeads(m.dir); err != nil || len(l.known) != 0 {
		t.Errorf("noted %v, error %v", l.known, err)
	}
}

// Notes of sandboxes that have ended while no agent ran are removed, and what is no note harms nobody.
func TestNotesOfEndedSandboxesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	l, err := newLeads(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"1", "2"} {
		if _, changed, err := l.set(podnet.Sandbox{UID: "u" + id, ID: "s" + id}, lead{Profile: "edge"}); err != nil || !changed {
			t.Fatalf("changed %v, error %v", changed, err)
		}
	}
	for name, text := range map[string]string{"u3.s3": "{", "u4.s4.new": "{}", "u5": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if l, err = newLeads(dir); err != nil || len(l.known) != 2 {
		t.Fatalf("noted %v, error %v", l.known, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	l.prune(ctx, func(_ context.Context, sandbox string) (bool, error) {
		if asked++; asked == 2 {
			cancel()
		}
		return sandbox == "s1", nil
	})
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || files[0].Name() != "u1.s1" || len(l.known) != 1 {
		t.Errorf("files %v, known %v, error %v", files, l.known, err)
	}
}
