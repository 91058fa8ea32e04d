// Package chaos plans what TestChaos does to a node, and judges what it sees. It does nothing itself.
package chaos

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Kind is what an action does.
type Kind string

// The kinds of actions on the node: on a daemon, or on the agent.
const (
	Kill    Kind = "kill"    // ends it at once
	Stop    Kind = "stop"    // lets it stand still for a while
	Restart Kind = "restart" // ends it in order, and starts it again
	Roll    Kind = "roll"    // updates the DaemonSet
)

// The kinds of actions on pods. Those from DeleteTable on change what is in the pod's network namespace.
const (
	DeletePod     Kind = "delete pod"
	StopSandbox   Kind = "stop sandbox"
	RemoveSandbox Kind = "remove sandbox"
	Edit          Kind = "edit annotation"
	OptOut        Kind = "opt out and in"

	DeleteTable   Kind = "delete table"
	FlushTable    Kind = "flush table"
	DeleteRule    Kind = "delete rule"
	AddRule       Kind = "add rule"
	FlushIPRules  Kind = "flush ip rules"
	RemoveAddress Kind = "remove address"
	FillTable     Kind = "fill table"
	AddForeign    Kind = "add foreign table"
	FillForeign   Kind = "fill foreign table"
)

// The daemons, by their names in the cluster kit, and the agent.
const (
	Agent      = "agent"
	Containerd = "containerd"
	Kubelet    = "kubelet"
	APIServer  = "kube-apiserver"
)

// Action is one thing to do.
type Action struct {
	// At is the time since the start of the chaos, pauses left out. An action whose predecessor takes longer comes later.
	At     time.Duration
	Kind   Kind
	Target string
	// Lasting is for actions that have a begin and an end.
	Lasting time.Duration
	// Number chooses among what only the executor knows: which rule, which chain.
	Number int
}

func (a Action) String() string {
	if a.Lasting > 0 {
		return fmt.Sprintf("%s %s for %s", a.Kind, a.Target, a.Lasting)
	}
	return fmt.Sprintf("%s %s", a.Kind, a.Target)
}

// Round is a time of chaos that a calm follows. The two lists run side by side, each in its order.
type Round struct {
	// From and To are in the time of the actions.
	From, To   time.Duration
	Node, Pods []Action
}

const (
	// roundLasts is about how long a round is.
	roundLasts = 45 * time.Second
	// touchPause lies between two changes of the same pod's rules. More of them would be somebody who keeps rewriting, whom the agent
	// lets wait.
	touchPause = 25 * time.Second
)

// Plan is a pure function of its arguments: the same seed gives the same actions. In the last third of the rounds nothing ends the
// agent, so that one process of it lives through much and can be compared with a fresh one.
func Plan(seed uint64, lasting time.Duration, victims []string) []Round {
	n := max(2, int(lasting/roundLasts))
	p := planner{
		r:       rand.New(rand.NewPCG(seed, 0)), //nolint:gosec // chaos that can be repeated
		victims: victims, touched: map[string]time.Duration{}, restarted: map[string]bool{},
	}
	rounds := make([]Round, n)
	for i := range rounds {
		from, to := lasting*time.Duration(i)/time.Duration(n), lasting*time.Duration(i+1)/time.Duration(n)
		kinds := nodeKinds
		if i >= n-max(1, n/3) {
			kinds = agentLives(kinds)
		}
		rounds[i] = Round{From: from, To: to, Node: p.node(from, to, kinds), Pods: p.pods(from, to)}
	}
	return rounds
}

type planner struct {
	r       *rand.Rand
	victims []string
	// touched is when a victim's rules were last changed; restarted says whose sandbox was ended since the pod was made.
	touched   map[string]time.Duration
	restarted map[string]bool
}

// between gives a time in steps of 100 ms.
func (p *planner) between(least, most time.Duration) time.Duration {
	const step = 100 * time.Millisecond
	return least + step*time.Duration(p.r.IntN(int((most-least)/step)+1))
}

func (p *planner) node(from, to time.Duration, kinds []weighted) []Action {
	var actions []Action
	for at := from + p.between(0, 2*time.Second); at < to; {
		k := choose(p.r, kinds)
		a := Action{At: at, Kind: k.kind, Target: k.target, Number: p.r.IntN(1000)}
		switch {
		case k.kind == Stop:
			a.Lasting = p.between(time.Second, 8*time.Second)
		case k.kind == Kill && k.target != Agent: // whom the kubelet starts
			a.Lasting = p.between(0, 3*time.Second)
		}
		actions = append(actions, a)
		at += a.Lasting + p.between(time.Second, 6*time.Second)
	}
	return actions
}

func (p *planner) pods(from, to time.Duration) []Action {
	var actions []Action
	for at := from + p.between(0, time.Second); at < to; at += p.between(200*time.Millisecond, 2*time.Second) {
		a := Action{At: at, Kind: choose(p.r, podKinds).kind, Target: p.victims[p.r.IntN(len(p.victims))], Number: p.r.IntN(1000)}
		if a.Kind == OptOut {
			a.Lasting = p.between(0, 5*time.Second)
		}
		if p.fits(&a) {
			actions = append(actions, a)
		}
	}
	return actions
}

// fits reports whether an action may follow those before it. The kubelet lets containers wait that end again and again: a second
// end of the same pod's sandbox becomes that of the pod.
func (p *planner) fits(a *Action) bool {
	switch {
	case a.Kind == StopSandbox || a.Kind == RemoveSandbox:
		if p.restarted[a.Target] {
			a.Kind = DeletePod
		}
		p.restarted[a.Target] = a.Kind != DeletePod
	case a.Kind == DeletePod:
		p.restarted[a.Target] = false
	case a.Kind.Touches():
		if last, ok := p.touched[a.Target]; ok && a.At < last+touchPause {
			return false
		}
		p.touched[a.Target] = a.At
	}
	return true
}
