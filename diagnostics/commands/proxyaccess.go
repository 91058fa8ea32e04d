package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/cmdline"
)

// proxyAccess are the flags of commands about the proxy that the agent runs for a pod.
type proxyAccess struct {
	kubeFlags
	via, token string
}

func (o *proxyAccess) addTo(cmd *cobra.Command) {
	fs := cmd.Flags()
	o.add(fs)
	fs.Lookup("agent-namespace").Usage = "the namespace of the agents, the only one whose pods are asked and shown a token; empty means " + agentstatus.Name
	fs.StringVar(&o.via, "via", viaAuto, "how the agent is asked: direct, tunnel (through the API server), or auto: the first of them that works")
	fs.StringVar(&o.token, "agent-token", "", "the bearer token to show to the agent instead of the kubeconfig's; one of the audience "+inspect.Audience+" is worth nothing elsewhere")
	_ = o.complete(cmd, map[string][]string{"via": {viaAuto, viaDirect, viaTunnel}}) // the flags are those above
}

func newProxyLogs(p Program) *cobra.Command {
	o, l := &proxyAccess{kubeFlags: p.kubeFlags()}, inspect.LogOptions{}
	cmd := &cobra.Command{
		Use: "logs [NAMESPACE/]POD", Short: "Print the log of the proxy that the agent runs for a pod", Args: cobra.ExactArgs(1),
		Long: "Asks the agent of the pod's node, which answers whoever has the right to get pods/log of the pod. It is asked directly if its node can be\n" +
			"reached, else through the API server (which takes the right to get pods/proxy in the agents' namespace).",
		Example: "  istio-pod-network-controller logs -n shop cart-1 -f --tail 20",
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.ask(cmd.Context(), args[0], func(c inspect.Client, namespace, name string) error {
				return c.Log(cmd.Context(), namespace, name, l, cmd.OutOrStdout())
			})
		},
	}
	o.addTo(cmd)
	fs := cmd.Flags()
	fs.BoolVarP(&l.Previous, "previous", "p", false, "the log of the proxy before the newest one, running or not")
	fs.BoolVarP(&l.Follow, "follow", "f", false, "go on with what is written later, for an hour at most")
	fs.BoolVar(&l.Times, "timestamps", false, "begin each line with the time at which it was written")
	fs.IntVar(&l.Tail, "tail", -1, "the last lines only; -1 for all")
	return cmd
}

func newProxyExec(p Program) *cobra.Command {
	o := &proxyAccess{kubeFlags: p.kubeFlags()}
	cmd := &cobra.Command{
		Use: "exec [NAMESPACE/]POD -- COMMAND [ARGUMENT...]", Short: "Run a command in the proxy that the agent runs for a pod", Args: cobra.MinimumNArgs(2),
		Long: "Asks the agent of the pod's node, which answers whoever has the right to create pods/exec of the pod. The command gets no input and no\n" +
			"terminal, and has 30 s; what it prints is printed when it has ended, 256 KiB of each stream at most. The exit status is the command's.",
		Example: "  istio-pod-network-controller exec -n shop cart-1 -- ls /run/sidecar",
		RunE: func(cmd *cobra.Command, args []string) error {
			var out inspect.Output
			err := o.ask(cmd.Context(), args[0], func(c inspect.Client, namespace, name string) (err error) {
				out, err = c.Exec(cmd.Context(), namespace, name, inspect.Command{Args: args[1:]})
				return err
			})
			if err != nil {
				return err
			}
			_, errOut := cmd.OutOrStdout().Write(out.Out)
			_, errErr := cmd.ErrOrStderr().Write(out.Err)
			if out.Cut {
				_, _ = io.WriteString(cmd.ErrOrStderr(), "error: the rest of what it printed was left out\n")
			}
			if err := errors.Join(errOut, errErr); err != nil || out.Code == 0 {
				return err
			}
			return cmdline.ExitCode(out.Code)
		},
	}
	o.addTo(cmd)
	return cmd
}

// ask has the agent of a pod's node asked, by each way until one reaches it.
func (o *proxyAccess) ask(ctx context.Context, pod string, f func(c inspect.Client, namespace, name string) error) error {
	if err := cmdline.OneOf("via", o.via, viaAuto, viaDirect, viaTunnel); err != nil {
		return err
	}
	client, err := o.connect()
	if err != nil {
		return err
	}
	namespace, name := client.namespace, pod
	if before, after, ok := strings.Cut(pod, "/"); ok {
		namespace, name = before, after
	}
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("%q: want a pod's name, or NAMESPACE/NAME", pod)
	}
	of, err := inspectedPod(ctx, client, namespace, name)
	if err != nil {
		return err
	}
	by, err := agentOf(ctx, client, o.agentNamespace, of)
	if err != nil {
		return err
	}
	ways := inspectWays{client: client, agent: by, token: o.token}
	if err := ways.prepare(); err != nil {
		return fmt.Errorf("%w; who may run commands in the agent's container has `sidecar logs` and `sidecar exec` there", err)
	}
	return ways.reach(ctx, o.via, func(c inspect.Client) error { return f(c, namespace, name) })
}

// reach calls f with a client of the agent, by each way until one reaches it. An error after that is f's.
func (w inspectWays) reach(ctx context.Context, via string, f func(inspect.Client) error) error {
	var errs []error
	for _, way := range []string{viaDirect, viaTunnel} {
		if via != viaAuto && via != way {
			continue
		}
		dial := map[string]dial{viaDirect: w.direct(), viaTunnel: w.tunnel()}[way]
		conn, err := probed(ctx, dial)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", way, err))
			continue
		}
		_ = conn.Close() // nothing was said on it
		return f(inspect.Client{Certificate: w.agent.Status.Inspect.Certificate, Token: w.token, Dial: dial})
	}
	return fmt.Errorf("the agent %s/%s of node %s cannot be asked:\n%w", w.agent.Namespace, w.agent.Name, w.agent.Node, errors.Join(errs...))
}

// probed dials, within the time of a way.
func probed(ctx context.Context, to dial) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, otherTimeout)
	defer cancel()
	return to(ctx)
}
