package rollout

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

// granted asks for some pods in slot, and returns those that may be upgraded.
func granted(r *Queue, p *profile.Version, pods ...string) (out []string) {
	for _, pod := range pods {
		r.Join(p, podnet.Key{PodUID: pod}, false)
		if r.Take(p, podnet.Key{PodUID: pod}, ForUpgrade) {
			out = append(out, pod)
		}
	}
	return out
}

// mayCase is what happens after two pods of three, a and b, have their slots.
type mayCase struct {
	then   func(*Queue)
	of     *profile.Version // v1 unless it says otherwise
	may    []string         // of a, b, c and d, asked in this order
	paused bool
}

func (c mayCase) run(t *testing.T) {
	r, of := &Queue{}, c.of
	if got := granted(r, version("v1", nil), "a", "b", "c"); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("at first: %q", got)
	}
	c.then(r)
	if got := r.Paused("edge"); got != c.paused {
		t.Errorf("paused: %t", got)
	}
	if of == nil {
		of = version("v1", nil)
	}
	if got := granted(r, of, "a", "b", "c", "d"); !slices.Equal(got, c.may) {
		t.Errorf("%q may be upgraded, want %q", got, c.may)
	}
}

// again has a pod's upgrade fail, for which it may have no slot yet.
func again(r *Queue, p *profile.Version, k podnet.Key) {
	r.Take(p, k, ForUpgrade)
	r.Failed(p, k, p.Hash)
}

// three has the upgrades of a, b and c fail.
func three(r *Queue, p *profile.Version) {
	for _, pod := range []string{"a", "b", "c"} {
		again(r, p, podnet.Key{PodUID: pod})
	}
}

func TestMay_turns_areBounded(t *testing.T) {
	a, b, c := podnet.Key{PodUID: "a"}, podnet.Key{PodUID: "b"}, podnet.Key{PodUID: "c"}
	v1, other := version("v1", nil), version("v1", nil)
	other.Name = "other"
	for name, one := range map[string]mayCase{
		"two at once":                       {then: func(*Queue) {}, may: []string{"a", "b"}},
		"one is done":                       {then: func(r *Queue) { r.Done(v1, a, "v1") }, may: []string{"a", "b"}},
		"one is done, and asks no more":     {then: func(r *Queue) { r.Done(v1, a, "v1"); r.Take(v1, c, ForUpgrade) }, may: []string{"b", "c"}},
		"one is gone":                       {then: func(r *Queue) { r.Leave(a); r.Take(v1, c, ForUpgrade) }, may: []string{"b", "c"}},
		"one that has no slot is gone":      {then: func(r *Queue) { r.Leave(c) }, may: []string{"a", "b"}},
		"one has failed, another asks":      {then: func(r *Queue) { r.Failed(v1, a, "v1"); r.Take(v1, c, ForUpgrade) }, may: []string{"b", "c"}},
		"one has failed, and asks first":    {then: func(r *Queue) { r.Failed(v1, a, "v1") }, may: []string{"a", "b"}},
		"one has failed again and again":    {then: func(r *Queue) { r.Failed(v1, a, "v1"); again(r, v1, a); again(r, v1, a); r.Take(v1, c, ForUpgrade) }, may: []string{"b", "c"}},
		"two have failed":                   {then: func(r *Queue) { r.Failed(v1, a, "v1"); r.Failed(v1, b, "v1"); r.Take(v1, c, ForUpgrade) }, may: []string{"a", "c"}},
		"one without a slot has failed":     {then: func(r *Queue) { r.Failed(v1, c, "v1") }, may: []string{"a", "b"}},
		"one of no profile has failed":      {then: func(r *Queue) { r.Failed(nil, a, "v1") }, may: []string{"a", "b"}},
		"one of another profile has failed": {then: func(r *Queue) { r.Join(other, a, false); again(r, other, a) }, may: []string{"a", "b"}},
		"a new version":                     {then: func(*Queue) {}, of: version("v2", nil), may: []string{"a", "b"}},
		"a new version, after failures": {
			then: func(r *Queue) { three(r, v1); r.Take(version("v2", nil), c, ForUpgrade) }, of: version("v2", nil), may: []string{"a", "c"},
		},
	} {
		t.Run(name, one.run)
	}
	if (&Queue{}).Paused("edge") {
		t.Error("what was never begun is paused")
	}
}

func TestMay_severalHaveFailed_isPaused(t *testing.T) {
	no := false
	a, b, c := podnet.Key{PodUID: "a"}, podnet.Key{PodUID: "b"}, podnet.Key{PodUID: "c"}
	v1, calm := version("v1", nil), version("v1", &no)
	for name, one := range map[string]mayCase{
		"three have failed":               {then: func(r *Queue) { three(r, v1) }, may: []string{"a", "b"}, paused: true},
		"three have failed: no other may": {then: func(r *Queue) { three(r, v1); r.Take(v1, podnet.Key{PodUID: "d"}, ForUpgrade) }, may: []string{"a", "b"}, paused: true},
		"three have failed, and one that has is done": {
			then: func(r *Queue) { three(r, v1); r.Done(v1, a, "v1"); r.Take(v1, podnet.Key{PodUID: "d"}, ForUpgrade) }, may: []string{"a", "d"},
		},
		"three have failed, one of them runs on with the old version": {
			then: func(r *Queue) { three(r, v1); r.Done(v1, a, "v0") }, may: []string{"a", "b"}, paused: true,
		},
		"three have failed, with a success between": {
			then: func(r *Queue) { r.Failed(v1, a, "v1"); r.Done(v1, b, "v1"); again(r, v1, c); again(r, v1, a) }, may: []string{"a", "b"},
		},
		"three have failed, and one is gone": {
			then: func(r *Queue) {
				r.Join(v1, podnet.Key{PodUID: "d"}, false)
				three(r, v1)
				r.Leave(c)
				r.Take(v1, podnet.Key{PodUID: "d"}, ForUpgrade)
			}, may: []string{"a", "d"},
		},
		"three of three have failed, and one is gone": {then: func(r *Queue) { three(r, v1); r.Leave(c) }, may: []string{"a", "b"}, paused: true},
		"three have failed, and that is no reason": {
			then: func(r *Queue) { three(r, calm); r.Take(calm, podnet.Key{PodUID: "d"}, ForUpgrade) }, of: calm, may: []string{"a", "d"},
		},
		"three old proxies have ended": {
			then: func(r *Queue) {
				r.Failed(v1, a, "v0")
				r.Failed(v1, b, "v0")
				r.Take(v1, c, ForUpgrade)
				r.Failed(v1, c, "v0")
			}, may: []string{"a", "b"},
		},
	} {
		t.Run(name, one.run)
	}
}

// On a node with fewer pods than it takes for a pause all of them have to fail.
func TestPaused_fewPods_allHaveToFail(t *testing.T) {
	for pods, want := range map[string]int{"a": 1, "ab": 2, "abc": 3, "abcd": 3} {
		r, p := &Queue{}, version("v1", nil)
		for _, pod := range pods {
			r.Join(p, podnet.Key{PodUID: string(pod)}, false)
		}
		failed := 0
		for _, pod := range pods {
			if r.Paused("edge") {
				break
			}
			failed++
			r.Take(p, podnet.Key{PodUID: string(pod)}, ForUpgrade)
			r.Failed(p, podnet.Key{PodUID: string(pod)}, "v1")
		}
		if !r.Paused("edge") || failed != want {
			t.Errorf("of %d pods %d have failed; paused: %t; want %d", len(pods), failed, r.Paused("edge"), want)
		}
	}
}

// A proxy is replaced for its secrets also while upgrades are paused, and its failure pauses none.
func TestMay_rotation_isNotPaused(t *testing.T) {
	r, p := &Queue{}, version("v1", nil)
	for _, pod := range []string{"a", "b", "c", "d"} {
		k := podnet.Key{PodUID: pod}
		r.Join(p, k, false)
		r.Take(p, k, ForRotation)
		if _, was := r.Failed(p, k, "v1"); was != ForRotation || r.Paused("edge") {
			t.Errorf("after the failure of a %s the upgrades are paused: %t", was, r.Paused("edge"))
		}
	}
	for _, pod := range []string{"a", "b", "c"} {
		r.Take(p, podnet.Key{PodUID: pod}, ForUpgrade)
		r.Failed(p, podnet.Key{PodUID: pod}, "v1")
	}
	d, e := podnet.Key{PodUID: "d"}, podnet.Key{PodUID: "e"}
	if !r.Paused("edge") || r.Take(p, d, ForUpgrade) || !r.Take(p, d, ForRotation) {
		t.Errorf("paused: %t", r.Paused("edge"))
	}
	r.Take(p, podnet.Key{PodUID: "a"}, ForUpgrade) // the last slot
	r.Take(p, e, ForRotation)
	r.Take(p, podnet.Key{PodUID: "f"}, ForUpgrade)
	if next, _ := r.Failed(p, d, "v1"); !slices.Equal(next, []podnet.Key{e}) {
		t.Errorf("%v may be next: the pause is not for %v", next, e)
	}
}

// Each free slot wakes one waiting sandbox, once, in the order of the questions.
func TestDone_turnEnds_nextAreReturned(t *testing.T) {
	no := false
	r, p := &Queue{}, version("v1", &no)
	ends := func(pod string, fails bool) (out []string) {
		key := podnet.Key{PodUID: pod}
		var next []podnet.Key
		if fails {
			next, _ = r.Failed(p, key, "v1")
		} else {
			next, _ = r.Done(p, key, "v1")
		}
		for _, k := range next {
			out = append(out, k.PodUID)
		}
		return out
	}
	if next, freed := r.Done(p, podnet.Key{PodUID: "a"}, "v1"); freed || next != nil {
		t.Errorf("without a slot: %q, %t", next, freed)
	}
	granted(r, p, "a", "b", "c", "d", "c", "e", "f")
	for _, c := range []struct {
		name, pod string
		fails     bool
		before    func()
		next      []string
	}{
		{name: "the one that has waited longest", pod: "a", fails: true, next: []string{"d"}}, // c has asked again, and is behind it
		{name: "no slot is free", pod: "a", fails: true},
		{name: "two slots, one of which was not taken", pod: "b", fails: true, next: []string{"c", "e"}},
		{name: "refused again", pod: "c", before: func() { granted(r, p, "c", "d", "e") }, fails: true, next: []string{"f"}},
		{name: "those that have gone do not wait", pod: "d", before: func() { granted(r, p, "g"); r.Leave(podnet.Key{PodUID: "e"}) }},
	} {
		if c.before != nil {
			c.before()
		}
		if next := ends(c.pod, c.fails); !slices.Equal(next, c.next) {
			t.Errorf("%s: %q, want %q", c.name, next, c.next)
		}
	}
}

// A step that began before an edit of the profile ends in a call for the old version. It tells nothing of the new one.
func TestQueue_callOfOlderVersion_newOneGoesOn(t *testing.T) {
	numbered := func(hash string, number uint64) *profile.Version {
		p := version(hash, nil)
		p.Number = number
		return p
	}
	v1, v2 := numbered("v1", 1), numbered("v2", 2)
	for name, late := range map[string]func(*Queue, podnet.Key){
		"a success": func(r *Queue, d podnet.Key) { r.Done(v1, d, "v1") },
		"a failure": func(r *Queue, d podnet.Key) { r.Failed(v1, d, "v1") },
		"a wish":    func(r *Queue, d podnet.Key) { r.Take(v1, d, ForUpgrade) },
		"a look":    func(r *Queue, d podnet.Key) { r.Join(v1, d, false) },
	} {
		r := &Queue{}
		granted(r, v2, "a", "b", "c")
		three(r, v2)
		granted(r, v2, "a", "b")
		late(r, podnet.Key{PodUID: "d"})
		if !r.Paused("edge") {
			t.Errorf("%s of a pod that had the old version: the pause is forgotten", name)
		}
		if got := granted(r, v2, "c", "d"); len(got) > 0 {
			t.Errorf("%s of a pod that had the old version: %q may be upgraded, too", name, got)
		}
	}
}

// Upgrades that are under way when the profile is edited count.
func TestQueue_newVersion_upgradesUnderWayCount(t *testing.T) {
	r, v1, v2 := &Queue{}, version("v1", nil), version("v2", nil)
	granted(r, v1, "a", "b")
	if got := granted(r, v2, "c", "d"); len(got) > 0 {
		t.Fatalf("%q may be upgraded, too", got)
	}
	if next, _ := r.Done(v2, podnet.Key{PodUID: "a"}, "v1"); len(next) != 1 || next[0].PodUID != "c" {
		t.Errorf("next are %v", next)
	}
	if got := granted(r, v2, "c", "d"); !slices.Equal(got, []string{"c"}) {
		t.Errorf("%q may be upgraded", got)
	}
}
