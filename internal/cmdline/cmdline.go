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
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/printable"
)

// Root returns the command of a program, without subcommands.
func Root(use string) *cobra.Command {
	root := &cobra.Command{Use: use, SilenceUsage: true, SilenceErrors: true, Args: NoSubcommand, RunE: Help, Version: Version()}
	root.SetFlagErrorFunc(WrongFlag)
	return root
}

// Run runs a command line until it ends or is interrupted, and returns its exit code.
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

// WrongFlag adds the nearest flag to the error of an unknown one.
func WrongFlag(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
	}
	if near := nearestFlag(cmd.Flags(), unknown.GetSpecifiedName()); near != "" {
		return fmt.Errorf("%w: did you mean --%s?", err, near)
	}
	return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
}

// NoArguments returns an error for arguments of a command that takes none.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%q: %s takes no arguments: see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
}

// nearestFlag returns the flag that a mistyped one most likely stands for, or "".
func nearestFlag(flags *pflag.FlagSet, typed string) string {
	best, near := max(2, len(typed)/3)+1, ""
	flags.VisitAll(func(f *pflag.Flag) {
		if d := intent.Distance(typed, f.Name); d < best && !f.Hidden {
			best, near = d, f.Name
		}
	})
	return near
}

// Exit codes other than 0. docs/commands.md says what they mean, as a test checks.
const (
	ExitError   = 1 // an error; `status`: something does not have what it asks for; `explain`: a setting is refused, or with --strict there is another fault
	ExitUnasked = 2 // `status`: the cluster could not be asked, or not about all that was asked for; `explain`: a file could not be read, or none has pods; so it is with a wrong flag
	ExitDrift   = 3 // `rules verify`, `inspect`: the rules differ from what the pod asks for, or foreign chains see packets before them; `inspect`: or the rules are not known
)

// ExitCode ends a command with an exit code. What there is to say has been said.
type ExitCode int

func (c ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Unasked marks an error of a command that could not ask the cluster, or read the files.
func Unasked(err error) error {
	if err == nil {
		return nil
	}
	return unaskedError{err}
}

type unaskedError struct{ error }

func (e unaskedError) Unwrap() error { return e.error }

// SplitPod splits NAMESPACE/POD. Either is a name as the API server takes it, so neither leads to another directory.
func SplitPod(text string) (namespace, pod string, err error) {
	namespace, pod, _ = strings.Cut(text, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(pod)) > 0 {
		return "", "", fmt.Errorf("%q: want NAMESPACE/POD", text)
	}
	return namespace, pod, nil
}
