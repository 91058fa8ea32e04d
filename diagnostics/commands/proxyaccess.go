package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/remotecommand"

	"istio-pod-network-controller/diagnostics/inspect"
	"istio-pod-network-controller/internal/cmdline"
)

func newProxyLogs(p Program) *cobra.Command {
	o, l := &agentFlags{kubeFlags: p.kubeFlags()}, inspect.LogOptions{}
	cmd := &cobra.Command{
		Use: "logs [NAMESPACE/]POD", Short: "Print the log of the proxy that the agent runs for a pod", Args: onePod,
		Long: "Runs `sidecar logs` in the container of the agent of the pod's node, which takes the right to create pods/exec in the agents' namespace.\n" +
			"Where the chart has inspect.enabled=true, the agent also answers whoever has the right to get pods/log of the pod (see inspect).",
		Example: "  istio-pod-network-controller logs -n shop cart-1 -f --tail 20",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			w, err := o.waysTo(ctx, args[0])
			if err == nil {
				byNetwork := func(c inspect.Client) error { return c.Log(ctx, w.pod.Namespace, w.pod.Name, l, out) }
				err = w.orGone(ctx, w.each(o.via, func() error { return w.log(ctx, l, out) }, byNetwork))
			}
			if l.Follow && errors.Is(cmd.Context().Err(), context.Canceled) {
				return nil // Ctrl-C is how a followed log ends
			}
			return err
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
	o := &agentFlags{kubeFlags: p.kubeFlags()}
	cmd := &cobra.Command{
		Use: "exec [NAMESPACE/]POD -- COMMAND [ARGUMENT...]", Short: "Run a command in the proxy that the agent runs for a pod", Args: cobra.MinimumNArgs(2),
		Long: "Runs `sidecar exec` in the container of the agent of the pod's node, which takes the right to create pods/exec in the agents' namespace.\n" +
			"Where the chart has inspect.enabled=true, the agent also answers whoever has the right to create pods/exec of the pod (see inspect), with\n" +
			"256 KiB of each stream at most. The command gets no input and no terminal, and has 30 s; what it prints is printed when it has ended.\n" +
			"The exit status is the command's.",
		Example: "  istio-pod-network-controller exec -n shop cart-1 -- ls /run/sidecar",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			w, err := o.waysTo(ctx, args[0])
			if err != nil {
				return err
			}
			var out inspect.Output
			err = w.orGone(ctx, w.each(o.via, func() (err error) {
				out.Code, err = w.exec(ctx, args[1:], cmd.OutOrStdout(), cmd.ErrOrStderr())
				return err
			}, func(c inspect.Client) (err error) {
				out, err = c.Exec(ctx, w.pod.Namespace, w.pod.Name, inspect.Command{Args: args[1:]})
				return err
			}))
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

// followLimit is how long a log is followed, as over the network.
const followLimit = "1h"

// log prints a proxy's log by `sidecar logs` in the agent's container.
func (w *inspectWays) log(ctx context.Context, l inspect.LogOptions, to io.Writer) error {
	args := []string{"sidecar", "logs", w.about(), "--tail=" + strconv.Itoa(l.Tail)}
	if l.Previous {
		args = append(args, "--previous")
	}
	if l.Times {
		args = append(args, "--timestamps")
	}
	if l.Follow { // container runtimes leave a command running whose caller has gone
		args = append(args, "--follow", "--timeout="+followLimit)
	}
	said := inspect.Clipped{Most: maxSaid}
	code, err := w.run(ctx, args, remotecommand.StreamOptions{Stdout: to, Stderr: &said})
	if err == nil && code != 0 {
		err = errors.New(cmp.Or(strings.TrimPrefix(strings.TrimSpace(string(said.Text)), "error: "), fmt.Sprintf("the command in the agent's container ended with %d", code)))
	}
	return err
}

// exec runs a command in a proxy by `sidecar exec` in the agent's container.
func (w *inspectWays) exec(ctx context.Context, command []string, out, errOut io.Writer) (code int, err error) {
	args := []string{"sidecar", "exec"}
	for _, flag := range []string{"runtime", "runtime-endpoint"} {
		if value := w.argument(flag); value != "" {
			args = append(args, "--"+flag+"="+value)
		}
	}
	code, err = w.run(ctx, append(append(args, w.about(), "--"), command...), remotecommand.StreamOptions{Stdout: out, Stderr: errOut})
	if err != nil || code == 0 {
		return code, err
	}
	if why := w.gone(ctx); why != "" {
		_, err = fmt.Fprintln(errOut, "error:", why)
	}
	return code, err
}
