package commands

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/diagnostics/survey"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/printable"
)

// versionTimeout is how long `version` waits for a cluster that it was not told to ask.
const versionTimeout = 2 * time.Second

// versionOptions are the flags of `version`.
type versionOptions struct {
	kubeFlags
	agents, client bool
}

func newVersion(p Program) *cobra.Command {
	o := &versionOptions{kubeFlags: p.kubeFlags()}
	cmd := &cobra.Command{
		Use: "version", Short: "Print the release and the commit, and those of the agents", Args: cmdline.NoArguments,
		Long: "Prints this program's release and commit, and below it those of the cluster's agents, if a cluster answers within 2 s.\n" +
			"With --agents it is an error if none answers.",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.add(cmd.Flags())
	cmd.Flags().BoolVar(&o.agents, "agents", false, "wait for the cluster, and fail if it cannot be asked")
	cmd.Flags().BoolVar(&o.client, "client", false, "this program's version only")
	cmd.MarkFlagsMutuallyExclusive("agents", "client")
	return cmd
}

func (o *versionOptions) run(cmd *cobra.Command) error {
	cmd.Println(cmdline.Version())
	if o.client {
		return nil
	}
	ctx := cmd.Context()
	if !o.agents {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, versionTimeout)
		defer cancel()
	}
	agents, err := o.askAgents(ctx)
	switch {
	case err != nil && o.agents:
		return cmdline.Unasked(err)
	case err != nil:
		return nil // a version is asked for where there is no cluster, too
	}
	for _, v := range agents {
		cmd.Println(fmt.Sprintf("agents: %s, on %s", shown(v.Version), printable.Count(v.Nodes, "node")))
	}
	if len(agents) == 0 && o.agents {
		return errors.New("the cluster has no agent: no pod has the label " + agentstatus.Label)
	}
	return nil
}

func (o *versionOptions) askAgents(ctx context.Context) ([]survey.AgentVersion, error) {
	client, err := o.connect()
	if err != nil {
		return nil, err
	}
	agents, err := survey.AgentVersions(ctx, client, o.agentNamespace)
	return agents, clusterError(client.config, err)
}
