package cluster

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"istio-pod-network-controller/hack/cluster/internal/config"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// Status is what others need to know of the cluster that is up. Its JSON is what tests read.
type Status struct {
	// Ready says that it is up and every daemon runs.
	Ready bool `json:"ready"`
	// Began is when it was started.
	Began time.Time `json:"began"`
	// Kubeconfig is the administrator's. It works in the control plane's network namespace.
	Kubeconfig string `json:"kubeconfig"`
	Server     string `json:"server"`
	// NodeStatus is the first node, which is also the first of Nodes.
	NodeStatus
	Nodes []NodeStatus `json:"nodes"`
	// ControlPlanePID is the process that holds the control plane's network.
	ControlPlanePID int `json:"controlPlanePID"`
	// Programs and Tools are the directories of the cluster's programs and of testapp and testproxy.
	Programs string `json:"programs"`
	Tools    string `json:"tools"`
	Logs     string `json:"logs"`
	// Runtime is the container runtime's name, RuntimeSocket where it serves CRI on the node.
	Runtime       string `json:"runtime"`
	RuntimeSocket string `json:"runtimeSocket"`
	// The ranges, IPv4 first.
	Services string `json:"services"`
	World    string `json:"world"`
	// Daemons says of each daemon whether it runs.
	Daemons map[string]bool `json:"daemons"`
}

// NodeStatus is one node.
type NodeStatus struct {
	// NodeRoot is the node's file system as the machine sees it, NodePID the process that holds its namespaces.
	NodeRoot string `json:"nodeRoot"`
	NodePID  int    `json:"nodePID"`
	NodeName string `json:"nodeName"`
	// The addresses and ranges, IPv4 first.
	NodeIPs string `json:"nodeIPs"`
	Pods    string `json:"pods"`
}

// Status looks at what is recorded and at the processes. It does not ask the API server.
func (c *Cluster) Status(s *state.State) Status {
	p := c.Plan
	status := Status{
		Ready: s.Ready && s.ControlPlane.Alive(), Began: s.Began, Kubeconfig: c.Layout.Kubeconfig("admin"), Server: p.APIServer(),
		ControlPlanePID: s.ControlPlane.PID, Programs: s.Programs, Tools: s.Tools, Logs: c.Layout.Logs(), Services: p.Services.String(),
		World: p.World.String(), Runtime: s.Runtime, RuntimeSocket: config.Socket(s.Runtime), Daemons: map[string]bool{},
	}
	for i, n := range c.nodes(s) {
		status.Ready = status.Ready && n.Alive()
		one := NodeStatus{NodeRoot: root(*n.Holder), NodePID: n.PID, NodeName: n.Name, NodeIPs: n.Addr.Addrs(), Pods: n.Pods.String()}
		if status.Nodes = append(status.Nodes, one); i == 0 {
			status.NodeStatus = one
		}
	}
	for name, process := range s.Daemons {
		status.Daemons[name] = process.Alive()
		status.Ready = status.Ready && process.Alive()
	}
	return status
}

// Print shows the status to a reader.
func (s Status) Print(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(s.Daemons)) {
		state := "runs"
		if !s.Daemons[name] {
			state = "STOPPED"
		}
		fmt.Fprintf(w, "%-24s %s\n", name, state)
	}
	rows := [][2]string{
		{"up since", s.Began.Format(time.DateTime)},
		{"API server", s.Server},
		{"kubeconfig", s.Kubeconfig + " (inside: kc exec -- CMD)"},
		{"container runtime", s.Runtime + " " + s.RuntimeSocket},
		{"services", s.Services},
		{"world", s.World},
		{"logs", s.Logs},
	}
	for _, n := range s.Nodes {
		rows = append(rows, [2]string{"node", n.NodeName + " " + n.NodeIPs}, [2]string{"node's files", n.NodeRoot}, [2]string{"pods", n.Pods})
	}
	for _, row := range rows {
		fmt.Fprintf(w, "%-24s %s\n", row[0], row[1])
	}
}
