package node

import (
	"cmp"
	"strings"
	"sync"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/rollout"
)

// fakeShared notes whom it is to serve, and serves nobody.
type fakeShared struct {
	mu       sync.Mutex
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

func (f *fakeShared) Serves(string, podnet.Sandbox) (serves, known bool) { return false, true }

// changing is a pod on a node that changes its profile. It has chosen edge, of the pod's own.
type changing struct {
	t *testing.T
	choosing
	*Proxies
	sandbox podnet.Sandbox
	node    *fakeShared
	dir     string
}

func newChanging(t *testing.T) *changing {
	t.Helper()
	m := &changing{t: t, choosing: newChoosing(), sandbox: theSandbox(), dir: t.TempDir(), node: &fakeShared{followed: map[string]string{}}}
	for name, change := range map[string]func(*v1alpha1.ProxyProfileSpec){
		"other-ports": func(s *v1alpha1.ProxyProfileSpec) { s.Network.OutboundPort, s.Network.InboundPort = 15201, 15206 },
		"other-user":  func(s *v1alpha1.ProxyProfileSpec) { s.Container.RunAsUser = 1338 },
		"shared": func(s *v1alpha1.ProxyProfileSpec) {
			s.Container, s.Shared, s.Network.OutboundPort, s.Network.InboundPort = nil, &v1alpha1.Shared{RunAsGroup: 1337}, 15101, 15106
		},
		"shared-2": func(s *v1alpha1.ProxyProfileSpec) { s.Container, s.Shared = nil, &v1alpha1.Shared{RunAsGroup: 1337} },
	} {
		p := m.profile.DeepCopy()
		p.Name = name
		change(&p.Spec)
		m.more = append(m.more, p)
	}
	m.restart()
	return m
}

// restart has another agent on the node, which knows only what is noted.
func (m *changing) restart() {
	m.t.Helper()
	m.Proxies = &Proxies{
		manager: sidecars.New(sidecars.Config{Good: &rollout.Good{}, Rollout: &rollout.Queue{}}), shared: m.node, reports: newSidecarReports(nil, nil, "node-1"),
	}
	m.manager.Reporter, m.reports.gone = ownReporter{m.reports}, m.forgetRoutes
	m.reread()
}

// choose has the pod choose a profile.
func (m *changing) choose(profile string) {
	m.pod.Annotations[intent.KeySidecar] = profile
	m.reread()
}

// reread has the agent see the pod and its namespace as they are.
func (m *changing) reread() {
	now := m.read(m.t)
	if now.routes = m.cluster.routes; now.routes == nil {
		now.routes = newRoutesIn(m.t, m.dir)
	}
	m.cluster = now
}

// visit is what the Programmer does. It returns the profile that the rules lead to, or why there is none.
func (m *changing) visit() (leadsTo, refused string) {
	chosen, err := intent.ProxyProfile(m.pod, m.ns)
	if err != nil {
		m.t.Fatal(err)
	}
	got := m.Managed(m.t.Context(), m.sandbox, chosen, m.pod, m.ns)
	if got == nil {
		return "", "it has no proxy"
	}
	if got.Refused == "" {
		m.Led(m.sandbox, got)
	}
	m.Follow(m.sandbox, controllers.Watch, cmp.Or(chosen, got.Profile))
	return got.Profile, got.Refused
}

// optOut is what the Programmer does with a pod that has chosen none.
func (m *changing) optOut() {
	m.choose(intent.SidecarNone)
	m.Led(m.sandbox, nil)
	m.Follow(m.sandbox, controllers.Watch, "")
}

// must checks where the rules lead, what the managers of both modes are told, and what the pod's owner is.
func (m *changing) must(step, leadsTo string, keeps bool) {
	m.t.Helper()
	if got, refused := m.visit(); got != leadsTo || refused != "" {
		m.t.Errorf("%s: the rules lead to %q (%s), want %q", step, got, refused, leadsTo)
	}
	isShared := strings.HasPrefix(leadsTo, "shared")
	own, err := ownCluster{m.cluster}.Choice(m.t.Context(), m.sandbox)
	if err != nil || own.OptedOut != isShared || !isShared && (own.Name != leadsTo || own.Profile == nil) {
		m.t.Errorf("%s: the pod's own proxies are told %+v, error %v", step, own, err)
	}
	all, err := m.cluster.Choice(m.t.Context(), m.sandbox)
	if err != nil || all.Name != leadsTo || all.Profile == nil || m.shared.Follows("u1") != isShared {
		m.t.Errorf("%s: the shared proxies are told %+v, the pod is followed %v, error %v", step, all, !isShared, err)
	}
	if followed := m.node.followed["u1"]; followed != "" && followed != leadsTo {
		m.t.Errorf("%s: followed is the proxy of %q", step, followed)
	}
	for _, profile := range []string{"shared", "shared-2"} {
		if want := leadsTo == profile; m.cluster.routes.holds(profile, m.sandbox) != want {
			m.t.Errorf("%s: %s holds the pod: %v", step, profile, !want)
		}
	}
	why := m.reports.chose("u1").why
	if keeps != (why != "") || keeps && !strings.Contains(why, "takes effect for new pods") {
		m.t.Errorf("%s: said is %q", step, why)
	}
}

// A pod keeps the proxy to which its rules lead while it chooses one that could not take its place, whatever agent runs.
func TestProxies_anotherMode_keepsTheProxyUntilNone(t *testing.T) {
	for name, restarts := range map[string]bool{"one agent": false, "another agent at each step": true} {
		t.Run(name, func(t *testing.T) {
			m := newChanging(t)
			choose := func(profile string) {
				m.choose(profile)
				if restarts {
					m.restart()
				}
			}
			m.must("it starts", "edge", false)
			choose("shared")
			m.must("it has chosen a shared one", "edge", true)
			choose("other-ports")
			m.must("it has chosen one with other ports", "edge", true)
			choose("edge")
			m.must("it has chosen its own again", "edge", false)
			choose("other-user")
			m.must("it has chosen one with the same ports", "edge", true)
			m.optOut()
			choose("shared")
			m.must("it has chosen a shared one, after none", "shared", false)
			choose("shared-2")
			m.must("it has chosen another shared one", "shared", true)
			choose("edge")
			m.must("it has chosen one of its own", "shared", true)
			m.optOut()
			choose("other-ports")
			m.must("it has chosen one of its own, after none", "other-ports", false)
			m.sandbox.ID = "s2"
			choose("shared")
			m.must("its sandbox was made anew", "shared", false)
		})
	}
}

// A pod whose sandbox has no ID yet may be the one that is known.
func TestManaged_sandboxWithoutID_keepsTheProxy(t *testing.T) {
	m := newChanging(t)
	m.must("it starts", "edge", false)
	m.choose("shared")
	unnamed := theSandbox()
	unnamed.ID = ""
	if got := m.Managed(t.Context(), unnamed, "shared", m.pod, m.ns); got.Profile != "edge" || got.OutboundPort != 15001 {
		t.Errorf("the rules know %+v", got)
	}
}

// The profile whose proxy a pod keeps may be deleted: its rules and its proxy stay as they are.
func TestManaged_keptProfileIsDeleted_isRefused(t *testing.T) {
	for name, restarts := range map[string]bool{"one agent": false, "another agent": true} {
		m := newChanging(t)
		m.must("it starts", "edge", false)
		m.profile.Name = "unused"
		m.choose("shared")
		if restarts {
			m.restart()
		}
		if _, refused := m.visit(); !strings.Contains(refused, `there is no ProxyProfile "edge"`) || m.node.Follows("u1") {
			t.Errorf("%s: refused %q, followed are %v", name, refused, m.node.followed)
		}
		if c, err := (ownCluster{m.cluster}).Choice(t.Context(), m.sandbox); err != nil || c.Name != "edge" || c.Refusal == "" || c.OptedOut {
			t.Errorf("%s: the pod's own proxies are told %+v, error %v", name, c, err)
		}
	}
}

// A pod that opts out of a shared proxy is held until its rules are gone. Its own proxies, of which nothing is known, stay.
func TestLed_rulesRemoved_letsThePodGo(t *testing.T) {
	m := newChanging(t)
	m.choose("shared")
	if c, err := (ownCluster{m.cluster}).Choice(t.Context(), m.sandbox); err != nil || c.OptedOut || c.Name != "" {
		t.Errorf("before it is known where the rules lead, the pod's own proxies are told %+v, error %v", c, err)
	}
	m.must("it starts", "shared", false)
	m.choose(intent.SidecarNone)
	if !m.cluster.routes.holds("shared", m.sandbox) {
		t.Error("let go before its rules are gone")
	}
	m.optOut()
	if m.cluster.routes.holds("shared", m.sandbox) || m.node.Follows("u1") || len(m.node.rounds) != 1 {
		t.Errorf("kept, or no round: %q", m.node.rounds)
	}
	m.choose("shared")
	m.must("it comes back", "shared", false)
	m.Forget("u1")
	if l := newRoutesIn(t, m.dir); len(l.known) != 0 {
		t.Errorf("noted %v", l.known)
	}
}

// The ManagedProxy shows the proxy that the pod has, and says why it is not the chosen one. Of the other mode's manager nothing is shown.
func TestReports_theOtherModesManager_isNotShown(t *testing.T) {
	api := sidecarAPI(t)
	r := newSidecarReports(api, nil, "node-1")
	own, shared := ownReporter{r}, sharedReporter{r}
	s := theSandbox()
	shows := func(step, profile, message string) {
		t.Helper()
		workOff(t, r)
		var got v1alpha1.ManagedProxyList
		if err := api.List(t.Context(), &got); err != nil || len(got.Items) != 1 || got.Items[0].Spec.Profile != profile || got.Items[0].Status.Message != message {
			t.Errorf("%s: %+v, error %v", step, got.Items, err)
		}
	}
	r.choose(s.UID, choice{chosen: true})
	own.Report(s, sidecars.Status{Profile: "edge", State: v1alpha1.Running, Ready: true})
	shared.Retract(s.UID)
	shows("its own", "edge", "")
	r.choose(s.UID, choice{chosen: true, why: "kept"})
	shows("it keeps its own", "edge", "kept")
	own.Report(s, sidecars.Status{Profile: "edge", State: v1alpha1.Running, Ready: true, Message: "trouble"})
	shows("with trouble", "edge", "kept; trouble")
	r.choose(s.UID, choice{chosen: true, shared: true})
	shared.Report(s, sidecars.Status{Profile: "shared", State: v1alpha1.Starting})
	own.Report(s, sidecars.Status{State: v1alpha1.Failed})
	own.Retract(s.UID)
	shared.Forget(s.UID)
	shows("a shared one, after none", "shared", "")
	r.choose(s.UID, choice{})
	shared.Retract(s.UID)
	if !r.reports[s.UID].retract {
		t.Error("the ManagedProxy of a pod that has opted out stays")
	}
	r.Forget(s.UID)
	if left := len(r.chosen) + len(r.reports); left != 0 {
		t.Errorf("left are %+v, %+v", r.chosen, r.reports)
	}
}

// A pod of a shared proxy that chooses a profile which does not exist stays with it, and is told.
func TestFollow_noSuchProfile_staysWithTheSharedProxy(t *testing.T) {
	m := newChanging(t)
	m.optOut()
	m.choose("shared")
	m.must("it starts", "shared", false)
	m.choose("nope")
	m.Follow(m.sandbox, controllers.Watch, "nope")
	got := m.reports.chose("u1")
	if !got.chosen || !got.shared || !strings.Contains(got.why, `no ProxyProfile "nope"`) || m.node.followed["u1"] != "shared" {
		t.Errorf("the choice is %+v, followed is the proxy of %q", got, m.node.followed["u1"])
	}
}

// A pod's own proxy ends once no rules lead to it any more, also if the agent that starts meanwhile is another one.
func TestLed_podOptsOut_ownProxyStaysUntilRulesAreRemoved(t *testing.T) {
	for name, restarts := range map[string]bool{"one agent": false, "another agent": true} {
		m := newChanging(t)
		optedOut := func() bool {
			c, err := (ownCluster{m.cluster}).Choice(t.Context(), m.sandbox)
			if err != nil || c.Name != "" {
				t.Errorf("%s: chosen is %+v, error %v", name, c, err)
			}
			return c.OptedOut
		}
		m.must("it starts", "edge", false)
		m.choose(intent.SidecarNone)
		if restarts {
			m.restart()
		}
		if optedOut() {
			t.Errorf("%s: the proxy may end while rules lead to it", name)
		}
		m.optOut()
		if !optedOut() {
			t.Errorf("%s: the proxy stays though no rules lead to it", name)
		}
	}
}

// Whoever chooses none has no shared proxy, although the agent that starts then knows nothing of the pod.
func TestLed_noneForAPodThatIsNotKnown_isHeldByNobody(t *testing.T) {
	m := newChanging(t)
	m.Led(m.sandbox, nil)
	if m.cluster.routes.holds("shared", m.sandbox) {
		t.Error("the shared proxy holds the pod")
	}
}
