//go:build nosidecars

package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func (*runOptions) addSidecarFlags(*pflag.FlagSet) {}

func (*runOptions) validateSidecars() error { return nil }

func sidecarCommands() []*cobra.Command { return nil }
