package plan

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/sidecar"
)

// now is the time of all decisions in the tests.
func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func ago(d time.Duration) time.Time { return now().Add(-d) }

// letter is the ID of the proxy of an epoch.
func letter(epoch uint32) string { return "abcdefgh"[epoch : epoch+1] }

// running is a proxy that has been watched for a while and is ready.
func running(epoch uint32, changes ...func(*Proxy)) Proxy {
	p := Proxy{ID: letter(epoch), Epoch: epoch, State: sidecar.Running, Hash: "v1", Since: ago(time.Minute), Asked: true, Ready: true}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func v2(p *Proxy)                        { p.Hash = "v2" }
func state(s sidecar.State) func(*Proxy) { return func(p *Proxy) { p.State = s } }
func unready(since time.Duration) func(*Proxy) {
	return func(p *Proxy) { p.Ready, p.Since = false, ago(since) }
}

func draining(since time.Duration) func(*Proxy) { return func(p *Proxy) { p.DrainedAt = ago(since) } }
func unknown(p *Proxy)                          { p.Ready, p.Asked, p.Since = false, false, now() }
func wants(changes ...func(*Desired)) Desired {
	d := Desired{Wanted: true, Hash: "v1", MaxRunning: 4, Upgrade: true, StartLimit: 10 * time.Second, DrainLimit: 45 * time.Second}
	for _, change := range changes {
		change(&d)
	}
	return d
}

func to(hash string) func(*Desired) { return func(d *Desired) { d.Hash = hash } }

func start(epoch uint32, from string) Action { return Action{Verb: Start, Epoch: epoch, From: from} }

func drain(epoch uint32) Action { return Action{Verb: Drain, ID: letter(epoch), Epoch: epoch} }

func remove(epoch uint32) Action { return Action{Verb: Remove, ID: letter(epoch), Epoch: epoch} }

func stop(epoch uint32, why string) Action {
	return Action{Verb: Stop, ID: letter(epoch), Epoch: epoch, Why: why}
}

// Why proxies are ended.
const (
	slow = "it was not ready within 10s"
	late = "its connections did not end within 45s"
)

// decideCase is what is desired and there, and the decision.
type decideCase struct {
	desired Desired
	there   []Proxy
	want    Decision
}

// starts are the cases in which one proxy is there, or none.
func starts() map[string]decideCase {
	return map[string]decideCase{
		"nothing is there": {wants(), nil, Decision{Actions: []Action{start(0, "")}}},
		"nothing is there, after proxies that were removed": {
			wants(func(d *Desired) { d.Epoch = 7 }), nil, Decision{Actions: []Action{start(7, "")}},
		},
		"nothing is there, and it is too early to try again": {
			wants(func(d *Desired) { d.RetryAt = now().Add(time.Second) }), nil, Decision{Again: now().Add(time.Second)},
		},
		"a pod without a proxy has none": {Desired{}, nil, Decision{}},
		"one runs as it should":          {wants(), []Proxy{running(3)}, Decision{Serving: "d"}},
		"one runs and has not been asked": {
			wants(), []Proxy{running(0, unknown)}, Decision{Awaited: []string{"a"}, Again: now().Add(10 * time.Second)},
		},
		"an agent that starts does not end a proxy of an older version before it has asked": {
			wants(to("v2")), []Proxy{running(0, unknown)}, Decision{Awaited: []string{"a"}, Again: now().Add(10 * time.Second)},
		},
		"an agent that starts does not end a proxy that it has not asked, however old it is": {
			wants(), []Proxy{running(0, unknown, unready(time.Minute))}, Decision{Awaited: []string{"a"}, Again: ago(50 * time.Second)},
		},
		"one has ended, and later ones were removed": {
			wants(func(d *Desired) { d.Epoch = 7 }), []Proxy{running(2, state(sidecar.Exited))}, Decision{Actions: []Action{start(7, ""), remove(2)}},
		},
		"one starts": {
			wants(), []Proxy{running(0, unready(4*time.Second))}, Decision{Awaited: []string{"a"}, Again: now().Add(6 * time.Second)},
		},
		"one has hung at its start": {wants(), []Proxy{running(0, unready(10*time.Second))}, Decision{Actions: []Action{stop(0, slow)}}},
		"one hangs at its start, and the profile was mended": {
			wants(to("v2")),
			[]Proxy{running(0, unready(time.Second))},
			Decision{Actions: []Action{stop(0, "it was not ready yet, and a new version replaces it")}},
		},
		"it has ended":                    {wants(), []Proxy{running(2, state(sidecar.Exited))}, Decision{Actions: []Action{start(3, ""), remove(2)}}},
		"it was made and not started":     {wants(), []Proxy{running(2, state(sidecar.Created))}, Decision{Actions: []Action{remove(2), start(3, "")}}},
		"an old container lies beside it": {wants(), []Proxy{running(0, state(sidecar.Exited)), running(1)}, Decision{Actions: []Action{remove(0)}, Serving: "b"}},
	}
}

func hung(p *Proxy) { p.Hung = true }

// hangs are the cases in which a proxy that was ready no longer works.
func hangs() map[string]decideCase {
	return map[string]decideCase{
		"one hangs": {wants(func(d *Desired) { d.Upgrade = false }), []Proxy{running(0, hung)}, Decision{Actions: []Action{start(1, "a")}, Serving: "a"}},
		"one hangs, and it is too early to try again": {
			wants(func(d *Desired) { d.RetryAt = now().Add(time.Second) }), []Proxy{running(0, hung)}, Decision{Serving: "a", Again: now().Add(time.Second)},
		},
		"one hangs, and there is no handover": {
			wants(func(d *Desired) { d.MaxRunning = 1 }), []Proxy{running(0, hung)}, Decision{Actions: []Action{stop(0, "it hangs")}, Serving: "a"},
		},
		"one hangs, and its predecessor still drains": {
			wants(func(d *Desired) { d.MaxRunning = 2 }),
			[]Proxy{running(0, draining(time.Second)), running(1, hung)},
			Decision{Actions: []Action{stop(1, "it hangs")}, Serving: "b", Again: now().Add(44 * time.Second)},
		},
		"one hangs, and its successor starts": {
			wants(), []Proxy{running(0, hung), running(1, unready(time.Second))}, Decision{Serving: "a", Awaited: []string{"b"}, Again: now().Add(9 * time.Second)},
		},
		"one hangs, and its successor is ready": {
			wants(), []Proxy{running(0, hung), running(1)}, Decision{Actions: []Action{stop(0, "it hung, and another proxy has taken over")}, Serving: "b"},
		},
		"one hangs whose profile is gone": {Desired{Keep: true, MaxRunning: 1}, []Proxy{running(0, hung)}, Decision{Serving: "a"}},
	}
}

// upgrades are the cases in which the profile has changed.
func upgrades() map[string]decideCase {
	return map[string]decideCase{
		"the profile has changed": {wants(to("v2")), []Proxy{running(0)}, Decision{Actions: []Action{start(1, "a")}, Serving: "a"}},
		"the profile has changed, and it is not this pod's turn": {
			wants(to("v2"), func(d *Desired) { d.Upgrade = false }), []Proxy{running(0)}, Decision{Serving: "a"},
		},
		"the profile has changed, and there is no handover": {
			wants(to("v2"), func(d *Desired) { d.MaxRunning = 1 }),
			[]Proxy{running(0)},
			Decision{Actions: []Action{stop(0, "a new version replaces it")}, Serving: "a"},
		},
		"the profile has changed, and as many as possible still drain": {
			wants(to("v2"), func(d *Desired) { d.MaxRunning = 2 }),
			[]Proxy{running(0, draining(5*time.Second)), running(1)},
			Decision{Serving: "b", Again: now().Add(40 * time.Second)},
		},
		"the profile has changed, the last new one failed, and it is too early": {
			wants(to("v2"), func(d *Desired) { d.RetryAt = now().Add(3 * time.Second) }),
			[]Proxy{running(0)},
			Decision{Serving: "a", Again: now().Add(3 * time.Second)},
		},
		"the profile has changed, it is not this pod's turn, and a proxy of an older version starts": {
			wants(to("v3"), func(d *Desired) { d.Upgrade = false }),
			[]Proxy{running(0), running(1, v2, unready(2*time.Second))},
			Decision{Serving: "a", Awaited: []string{"b"}, Again: now().Add(8 * time.Second)},
		},
		"the new one starts": {
			wants(to("v2")),
			[]Proxy{running(0), running(1, v2, unready(2*time.Second))},
			Decision{Serving: "a", Awaited: []string{"b"}, Again: now().Add(8 * time.Second)},
		},
		"the new one is ready": {
			wants(to("v2")), []Proxy{running(0), running(1, v2)}, Decision{Actions: []Action{drain(0)}, Serving: "b"},
		},
		"the new one is not ready in time": {
			wants(to("v2")),
			[]Proxy{running(0), running(1, v2, unready(10*time.Second))},
			Decision{Actions: []Action{stop(1, slow)}, Serving: "a"},
		},
		"the new one has ended": {
			wants(to("v2")),
			[]Proxy{running(0), running(1, v2, state(sidecar.Exited))},
			Decision{Actions: []Action{start(2, "a"), remove(1)}, Serving: "a"},
		},
		"the profile changes again during an upgrade": {
			wants(to("v3")),
			[]Proxy{running(0), running(1, v2, unready(time.Second))},
			Decision{Actions: []Action{stop(1, "it was not ready yet, and a new version replaces it")}, Serving: "a"},
		},
	}
}

// ends are the cases in which proxies end.
func ends() map[string]decideCase {
	return map[string]decideCase{
		"the old one drains": {
			wants(), []Proxy{running(0, draining(15*time.Second)), running(1)}, Decision{Serving: "b", Again: now().Add(30 * time.Second)},
		},
		"two old ones drain": {
			wants(),
			[]Proxy{running(0, draining(15*time.Second)), running(1, draining(5*time.Second)), running(2)},
			Decision{Serving: "c", Again: now().Add(30 * time.Second)},
		},
		"an old one drains, and a new one starts that will be looked at earlier": {
			wants(to("v2")),
			[]Proxy{running(0, draining(5*time.Second)), running(1), running(2, v2, unready(2*time.Second))},
			Decision{Serving: "b", Awaited: []string{"c"}, Again: now().Add(8 * time.Second)},
		},
		"a new one starts, and the pod no longer wants one": {
			wants(to("v2"), func(d *Desired) { d.Wanted, d.Keep = false, true }),
			[]Proxy{running(0, unready(time.Second))},
			Decision{Awaited: []string{"a"}, Again: now().Add(9 * time.Second)},
		},
		"the old one does not come to an end": {
			wants(), []Proxy{running(0, draining(45*time.Second)), running(1)}, Decision{Actions: []Action{stop(0, late)}, Serving: "b"},
		},
		"the new one has crashed while the old one drains": {
			wants(),
			[]Proxy{running(0, draining(5*time.Second)), running(1, state(sidecar.Exited))},
			Decision{Actions: []Action{start(2, ""), remove(1)}, Again: now().Add(40 * time.Second)},
		},
		"three run and the newest is ready": {
			wants(), []Proxy{running(2), running(0), running(1)}, Decision{Actions: []Action{drain(0), drain(1)}, Serving: "c"},
		},
		"three run and the one in the middle is ready": {
			wants(),
			[]Proxy{running(0, unready(time.Minute)), running(1), running(2, unready(time.Second))},
			Decision{Actions: []Action{drain(0)}, Serving: "b", Awaited: []string{"c"}, Again: now().Add(9 * time.Second)},
		},
		"the pod no longer has a proxy": {
			Desired{},
			[]Proxy{running(0, draining(time.Second)), running(1), running(2, state(sidecar.Exited))},
			Decision{Actions: []Action{stop(0, "the pod has no proxy any more"), stop(1, "the pod has no proxy any more"), remove(2)}},
		},
		"the profile is gone": {Desired{Keep: true}, []Proxy{running(0)}, Decision{Serving: "a"}},
		"the profile is gone, and the proxy has ended": {
			Desired{Keep: true}, []Proxy{running(0, state(sidecar.Exited))}, Decision{Actions: []Action{remove(0)}},
		},
	}
}

func TestDecide_cases_giveActions(t *testing.T) {
	cases := starts()
	maps.Copy(cases, upgrades())
	maps.Copy(cases, hangs())
	maps.Copy(cases, ends())
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Decide(c.desired, c.there, now())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Proxies that run at once have different slots, whatever became of the epochs between them.
func TestDecide_slots_areTakenInTurn(t *testing.T) {
	slotted := func(d *Desired) { d.Slots, d.MaxRunning = 2, 2 }
	for name, c := range map[string]struct {
		desired Desired
		there   []Proxy
		want    Decision
	}{
		"the next epoch has the other slot": {
			wants(slotted, to("v2")), []Proxy{running(0)}, Decision{Actions: []Action{start(1, "a")}, Serving: "a"},
		},
		"the next epoch has the slot of the running proxy, since one has failed": {
			wants(slotted, to("v2")),
			[]Proxy{running(0), running(1, v2, state(sidecar.Exited))},
			Decision{Actions: []Action{start(3, "a"), remove(1)}, Serving: "a"},
		},
		"the slot of a proxy that drains is not free": {
			wants(slotted),
			[]Proxy{running(0, draining(time.Second)), running(1, state(sidecar.Exited))},
			Decision{Actions: []Action{start(3, ""), remove(1)}, Again: now().Add(44 * time.Second)},
		},
		"no third one beside a proxy that drains": {
			wants(slotted, to("v2")),
			[]Proxy{running(0, draining(time.Second)), running(1)},
			Decision{Serving: "b", Again: now().Add(44 * time.Second)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Decide(c.desired, c.there, now())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
