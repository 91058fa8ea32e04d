package survey

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
)

// Node is one node, and its agent.
type Node struct {
	Name string `json:"name"`
	// Agent is the agent's pod, NAMESPACE/NAME; empty if the node has none, or AgentUnknown, because a right is missing.
	Agent        string `json:"agent,omitempty"`
	AgentUnknown bool   `json:"agentUnknown,omitempty"`
	// Status is what the agent says about itself; nil if it says nothing.
	Status *agentstatus.Status `json:"status,omitempty"`
	// Settling is set while the agent has become ready, and Status is of before that: hooks that are down there may be up.
	Settling bool `json:"settling,omitempty"`
	// Asking counts the listed pods of a node without an agent that ask for redirection.
	Asking int `json:"asking,omitempty"`
	// Trouble is what makes pods of the node lack what they ask for, or soon will. Notes are worth knowing.
	Trouble []string `json:"trouble,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// nodesOf joins nodes and agents. client is this program's version, "" if it is not known. Without the right to list nodes, it has the agents' nodes.
func nodesOf(nodes []corev1.Node, listed bool, agents []cluster.Agent, client string, now time.Time) []Node {
	rows := map[string]*Node{}
	for i := range nodes {
		row := &Node{Name: nodes[i].Name}
		if status := cluster.NodeReady(&nodes[i]).Status; status != "" && status != corev1.ConditionTrue {
			row.Notes = []string{"the node is not ready"}
		}
		rows[row.Name] = row
	}
	for node, here := range byNode(agents) {
		row := rows[node]
		if row == nil {
			if listed {
				continue // the node has left, or was not asked for
			}
			row = &Node{Name: node}
			rows[node] = row
		}
		row.addAgent(here, client, now)
	}
	out := make([]Node, 0, len(rows))
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		out = append(out, *rows[name])
	}
	return out
}

// byNode returns the agents of each node, the one in charge first.
func byNode(agents []cluster.Agent) map[string][]cluster.Agent {
	out := map[string][]cluster.Agent{}
	for _, a := range agents {
		out[a.Node] = append(out[a.Node], a)
	}
	return out
}

// addAgent adds a node's agents, of which the first is in charge.
func (n *Node) addAgent(agents []cluster.Agent, client string, now time.Time) {
	a := agents[0]
	n.Agent = a.Namespace + "/" + a.Name
	if i := slices.IndexFunc(agents, cluster.Agent.Crashing); i >= 0 {
		n.Trouble = append(n.Trouble, "agent "+agents[i].Name+" "+agents[i].Crashes.String()+": "+cluster.Rollback)
	} else if i := slices.IndexFunc(agents[1:], func(a cluster.Agent) bool { return a.Pod.DeletionTimestamp == nil && a.Stuck(now) }); i >= 0 {
		n.Trouble = append(n.Trouble, "agent "+agents[i+1].Name+" does not start: "+whyNotReady(agents[i+1]))
	} else if len(agents) > 1 {
		n.Notes = append(n.Notes, "two agents: one takes over from the other")
	}
	if !a.Ready {
		n.Trouble = append(n.Trouble, "agent not ready: "+whyNotReady(a))
	}
	switch n.Status = a.Status; {
	case a.Fault != "":
		n.Trouble = append(n.Trouble, "what the agent says about itself cannot be read: "+a.Fault)
	case a.Status != nil:
		if n.Settling = a.Status.Outdated(a.Since, now); !n.Settling {
			n.Trouble = append(n.Trouble, a.Status.NotReady...)
		}
		n.addStatus(*a.Status, client)
	case a.Ready:
		n.Notes = append(n.Notes, "the agent says nothing about itself: an older release, or without --pod-name")
	}
}

func (n *Node) addStatus(said agentstatus.Status, client string) {
	early, offered := false, false
	for _, e := range said.Hook {
		isEarly := e.Name != "watch"
		offered, early = offered || isEarly, early || isEarly && e.Up
		if isEarly && !e.Up && !n.Settling {
			n.Notes = append(n.Notes, e.Name+" is down: "+e.Message)
		}
	}
	if !early && offered && !n.Settling {
		n.Notes = append(n.Notes, "no early hook: pods start before their rules are there")
	}
	if client != "" && said.Version != client {
		n.Notes = append(n.Notes, "the agent is of another release than this program ("+client+")")
	}
}

// whyNotReady says what an agent's pod waits for.
func whyNotReady(a cluster.Agent) string {
	switch {
	case a.Waiting != "" && a.Creating():
		return a.Waiting + ": kubectl pod-network check says why"
	case a.Waiting != "":
		return a.Waiting
	case a.Pod.DeletionTimestamp != nil:
		return "it is ending"
	}
	return "pod " + a.Name + " is " + strings.ToLower(string(a.Pod.Status.Phase))
}
