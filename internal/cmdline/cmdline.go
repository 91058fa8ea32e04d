// Package cmdline has what the command lines of the agent and of kubectl's plugin share: exit codes, output, files, and errors for what is mistyped.
package cmdline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/printable"
)

// Root returns the command of a program, without subcommands.
func Root(use string) *cobra.Command {
	root := &cobra.Command{Use: use, SilenceUsage: true, SilenceErrors: true, Args: NoSubcommand, RunE: Help, Version: Version()}
	root.SetFlagErrorFunc(WrongFlag)
	return root
}

// Run runs a command line until it ends or is interrupted, and returns its exit code; see exitcodes.go.
func Run(root *cobra.Command, args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	noUnknownShells(root) // it takes the output that is set
	return codeOf(root.ExecuteContext(ctx), errOut)
}

// codeOf returns the exit code of an error, and prints an error that has not been printed.
func codeOf(err error, errOut io.Writer) int {
	var code ExitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	_, _ = fmt.Fprintln(errOut, "error:", printable.Lines(err.Error())) // it may repeat what others wrote
	if _, ok := errors.AsType[unaskedError](err); ok {
		return ExitUnasked
	}
	return ExitError
}

// Rename has help, examples and errors name the commands as they are typed: kubectl runs kubectl-pod_network for `kubectl pod-network`.
func Rename(root *cobra.Command, name string) {
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
			cmd.Args, cmd.RunE = NoSubcommand, Help
		}
	}
}

// Help prints the help of a command that needs a subcommand.
func Help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// NoSubcommand returns an error for an unknown subcommand, and suggests similar ones.
func NoSubcommand(cmd *cobra.Command, args []string) error {
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
