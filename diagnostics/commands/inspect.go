package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
)

// The values of --via.
const (
	viaAuto   = "auto"
	viaDirect = "direct"
	viaTunnel = "tunnel"
	viaExec   = "exec"
)

func vias() []string { return []string{viaAuto, viaExec, viaDirect, viaTunnel} }

// unansweredLocally begins the error of `inspect --local` without an answer, by which `inspect --via exec` knows that nobody was asked.
const unansweredLocally = "ask the agent in this container at "

// inspectTimeout bounds the whole command. Each way to the agent has a shorter time of its own.
const inspectTimeout = 30 * time.Second

// agentFlags are the flags of commands that ask the agent of a pod's node.
type agentFlags struct {
	kubeFlags
	via, token string
}

func (o *agentFlags) addTo(cmd *cobra.Command) {
	fs := cmd.Flags()
	o.add(fs)
	fs.Lookup("agent-namespace").Usage = "the namespace of the agents, the only one whose pods are asked and shown a token; empty means " + agentstatus.Name
	fs.StringVar(&o.via, "via", viaAuto, "how the agent is asked: exec (in its container), direct or tunnel (through the API server; both with inspect.enabled), or auto: the first of them that works")
	fs.StringVar(&o.token, "agent-token", "", "the bearer token to show to the agent instead of the kubeconfig's; one of the audience "+inspect.Audience+" is worth nothing elsewhere")
	o.complete(cmd, map[string][]string{"via": vias()})
}

// waysTo finds the pod that an argument names, and the agent of its node.
func (o *agentFlags) waysTo(ctx context.Context, arg string) (*inspectWays, error) {
	if err := cmdline.OneOf("via", o.via, vias()...); err != nil {
		return nil, err
	}
	client, err := o.connect()
	if err != nil {
		return nil, err
	}
	namespace, name, err := o.podNamed(client, arg)
	if err != nil {
		return nil, err
	}
	pod, err := inspectedPod(ctx, client, namespace, name)
	if err != nil {
		return nil, err
	}
	by, err := agentOf(ctx, client, o.agentNamespace, pod)
	return &inspectWays{client: client, pod: pod, agent: by, token: o.token}, err
}

// inspectOptions are the flags of `inspect`.
type inspectOptions struct {
	agentFlags
	output string
	local  bool
	socket string
}

func outputs() []string {
	return []string{cmdline.OutputText, cmdline.OutputWide, cmdline.OutputJSON, cmdline.OutputYAML}
}

func newInspect(p Program) *cobra.Command {
	o := &inspectOptions{agentFlags: agentFlags{kubeFlags: p.kubeFlags()}}
	cmd := &cobra.Command{
		Use: "inspect [NAMESPACE/]POD", Short: "Say what a pod asks for, what is programmed, and whether they agree",
		Long: "Asks the agent of the pod's node, which reads the kernel: what the pod asks for and where each value comes from, the rules that are in\n" +
			"force with the packets that each has seen, whether they agree, rules of others, the pod's last events, and what to do next.\n\n" +
			"It is asked by a command in the agent's container, which takes the right to create pods/exec in the agents' namespace. Where the chart has\n" +
			"inspect.enabled=true, the agent also answers whoever may get the pod: directly if its node can be reached, else through the API server\n" +
			"(which takes the right to get pods/proxy in the agents' namespace).\n" +
			"Exit status: 0 the pod has what it asks for, 1 error, 3 it has not, or that is not known.",
		Example: "  istio-pod-network-controller inspect -n shop cart-1\n" +
			"  istio-pod-network-controller inspect shop/cart-1 -o yaml",
		Args: onePod,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmdline.OneOf("output", o.output, outputs()...); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), inspectTimeout)
			defer cancel()
			stop := startProgress(cmd.ErrOrStderr(), "asking for pod "+strconv.Quote(args[0]))
			doc, err := o.document(ctx, args[0])
			stop()
			if err != nil {
				return err
			}
			if err := o.print(cmd.OutOrStdout(), doc); err != nil {
				return err
			}
			if doc.Failing() {
				return cmdline.ExitCode(cmdline.ExitDrift) // the document says why
			}
			return nil
		},
	}
	o.addTo(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&o.output, "output", "o", cmdline.OutputText, "text, wide (text with rules that have seen no packet), json or yaml")
	if p.OnNode != nil {
		fs.BoolVar(&o.local, "local", false, "ask the agent in this container, without a cluster: for NAMESPACE/POD on this node")
		fs.StringVar(&o.socket, "socket", inspect.DefaultSocket, "with --local: the agent's socket, beside that of its --health-addr")
	}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs(), cobra.ShellCompDirectiveNoFileComp)) // a test completes it
	return cmd
}

func onePod(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return fmt.Errorf("want one pod and not %d: %s [NAMESPACE/]POD", len(args), cmd.CommandPath())
}

// document asks the agent on this node, or on the pod's node.
func (o *inspectOptions) document(ctx context.Context, pod string) (inspect.Document, error) {
	if o.local {
		namespace, name, err := cmdline.SplitPod(pod)
		if err != nil {
			return inspect.Document{}, fmt.Errorf("--local: %w", err)
		}
		doc, err := inspect.GetLocal(ctx, o.socket, namespace, name)
		var refusal *inspect.Refusal
		switch {
		case errors.As(err, &refusal):
			return doc, refusal
		case err != nil:
			return doc, fmt.Errorf(unansweredLocally+"%s: %w", o.socket, err)
		}
		doc.Events.Error = fmt.Sprintf("--local asks no API server: see kubectl -n %s events --for pod/%s", namespace, name)
		return doc, nil
	}
	ways, err := o.waysTo(ctx, pod)
	if err != nil {
		return inspect.Document{}, err
	}
	return ways.described(ctx, o.via)
}

func (o *inspectOptions) print(w io.Writer, doc inspect.Document) error {
	text := inspect.Text{Now: time.Now(), Wide: o.output == cmdline.OutputWide}
	return cmdline.PrintAs(w, o.output, doc, func(w io.Writer) error { return text.Print(w, doc) })
}
