package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/diagnostics/check"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/intent"
)

// checkFlags are the flags of `check`.
type checkFlags struct {
	kube    kubeFlags
	output  string
	timeout time.Duration
	wait    bool
	pre     bool
	removal bool
	node    bool
	local   check.NodeGatherer
}

func newCheck(p Program) *cobra.Command {
	f := &checkFlags{kube: p.kubeFlags()}
	cmd := &cobra.Command{
		Use: "check", Short: "Say whether a cluster is fit for the agent, and whether an installed agent works", Args: cmdline.NoArguments,
		Long: "Reads the cluster and prints a line for each check: ok, warn or fail, with the reason, what to do, and where to read on. It changes\n" +
			"nothing. What cannot be read for lack of rights is one warning that names the right.\n" +
			"Exit status: 0 nothing failed, whatever warnings there are; 1 a check failed, or the cluster cannot be reached.",
		Example: "  istio-pod-network-controller check --pre     # before installing\n" +
			"  istio-pod-network-controller check           # after it\n" +
			"  istio-pod-network-controller check --removal # after an uninstall\n" +
			"  istio-pod-network-controller check --wait --timeout 5m",
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	f.kube.add(fs)
	for _, unused := range []string{"namespace", "agent-namespace"} {
		_ = fs.MarkHidden(unused) // check reads all namespaces
	}
	fs.StringVarP(&f.output, "output", "o", cmdline.OutputText, "text, json, yaml, jsonpath=PATH of what json prints, or custom-columns=HEAD:PATH,... with a row for each check")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long reading the cluster may take, and with --wait all looks together")
	fs.BoolVar(&f.wait, "wait", false, "look again until no check fails, or --timeout is over")
	fs.BoolVar(&f.pre, "pre", false, "only what makes sense before the agent is installed")
	fs.BoolVar(&f.removal, "removal", false, "only what an uninstall has left, with the commands that remove it; exit status 1 if something is left, or may be")
	if p.OnNode != nil {
		f.addNode(cmd, p.OnNode.Check)
	}
	return cmd
}

// addNode adds what looks at the node that the program runs on.
func (f *checkFlags) addNode(cmd *cobra.Command, local check.NodeGatherer) {
	cmd.Long += "\nWith --node it looks at the node that it runs on instead, as root."
	cmd.Example += "\n  istio-pod-network-controller check --node    # on a node, as root"
	f.local = local
	fs := cmd.Flags()
	fs.BoolVar(&f.node, "node", false, "look at this node instead of a cluster; needs root")
	fs.StringVar(&f.local.Root, "root", "/", "with --node: where the node's files are")
	fs.StringVar(&f.local.NRISocket, "nri-socket", local.NRISocket, "with --node: the runtime's NRI socket")
	fs.StringVar(&f.local.CNIDir, "cni-conf-dir", "/etc/cni/net.d", "with --node: where the runtime looks for network configurations")
}

func (f *checkFlags) validate() error {
	err := errors.Join(validOutput(f.output, cmdline.OutputText, cmdline.OutputJSON, cmdline.OutputYAML), cmdline.ValidTimeout(f.timeout))
	if f.node && f.pre {
		err = errors.Join(err, errors.New("--pre: with --node it has no meaning: the node's checks are the same before and after"))
	}
	if f.removal && (f.node || f.pre) {
		err = errors.Join(err, errors.New("--removal: it goes together with neither --node nor --pre"))
	}
	return err
}

func (f *checkFlags) run(cmd *cobra.Command) error {
	if err := f.validate(); err != nil {
		return err
	}
	look, err := f.looker()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	stop := startProgress(cmd.ErrOrStderr(), "checking")
	var results []check.Result
	if f.wait {
		results, err = untilWell(ctx, waitEvery, look)
	} else {
		results, err = look(ctx)
	}
	stop()
	if err != nil {
		return err
	}
	doc := checked{check.Worst(results), results}
	if err := printSelected(cmd.OutOrStdout(), f.output, doc, results, cmdline.Writes(check.Text(results))); err != nil {
		return err
	}
	if doc.Worst == check.Fail {
		return cmdline.ExitCode(cmdline.ExitError) // the results say why
	}
	return nil
}

// waitEvery is the time between two looks of --wait: a look at a large cluster is work for its API server.
const waitEvery = 5 * time.Second

// untilWell looks until no check fails, or ctx ends, and returns the last look that was complete.
func untilWell(ctx context.Context, every time.Duration, look func(context.Context) ([]check.Result, error)) ([]check.Result, error) {
	last, lastErr := look(ctx)
	for lastErr != nil || check.Worst(last) == check.Fail {
		select {
		case <-ctx.Done():
			return last, lastErr
		case <-time.After(every):
		}
		if now, err := look(ctx); ctx.Err() == nil {
			last, lastErr = now, err
		}
	}
	return last, lastErr
}

// looker returns what looks once. Its error stays for good, so that --wait does not wait.
func (f *checkFlags) looker() (func(context.Context) ([]check.Result, error), error) {
	if f.node {
		return func(ctx context.Context) ([]check.Result, error) { return check.RunNode(f.local.Gather(ctx)), nil }, f.nodeFault()
	}
	client, err := f.kube.connect()
	return func(ctx context.Context) ([]check.Result, error) {
		return lookAt(ctx, client, check.Gatherer{Removal: f.removal}, f.pre)
	}, err
}

// lookAt returns the results for a cluster, of which it tells the Gatherer.
func lookAt(ctx context.Context, client connection, g check.Gatherer, pre bool) ([]check.Result, error) {
	g.Client, g.Release, g.Intent, g.Objects = client, cmdline.Build().Comparable(), intentOf, objectsBy(client)
	facts := g.Gather(ctx)
	switch err := facts.Unreachable(); {
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, fmt.Errorf("interrupted while reading the cluster at %s", client.config.Host)
	case err != nil:
		return nil, fmt.Errorf("read the API server's version: %w", clusterError(client.config, err))
	}
	return check.Run(facts, pre), nil
}

// objectsBy reads the proxy manager's objects by the client's connection: there is no typed client of them.
func objectsBy(client connection) func(context.Context, string, metav1.ListOptions) ([]byte, error) {
	return func(ctx context.Context, resource string, o metav1.ListOptions) ([]byte, error) {
		return client.CoreV1().RESTClient().Get().AbsPath("/apis", v1alpha1.GroupVersion().Group, v1alpha1.GroupVersion().Version, resource).
			VersionedParams(&o, scheme.ParameterCodec).SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(ctx)
	}
}

// nodeFault returns why this node cannot be looked at. Without it every check would blame the node.
func (f *checkFlags) nodeFault() error {
	if info, err := os.Stat(f.local.Root); err != nil || !info.IsDir() {
		return fmt.Errorf("--root: value %q: want the directory with the node's files", f.local.Root)
	}
	if os.Geteuid() != 0 {
		return errors.New("--node: this takes root on the node: run it by sudo")
	}
	return nil
}

// intentOf reads the flags of `run` that decide what pods ask for; flags that this release does not know are passed over.
func intentOf(args []string) (intent.Config, error) {
	o := &cmdline.IntentFlags{}
	fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
	fs.ParseErrorsAllowlist.UnknownFlags = true
	o.Add(fs)
	if err := fs.Parse(args); err != nil {
		return intent.Config{}, fmt.Errorf("read the agents' flags: %w", err)
	}
	err := o.Validate()
	return o.Config, err
}

// checked is the document of `check`. Field names are stable.
type checked struct {
	Worst   check.Level    `json:"worst"`
	Results []check.Result `json:"results"`
}
