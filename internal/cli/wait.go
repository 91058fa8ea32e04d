package cli

import (
	"github.com/spf13/cobra"

	"istio-pod-network-controller/internal/redirection"
	"istio-pod-network-controller/internal/redirection/early"
)

// exitMissing is apart from all that shells and runtimes give a meaning of their own.
const exitMissing = early.ExitMissing

func newWait() *cobra.Command {
	o := redirection.DefaultOptions()
	cmd := &cobra.Command{
		Use: "wait", Short: "Wait, inside a pod, until its redirection is in force", Args: cobra.NoArgs,
		Long: "Runs inside a pod, as any user and without any privilege, and proves by a connection of its own in each address family that\n" +
			"the pod's redirection rules are in force. It asks neither the API server nor the pod's annotations.\n" +
			"Exit status: 0 in force, 95 rules missing, 1 anything else.",
		Example: "  istio-pod-network-controller wait --timeout 30s\n" +
			"  istio-pod-network-controller wait --once",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return redirection.Run(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	fs.Uint16Var(&o.Port, "port", o.Port, "the proxy's port for inbound traffic, where the rules lead to")
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "how long to wait for the rules")
	fs.BoolVar(&o.Once, "once", o.Once, "try once, for probes")
	return cmd
}
