package sidecars

import (
	"slices"
	"testing"
)

// version is a version of the profile edge, of which two proxies are upgraded at once.
func version(hash string, pauseOnFailure *bool) *Profile {
	out := &Profile{Name: "edge", Hash: hash}
	out.Spec.Rollout.MaxParallel, out.Spec.Rollout.PauseOnFailure = 2, pauseOnFailure
	return out
}

// granted asks for some pods in turn, and returns those that may be upgraded.
func granted(r *Rollouts, p *Profile, pods ...string) (out []string) {
	for _, pod := range pods {
		if r.may(p, Key{PodUID: pod}) {
			out = append(out, pod)
		}
	}
	return out
}

func TestMay_turns_areBounded(t *testing.T) {
	yes, no := true, false
	a, b, c := Key{PodUID: "a"}, Key{PodUID: "b"}, Key{PodUID: "c"}
	v1, other := version("v1", nil), version("v1", nil)
	other.Name = "other"
	for name, one := range map[string]struct {
		then   func(*Rollouts) // after a and b have their turns
		of     *Profile        // v1 unless it says otherwise
		may    []string        // of a, b, c and d, asked in this order
		paused bool
	}{
		"two at once":                           {then: func(*Rollouts) {}, may: []string{"a", "b"}},
		"one is done":                           {then: func(r *Rollouts) { r.done(v1, a) }, may: []string{"a", "b"}},
		"one is done, and asks no more":         {then: func(r *Rollouts) { r.done(v1, a); r.may(v1, c) }, may: []string{"b", "c"}},
		"one is gone":                           {then: func(r *Rollouts) { r.leave(a); r.may(v1, c) }, may: []string{"b", "c"}},
		"one that has no turn is gone":          {then: func(r *Rollouts) { r.leave(c) }, may: []string{"a", "b"}},
		"one has failed":                        {then: func(r *Rollouts) { r.failed(v1, a) }, may: []string{"a", "b"}, paused: true},
		"one has failed, another is done":       {then: func(r *Rollouts) { r.failed(v1, a); r.done(v1, b); r.may(v1, c) }, may: []string{"a", "c"}},
		"one has failed, and is gone":           {then: func(r *Rollouts) { r.failed(v1, a); r.leave(a) }, may: []string{"b"}, paused: true},
		"both have failed, and are gone":        {then: func(r *Rollouts) { r.failed(v1, a); r.leave(a); r.leave(b) }, may: []string{"a", "b"}},
		"one has failed, one without a turn is": {then: func(r *Rollouts) { r.failed(v1, a); r.done(v1, c) }, may: []string{"a", "b"}, paused: true},
		"one without a turn has failed":         {then: func(r *Rollouts) { r.failed(v1, c) }, may: []string{"a", "b"}},
		"one of no profile has failed":          {then: func(r *Rollouts) { r.failed(nil, a) }, may: []string{"a", "b"}},
		"one has failed, and that is no reason": {then: func(r *Rollouts) { r.failed(version("v1", &no), a) }, may: []string{"a", "b"}},
		"one has failed, and that is a reason":  {then: func(r *Rollouts) { r.failed(version("v1", &yes), a) }, may: []string{"a", "b"}, paused: true},
		"one of another profile has failed":     {then: func(r *Rollouts) { r.may(other, a); r.failed(other, a) }, may: []string{"a", "b"}},
		"a new version":                         {then: func(*Rollouts) {}, of: version("v2", nil), may: []string{"a", "b"}},
		"a new version, after a failure": {
			then: func(r *Rollouts) { r.failed(v1, a); r.may(version("v2", nil), c) }, of: version("v2", nil), may: []string{"a", "c"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Rollouts{}
			if got := granted(r, v1, "a", "b", "c"); !slices.Equal(got, []string{"a", "b"}) {
				t.Fatalf("at first: %q", got)
			}
			one.then(r)
			if got := r.paused("edge"); got != one.paused {
				t.Errorf("paused: %t", got)
			}
			of := one.of
			if of == nil {
				of = v1
			}
			if got := granted(r, of, "a", "b", "c", "d"); !slices.Equal(got, one.may) {
				t.Errorf("%q may be upgraded, want %q", got, one.may)
			}
		})
	}
	if (&Rollouts{}).paused("edge") {
		t.Error("what was never begun is paused")
	}
}

// Whoever waits is told of a turn once, as many as there are turns, and in the order in which they have asked.
func TestDone_turnEnds_nextAreReturned(t *testing.T) {
	r, p := &Rollouts{}, version("v1", nil)
	done := func(pod string) (next []string, freed bool) {
		keys, freed := r.done(p, Key{PodUID: pod})
		for _, k := range keys {
			next = append(next, k.PodUID)
		}
		return next, freed
	}
	if next, freed := done("a"); freed || next != nil {
		t.Errorf("without a turn: %q, %t", next, freed)
	}
	granted(r, p, "a", "b", "c", "d", "c", "e", "f")
	for _, c := range []struct {
		name, pod string
		before    func()
		next      []string
	}{
		{name: "the one that has waited longest", pod: "a", next: []string{"d"}}, // c has asked again, and is behind it
		{name: "no turn is free", pod: "a"},
		{name: "two turns, one of which was not taken", pod: "b", next: []string{"c", "e"}},
		{name: "refused again", pod: "c", before: func() { granted(r, p, "c", "d", "e") }, next: []string{"f"}},
		{name: "those that have gone do not wait", pod: "d", before: func() { r.leave(Key{PodUID: "e"}) }},
	} {
		if c.before != nil {
			c.before()
		}
		if next, _ := done(c.pod); !slices.Equal(next, c.next) {
			t.Errorf("%s: %q, want %q", c.name, next, c.next)
		}
	}
}
