//go:build !nosidecars

package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"istio-pod-network-controller/agent"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/sidecars/node"
)

// sidecarCommands are the commands for the proxies of this node.
func sidecarCommands() []*cobra.Command { return []*cobra.Command{newSidecar()} }

func newSidecar() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sidecar", Short: "Look at the proxies that the agent runs on this node", Args: cmdline.NoSubcommand, RunE: cmdline.Help,
		Long: "Works in the agent's container, on the proxies of its own node. Whoever may run commands there may use it.",
		Example: "  kubectl -n istio-pod-network-controller exec AGENT-POD -- /istio-pod-network-controller sidecar logs shop/cart-1\n" +
			"  kubectl -n istio-pod-network-controller exec AGENT-POD -- /istio-pod-network-controller sidecar exec shop/cart-1 -- ls /run/sidecar\n" +
			"  kubectl -n istio-pod-network-controller exec -it AGENT-POD -- /istio-pod-network-controller sidecar exec -it shop/cart-1 -- sh",
	}
	cmd.AddCommand(newSidecarLogs(), newSidecarExec(), newSidecarClean())
	return cmd
}

func newSidecarLogs() *cobra.Command {
	l, timeout := node.Log{}, time.Duration(0)
	cmd := &cobra.Command{
		Use: "logs NAMESPACE/POD", Short: "Print the log of a pod's proxy", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if l.Namespace, l.Pod, err = cmdline.SplitPod(args[0]); err != nil {
				return err
			}
			ctx := cmd.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			return l.Print(ctx, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&l.Root, "log-root", node.DefaultLogRoot, "the kubelet's directory of pods' logs")
	fs.BoolVar(&l.Previous, "previous", false, "the log of the proxy before the newest one, running or not")
	fs.BoolVarP(&l.Follow, "follow", "f", false, "go on with what is written later")
	fs.DurationVar(&timeout, "timeout", 0, "how long the log is followed, 0 for as long as there is one: container runtimes leave a command running whose caller has gone")
	fs.BoolVar(&l.Times, "timestamps", false, "begin each line with the time at which it was written")
	fs.IntVar(&l.Tail, "tail", -1, "the last lines only; -1 for all")
	return cmd
}

func newSidecarExec() *cobra.Command {
	e, runtime := node.Exec{}, runtimeFlags{}
	var input, terminal bool
	cmd := &cobra.Command{
		Use: "exec NAMESPACE/POD -- COMMAND [ARGUMENT...]", Short: "Run a command in a pod's proxy",
		Long: "Runs a command in a pod's proxy, as the proxy's user and in its file system. The exit status is the command's.\n" +
			"Without --stdin, what it has printed is printed when it has ended.",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if e.Namespace, e.Pod, err = cmdline.SplitPod(args[0]); err != nil {
				return err
			}
			e.Command = args[1:]
			if terminal && !input {
				return errors.New("--tty needs --stdin")
			}
			if input {
				e.Input = cmd.InOrStdin()
				if !cmd.Flags().Changed("timeout") {
					e.Timeout = 0
				}
			}
			if terminal {
				sizes, restore, err := takeTerminal(cmd.Context(), e.Input)
				if err != nil {
					return err
				}
				defer restore()
				e.Terminal = sizes
			}
			finder, err := agent.OpenCRI(cmd.Context(), runtime.name, runtime.endpoint)
			if err != nil {
				return err
			}
			defer finder.Close()
			code, err := e.Run(cmd.Context(), finder.Connection(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			if err == nil && code != 0 {
				return cmdline.ExitCode(code)
			}
			return err
		},
	}
	fs := cmd.Flags()
	runtime.add(fs)
	fs.DurationVar(&e.Timeout, "timeout", 30*time.Second, "how long the command may take; with --stdin as long as it wants, unless this is given")
	fs.BoolVarP(&input, "stdin", "i", false, "give the command this one's input, and print its output as it comes")
	fs.BoolVarP(&terminal, "tty", "t", false, "with --stdin: give the command a terminal; kubectl exec needs -it as well")
	return cmd
}

func newSidecarClean() *cobra.Command {
	c, runtime := node.Clean{}, runtimeFlags{}
	cmd := &cobra.Command{
		Use: "clean", Short: "Remove what proxies of pods that have ended left on this node", Args: cmdline.NoArguments,
		Long: "For a node whose agent was removed, or had the proxies switched off, before all pods with proxies had ended. It removes the files of\n" +
			"proxies whose pods have ended, which may have keys and tokens among them, and those of shared proxies that neither run nor have an agent.\n" +
			"With the last\n" +
			"proxy go the copies of profiles. It removes nothing that the runtime still runs, or that a process has mounted. An agent that runs proxies does so for the pods' own by itself. It runs as root on the node, or in a privileged container that sees the node's /run and processes.",
		Example: "  istio-pod-network-controller sidecar clean --dry-run",
		RunE: func(cmd *cobra.Command, _ []string) error {
			finder, err := agent.OpenCRI(cmd.Context(), runtime.name, runtime.endpoint)
			if err != nil {
				return err
			}
			defer finder.Close()
			return c.Run(cmd.Context(), finder.Connection(), cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	runtime.add(fs)
	fs.StringVar(&c.Root, "sidecar-root", defaultSidecarRoot, "the agent's --sidecar-root")
	fs.StringVar(&c.SharedRoot, "shared-root", defaultSharedRoot, "the agent's --shared-root")
	fs.StringVar(&c.Profiles, "sidecar-profiles", defaultProfiles, "the agent's --sidecar-profiles")
	fs.BoolVar(&c.DryRun, "dry-run", false, "say what would be removed, and remove nothing")
	return cmd
}

// runtimeFlags name the node's container runtime.
type runtimeFlags struct{ name, endpoint string }

func (f *runtimeFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.name, "runtime", "auto", "the agent's --runtime")
	fs.StringVar(&f.endpoint, "runtime-endpoint", "", "the agent's --runtime-endpoint")
}

// defaultSidecarRoot, defaultSharedRoot and defaultProfiles are where the chart mounts the node's directories. defaultSidecarSecrets is where it mounts the
// Secrets that profiles may name.
const (
	defaultSidecarRoot    = "/run/istio-pod-network-controller/sidecars"
	defaultSharedRoot     = "/run/istio-pod-network-controller/shared"
	defaultProfiles       = "/var/lib/istio-pod-network-controller/profiles"
	defaultSidecarSecrets = "/etc/istio-pod-network-controller/secrets" //nolint:gosec // a path
)

func addSidecarFlags(fs *pflag.FlagSet, o *agent.Options) {
	fs.BoolVar(&o.Sidecars, "sidecars", false, "run the proxies of pods that choose a ProxyProfile, outside the pods' specs")
	fs.BoolVar(&o.RequireProxies, "sidecars-required", false, "do not let pods start that choose a ProxyProfile and cannot have its proxy; without it they start without rules, and are not ready. Needs NRI or the CNI chain")
	fs.StringVar(&o.SidecarRoot, "sidecar-root", defaultSidecarRoot, "directory in memory (tmpfs) for the files of those proxies, at the same path for the agent and the container runtime")
	fs.StringVar(&o.SharedRoot, "shared-root", defaultSharedRoot, "directory in memory (tmpfs) for the configuration of the proxies that the pods of a node share, at the same path for the agent and the kubelet; empty means that pods have proxies of their own only")
	fs.StringVar(&o.SidecarProfiles, "sidecar-profiles", defaultProfiles, "directory on disk for the version of each profile that has become ready on the node, from which proxies are made, also after a start of the node, until a newer one has")
	fs.StringVar(&o.SidecarSecrets, "sidecar-secrets", defaultSidecarSecrets, "directory with a mounted Secret of the agent's namespace in each of its directories, for the images and the proxies of profiles that name it")
	fs.StringSliceVar(&o.SidecarTokenAudiences, "sidecar-token-audiences", nil, "audiences for which profiles may give their proxies tokens of the pods' ServiceAccounts")
}

func validateSidecars(o *agent.Options) error {
	var errs []error
	if o.Sidecars && o.Runtime == "docker" {
		errs = append(errs, errors.New("--sidecars: the runtime docker has no CRI, by which the agent runs proxies: use containerd or crio"))
	}
	dirs := map[string]string{"--sidecar-root": o.SidecarRoot, "--sidecar-secrets": o.SidecarSecrets, "--sidecar-profiles": o.SidecarProfiles}
	if o.SharedRoot != "" {
		dirs["--shared-root"] = o.SharedRoot
	}
	for flag, dir := range dirs {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || filepath.Dir(dir) == dir {
			errs = append(errs, fmt.Errorf("%s: value %q: want the absolute path of a directory", flag, dir))
		}
	}
	return errors.Join(errs...)
}
