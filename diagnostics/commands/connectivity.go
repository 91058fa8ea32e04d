package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/diagnostics/connectivity"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/intent"
)

// connectivityFlags are the flags of `connectivity test`.
type connectivityFlags struct {
	connectivity.Tester
	kube                      kubeFlags
	sample, selection, output string
	timeout                   time.Duration
}

func newConnectivity(p Program) *cobra.Command {
	cmd := &cobra.Command{
		Use: "connectivity", Short: "Prove redirection on the nodes of a cluster", Args: cmdline.NoSubcommand, RunE: cmdline.Help,
	}
	cmd.AddCommand(newConnectivityTest(p))
	if p.OnNode != nil {
		cmd.AddCommand(p.OnNode.StandIn)
	}
	return cmd
}

func newConnectivityTest(p Program) *cobra.Command {
	f := &connectivityFlags{kube: p.kubeFlags()}
	cmd := &cobra.Command{
		Use: "test", Short: "Start two small pods on each node and prove that their traffic is redirected", Args: cmdline.NoArguments,
		Long: "Starts two small pods on each node of a sample, in a namespace of its own, and proves by connections between them: the\n" +
			"application's traffic goes to its proxy, traffic that enters a pod goes to its proxy, the proxy's own connections leave the pod,\n" +
			"excluded ports are reached directly, in each family of the pods' addresses; and that the agents report the pods as programmed.\n" +
			"It deletes all of that at the end, also after Ctrl-C. Exit status: 0 proven, 1 not everything is.",
		Example: "  istio-pod-network-controller connectivity test\n" +
			"  istio-pod-network-controller connectivity test --nodes all --timeout 10m\n" +
			"  istio-pod-network-controller connectivity test --nodes worker-1,worker-2 --keep",
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	f.kube.add(fs)
	fs.Lookup("namespace").Usage = "an existing namespace for the pods; empty makes one for this run"
	fs.StringVar(&f.sample, "nodes", "", "which nodes: all, a number, or names separated by commas; empty means 3, spread over the sorted names")
	fs.StringVar(&f.Image, "image", "", "the pods' image; empty means that of the agents")
	fs.StringVar(&f.selection, "select", "", "the agents' --select; empty means that of their DaemonSet, or else annotation")
	fs.StringVarP(&f.output, "output", "o", cmdline.OutputText, "text or json")
	fs.DurationVar(&f.timeout, "timeout", 2*time.Minute, "how long the whole test may take, without cleaning up")
	fs.DurationVar(&f.Wait, "wait", 10*time.Second, "how long a pod's rules may take after its start; with an early hook they take no time")
	fs.BoolVar(&f.Keep, "keep", false, "leave the pods, which end by themselves after 15 minutes, and their namespace")
	return cmd
}

func (f *connectivityFlags) run(cmd *cobra.Command) error {
	var err error
	f.Nodes, err = connectivity.ParseNodes(f.sample)
	f.Namespace, f.Select = f.kube.givenNamespace(), cmp.Or(intent.Selection(f.selection), intent.SelectAnnotation)
	f.Say = func(sentence string) { cmd.PrintErrln(sentence) }
	if err := errors.Join(err, cmdline.OneOf("output", f.output, cmdline.OutputText, cmdline.OutputJSON), cmdline.ValidTimeout(f.timeout), f.Validate()); err != nil {
		return err
	}
	client, err := f.kube.connect()
	if err != nil {
		return err
	}
	f.Client = client
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), f.timeout, fmt.Errorf("the time is up (--timeout %s)", f.timeout))
	defer cancel()
	if err := f.askAgents(ctx, client); err != nil {
		return err
	}
	lines, err := f.Run(ctx)
	err = errors.Join(err, f.print(cmd.OutOrStdout(), lines))
	if err == nil && !connectivity.Proven(lines) {
		return cmdline.ExitCode(cmdline.ExitError) // the lines say why
	}
	return err
}

// askAgents takes from the agents what no flag says.
func (f *connectivityFlags) askAgents(ctx context.Context, client connection) error {
	if f.Image != "" && f.selection != "" {
		return nil
	}
	found, err := connectivity.FindAgent(ctx, client, f.kube.agentNamespace)
	switch {
	case unasked(err):
		return fmt.Errorf("find the agents' image: %w", clusterError(client.config, err))
	case err != nil && f.Image == "":
		return fmt.Errorf("find the agents' image: %w: name one by --image", err)
	case err != nil:
		return nil //nolint:nilerr // the default of --select does
	}
	f.Image = cmp.Or(f.Image, found.Image)
	if f.selection == "" {
		f.Select = cmp.Or(found.Select, f.Select)
	}
	return f.Validate()
}

func (f *connectivityFlags) print(out io.Writer, lines []connectivity.Line) error {
	lines = append([]connectivity.Line{}, lines...) // no null for machines
	return cmdline.PrintAs(out, f.output, struct {
		OK    bool                `json:"ok"`
		Lines []connectivity.Line `json:"proofs"`
	}{connectivity.Proven(lines), lines}, cmdline.Writes(connectivity.Text(lines)))
}
