package cli

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/diagnostics/connectivity"
	"istio-pod-network-controller/diagnostics/connectivity/originaldst"
	"istio-pod-network-controller/internal/cmdline"
)

// terminationLog is where the kubelet reads what a container says at its end.
const terminationLog = "/dev/termination-log"

// newStandIn is what the containers of the test's pods run.
func newStandIn() *cobra.Command {
	cmd := &cobra.Command{Use: "stand-in", Short: "What the pods of the test run", Hidden: true, Args: cmdline.NoSubcommand, RunE: cmdline.Help}
	cmd.AddCommand(
		newStandInServer("proxy", connectivity.Server.ServeProxy),
		newStandInServer("application", connectivity.Server.ServeApplication),
		newStandInClient(),
	)
	return cmd
}

func newStandInServer(use string, serve func(connectivity.Server, context.Context) error) *cobra.Command {
	s := connectivity.Server{Dst: originaldst.Of}
	cmd := &cobra.Command{
		Use: use, Short: "Answer connections as the " + use, Args: cmdline.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(s, cmd.Context()) },
	}
	cmd.Flags().StringVar(&s.Pod, "pod", "", "the pod's name")
	return cmd
}

func newStandInClient() *cobra.Command {
	var c connectivity.Client
	cmd := &cobra.Command{
		Use: "prove", Short: "Connect to the server pod and write proofs to " + terminationLog, Args: cmdline.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := os.OpenFile(terminationLog, os.O_WRONLY|os.O_TRUNC, 0)
			if err != nil {
				return fmt.Errorf("open what the kubelet reads: %w", err)
			}
			defer out.Close()
			return c.Prove(cmd.Context(), out)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&c.Pod, "pod", "", "the pod's name")
	fs.StringVar(&c.Server, "server", "", "the server pod's name")
	fs.Func("target", "an address of the server pod; may be given several times", func(value string) error {
		target, err := netip.ParseAddr(value)
		c.Targets = append(c.Targets, target)
		return err
	})
	fs.DurationVar(&c.For, "for", 20*time.Second, "how long what is not proven is tried again")
	return cmd
}
