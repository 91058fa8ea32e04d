// Package cli is the command line of the cluster kit.
package cli

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/hack/cluster/internal/cluster"
	"istio-pod-network-controller/hack/cluster/internal/layout"
	"istio-pod-network-controller/hack/cluster/internal/plan"
	"istio-pod-network-controller/hack/cluster/internal/state"
)

// options are the flags of every command.
type options struct {
	source, cache, name string
	out                 io.Writer
}

// New makes the command kc.
func New(out, progress io.Writer) *cobra.Command {
	o := &options{out: out}
	root := &cobra.Command{
		Use:   "kc",
		Short: "A real Kubernetes cluster on this machine, in namespaces of its own",
		Long: "kc builds, starts and ends a real Kubernetes cluster of one to three nodes. All of it, the control plane too, lives in network\n" +
			"namespaces that have no link to the machine's: what runs in it reaches nothing else.",
		SilenceUsage: true, SilenceErrors: true,
		// Flags before the name of a command are kc's, all behind it are the command's: kubectl takes its own.
		TraverseChildren: true,
	}
	root.SetOut(out)
	root.SetErr(progress)
	root.Flags().StringVar(&o.source, "source", os.Getenv("KC_SOURCE"), "directory hack/cluster of the checkout, where hack/cluster/kc is")
	root.Flags().StringVar(&o.cache, "cache", "", "directory of programs, images and the running cluster's data (default: in the user's cache)")
	root.Flags().StringVar(&o.name, "name", os.Getenv("KC_NAME"), "name of the cluster: clusters of several names run beside each other")
	root.AddCommand(
		o.deps(), o.build(), o.images(), o.image(),
		o.up(), o.down(), o.status(), o.start(), o.stop(), o.restart(), o.kill(), o.powercut(), o.boot(), o.addNode(), o.upgrade(),
		o.load(), o.pods(), o.kubectl(), o.exec(), o.node(),
	)
	return root
}

// cluster is the machine's cluster of the name, up or not.
func (o *options) cluster(progress io.Writer) (*cluster.Cluster, error) {
	l, err := layout.New(o.source, o.cache, o.name)
	if err != nil {
		return nil, err
	}
	return &cluster.Cluster{Plan: plan.Default(l.Named("istio-pod-network-controller-cluster")), Layout: l, Out: progress}, nil
}

// running is the cluster that is up, for commands that change nothing about it.
func (o *options) running(progress io.Writer) (*cluster.Cluster, *state.State, error) {
	c, err := o.cluster(progress)
	if err != nil {
		return nil, nil, err
	}
	if err := c.Check(); err != nil {
		return nil, nil, err
	}
	s, err := c.State()
	return c, s, err
}
