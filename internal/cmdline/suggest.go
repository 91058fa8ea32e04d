package cmdline

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"istio-pod-network-controller/internal/intent"
)

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
