package shared

import (
	"strings"
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
	"istio-pod-network-controller/sidecars/profile"
)

// fakeProfile is a ProxyProfile.
type fakeProfile struct {
	Name string
	Spec profile.Spec
}

func TestJudge_eachFact_decides(t *testing.T) {
	edge := &profile.Version{Name: "edge", Spec: profile.Spec{Shared: &profile.Reload{}}}
	chosen := sidecars.Choice{Name: "edge", Profile: edge}
	with := func(c sidecars.Choice, f func(*sidecars.Choice)) sidecars.Choice { f(&c); return c }
	for name, c := range map[string]struct {
		in   facts
		want verdict
	}{
		"it has chosen the profile":                {facts{choice: chosen}, verdict{join: true}},
		"it is served":                             {facts{choice: chosen, member: true}, verdict{stay: true, join: true}},
		"its sandbox has ended":                    {facts{choice: chosen, member: true, ended: true}, verdict{}},
		"its sandbox has ended while held":         {facts{choice: chosen, member: true, held: true, ended: true}, verdict{}},
		"nobody knows what it has chosen":          {facts{unknown: "why"}, verdict{waits: "why"}},
		"nobody knows what a served one has":       {facts{unknown: "why", member: true}, verdict{stay: true, waits: "why"}},
		"it is gone, its sandbox is not":           {facts{gone: true, member: true}, verdict{stay: true}},
		"it is gone before it was served":          {facts{gone: true}, verdict{}},
		"it ends":                                  {facts{choice: with(chosen, func(c *sidecars.Choice) { c.Ending = true }), member: true}, verdict{stay: true}},
		"it ends before it was served":             {facts{choice: with(chosen, func(c *sidecars.Choice) { c.Ending = true })}, verdict{}},
		"it has opted out":                         {facts{choice: sidecars.Choice{OptedOut: true}, member: true}, verdict{}},
		"it has opted out, its rules have not":     {facts{choice: sidecars.Choice{OptedOut: true}, member: true, held: true}, verdict{stay: true}},
		"it has chosen another":                    {facts{choice: sidecars.Choice{Name: "other"}, member: true}, verdict{}},
		"it has chosen another, its rules lead on": {facts{choice: sidecars.Choice{Name: "other"}, member: true, held: true}, verdict{stay: true}},
		"its namespace chooses no more":            {facts{choice: sidecars.Choice{}, member: true}, verdict{stay: true}},
		"nobody has chosen":                        {facts{choice: sidecars.Choice{}}, verdict{}},
		"it may not have the profile":              {facts{choice: sidecars.Choice{Name: "edge", Refusal: "no"}}, verdict{refused: "no"}},
		"a served one may not any more":            {facts{choice: sidecars.Choice{Name: "edge", Refusal: "no"}, member: true}, verdict{stay: true, refused: "no"}},
		"the profile was made anew, and is not shared": {
			facts{choice: sidecars.Choice{Name: "edge", Profile: &profile.Version{}}},
			verdict{refused: "the profile edge is not shared any more: choose another one"},
		},
	} {
		c.in.profile = "edge"
		if got := judge(c.in); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestSettle_answer_confirms(t *testing.T) {
	one, two := &record{Version: "1", Dir: "v-1", Container: "c1"}, &record{Version: "2", Dir: "v-2"}
	for name, c := range map[string]struct {
		state   state
		seen    seen
		inForce string
		current bool
		phase   phase
	}{
		"no proxy":                           {state{Confirmed: one}, seen{}, "", true, absent},
		"the confirmed version":              {state{Confirmed: one, Pending: two}, seen{there: true, id: "c1", version: "1"}, "1 c1", true, serving},
		"the confirmed version of a new one": {state{Confirmed: one}, seen{there: true, id: "c2", version: "1"}, "1 c2", true, serving},
		"the pending version, late":          {state{Confirmed: one, Pending: two}, seen{there: true, id: "c1", version: "2"}, "2 c1", true, serving},
		"the first version, late":            {state{Pending: two}, seen{there: true, id: "c1", version: "2"}, "2 c1", true, serving},
		"another version":                    {state{Confirmed: one, Pending: two}, seen{there: true, id: "c1", version: "3"}, "", true, unknown},
		"a version, and the state is lost":   {state{}, seen{there: true, id: "c1", version: "1"}, "", true, unknown},
		"no answer yet":                      {state{Confirmed: one}, seen{there: true, id: "c2"}, "", true, starting},
		"no answer for long":                 {state{Confirmed: one}, seen{there: true, id: "c2", silent: startLimit}, "", true, unknown},
		"it waits for its first files":       {state{}, seen{there: true, id: "c1"}, "", false, unknown},
		"one before the pending version": {
			state{Confirmed: one, Pending: &record{Version: "3"}, Late: []*record{two}}, seen{there: true, id: "c1", version: "2"}, "2 c1", true, serving,
		},
		"an empty answer is none":               {state{Pending: &record{}}, seen{there: true, id: "c1"}, "", true, starting},
		"what was confirmed before is the same": {state{Confirmed: one}, seen{there: true, id: "c1", version: "1"}, "1 c1", false, serving},
	} {
		_, inForce := c.state.settle(c.seen)
		got := ""
		if inForce != nil {
			got = inForce.Version + " " + inForce.Container
		}
		if p := phaseOf(c.seen, inForce, c.current); got != c.inForce || p != c.phase {
			t.Errorf("%s: in force %q, phase %d; want %q, %d", name, got, p, c.inForce, c.phase)
		}
	}
	if one.Container != "c1" || two.Container != "" {
		t.Error("a record was changed in place")
	}
}

func podIn(name string, before, now, stay bool, tries int) *podNow {
	p := &podNow{sandbox: podnet.Sandbox{Namespace: "shop", Name: name, UID: name, ID: name}, tries: tries}
	p.stay, p.join = stay, true
	if before {
		p.before = &member{Sandbox: p.sandbox}
	}
	if now {
		p.now = &member{Sandbox: p.sandbox, Data: profile.SharedPod{NetNS: "new"}}
	}
	return p
}

func names(members []member) (out string) {
	for _, m := range members {
		out += m.Sandbox.Name + m.Data.NetNS + " "
	}
	return strings.TrimSpace(out)
}

func TestPlans_eachSituation_isPlanned(t *testing.T) {
	v1, v2 := &profile.Version{Hash: "1"}, &profile.Version{Hash: "2"}
	served, leaves, joins, changes := podIn("served", true, false, true, 0), podIn("leaves", true, false, false, 0),
		podIn("joins", false, true, false, 0), podIn("changes", true, true, true, 0)
	all := []*podNow{served, leaves, joins, changes}
	for name, c := range map[string]struct {
		wanted, inForce *profile.Version
		pods            []*podNow
		known           bool
		batch           int
		base, suspects  string
		whole           bool
		hash            string
	}{
		"all at once":                    {wanted: v1, inForce: v1, pods: all, known: true, base: "served changes", suspects: "joinsnew changesnew", hash: "1"},
		"nobody has the profile now":     {inForce: v1, pods: all[:2], known: true, base: "served", hash: "1"},
		"a new version, nobody joins":    {wanted: v2, inForce: v1, pods: all, known: true, suspects: "served changes", whole: true, hash: "2"},
		"the first, nobody joins":        {wanted: v1, pods: all[2:3], whole: true, hash: "1"},
		"nobody knows what is in force":  {wanted: v1, inForce: v1, pods: all, base: "served changes", whole: true, hash: "1"},
		"some at a time":                 {wanted: v1, inForce: v1, pods: all, known: true, batch: 1, base: "served changes", suspects: "joinsnew", hash: "1"},
		"those first that failed least":  {wanted: v1, inForce: v1, pods: []*podNow{podIn("a", false, true, false, 3), podIn("b", false, true, false, 1)}, known: true, batch: 1, suspects: "bnew", hash: "1"},
		"the last version is not usable": {wanted: v2, pods: all, known: true, suspects: "served changes", whole: true, hash: "2"},
	} {
		got := plans(c.wanted, c.inForce, c.pods, c.known, c.batch)
		if names(got.base) != c.base || names(got.suspects) != c.suspects || got.whole != c.whole || got.profile.Hash != c.hash {
			t.Errorf("%s: got base %q, suspects %q, whole %t, profile %s", name, names(got.base), names(got.suspects), got.whole, got.profile.Hash)
		}
	}
	if p := plans(nil, nil, all, false, 0); p.profile != nil {
		t.Errorf("without any profile: %+v", p)
	}
	if got := names(with([]member{*changes.before}, []member{*changes.now})); got != "changesnew" {
		t.Errorf("a change beside what it was: %s", got)
	}
}

func TestBackoff_repeated_growsAndEnds(t *testing.T) {
	now := time.Unix(1000, 0)
	var b backoff
	if !b.over(now) {
		t.Error("a pause before anything was refused")
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		b.note(now, firstPause, lastPause, "no")
		if got := b.until.Sub(now); got != want*time.Second {
			t.Errorf("got %s, want %ds", got, want)
		}
		now = b.until
	}
	now = now.Add(calmTime + time.Second)
	if b.note(now, firstPause, lastPause, "no"); b.until.Sub(now) != firstPause {
		t.Errorf("after a calm time: %s", b.until.Sub(now))
	}
}
