package commands

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"istio-pod-network-controller/diagnostics/survey"
	"istio-pod-network-controller/internal/cmdline"
)

// statusOptions are the flags of `status`.
type statusOptions struct {
	kubeFlags
	survey.Options
	all      bool
	problems bool
	output   string
}

func newStatus(p Program) *cobra.Command {
	o := &statusOptions{kubeFlags: p.kubeFlags()}
	cmd := &cobra.Command{
		Use: "status", Short: "Show how the agents and the pods that ask for redirection stand", Args: noStatusArguments,
		Long: "Shows a line for each node with its agent, and one for each pod that asks for redirection or has a report.\n" +
			"It only reads, and shows what the rights of the kubeconfig allow. The exit code is 1 if something does not have what it asks for,\n" +
			"and 2 if the cluster could not be asked, or not about all pods that were asked for.",
		Example: "  istio-pod-network-controller status -A                            # all nodes and pods\n" +
			"  istio-pod-network-controller status -n shop -l app=cart -o wide\n" +
			"  istio-pod-network-controller status -A --problems                 # pods and nodes with a problem",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	fs := cmd.Flags()
	o.add(fs)
	fs.BoolVarP(&o.all, "all-namespaces", "A", false, "the pods of all namespaces")
	fs.StringVarP(&o.Labels, "selector", "l", "", "a label selector of pods, as in app=cart,tier!=test")
	fs.StringVar(&o.Node, "node", "", "one node, and its pods")
	fs.BoolVar(&o.problems, "problems", false, "only pods and nodes with a problem; the last line and the exit code are about all")
	fs.StringVarP(&o.output, "output", "o", "", "wide, json, yaml, jsonpath=PATH of what json prints, or custom-columns=HEAD:PATH,... with a row for each pod; empty means tables")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return cmdline.Unasked(cmdline.WrongFlag(cmd, err)) })
	o.complete(cmd, map[string][]string{"output": {cmdline.OutputWide, cmdline.OutputJSON, cmdline.OutputYAML}})
	return cmd
}

// noStatusArguments keeps exit code 1 for what status has found.
func noStatusArguments(cmd *cobra.Command, args []string) error {
	if err := cmdline.NoArguments(cmd, args); err != nil {
		return cmdline.Unasked(fmt.Errorf("%w; kubectl pod-network inspect shows one pod, and -n, -l and --node choose some", err))
	}
	return nil
}

// Validate returns an error that names every invalid flag.
func (o *statusOptions) Validate() error {
	var errs []error
	namespace := o.givenNamespace()
	if o.output != "" {
		errs = append(errs, validOutput(o.output, cmdline.OutputWide, cmdline.OutputJSON, cmdline.OutputYAML))
	}
	if o.all && namespace != "" {
		errs = append(errs, fmt.Errorf("--all-namespaces (-A) and --namespace %s do not go together", namespace))
	}
	errs = append(errs, cmdline.ValidName("namespace", namespace, validation.IsDNS1123Label), cmdline.ValidName("node", o.Node, validation.IsDNS1123Subdomain))
	if _, err := labels.Parse(o.Labels); err != nil {
		errs = append(errs, fmt.Errorf("--selector: value %q: %w", o.Labels, err))
	}
	return errors.Join(errs...)
}

func (o *statusOptions) run(cmd *cobra.Command) error {
	if err := o.Validate(); err != nil {
		return cmdline.Unasked(err)
	}
	client, err := o.connect()
	if err != nil {
		return cmdline.Unasked(err)
	}
	r, err := o.look(cmd, client)
	if err != nil {
		return err
	}
	printer := statusPrinter{out: cmd.OutOrStdout(), wide: o.output == cmdline.OutputWide, all: r}
	shows := r
	if o.problems {
		shows = r.Problems()
	}
	if err := printSelected(printer.out, o.output, shows, shows.Pods, func(io.Writer) error { return printer.tables(shows, o.problems) }); err != nil {
		return err
	}
	if strings.Contains(o.output, "=") { // parts of the document, mostly without what is missing in it
		for _, line := range r.Missing {
			cmd.PrintErrln("not shown:", shown(line))
		}
	}
	switch {
	case r.Failing():
		return cmdline.ExitCode(cmdline.ExitError)
	case r.Incomplete:
		return cmdline.ExitCode(cmdline.ExitUnasked)
	}
	return nil
}

// look asks the cluster, and shows on a terminal that it takes long.
func (o *statusOptions) look(cmd *cobra.Command, client connection) (survey.Report, error) {
	defer startProgress(cmd.ErrOrStderr(), "asking "+client.config.Host)()
	o.AgentNamespace, o.Version = o.agentNamespace, cmdline.Build().Comparable()
	if o.all {
		o.Fallback = client.namespace
	} else {
		o.Options.Namespace = client.namespace
	}
	r, err := survey.Ask(cmd.Context(), client, o.Options)
	if err != nil {
		return r, cmdline.Unasked(clusterError(client.config, err))
	}
	return r, nil
}
