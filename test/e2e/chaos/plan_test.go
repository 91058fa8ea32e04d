package chaos

import (
	"slices"
	"testing"
	"time"
)

var someVictims = []string{"victim-0", "victim-1", "victim-2", "victim-3"}

func TestPlanIsAPureFunctionOfTheSeed(t *testing.T) {
	equal := func(a, b []Round) bool {
		return slices.EqualFunc(a, b, func(a, b Round) bool { return slices.Equal(a.Node, b.Node) && slices.Equal(a.Pods, b.Pods) })
	}
	one := Plan(1, time.Minute, someVictims)
	if !equal(one, Plan(1, time.Minute, someVictims)) {
		t.Error("the same seed gave two plans")
	}
	if equal(one, Plan(2, time.Minute, someVictims)) {
		t.Error("two seeds gave the same plan")
	}
}

func TestPlanHoldsItsPromises(t *testing.T) {
	for seed := range uint64(50) {
		lasting := time.Duration(1+seed%10) * time.Minute
		rounds := Plan(seed, lasting, someVictims)
		for i, round := range rounds {
			from, to := lasting*time.Duration(i)/time.Duration(len(rounds)), lasting*time.Duration(i+1)/time.Duration(len(rounds))
			for _, list := range [][]Action{round.Node, round.Pods} {
				if len(list) == 0 || list[0].At < from || list[len(list)-1].At >= to || !slices.IsSortedFunc(list, func(a, b Action) int { return int(a.At - b.At) }) {
					t.Errorf("seed %d, round %d of %s to %s: %v", seed, i, from, to, list)
				}
			}
		}
		last := rounds[len(rounds)-1]
		if slices.ContainsFunc(last.Node, func(a Action) bool { return a.Target == Agent && a.Kind != Stop }) {
			t.Errorf("seed %d ends the agent in the last round: %v", seed, last.Node)
		}
		wantPauses(t, seed, rounds)
	}
}

// wantPauses wants a pod's rules to be left alone for a while after each change, and no sandbox to be ended twice in one pod's life.
func wantPauses(t *testing.T, seed uint64, rounds []Round) {
	t.Helper()
	touched, ended := map[string]time.Duration{}, map[string]bool{}
	for _, round := range rounds {
		for _, a := range round.Pods {
			if last, ok := touched[a.Target]; a.Kind.Touches() && ok && a.At-last < touchPause {
				t.Errorf("seed %d: at %s %s, %s after the one before", seed, a.At, a, a.At-last)
			}
			if a.Kind.Touches() {
				touched[a.Target] = a.At
			}
			ends := a.Kind == StopSandbox || a.Kind == RemoveSandbox
			if ends && ended[a.Target] {
				t.Errorf("seed %d: at %s %s, the second time", seed, a.At, a)
			}
			if ends || a.Kind == DeletePod {
				ended[a.Target] = ends
			}
		}
	}
}

// A kind that never comes up would be survived by everybody.
func TestTenMinutesHaveEveryKind(t *testing.T) {
	seen := map[Action]bool{}
	for _, round := range Plan(7, 10*time.Minute, someVictims) {
		for _, a := range round.Node {
			seen[Action{Kind: a.Kind, Target: a.Target}] = true
		}
		for _, a := range round.Pods {
			seen[Action{Kind: a.Kind}] = true
		}
	}
	for _, k := range slices.Concat(nodeKinds, podKinds) {
		if !seen[Action{Kind: k.kind, Target: k.target}] {
			t.Errorf("no %s %s", k.kind, k.target)
		}
	}
}
