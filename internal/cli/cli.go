// Package cli is the program's command line, one file a subcommand: flags, manifests, printing.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/internal/agent"
)

// Exit codes beside 0.
const (
	exitError = 1
	exitDrift = 3
)

// errDrift ends a command that found what it was to look for; it has said so already.
var errDrift = errors.New("drift found")

// Main runs the command line and gives the exit code: 0 done, 1 error, 3 drift found, 95 rules missing.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return 0
	case errors.Is(err, errDrift):
		return exitDrift
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
		SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs,
		Version: version(),
	}
	root.AddCommand(newRun(), newRules(), newCNI())
	return root
}

// version is the revision of the source that the program was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+modified"
		}
	}
	if revision == "" {
		return info.Main.Version
	}
	return revision + modified
}
