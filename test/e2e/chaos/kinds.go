package chaos

import (
	"math/rand/v2"
	"slices"
)

// weighted is a kind with its share of all actions.
type weighted struct {
	kind   Kind
	target string
	weight int
}

var nodeKinds = []weighted{
	{Kill, Agent, 3},
	{Stop, Agent, 2},
	{Roll, Agent, 2},
	{Kill, Containerd, 2},
	{Stop, Containerd, 1},
	{Restart, Containerd, 1},
	{Kill, Kubelet, 2},
	{Stop, Kubelet, 1},
	{Restart, Kubelet, 1},
	{Kill, APIServer, 2},
	{Stop, APIServer, 1},
	{Restart, APIServer, 1},
}

var podKinds = []weighted{
	{kind: DeletePod, weight: 3},
	{kind: StopSandbox, weight: 1},
	{kind: RemoveSandbox, weight: 1},
	{kind: Edit, weight: 3},
	{kind: OptOut, weight: 2},
	{kind: DeleteTable, weight: 3},
	{kind: FlushTable, weight: 2},
	{kind: DeleteRule, weight: 3},
	{kind: AddRule, weight: 3},
	{kind: FlushIPRules, weight: 2},
	{kind: RemoveAddress, weight: 1},
	{kind: FillTable, weight: 1},
	{kind: AddForeign, weight: 1},
	{kind: FillForeign, weight: 1},
}

// Touches reports whether a kind changes what the agent owns in a pod's network namespace.
func (k Kind) Touches() bool {
	return slices.Contains([]Kind{DeleteTable, FlushTable, DeleteRule, AddRule, FlushIPRules, RemoveAddress, FillTable}, k)
}

// agentLives leaves out what ends the agent's process.
func agentLives(kinds []weighted) []weighted {
	return slices.DeleteFunc(slices.Clone(kinds), func(k weighted) bool {
		return k.target == Agent && (k.kind == Kill || k.kind == Roll)
	})
}

func choose(r *rand.Rand, kinds []weighted) weighted {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	n := r.IntN(total)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			return k
		}
	}
	return kinds[0]
}
