package sidecars

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/probe"
	"istio-pod-network-controller/sidecars/profile"
)

// image is the image of the profile's n-th version.
func image(n int) string { return fmt.Sprintf("localhost/haproxy:%d", n) }

// only has proxies of some images behave in a way, and all others serve soon.
func only(behave func(*fakeProxy), images ...string) func(*fakeProxy) {
	return func(p *fakeProxy) {
		p.readyAfter, p.drains = 200*time.Millisecond, time.Second
		if slices.Contains(images, p.Image) {
			behave(p)
		}
	}
}

func endsAtOnce(p *fakeProxy) { p.exit = 1 }
func neverReady(p *fakeProxy) { p.readyAfter = -1 }

// followMany has so many pods followed: u1, u2 and so on.
func followMany(m *Manager, pods int) (uids []string) {
	for i := range pods {
		uids = append(uids, fmt.Sprint("u", i+1))
		m.Follow(sandboxOf(uids[i]))
	}
	return uids
}

// changeTo changes the profile to its n-th version.
func (n *fakeNode) changeTo(m *Manager, version int) {
	n.change(func() { n.profile.Spec.Image = image(version); n.profile.Generation++ })
	m.Notify("edge")
}

// mustServe wants a ready proxy of the n-th version in each pod, of which the ManagedProxy says so much.
func (n *fakeNode) mustServe(t *testing.T, uids []string, version int, words ...string) {
	t.Helper()
	for _, uid := range uids {
		said := n.mustSay(t, uid, v1alpha1.Running, true)
		if said.Image != image(version) {
			t.Errorf("%s: %+v, want version %d", uid, said, version)
		}
		for _, word := range words {
			if !strings.Contains(said.Message, word) {
				t.Errorf("%s: %q is not in %q", uid, word, said.Message)
			}
		}
		if len(words) == 0 && said.Message != "" {
			t.Errorf("%s: %q", uid, said.Message)
		}
	}
}

// endAll ends all proxies.
func (n *fakeNode) endAll() {
	for _, id := range n.running() {
		n.end(id, 137)
	}
}

// mustStandIn wants a ready proxy of the first version in each pod, since the bad one is not known to work. Some try that again meanwhile.
func (n *fakeNode) mustStandIn(t *testing.T, uids []string, bad string) {
	t.Helper()
	why := "the profile's version " + bad + " is not known to work on this node: the proxy is of "
	for _, uid := range uids {
		if said := n.said[uid]; !said.Ready || said.Image != image(1) || said.Hash == bad || !strings.Contains(said.Message, why) {
			t.Errorf("%s: %+v", uid, said)
		}
	}
}

// A version that does not work reaches neither proxies that are started again nor those of new pods, also if the agent has restarted.
func TestStart_presentVersionFails_isOfLastGood(t *testing.T) {
	for name, behave := range map[string]func(*fakeProxy){"it ends at once": endsAtOnce, "it is never ready": neverReady} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				n.behave = only(behave, image(2))
				m, stop := agent()
				followMany(m, 5)
				n.after(2 * time.Second)
				n.changeTo(m, 2)
				n.after(time.Minute)
				if !n.sum().Paused || n.sum().Upgraded != 0 {
					t.Errorf("the profile's status is %+v", n.sum())
				}
				bad, err := fakeProfile{Spec: n.profile.Spec}.compile()
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					n.endAll()
					uids := followMany(m, 6) // the sixth is new
					n.after(5 * time.Second)
					n.mustStandIn(t, uids, bad.Hash)
					stop()
					m, stop = agent()
				}
				uids := followMany(m, 6)
				n.after(time.Second)
				n.changeTo(m, 3)
				n.after(2 * time.Minute)
				n.mustServe(t, uids, 3)
				stop()
			})
		})
	}
}

// A start of the node leaves no proxy, and nothing in memory. Pods start with the version that works, not with the one that has failed before.
func TestStart_nodeHasStartedAnew_isOfLastGood(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		n := newNode()
		defer close(n.buried)
		n.behave = only(endsAtOnce, image(2))
		m, stop := startAgent(t, n, root)
		uids := followMany(m, 4)
		n.after(2 * time.Second)
		n.changeTo(m, 2)
		n.after(time.Minute)
		stop()
		homes, err := filepath.Glob(filepath.Join(root, "*.*"))
		if err != nil || len(homes) != len(uids) {
			t.Fatalf("homes %q, error %v", homes, err)
		}
		for _, dir := range homes {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		n.change(func() { clear(n.containers); clear(n.rules); clear(n.said) })
		m, stop = startAgent(t, n, root)
		defer stop()
		followMany(m, len(uids))
		n.after(2 * time.Second)
		n.mustServe(t, uids, 1, "is not known to work")
	})
}

// A version that nobody has tried is tried at the start of a new pod, if no pod of the node serves.
func TestStart_nobodyServes_triesPresentVersion(t *testing.T) {
	for name, c := range map[string]struct {
		behave  func(*fakeProxy)
		version int
		made    []string
	}{
		"it works":         {func(*fakeProxy) {}, 2, []string{image(2)}},
		"it ends at once":  {endsAtOnce, 1, []string{image(2), image(1)}},
		"another one runs": {nil, 2, []string{image(1), image(2)}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
				if c.behave != nil {
					n.behave = only(c.behave, image(2))
				}
				recorded := made{fakeNode: n}
				n.arrange = func(m *Manager) { m.Runtime = &recorded }
				m, stop := agent()
				defer stop()
				m.Follow(sandboxOf("before"))
				n.after(time.Second)
				if c.behave != nil {
					m.Unfollow("before")
					n.change(func() { delete(n.containers, "c001") })
				}
				n.change(func() { n.profile.Spec.Image = image(2) })
				m.Follow(sandboxOf("u1"))
				n.after(450 * time.Millisecond)
				n.mustServe(t, []string{"u1"}, c.version, map[bool][]string{true: {"exit code 1", "is not known to work"}}[c.version == 1]...)
				if got := recorded.of["u1"]; !slices.Equal(got[:len(c.made)], c.made) {
					t.Errorf("started were %q, want %q", got, c.made)
				}
			})
		})
	}
}

// made is a runtime that remembers the images of the containers that were made.
type made struct {
	*fakeNode
	of map[string][]string // by the pod's UID
}

func (r *made) Create(ctx context.Context, s sidecar.Spec) (string, error) {
	r.change(func() {
		if r.of == nil {
			r.of = map[string][]string{}
		}
		r.of[s.PodUID] = append(r.of[s.PodUID], s.Image)
	})
	return r.fakeNode.Create(ctx, s)
}

// A version that has worked may work no more: then the present one is tried.
func TestStart_lastGoodWorksNoMore_triesPresentVersion(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = only(endsAtOnce, image(2))
		m, stop := agent()
		defer stop()
		uids := followMany(m, 2)
		n.after(time.Second)
		n.changeTo(m, 2)
		n.after(30 * time.Second)
		n.change(func() { n.behave = only(neverReady, image(1)) })
		for _, id := range n.running() {
			n.end(id, 137)
		}
		n.after(2 * time.Minute)
		n.mustServe(t, uids, 2)
	})
}

// Without a handover a version that fails costs the pod its connections, once in a while.
func TestUpgrade_withoutHandoverFails_oldOneComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.profile.Spec.Handover = profile.HandoverNone
		n.behave = only(endsAtOnce, image(2))
		recorded := made{fakeNode: n}
		m, stop := agent()
		defer stop()
		m.Runtime = &recorded
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.changeTo(m, 2)
		n.after(4 * time.Minute)
		n.mustServe(t, []string{"u1"}, 1, "exit code 1", "is not known to work")
		if got, want := recorded.of["u1"], []string{image(1), image(2), image(1)}; !slices.Equal(got, want) {
			t.Errorf("started were %q, want %q", got, want)
		}
		n.change(func() { n.behave = only(nil) })
		n.after(3 * time.Minute)
		n.mustServe(t, []string{"u1"}, 2)
	})
}

// asking notes at which ports of their profile's version proxies are asked.
type asking struct {
	*fakeNode
	ports map[uint32]int32 // by epoch
}

func (q asking) Ask(ctx context.Context, s podnet.Sandbox, p *profile.Version, epoch uint32, to probe.Question) error {
	q.change(func() { q.ports[epoch] = to.Of(p, epoch).TCPPort })
	return q.fakeNode.Ask(ctx, s, p, epoch, to)
}

// A proxy is asked as its own version says.
func TestAsk_presentVersionAsksElsewhere_proxyIsAskedItsOwnWay(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		n.behave = only(neverReady, image(2))
		m, stop := agent()
		defer stop()
		asked := asking{n, map[uint32]int32{}}
		m.Asker = asked
		m.Follow(sandboxOf("u1"))
		n.after(time.Second)
		n.change(func() { n.profile.Spec.Readiness.TCPPort = 15999 })
		n.changeTo(m, 2)
		n.change(func() { clear(asked.ports) })
		n.after(15 * time.Second)
		if asked.ports[0] != 15021 || asked.ports[1] != 15999 {
			t.Errorf("asked at %v, by epoch", asked.ports)
		}
	})
}
