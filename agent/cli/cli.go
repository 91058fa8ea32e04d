// Package cli is the program's command line, one file for each subcommand: flags, manifests, printing.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/diagnostics/check"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/runtime/nri"
)

// Main runs the command line and returns the exit code; see exitcodes.go. program is the name by which the program was started.
func Main(program string, args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	if name := filepath.Base(program); strings.HasPrefix(name, pluginPrefix) {
		asPlugin(root, pluginName(name))
	}
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	noUnknownShells(root) // it takes the output that is set
	return codeOf(root.ExecuteContext(ctx), errOut)
}

// codeOf returns the exit code of an error, and prints an error that has not been printed.
func codeOf(err error, errOut io.Writer) int {
	var code exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	_, _ = fmt.Fprintln(errOut, "error:", printable.Lines(err.Error())) // it may repeat what others wrote
	if _, ok := errors.AsType[unaskedError](err); ok {
		return exitUnasked
	}
	return exitError
}

// pluginPrefix starts the names of kubectl's plugins: kubectl runs kubectl-pod_network for `kubectl pod-network`.
const pluginPrefix = "kubectl-"

// pluginName returns how a plugin is typed.
func pluginName(file string) string {
	return "kubectl " + strings.ReplaceAll(strings.ReplaceAll(strings.TrimPrefix(file, pluginPrefix), "-", " "), "_", "-")
}

// asPlugin has help, examples and errors name the commands as they are typed.
func asPlugin(root *cobra.Command, name string) {
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	typed := strings.NewReplacer("  "+agentstatus.Name+" ", "  "+name+" ", "| "+agentstatus.Name+" ", "| "+name+" ")
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		cmd.Example = typed.Replace(cmd.Example)
		for _, sub := range cmd.Commands() {
			each(sub)
		}
	}
	each(root)
}

// noUnknownShells has `completion` refuse what is no shell: its output is written to files that shells read.
func noUnknownShells(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Args, cmd.RunE = noSubcommand, help
		}
	}
}

// Commands returns the program's command with all below it, for what describes them.
func Commands() *cobra.Command { return newRoot() }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   agentstatus.Name,
		Short: "Redirects the traffic of service mesh pods into their proxies, from outside of the pods",
		Long: "A node agent that puts the redirection rules of a service mesh into the network namespaces of its node's pods,\n" +
			"and commands that show how agents and pods of a cluster stand, and that compute, apply, compare and remove such rules by hand.",
		SilenceUsage: true, SilenceErrors: true, Args: noSubcommand, RunE: help,
		Version: version(),
	}
	root.SetFlagErrorFunc(wrongFlag)
	node := check.NodeGatherer{Probe: probeKernel, Rules: kernel.HasRules, NRISocket: nri.DefaultSocket}
	root.AddCommand(newRun(), newStatus(), newRules(), newExplain(), newInspect(), newCheck(node), newConnectivity(), newCNI(), newVersion(), newProxyLogs(), newProxyExec())
	root.AddCommand(sidecarCommands()...)
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
