package shared

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
)

// follow adds pods, and has them followed.
func (n *fakeNode) follow(m *Manager, names ...string) (out []podnet.Sandbox) {
	for _, name := range names {
		s := n.pod(name)
		m.Follow(s, "edge")
		out = append(out, s)
	}
	return out
}

func (n *fakeNode) setTemplate(m *Manager, text string) {
	n.change(func() {
		n.profile.Spec.Files = []v1alpha1.File{{Name: configFile, Template: text}}
	})
	m.Notify("edge")
}

func TestManager_newVersion_isApplied(t *testing.T) {
	t.Parallel()
	n, m, pods := newServing(t, "a", "b", "c")
	n.setTemplate(m, configTemplate+"# refused\n")
	n.eventually("the message is shown", func() bool {
		s := n.status(pods[0])
		return s.Ready && strings.Contains(s.Message, "ProxyProfile edge is not usable") && n.summary().Failed == 3
	})
	n.served(m, "a b c")
	n.follow(m, "d") // joins the version that is in force
	n.served(m, "a b c d")
	n.setTemplate(m, configTemplate+"{{ if 1 }}{{ .Nothing }}{{ end }}")
	n.eventually("the other message is shown", func() bool { return strings.Contains(n.status(pods[0]).Message, "can't evaluate field Nothing") })
	n.setTemplate(m, configTemplate+"{{ range .Pods }}# refused {{ .Name }}\n{{ end }}")
	n.eventually("the profile is to blame", func() bool { return strings.Contains(n.status(pods[0]).Message, "4 of 4 pods are refused with it") })
	n.served(m, "a b c d")
	n.setTemplate(m, configTemplate+"# new\n")
	n.eventually("all have it", func() bool { sum := n.summary(); return sum.Upgraded == 4 && sum.Failed == 0 })
	n.served(m, "a b c d")

	// One pod cannot keep the others from a new version. It is not served then.
	n.edit(pods[1], func(p *fakePod) { p.annotations = map[string]string{"other": "refused"} })
	m.Follow(pods[1], "edge")
	n.eventually("the pod's change is in force", func() bool {
		text, err := os.ReadFile(filepath.Join(n.root, "edge", stateName))
		return err == nil && strings.Contains(string(text), `"other":"refused"`)
	})
	n.setTemplate(m, configTemplate+"{{ range .Pods }}# {{ index .Annotations `other` }}\n{{ end }}")
	n.served(m, "a c d")
	n.eventually("the pod says why", func() bool { return n.status(pods[1]).State == v1alpha1.Refused })
}

// The proxy accepts the files, but does not put them into force.
func TestManager_notConfirmed_oldFilesComeBack(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t, "a")
	n.change(func() { n.deaf = func(text string) bool { return strings.Contains(text, "ns-b") } })
	bad := n.follow(m, "b", "c")[0]
	n.eventually("the pod says why", func() bool { return strings.Contains(n.status(bad).Message, "did not answer version") })
	n.served(m, "a c")
	if version, _, err := n.parse("current"); err != nil || version != n.answer() {
		t.Errorf("current has version %s, error %v; the proxy has %s", version, err, n.answer())
	}
	n.change(func() { n.deaf = func(string) bool { return false } })
	n.served(m, "a b c")
}

func TestManager_namespaceVanishesBeforeReload_othersStay(t *testing.T) {
	t.Parallel()
	n, m, pods := newServing(t, "a")
	a := pods[0]
	n.change(func() {
		n.deaf = func(text string) bool {
			gone := !n.pods[a.UID].unnamed
			n.pods[a.UID].unnamed = true
			return gone
		}
	})
	b := n.follow(m, "b")[0]
	n.served(m, "b")
	if s := n.status(b); s.Failure != "" {
		t.Errorf("who joined is blamed: %s", s.Failure)
	}
}

func TestManager_podChangesAllTheTime_pausesGrow(t *testing.T) {
	t.Parallel()
	n, m, pods := newServing(t, "a")
	hostile := pods[0]
	reloads, reads := n.reloadCount(), n.readCount()
	began := time.Now()
	for i := range 50 {
		n.edit(hostile, func(p *fakePod) {
			p.annotations = map[string]string{"note": fmt.Sprintf("%d", i)}
			if i%3 == 0 {
				p.annotations["note"] = "refused"
			}
		})
		m.Follow(hostile, "edge")
		if i == 25 {
			n.follow(m, "b")
		}
		pause(t.Context(), 100*time.Millisecond)
	}
	n.served(m, "a b")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the other pod has joined after %s", took)
	}
	if more, read := n.reloadCount()-reloads, n.readCount()-reads; more > 3 || read > 6 {
		t.Errorf("%d reloads and %d pods read in 5 s", more, read)
	}
}

func TestManager_twoAgents_oneWorks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.startProxy()
	first := n.agent()
	stop := n.stop
	n.follow(first, "a")
	n.served(first, "a")
	second := n.agent()
	a := n.pods["uid-a"].sandbox
	second.Follow(a, "edge")
	n.served(second, "a")
	b := n.pod("b")
	second.Follow(b, "edge") // the one that does not work does not serve it
	pause(t.Context(), 1500*time.Millisecond)
	n.served(second, "a")
	first.Follow(b, "edge")
	n.served(first, "a b")
	n.served(second, "a b")
	stop()
	c := n.follow(second, "c")[0]
	n.served(second, "a b c")
	n.eventually("it is shown", func() bool { return n.status(c).Ready })
}

func TestManager_rulesLeadThere_podStays(t *testing.T) {
	t.Parallel()
	n, m, pods := newServing(t, "a", "b")
	a := pods[0]
	n.change(func() { n.held[a.UID] = true })
	n.edit(a, func(p *fakePod) { p.chosen = "other" })
	m.Follow(a, "other")
	pause(t.Context(), 1500*time.Millisecond)
	n.served(m, "a b")
	n.stop()
	m = n.agent()
	m.Follow(a, "other")
	n.served(m, "a b")
	pause(t.Context(), 1500*time.Millisecond)
	n.served(m, "a b")
	n.change(func() { n.held[a.UID] = false })
	m.Notify("edge")
	n.served(m, "b")
}

// What cannot be written leaves all as it was, and is tried again.
func TestManager_fullFileSystem_triesAgain(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t, "a")
	inTheWay := filepath.Join(n.root, "edge", stateName+".new")
	if err := os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	version, _, _ := n.parse("current")
	reloads := n.reloadCount()
	n.follow(m, "b")
	pause(t.Context(), 2*time.Second)
	n.served(m, "a")
	if now, _, err := n.parse("current"); err != nil || now != version || n.reloadCount() != reloads {
		t.Errorf("current has version %s, was %s, error %v; %d reloads", now, version, err, n.reloadCount()-reloads)
	}
	n.stop()
	m = n.agent()
	m.Follow(n.pods["uid-a"].sandbox, "edge")
	n.served(m, "a")
	if err := os.RemoveAll(inTheWay); err != nil {
		t.Fatal(err)
	}
	m.Follow(n.pods["uid-b"].sandbox, "edge")
	n.served(m, "a b")
}

// Without the state nobody knows whom the proxy serves: it begins without pods, and all join anew.
func TestManager_stateLost_goesOn(t *testing.T) {
	t.Parallel()
	n, _, pods := newServing(t, "a")
	n.stop()
	if err := os.WriteFile(filepath.Join(n.root, "edge", stateName), []byte(`{"confirmed": `), 0o600); err != nil {
		t.Fatal(err)
	}
	m := n.agent()
	m.Follow(pods[0], "edge")
	n.served(m, "a")
}

func TestManager_proxySilentBriefly_servesOn(t *testing.T) {
	t.Parallel()
	n, m, pods := newServing(t, "a")
	a := pods[0]
	n.change(func() { n.mute = true })
	m.Notify("edge")
	for range 20 { // 2 s
		pause(t.Context(), 100*time.Millisecond)
		if ok, _ := m.Serves("edge", a); !ok {
			t.Fatal("one question without an answer counts")
		}
	}
	n.unserved(m, a) // in the end
	if n.reloadCount() > 2 {
		t.Errorf("%d reloads of a proxy that does not answer", n.reloadCount())
	}
	n.change(func() { n.mute = false })
	n.served(m, "a")
}

// The proxy can write into the directory of its socket.
func TestAsk_linkInPlaceOfSocket_isNotFollowed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.startProxy()
	d := newDirectory(n.root, "edge")
	if _, err := d.ask(t.Context(), proxyPod); err == nil || !strings.Contains(err.Error(), "status 503") {
		t.Errorf("a proxy without a version: %v", err)
	}
	socket := filepath.Join(d.run(), proxyPod, versionName)
	if err := os.Rename(socket, socket+".other"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(socket+".other", socket); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ask(t.Context(), proxyPod); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("a link: %v", err)
	}
	own := filepath.Dir(socket)
	if err := errors.Join(os.Rename(own, own+"-other"), os.Symlink(own+"-other", own)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ask(t.Context(), proxyPod); !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link to a directory: %v", err)
	}
	if err := d.mark(proxyPod); err == nil {
		t.Error("a file was made behind a link")
	}
}

func TestManager_manyPodsAtOnce_joinTogether(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t)
	var good []string
	for i := range 100 {
		name := fmt.Sprintf("p%03d", i)
		if i%10 == 7 {
			m.Follow(n.pod(name, func(p *fakePod) { p.annotations = map[string]string{"note": "refused"} }), "edge")
			continue
		}
		good = append(good, name)
		m.Follow(n.pod(name), "edge")
	}
	n.served(m, strings.Join(good, " "))
	if got := n.reloadCount(); got > 12 {
		t.Errorf("%d reloads", got)
	}
	n.eventually("old configurations are removed", func() bool {
		entries, err := os.ReadDir(filepath.Join(n.root, "edge", "files"))
		return err == nil && len(entries) <= 5 // two links, what they lead to, and what was in force
	})
}
