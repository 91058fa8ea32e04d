package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"istio-pod-network-controller/hack/cluster/internal/cluster"
	"istio-pod-network-controller/hack/cluster/internal/config"
	"istio-pod-network-controller/hack/cluster/internal/debian"
)

// errNotReady makes `kc status` fail for scripts; what is wrong is printed above it.
var errNotReady = errors.New("the cluster is not whole: `kc start NAME` starts what is stopped, `kc down` ends it")

// up is all that a newcomer needs: it builds what is missing and says so.
func (o *options) up() *cobra.Command {
	var choice releases
	var nodes int
	cmd := &cobra.Command{
		Use: "up", Short: "Start the cluster, after building what is missing; returns when pods can be made", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.cluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			// Before the long build, not after it.
			if most := len(c.Plan.Nodes); nodes < 1 || nodes > most {
				return fmt.Errorf("--nodes %d: want 1 to %d", nodes, most)
			}
			packages := []debian.Step{debian.Images, debian.Run}
			if choice.runtime == config.CRIO {
				packages = append(packages, debian.CRIO)
			}
			if err := errors.Join(c.Check(), debian.Check(packages...)); err != nil {
				return err
			}
			programs, err := o.buildCluster(cmd.Context(), cmd.ErrOrStderr(), choice)
			if err != nil {
				return err
			}
			store, err := o.packImages(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			archives, err := store.Files()
			if err != nil {
				return err
			}
			parts := cluster.Parts{Programs: programs, Tools: store.Bin(), Images: archives, Nodes: nodes, Runtime: choice.runtime}
			if parts.RuntimePrograms, err = o.buildRuntime(cmd.Context(), cmd.ErrOrStderr(), choice); err != nil {
				return err
			}
			return c.Up(cmd.Context(), parts)
		},
	}
	cmd.Flags().IntVar(&nodes, "nodes", 1, "how many nodes: 1 to 3")
	choice.flags(cmd)
	return cmd
}

// upgrade builds before it stops anything.
func (o *options) upgrade() *cobra.Command {
	var choice releases
	cmd := &cobra.Command{
		Use: "upgrade", Short: "Go over to another release of Kubernetes: control plane first, kubelet last; etcd, the container runtime and pods go on", Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return choice.check() },
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := o.running(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			programs, err := o.buildCluster(cmd.Context(), cmd.ErrOrStderr(), choice)
			if err != nil {
				return err
			}
			return c.Upgrade(cmd.Context(), programs)
		},
	}
	choice.kubernetesFlag(cmd)
	return cmd
}

// down succeeds when nothing is up: scripts call it first to be sure.
func (o *options) down() *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "End the cluster and check that nothing of it is left", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.cluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return c.Down()
		},
	}
}

// status prints what it knows before it fails, so that the reader sees which daemon is missing.
func (o *options) status() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "status", Short: "Show what is up and how to reach it; fails when something is not", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, s, err := o.running(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			status := c.Status(s)
			switch format {
			case "json":
				if err := o.json(status); err != nil {
					return err
				}
			case "":
				status.Print(o.out)
			default:
				return fmt.Errorf("output %q: want json", format)
			}
			if !status.Ready {
				return errNotReady
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "json for programs")
	return cmd
}

// start is for what stop has stopped, or what has died.
func (o *options) start() *cobra.Command {
	return o.daemon("start", "Start a daemon that was stopped", func(cmd *cobra.Command, c *cluster.Cluster, name string) error {
		return c.Start(cmd.Context(), name)
	})
}

// stop lets tests see what pods and agents do without a daemon.
func (o *options) stop() *cobra.Command {
	return o.daemon("stop", "Stop a daemon in order; pods go on", func(_ *cobra.Command, c *cluster.Cluster, name string) error {
		return c.Stop(name)
	})
}

// restart returns when the container runtime answers again; a kubelet takes some seconds more to report.
func (o *options) restart() *cobra.Command {
	return o.daemon("restart", "Stop a daemon and start it again", func(cmd *cobra.Command, c *cluster.Cluster, name string) error {
		return c.Restart(cmd.Context(), name)
	})
}

// kill is for tests of crashes and of daemons that hang.
func (o *options) kill() *cobra.Command {
	name := "KILL"
	signals := map[string]unix.Signal{"KILL": unix.SIGKILL, "STOP": unix.SIGSTOP, "CONT": unix.SIGCONT}
	cmd := o.daemon("kill", "Send a daemon a signal: KILL, STOP or CONT", func(_ *cobra.Command, c *cluster.Cluster, daemon string) error {
		signal, ok := signals[name]
		if !ok {
			return fmt.Errorf("--signal: value %q: want KILL, STOP or CONT", name)
		}
		return c.Signal(daemon, signal)
	})
	cmd.Flags().StringVarP(&name, "signal", "s", name, "KILL, STOP or CONT")
	return cmd
}

// powercut is for tests of what a node holds on its disk.
func (o *options) powercut() *cobra.Command {
	return o.onNodes("powercut", "Kill the nodes and the control plane, or one node, at once and empty what a power cut empties; what is on disks stays",
		func(_ *cobra.Command, c *cluster.Cluster, only string) error { return c.PowerCut(only) })
}

// boot returns when each node has said that it is ready. Pods come later.
func (o *options) boot() *cobra.Command {
	return o.onNodes("boot", "Start all daemons, or those of one node, again after powercut",
		func(cmd *cobra.Command, c *cluster.Cluster, only string) error { return c.Boot(cmd.Context(), only) })
}

// onNodes is the common form of both: everything, or one node.
func (o *options) onNodes(verb, short string, do func(*cobra.Command, *cluster.Cluster, string) error) *cobra.Command {
	var only string
	cmd := &cobra.Command{
		Use: verb, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := o.running(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return do(cmd, c, only)
		},
	}
	cmd.Flags().StringVar(&only, "node", "", "one node only, by its name; the control plane and the other nodes go on")
	return cmd
}

// addNode gives the new node the kit's images, and the named ones: what was loaded since the start is not remembered.
func (o *options) addNode() *cobra.Command {
	return &cobra.Command{
		Use: "add-node [IMAGE.tar...]", Short: "Add a node with the kit's images and those named; returns when it is ready",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := o.running(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			store, err := o.packImages(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			archives, err := store.Files()
			if err != nil {
				return err
			}
			return c.AddNode(cmd.Context(), append(archives, args...))
		},
	}
}

// daemon is the common form of the four: one daemon by name, which the cluster checks.
func (o *options) daemon(verb, short string, do func(*cobra.Command, *cluster.Cluster, string) error) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: verb + " containerd|kubelet|kube-proxy|...", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, s, err := o.running(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			n, err := c.Node(s, node)
			if err != nil {
				return err
			}
			return do(cmd, c, n.Own(args[0]))
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "the name of the node whose daemon it is (default: the first one)")
	return cmd
}

// json is indented: people read it as well.
func (o *options) json(v any) error {
	encoder := json.NewEncoder(o.out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
