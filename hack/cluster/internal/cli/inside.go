package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/hack/cluster/internal/cluster"
	"istio-pod-network-controller/hack/cluster/internal/space"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// load stops at the first archive that fails; loading one again replaces the tag.
func (o *options) load() *cobra.Command {
	return &cobra.Command{
		Use: "load IMAGE.tar...", Short: "Load image archives into every node", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, s, err := o.running(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, archive := range args {
				if err := c.Load(cmd.Context(), s, archive); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// pods is for what the API server does not know: sandbox IDs, processes and network namespaces.
func (o *options) pods() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "pods", Short: "List the pod sandboxes that run, with their network namespaces as paths of this machine", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, s, err := o.running(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			sandboxes, err := c.Sandboxes(cmd.Context(), s)
			if err != nil {
				return err
			}
			if format == "json" {
				return o.json(sandboxes)
			}
			w := tabwriter.NewWriter(o.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NODE\tPOD\tSANDBOX\tPID\tIPS\tNETNS")
			for _, p := range sandboxes {
				fmt.Fprintf(w, "%s\t%s/%s\t%.13s\t%d\t%s\t%s\n", p.Node, p.Namespace, p.Name, p.ID, p.PID, strings.Join(p.IPs, ","), p.NetNS)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "json for programs")
	return cmd
}

// kubectl leaves every flag to kubectl, -h too.
func (o *options) kubectl() *cobra.Command {
	return &cobra.Command{
		Use: "kubectl ARGS...", Short: "Run kubectl against the cluster", DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, s, err := o.running(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return run(s.ControlPlane, space.ControlPlane, o.clientEnviron(c, s), append([]string{"kubectl"}, args...))
		},
	}
}

// exec keeps the caller's directory, files and environment: only the network is the cluster's.
func (o *options) exec() *cobra.Command {
	return &cobra.Command{
		Use: "exec -- CMD ARGS...", Args: cobra.MinimumNArgs(1),
		Short: "Run a program in the control plane's network namespace, with KUBECONFIG set: tests, and servers of the world",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, s, err := o.running(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return run(s.ControlPlane, space.ControlPlane, o.clientEnviron(c, s), args)
		},
	}
}

// node passes nothing of the caller's environment but the terminal: the node counts as another machine.
func (o *options) node() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "node -- CMD ARGS...", Short: "Run a program on a node: its files, its network, its host name", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, s, err := o.running(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			n, err := c.Node(s, name)
			if err != nil {
				return err
			}
			environ := append(cluster.Environ(s), "CONTAINERD_NAMESPACE=k8s.io", "TERM="+os.Getenv("TERM"))
			os.Clearenv()
			return run(*n.Holder, space.Node, environ, args)
		},
	}
	cmd.Flags().StringVar(&name, "node", "", "the node's name (default: the first one)")
	return cmd
}

// run replaces this program, so that signals, terminals and exit codes are the other one's. environ comes on top of the own environment. A program
// that is named by a path need not be there outside of the namespaces.
func run(holder state.Holder, where space.Kinds, environ, argv []string) error {
	if !holder.Alive() {
		return errors.New("the process that holds the namespaces has ended: `kc down`, then `kc up`")
	}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	program, err := exec.LookPath(argv[0])
	if strings.Contains(argv[0], "/") {
		program, err = filepath.Abs(argv[0])
	}
	if err != nil {
		return fmt.Errorf("the cluster's PATH: %w", err)
	}
	return space.Exec(holder.PID, where, program, argv, os.Environ())
}

// clientEnviron has the variables of a client of the cluster.
func (o *options) clientEnviron(c *cluster.Cluster, s *state.State) []string {
	path := []string{s.Programs, s.Tools, os.Getenv("PATH")}
	if self, err := os.Executable(); err == nil {
		path = append([]string{filepath.Dir(self)}, path...)
	}
	return []string{
		"KUBECONFIG=" + c.Layout.Kubeconfig("admin"),
		"KC_NAME=" + c.Layout.Name, "KC_SOURCE=" + o.source,
		"PATH=" + strings.Join(path, ":"),
		// The user's own kubectl settings are for other clusters, and nothing is to be left in the home directory.
		"KUBECACHEDIR=" + filepath.Join(c.Layout.Run, "kubectl-cache"),
		"KUBERC=off",
	}
}
