package sidecars

import (
	"slices"
	"testing"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars/profile"
)

// version is a version of the profile edge, of which two proxies are upgraded at once.
func version(hash string, pauseOnFailure *bool) *profile.Version {
	out := &profile.Version{Name: "edge", Hash: hash}
	out.Spec.Rollout.MaxParallel, out.Spec.Rollout.PauseOnFailure = 2, pauseOnFailure
	return out
}

// granted asks for some pods in turn, and returns those that may be upgraded.
func granted(r *Rollouts, p *profile.Version, pods ...string) (out []string) {
	for _, pod := range pods {
		r.join(p, podnet.Key{PodUID: pod}, false)
		if r.may(p, podnet.Key{PodUID: pod}, upgradeTurn) {
			out = append(out, pod)
		}
	}
	return out
}

// mayCase is what happens after two pods of three, a and b, have their turns.
type mayCase struct {
	then   func(*Rollouts)
	of     *profile.Version // v1 unless it says otherwise
	may    []string         // of a, b, c and d, asked in this order
	paused bool
}

func (c mayCase) run(t *testing.T) {
	r, of := &Rollouts{}, c.of
	if got := granted(r, version("v1", nil), "a", "b", "c"); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("at first: %q", got)
	}
	c.then(r)
	if got := r.paused("edge"); got != c.paused {
		t.Errorf("paused: %t", got)
	}
	if of == nil {
		of = version("v1", nil)
	}
	if got := granted(r, of, "a", "b", "c", "d"); !slices.Equal(got, c.may) {
		t.Errorf("%q may be upgraded, want %q", got, c.may)
	}
}

// again has a pod's upgrade fail, for which it may have no turn yet.
func again(r *Rollouts, p *profile.Version, k podnet.Key) {
	r.may(p, k, upgradeTurn)
	r.failed(p, k, p.Hash)
}

// three has the upgrades of a, b and c fail.
func three(r *Rollouts, p *profile.Version) {
	for _, pod := range []string{"a", "b", "c"} {
		again(r, p, podnet.Key{PodUID: pod})
	}
}

func TestMay_turns_areBounded(t *testing.T) {
	a, b, c := podnet.Key{PodUID: "a"}, podnet.Key{PodUID: "b"}, podnet.Key{PodUID: "c"}
	v1, other := version("v1", nil), version("v1", nil)
	other.Name = "other"
	for name, one := range map[string]mayCase{
		"two at once":                       {then: func(*Rollouts) {}, may: []string{"a", "b"}},
		"one is done":                       {then: func(r *Rollouts) { r.done(v1, a, "v1") }, may: []string{"a", "b"}},
		"one is done, and asks no more":     {then: func(r *Rollouts) { r.done(v1, a, "v1"); r.may(v1, c, upgradeTurn) }, may: []string{"b", "c"}},
		"one is gone":                       {then: func(r *Rollouts) { r.leave(a); r.may(v1, c, upgradeTurn) }, may: []string{"b", "c"}},
		"one that has no turn is gone":      {then: func(r *Rollouts) { r.leave(c) }, may: []string{"a", "b"}},
		"one has failed, another asks":      {then: func(r *Rollouts) { r.failed(v1, a, "v1"); r.may(v1, c, upgradeTurn) }, may: []string{"b", "c"}},
		"one has failed, and asks first":    {then: func(r *Rollouts) { r.failed(v1, a, "v1") }, may: []string{"a", "b"}},
		"one has failed again and again":    {then: func(r *Rollouts) { r.failed(v1, a, "v1"); again(r, v1, a); again(r, v1, a); r.may(v1, c, upgradeTurn) }, may: []string{"b", "c"}},
		"two have failed":                   {then: func(r *Rollouts) { r.failed(v1, a, "v1"); r.failed(v1, b, "v1"); r.may(v1, c, upgradeTurn) }, may: []string{"a", "c"}},
		"one without a turn has failed":     {then: func(r *Rollouts) { r.failed(v1, c, "v1") }, may: []string{"a", "b"}},
		"one of no profile has failed":      {then: func(r *Rollouts) { r.failed(nil, a, "v1") }, may: []string{"a", "b"}},
		"one of another profile has failed": {then: func(r *Rollouts) { r.join(other, a, false); again(r, other, a) }, may: []string{"a", "b"}},
		"a new version":                     {then: func(*Rollouts) {}, of: version("v2", nil), may: []string{"a", "b"}},
		"a new version, after failures": {
			then: func(r *Rollouts) { three(r, v1); r.may(version("v2", nil), c, upgradeTurn) }, of: version("v2", nil), may: []string{"a", "c"},
		},
	} {
		t.Run(name, one.run)
	}
	if (&Rollouts{}).paused("edge") {
		t.Error("what was never begun is paused")
	}
}

func TestMay_severalHaveFailed_isPaused(t *testing.T) {
	no := false
	a, b, c := podnet.Key{PodUID: "a"}, podnet.Key{PodUID: "b"}, podnet.Key{PodUID: "c"}
	v1, calm := version("v1", nil), version("v1", &no)
	for name, one := range map[string]mayCase{
		"three have failed":               {then: func(r *Rollouts) { three(r, v1) }, may: []string{"a", "b"}, paused: true},
		"three have failed: no other may": {then: func(r *Rollouts) { three(r, v1); r.may(v1, podnet.Key{PodUID: "d"}, upgradeTurn) }, may: []string{"a", "b"}, paused: true},
		"three have failed, and one that has is done": {
			then: func(r *Rollouts) { three(r, v1); r.done(v1, a, "v1"); r.may(v1, podnet.Key{PodUID: "d"}, upgradeTurn) }, may: []string{"a", "d"},
		},
		"three have failed, one of them runs on with the old version": {
			then: func(r *Rollouts) { three(r, v1); r.done(v1, a, "v0") }, may: []string{"a", "b"}, paused: true,
		},
		"three have failed, with a success between": {
			then: func(r *Rollouts) { r.failed(v1, a, "v1"); r.done(v1, b, "v1"); again(r, v1, c); again(r, v1, a) }, may: []string{"a", "b"},
		},
		"three have failed, and one is gone": {
			then: func(r *Rollouts) {
				r.join(v1, podnet.Key{PodUID: "d"}, false)
				three(r, v1)
				r.leave(c)
				r.may(v1, podnet.Key{PodUID: "d"}, upgradeTurn)
			}, may: []string{"a", "d"},
		},
		"three of three have failed, and one is gone": {then: func(r *Rollouts) { three(r, v1); r.leave(c) }, may: []string{"a", "b"}, paused: true},
		"three have failed, and that is no reason": {
			then: func(r *Rollouts) { three(r, calm); r.may(calm, podnet.Key{PodUID: "d"}, upgradeTurn) }, of: calm, may: []string{"a", "d"},
		},
		"three old proxies have ended": {
			then: func(r *Rollouts) {
				r.failed(v1, a, "v0")
				r.failed(v1, b, "v0")
				r.may(v1, c, upgradeTurn)
				r.failed(v1, c, "v0")
			}, may: []string{"a", "b"},
		},
	} {
		t.Run(name, one.run)
	}
}

// On a node with fewer pods than it takes for a pause all of them have to fail.
func TestPaused_fewPods_allHaveToFail(t *testing.T) {
	for pods, want := range map[string]int{"a": 1, "ab": 2, "abc": 3, "abcd": 3} {
		r, p := &Rollouts{}, version("v1", nil)
		for _, pod := range pods {
			r.join(p, podnet.Key{PodUID: string(pod)}, false)
		}
		failed := 0
		for _, pod := range pods {
			if r.paused("edge") {
				break
			}
			failed++
			r.may(p, podnet.Key{PodUID: string(pod)}, upgradeTurn)
			r.failed(p, podnet.Key{PodUID: string(pod)}, "v1")
		}
		if !r.paused("edge") || failed != want {
			t.Errorf("of %d pods %d have failed; paused: %t; want %d", len(pods), failed, r.paused("edge"), want)
		}
	}
}

// A proxy is replaced for its secrets also while upgrades are paused, and its failure pauses none.
func TestMay_rotation_isNotPaused(t *testing.T) {
	r, p := &Rollouts{}, version("v1", nil)
	for _, pod := range []string{"a", "b", "c", "d"} {
		k := podnet.Key{PodUID: pod}
		r.join(p, k, false)
		r.may(p, k, rotationTurn)
		if _, was := r.failed(p, k, "v1"); was != rotationTurn || r.paused("edge") {
			t.Errorf("after the failure of a %s the upgrades are paused: %t", was, r.paused("edge"))
		}
	}
	for _, pod := range []string{"a", "b", "c"} {
		r.may(p, podnet.Key{PodUID: pod}, upgradeTurn)
		r.failed(p, podnet.Key{PodUID: pod}, "v1")
	}
	d, e := podnet.Key{PodUID: "d"}, podnet.Key{PodUID: "e"}
	if !r.paused("edge") || r.may(p, d, upgradeTurn) || !r.may(p, d, rotationTurn) {
		t.Errorf("paused: %t", r.paused("edge"))
	}
	r.may(p, podnet.Key{PodUID: "a"}, upgradeTurn) // the last turn
	r.may(p, e, rotationTurn)
	r.may(p, podnet.Key{PodUID: "f"}, upgradeTurn)
	if next, _ := r.failed(p, d, "v1"); !slices.Equal(next, []podnet.Key{e}) {
		t.Errorf("%v may be next: the pause is not for %v", next, e)
	}
}

// Whoever waits is told of a turn once, as many as there are turns, and in the order in which they have asked.
func TestDone_turnEnds_nextAreReturned(t *testing.T) {
	no := false
	r, p := &Rollouts{}, version("v1", &no)
	ends := func(pod string, fails bool) (out []string) {
		key := podnet.Key{PodUID: pod}
		var next []podnet.Key
		if fails {
			next, _ = r.failed(p, key, "v1")
		} else {
			next, _ = r.done(p, key, "v1")
		}
		for _, k := range next {
			out = append(out, k.PodUID)
		}
		return out
	}
	if next, freed := r.done(p, podnet.Key{PodUID: "a"}, "v1"); freed || next != nil {
		t.Errorf("without a turn: %q, %t", next, freed)
	}
	granted(r, p, "a", "b", "c", "d", "c", "e", "f")
	for _, c := range []struct {
		name, pod string
		fails     bool
		before    func()
		next      []string
	}{
		{name: "the one that has waited longest", pod: "a", fails: true, next: []string{"d"}}, // c has asked again, and is behind it
		{name: "no turn is free", pod: "a", fails: true},
		{name: "two turns, one of which was not taken", pod: "b", fails: true, next: []string{"c", "e"}},
		{name: "refused again", pod: "c", before: func() { granted(r, p, "c", "d", "e") }, fails: true, next: []string{"f"}},
		{name: "those that have gone do not wait", pod: "d", before: func() { granted(r, p, "g"); r.leave(podnet.Key{PodUID: "e"}) }},
	} {
		if c.before != nil {
			c.before()
		}
		if next := ends(c.pod, c.fails); !slices.Equal(next, c.next) {
			t.Errorf("%s: %q, want %q", c.name, next, c.next)
		}
	}
}
