// Package commands has the commands that ask a cluster or explain manifests, one file for each. They need no kernel: the agent's program and the
// plugin of kubectl, which is built for other systems, too, have the same.
package commands

import (
	"github.com/spf13/cobra"

	"istio-pod-network-controller/diagnostics/check"
	"istio-pod-network-controller/internal/cmdline"
)

// Program has the differences between the two programs with these commands.
type Program struct {
	// Kubeconfig makes the flags by which a command finds its cluster. nil: --kubeconfig, --context and --namespace.
	Kubeconfig func() Kubeconfig
	// OnNode is nil for a program that runs neither on nodes nor in the agents' image.
	OnNode *OnNode
}

// OnNode is for the agent's container, and for nodes.
type OnNode struct {
	// Check looks at the node for `check --node`.
	Check check.NodeGatherer
	// StandIn is the command of the pods of `connectivity test`.
	StandIn *cobra.Command
}

// Commands returns the commands.
func (p Program) Commands() []*cobra.Command {
	return []*cobra.Command{
		newStatus(p), newExplain(), newInspect(p), newCheck(p), newConnectivity(p), newVersion(), newProxyLogs(p), newProxyExec(p), newBugReport(p),
	}
}

func (p Program) kubeFlags() kubeFlags {
	if p.Kubeconfig == nil {
		return kubeFlags{Kubeconfig: &fewFlags{}}
	}
	return kubeFlags{Kubeconfig: p.Kubeconfig()}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the release and the commit", Args: cmdline.NoArguments,
		Run: func(cmd *cobra.Command, _ []string) { cmd.Println(cmdline.Version()) },
	}
}
