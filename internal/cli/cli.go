// Package cli is the program's command line, one file for each subcommand: flags, manifests, printing.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/internal/agent"
)

// Exit codes other than 0.
const (
	exitError = 1
	exitDrift = 3
)

// errDrift ends a command that has found drift and has printed it already.
var errDrift = errors.New("drift found")

// Main runs the command line and returns the exit code: 0 done, 1 error, 3 drift found, or that of a command that was run in a proxy.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	var code exitCode
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return 0
	case errors.Is(err, errDrift):
		return exitDrift
	case errors.As(err, &code):
		return int(code)
	default:
		_, _ = fmt.Fprintln(errOut, "error:", err)
		return exitError
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   agent.Name,
		Short: "Redirects the traffic of service mesh pods into their proxies, from outside of the pods",
		Long: "A node agent that puts the redirection rules of a service mesh into the network namespaces of its node's pods,\n" +
			"and a tool to compute, apply, compare and remove such rules by hand.",
		SilenceUsage: true, SilenceErrors: true, Args: noSubcommand, RunE: help,
		Version: version(),
	}
	root.AddCommand(newRun(), newRules(), newCNI(), newSidecar(), newVersion())
	return root
}

// help prints the help of a command that needs a subcommand.
func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// noSubcommand returns an error for an unknown subcommand, and suggests similar ones.
func noSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return fmt.Errorf("%w: did you mean %s?", err, strings.Join(like, ", "))
	}
	return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
}
