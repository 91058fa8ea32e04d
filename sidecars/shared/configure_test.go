package shared

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
)

// byHand is a profile's group whose rounds a test makes one by one.
type byHand struct {
	*fakeNode
	g *group
}

// newByHand returns a node whose proxy serves these pods.
func newByHand(t *testing.T, names ...string) (h *byHand, pods []podnet.Sandbox) {
	t.Helper()
	h = byHandOn(newNode(t))
	pods = h.join(names...)
	h.rounds(2) // the first configuration is without pods
	h.wantServed(names...)
	return h, pods
}

func byHandOn(n *fakeNode) *byHand {
	n.startProxy()
	h := &byHand{n, newGroup(&Config{Cluster: n, Proxies: n, Sandboxes: n, Reporter: n, Root: n.root, Node: "node-1", Hold: n.hold}, "edge")}
	n.t.Cleanup(h.g.unlock)
	return h
}

// join has pods choose the profile.
func (h *byHand) join(names ...string) (pods []podnet.Sandbox) {
	for _, name := range names {
		s := h.pod(name)
		h.g.follow(s, true)
		pods = append(pods, s)
	}
	return pods
}

func (h *byHand) wantServed(names ...string) {
	h.t.Helper()
	if got := h.serves(); got != strings.Join(names, " ") {
		h.t.Fatalf("served are %q, want %q; said is %+v", got, names, h.said)
	}
}

// rounds makes rounds of which each may have the proxy reload. It returns how often files were checked.
func (h *byHand) rounds(n int) (checks int) {
	h.t.Helper()
	before := h.checkCount()
	for range n {
		if _, err := h.round(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
	}
	return h.checkCount() - before
}

func (h *byHand) round(ctx context.Context) (next time.Duration, err error) {
	h.g.reloaded = time.Time{}
	h.change(func() { h.told = time.Time{} })
	return h.g.round(ctx)
}

func (n *fakeNode) checkCount() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.checks
}

func (h *byHand) template(text string) {
	h.change(func() {
		h.profile.Spec.Files = []v1alpha1.File{{Name: configFile, Template: text}}
	})
}

// A version that is refused is tried again after growing pauses, and says so meanwhile. The next version does not wait for them.
func TestConfigure_versionRefused_waits(t *testing.T) {
	t.Parallel()
	h, pods := newByHand(t, "a")
	h.template("# refused\n")
	if n := h.rounds(1); n != 2 || h.g.bad.hash == "" {
		t.Errorf("%d checks, noted %+v", n, h.g.bad)
	}
	for i := range 3 {
		if n := h.rounds(2); n != 0 {
			t.Errorf("pause %d: %d checks", i, n)
		}
		if s := h.status(pods[0]); !s.Ready || !strings.Contains(s.Failure, `is not usable for the shared proxy: it refuses the files: ?[31mcannot use "# refused`) || h.summary().Failed != 1 {
			t.Errorf("pause %d: said is %+v, sum %+v", i, s, h.summary())
		}
		h.g.bad.until = time.Now()
		if n := h.rounds(1); n == 0 {
			t.Errorf("after pause %d: not tried again", i)
		}
		if got, want := time.Until(h.g.bad.until), firstPause<<(i+1); got > want || got < want-time.Second {
			t.Errorf("after pause %d: the next one is %s, want %s", i, got, want)
		}
	}
	h.g.bad.until = time.Now().Add(time.Hour)
	h.template(configTemplate + "# mended\n")
	h.rounds(1)
	if s := h.status(pods[0]); s.Failure != "" || h.summary().Upgraded != 1 || h.g.bad.hash != "" {
		t.Errorf("said is %+v, sum %+v, noted %+v", s, h.summary(), h.g.bad)
	}
}

// A version that was noted as refused, and that the proxy has after all, is no longer reported as refused.
func TestConfigure_refusedVersionInForce_isNotRefused(t *testing.T) {
	t.Parallel()
	h, pods := newByHand(t, "a")
	h.g.bad.hash = h.g.state.Confirmed.Hash
	h.g.bad.note(time.Now(), time.Hour, time.Hour, "the proxy did not answer")
	b := h.pod("b", func(p *fakePod) { p.refusal = "no" })
	h.g.follow(b, true)
	h.rounds(1)
	if s := h.summary(); h.g.bad.hash != "" || s.Failed != 1 || h.status(b).FailedHash == "" || h.status(pods[0]).Message != "" {
		t.Errorf("noted %+v, sum %+v, said %+v", h.g.bad, s, h.status(pods[0]))
	}
}

// A profile that is refused before the proxy has had any is tried again.
func TestConfigure_firstVersionRefused_isTriedAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.profile.Spec.Files[0].Template = "# refused\n"
	h := byHandOn(n)
	h.join("a")
	for i, want := range []int{1, 0, 1, 0} {
		if want > 0 {
			h.g.bad.until = time.Time{}
		}
		if got := h.rounds(1); got != want {
			t.Errorf("round %d: %d checks, want %d", i, got, want)
		}
	}
	h.template(configTemplate)
	h.rounds(2)
	h.wantServed("a")
}

// Where nothing has changed nothing is done, and not soon again.
func TestRound_noChange_checksNothing(t *testing.T) {
	t.Parallel()
	h, _ := newByHand(t, "a")
	reloads, checks := h.reloadCount(), h.checkCount()
	h.rounds(1)
	next, err := h.round(t.Context())
	if err != nil || next < livePeriod/2 || h.reloadCount() != reloads || h.checkCount() != checks {
		t.Errorf("error %v, next round in %s, %d reloads, %d checks", err, next, h.reloadCount()-reloads, h.checkCount()-checks)
	}
}

// A proxy is left as it is while neither a pod nor the saved state has its profile.
func TestRound_profileUnknown_changesNothing(t *testing.T) {
	t.Parallel()
	h := byHandOn(newNode(t))
	if n := h.rounds(2); n != 0 || h.reloadCount() != 0 {
		t.Errorf("%d checks, %d reloads", n, h.reloadCount())
	}
	h.join("a")
	h.rounds(2)
	h.wantServed("a")
}

// The runtime passes a check on or not, whichever of several it is. Nobody is to blame, and nothing is put into force, until it does.
func TestTest_checkNotPassedOn_blamesNoPod(t *testing.T) {
	t.Parallel()
	for fails := range 4 {
		h, _ := newByHand(t, "a")
		b := h.pod("b", func(p *fakePod) { p.annotations = map[string]string{"note": "refused"} })
		h.g.follow(b, true)
		c := h.join("c")[0]
		version, asked := h.answer(), 0
		h.change(func() {
			h.checking = func(context.Context) error {
				if asked++; asked > fails {
					return errors.New("the runtime is away")
				}
				return nil
			}
		})
		_, err := h.round(t.Context())
		for _, s := range []podnet.Sandbox{b, c} {
			if got := h.status(s); got.Failure != "" {
				t.Errorf("%d checks are passed on: %s is blamed: %s", fails, s.Name, got.Failure)
			}
		}
		if now, _, _ := h.parse(currentLink); err == nil || now != version || h.answer() != version {
			t.Errorf("%d checks are passed on: error %v, current has %s, the proxy %s, want %s", fails, err, now, h.answer(), version)
		}
		h.change(func() { h.checking = nil })
		h.rounds(1)
		h.wantServed("a", "c")
	}
}

// The words name how many pods leave no room.
func TestTest_fileTooLarge_refusesThePod(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.profile.Spec.Files[0].Template = longNotes
	h := byHandOn(n)
	var last podnet.Sandbox
	for name := range strings.FieldsSeq("a b c d e f g") {
		last = h.pod(name, func(p *fakePod) { p.annotations = map[string]string{"long": strings.Repeat("x", 1000)} })
		h.g.follow(last, true)
		h.rounds(2)
	}
	h.wantServed("a", "b", "c", "d", "e", "f")
	if got := h.status(last).Failure; !strings.Contains(got, "the files for 6 pods leave no room for this one") {
		t.Errorf("said is %q", got)
	}
}

// The chart gives the proxy another group, and the profile is as it was: the proxy's new container has the same version as the old one.
func TestConfigure_groupChanges_saysSo(t *testing.T) {
	t.Parallel()
	h, pods := newByHand(t, "a")
	r := &round{group: h.g, now: time.Now()}
	if err := (successorSearch{r}).look(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.meet(t.Context())
	r.proxy.gid++
	err := r.configure(t.Context())
	r.publish()
	if s, sum := h.status(pods[0]), h.summary(); err != nil || !s.Ready || !strings.Contains(s.Failure, "the shared proxy runs as group") || sum.Failed != 1 || sum.Upgraded != 0 || h.g.figuresNow().Newest {
		t.Errorf("error %v, said is %+v, sum %+v, figures %+v", err, s, sum, h.g.figuresNow())
	}
}

// A pod that is refused keeps nobody from leaving in the same round.
func TestRound_podLeavesWhileAnotherIsRefused_goes(t *testing.T) {
	t.Parallel()
	h, pods := newByHand(t, "a", "b")
	h.edit(pods[1], func(p *fakePod) { p.chosen = "none" })
	bad := h.pod("c", func(p *fakePod) { p.annotations = map[string]string{"note": "refused"} })
	h.g.follow(bad, true)
	h.rounds(1)
	h.wantServed("a")
	if s := h.status(bad); s.State != v1alpha1.Refused {
		t.Errorf("said is %+v", s)
	}
}

// A profile may write the same files with and without a pod: then the pod is served without a reload.
func TestApply_filesUnchanged_servesWithoutReload(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.profile.Spec.Files[0].Template = "version {{ .Version }}\n"
	h := byHandOn(n)
	h.join("a")
	h.rounds(2)
	reloads := h.reloadCount()
	b := h.join("b")[0]
	h.rounds(1)
	if serves, known := h.g.serves(b.Key()); !serves || !known || h.reloadCount() != reloads {
		t.Errorf("served %v, known %v, %d reloads", serves, known, h.reloadCount()-reloads)
	}
	h.edit(b, func(p *fakePod) { p.chosen = "none" })
	h.rounds(1)
	if serves, _ := h.g.serves(b.Key()); serves || h.reloadCount() != reloads {
		t.Errorf("it has left: served %v, %d reloads", serves, h.reloadCount()-reloads)
	}
}

// A pod that leaves right after a reload waits for the pause between two, and no longer.
func TestRound_podLeavesAfterReload_waitsForThePause(t *testing.T) {
	t.Parallel()
	h, pods := newByHand(t, "a", "b")
	h.edit(pods[1], func(p *fakePod) { p.chosen = "none" })
	h.g.reloaded = time.Now()
	if next, err := h.g.round(t.Context()); err != nil || next > reloadPause {
		t.Errorf("error %v, next round in %s", err, next)
	}
	h.wantServed("a", "b")
	h.rounds(1)
	h.wantServed("a")
}

// A pod that waits because the node has no space, or the runtime is away, says so; one that is served already has nothing to say.
func TestStatusOf_agentStuck_saysWhy(t *testing.T) {
	t.Parallel()
	h, pods := newByHand(t, "a")
	h.change(func() { h.telling = func(context.Context) error { return errors.New("no space left on device") } })
	pods = append(pods, h.join("b")...)
	if _, err := h.round(t.Context()); err == nil {
		t.Error("the agent does not know itself")
	}
	if got := h.status(pods[1]); got.State != v1alpha1.Starting || !strings.Contains(got.Message, "cannot change") || !strings.Contains(got.Message, "no space left on device") || got.Failure != "" {
		t.Errorf("who waits says %+v", got)
	}
	if got := h.status(pods[0]); !got.Ready || got.Message != "" {
		t.Errorf("who is served says %+v", got)
	}
	h.change(func() { h.telling = nil })
	h.rounds(1)
	h.wantServed("a", "b")
	if got := h.status(pods[1]); !got.Ready || got.Message != "" {
		t.Errorf("who waited says %+v", got)
	}
}
