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
	// NodeRoot is the node's file system as the machine sees it.
	NodeRoot string `json:"nodeRoot"`
	// NodePID and ControlPlanePID are the processes that hold the namespaces.
	NodePID         int `json:"nodePID"`
	ControlPlanePID int `json:"controlPlanePID"`
	// Programs and Tools are the directories of the cluster's programs and of testapp and testproxy.
	Programs string `json:"programs"`
	Tools    string `json:"tools"`
	Logs     string `json:"logs"`
	// Runtime is the container runtime's name, RuntimeSocket where it serves CRI on the node.
	Runtime       string `json:"runtime"`
	RuntimeSocket string `json:"runtimeSocket"`
	NodeName      string `json:"nodeName"`
	// The ranges, IPv4 first.
	NodeIPs  string `json:"nodeIPs"`
	Pods     string `json:"pods"`
	Services string `json:"services"`
	World    string `json:"world"`
	// Daemons says of each daemon whether it runs.
	Daemons map[string]bool `json:"daemons"`
}

// Status looks at what is recorded and at the processes. It does not ask the API server.
func (c *Cluster) Status(s *state.State) Status {
	p := c.Plan
	status := Status{
		Ready: s.Ready && s.Node.Alive() && s.ControlPlane.Alive(), Began: s.Began, Kubeconfig: c.Layout.Kubeconfig("admin"), Server: p.APIServer(),
		NodeRoot: NodeRoot(s), NodePID: s.Node.PID, ControlPlanePID: s.ControlPlane.PID, Programs: s.Programs, Tools: s.Tools,
		Logs: c.Layout.Logs(), NodeName: p.NodeName, NodeIPs: p.Node.Addrs(), Pods: p.NodePods.String(), Services: p.Services.String(),
		World: p.World.String(), Runtime: s.Runtime, RuntimeSocket: config.Socket(s.Runtime), Daemons: map[string]bool{},
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
	for _, row := range [][2]string{
		{"up since", s.Began.Format(time.DateTime)},
		{"API server", s.Server},
		{"kubeconfig", s.Kubeconfig + " (inside: kc exec -- CMD)"},
		{"node", s.NodeName + " " + s.NodeIPs},
		{"node's files", s.NodeRoot},
		{"container runtime", s.Runtime + " " + s.RuntimeSocket},
		{"pods", s.Pods},
		{"services", s.Services},
		{"world", s.World},
		{"logs", s.Logs},
	} {
		fmt.Fprintf(w, "%-24s %s\n", row[0], row[1])
	}
}
