package rollout

import (
	"fmt"
	"math"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/sidecars/profile"
)

// fleet is a cluster with a profile, whose nodes have two pods each and do what they may.
type fleet struct {
	profile v1alpha1.ProxyProfile
	nodes   map[string]NodeCount
}

func newFleet(nodes int, rollout v1alpha1.Rollout) *fleet {
	f := &fleet{nodes: map[string]NodeCount{}}
	f.profile.Spec.Container = &v1alpha1.Container{Update: v1alpha1.Update{Rollout: rollout}}
	for i := range nodes {
		f.nodes[fmt.Sprint("node-", i)] = NodeCount{Pods: 2}
	}
	return f
}

// count is what the elected agent does.
func (f *fleet) count() { f.profile.Status = StatusOf(&f.profile, f.nodes, "", nil) }

// admitted counts the nodes that may use the present version.
func (f *fleet) admitted() (n int) {
	for name := range f.nodes {
		if !Held(&f.profile, profile.HashOf(f.profile.Spec), name) {
			n++
		}
	}
	return n
}

// some changes the counts of the first n nodes that may use the version and have not finished.
func (f *fleet) some(n int, change func(*NodeCount)) {
	for name, of := range f.nodes {
		if n > 0 && of.Upgraded < of.Pods && !Held(&f.profile, profile.HashOf(f.profile.Spec), name) {
			change(&of)
			f.nodes[name] = of
			n--
		}
	}
}

func upgraded(n *NodeCount) { *n = NodeCount{Pods: n.Pods, Upgraded: n.Pods} }
func begun(n *NodeCount)    { n.Upgraded = 1 }
func fails(n *NodeCount)    { n.Failed, n.Paused = 1, true }

// finish lets all nodes that may be upgraded.
func (f *fleet) finish() { f.some(len(f.nodes), upgraded); f.count() }

// newVersion changes the profile. All pods have an older version then.
func (f *fleet) newVersion(image string) {
	f.profile.Spec.Container.Image = image
	for name, of := range f.nodes {
		f.nodes[name] = NodeCount{Pods: of.Pods}
	}
	f.count()
}

// finishOthers has all admitted nodes finish on which upgrades are not paused.
func (f *fleet) finishOthers() {
	for name, of := range f.nodes {
		if !of.Paused && !Held(&f.profile, profile.HashOf(f.profile.Spec), name) {
			f.nodes[name] = NodeCount{Pods: 2, Upgraded: 2}
		}
	}
	f.count()
}

// admission is a roll-out over a fleet.
type admission struct {
	nodes   int
	rollout v1alpha1.Rollout
	// steps are taken after the first count, and want are the admitted nodes before and after each: -1 is any number.
	steps []func(*fleet)
	want  []int
	// reason is that of the conditions at the end, and bound what is in the profile's status: -1 for nothing, 0 for anything.
	reason string
	bound  int32
}

func (c admission) run(t *testing.T) {
	f := newFleet(c.nodes, c.rollout)
	f.count()
	for i, want := range c.want {
		if i > 0 {
			c.steps[i-1](f)
		}
		if got := f.admitted(); want >= 0 && got != want {
			t.Errorf("after %d steps %d nodes are admitted, want %d", i, got, want)
		}
	}
	bound := int32(-1)
	if f.profile.Status.Rollout != nil {
		bound = f.profile.Status.Rollout.Admitted
	}
	if reason := f.profile.Status.Conditions[0].Reason; reason != c.reason || c.bound != 0 && bound != c.bound {
		t.Errorf("reason %s, want %s; admitted %d, want %d", reason, c.reason, bound, c.bound)
	}
}

func TestNextRollout_nodes_areAdmittedInTurn(t *testing.T) {
	three := v1alpha1.Rollout{MaxNodes: 3}
	for name, c := range map[string]admission{
		"no bound": {nodes: 10, want: []int{10}, reason: "Upgrading", bound: -1},
		"three at once, to the end": {
			nodes: 10, rollout: three, steps: []func(*fleet){(*fleet).finish, (*fleet).finish, (*fleet).finish, (*fleet).finish, (*fleet).count},
			want: []int{3, 6, 9, 10, 10, 10}, reason: "Upgraded", bound: allNodes,
		},
		"a node that has begun counts until all its pods are": {
			nodes: 10, rollout: three, steps: []func(*fleet){
				func(f *fleet) { f.some(3, begun); f.count() }, func(f *fleet) { f.some(1, upgraded); f.count() }, func(f *fleet) { f.some(1, begun); f.count() },
			}, want: []int{3, 3, 4, 4}, reason: "Upgrading",
		},
		"a failure stops it, until it is gone": {
			nodes: 10, rollout: three, steps: []func(*fleet){
				func(f *fleet) { f.some(1, fails); f.count() },
				(*fleet).finishOthers,
				(*fleet).finish,
			}, want: []int{3, 3, 3, 6}, reason: "Upgrading",
		},
		"a failure that is not mended": {
			nodes: 10, rollout: three, steps: []func(*fleet){func(f *fleet) { f.some(3, fails); f.count() }, (*fleet).count}, want: []int{3, 3, 3}, reason: "Paused",
		},
		"paused from the start": {nodes: 10, rollout: v1alpha1.Rollout{MaxNodes: 3, Paused: true}, steps: []func(*fleet){(*fleet).finish}, want: []int{0, 0}, reason: "Paused"},
		"paused without a number of nodes, and no longer": {
			nodes: 10, rollout: v1alpha1.Rollout{Paused: true}, steps: []func(*fleet){func(f *fleet) { f.profile.Spec.Container.Update.Paused = false; f.count() }},
			want: []int{0, 10}, reason: "Upgrading", bound: -1,
		},
		"paused in the middle, and no longer": {
			nodes: 10, rollout: three, steps: []func(*fleet){
				func(f *fleet) { f.profile.Spec.Container.Update.Paused = true; f.finish() }, func(f *fleet) { f.profile.Spec.Container.Update.Paused = false; f.count() },
			}, want: []int{3, 3, 6}, reason: "Upgrading",
		},
	} {
		t.Run(name, c.run)
	}
}

func TestNextRollout_partition_keepsItsNodes(t *testing.T) {
	with := func(partition, percent, maxNodes int32) v1alpha1.Rollout {
		return v1alpha1.Rollout{Partition: partition, PartitionPercent: percent, MaxNodes: maxNodes}
	}
	lower := func(partition, percent int32) func(*fleet) {
		return func(f *fleet) {
			f.profile.Spec.Container.Update.Partition, f.profile.Spec.Container.Update.PartitionPercent = partition, percent
			f.finish()
		}
	}
	for name, c := range map[string]admission{
		"one node tries it, then all have it": {
			nodes: 10, rollout: with(9, 0, 0), steps: []func(*fleet){(*fleet).finish, lower(0, 0), (*fleet).finish},
			want: []int{1, 1, 10, 10}, reason: "Upgraded", bound: -1,
		},
		"nodes that stay have the profile paused once the others are done": {
			nodes: 10, rollout: with(9, 0, 0), steps: []func(*fleet){(*fleet).finish}, want: []int{1, 1}, reason: "Paused",
		},
		"until then it upgrades": {nodes: 10, rollout: with(9, 0, 0), want: []int{1}, reason: "Upgrading"},
		"a percentage is rounded up": {
			nodes: 10, rollout: with(0, 75, 0), steps: []func(*fleet){(*fleet).finish, lower(0, 50)}, want: []int{2, 2, 5}, reason: "Upgrading",
		},
		"in slot up to the partition": {
			nodes: 10, rollout: with(0, 50, 3), steps: []func(*fleet){(*fleet).finish, (*fleet).finish}, want: []int{3, 5, 5}, reason: "Paused",
		},
		"more than there are, by both": {nodes: 3, rollout: v1alpha1.Rollout{Partition: math.MaxInt32, PartitionPercent: 90}, want: []int{0}, reason: "Paused", bound: 0},
		"more than there are":          {nodes: 3, rollout: with(5, 0, 0), want: []int{0}, reason: "Paused", bound: 0},
		"raised in the middle: nodes that have begun go on": {
			nodes: 10, rollout: with(5, 0, 0), steps: []func(*fleet){lower(9, 0)}, want: []int{5, 5}, reason: "Paused",
		},
		"a percentage, and no pod for a moment": {
			nodes: 4, rollout: with(0, 50, 0), steps: []func(*fleet){func(f *fleet) {
				all := f.nodes
				f.nodes = nil
				f.newVersion("another")
				f.nodes = all
				f.count()
			}}, want: []int{2, 2}, reason: "Upgrading",
		},
		"a failure that does not stop the nodes is the reason, not the partition": {
			nodes: 3, rollout: with(1, 0, 1), steps: []func(*fleet){
				func(f *fleet) { f.some(1, func(n *NodeCount) { n.Failed = n.Pods }); f.count() },
			}, want: []int{1, 1}, reason: "Failed",
		},
		"a failure stops it before": {
			nodes: 10, rollout: with(5, 0, 2), steps: []func(*fleet){func(f *fleet) { f.some(1, fails); f.count() }, (*fleet).finishOthers}, want: []int{2, 2, 2}, reason: "Paused",
		},
	} {
		t.Run(name, c.run)
	}
}

func TestNextRollout_clusterOrProfileChanges_goesOn(t *testing.T) {
	three := v1alpha1.Rollout{MaxNodes: 3}
	for name, c := range map[string]admission{
		"nodes are added in the middle": {
			nodes: 4, rollout: three, steps: []func(*fleet){
				func(f *fleet) {
					for i := range 10 {
						f.nodes[fmt.Sprint("new-", i)] = NodeCount{Pods: 1, Upgraded: 1} // they know no version of before
					}
					f.finish()
				},
				(*fleet).finish,
			}, want: []int{3, -1, 14}, reason: "Upgraded", bound: allNodes,
		},
		"the bound is taken away in the middle": {
			nodes: 10, rollout: three, steps: []func(*fleet){func(f *fleet) { f.profile.Spec.Container.Update.Rollout = v1alpha1.Rollout{}; f.count() }}, want: []int{3, 10}, reason: "Upgrading", bound: -1,
		},
		"another version in the middle": {
			nodes: 10, rollout: three, steps: []func(*fleet){(*fleet).finish, func(f *fleet) { f.newVersion("another") }, (*fleet).finish}, want: []int{3, 6, 3, 6}, reason: "Upgrading",
		},
		"the version of before in the middle: the nodes that have not left it count for nothing": {
			nodes: 10, rollout: three, steps: []func(*fleet){func(f *fleet) {
				f.profile.Spec.Container.Image = "before"
				for i := range 8 {
					f.nodes[fmt.Sprint("node-", i)] = NodeCount{Pods: 2, Upgraded: 2}
				}
				f.count()
			}, (*fleet).finish}, want: []int{3, -1, 10}, reason: "Upgraded", bound: allNodes,
		},
		"no pods": {rollout: three, want: []int{0}, reason: "NoPods", bound: allNodes},
	} {
		t.Run(name, c.run)
	}
}

// A thousand nodes come in by maxNodes, but for those that have the same slot.
func TestNextRollout_largeCluster_reachesAll(t *testing.T) {
	f, steps := newFleet(1000, v1alpha1.Rollout{MaxNodes: 50}), 0
	for f.count(); f.profile.Status.Rollout.Admitted < allNodes; steps++ {
		before := f.admitted()
		f.finish()
		if now := f.admitted(); now > before+52 {
			t.Errorf("%d nodes came in at once", now-before)
		}
		if steps > 20 {
			t.Fatal("it does not end")
		}
	}
	if f.admitted() != 1000 {
		t.Errorf("%d nodes of 1000", f.admitted())
	}
}

// While nobody has said which nodes may use a version, none may.
func TestHeld_statusOfAnotherVersion_isHeld(t *testing.T) {
	f := newFleet(10, v1alpha1.Rollout{MaxNodes: 3})
	if got := f.admitted(); got != 0 {
		t.Errorf("%d nodes without a status", got)
	}
	f.profile.Status.Rollout = &v1alpha1.RolloutStatus{Hash: "another", Admitted: allNodes}
	if got := f.admitted(); got != 0 {
		t.Errorf("%d nodes with the status of another version", got)
	}
}
