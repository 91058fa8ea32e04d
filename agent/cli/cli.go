// Package cli is the command line of the agent's program: one file for each subcommand that needs the agent's container or a node. The commands of
// diagnostics/commands come on top.
package cli

import (
	"io"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/diagnostics/check"
	"istio-pod-network-controller/diagnostics/commands"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/runtime/nri"
)

// Main runs the command line and returns the exit code.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	return cmdline.Run(Commands(), args, in, out, errOut)
}

// Commands returns the program's command with all below it, for what describes them.
func Commands() *cobra.Command {
	root := cmdline.Root(agentstatus.Name)
	root.Short = "Redirects the traffic of service mesh pods into their proxies, from outside of the pods"
	root.Long = "A node agent that puts the redirection rules of a service mesh into the network namespaces of its node's pods,\n" +
		"and commands that show how agents and pods of a cluster stand, and that compute, apply, compare and remove such rules by hand."
	shared := commands.Program{OnNode: &commands.OnNode{
		Check: check.NodeGatherer{Probe: probeKernel, Rules: kernel.HasRules, Gone: netns.Gone, NRISocket: nri.DefaultSocket}, StandIn: newStandIn(),
	}}
	root.AddCommand(shared.Commands()...)
	root.AddCommand(newRun(), newRules(), newCNI())
	root.AddCommand(sidecarCommands()...)
	return root
}
