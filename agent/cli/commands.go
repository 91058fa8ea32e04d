package cli

import "github.com/spf13/cobra"

// Commands returns the program's command with all below it, for what describes them.
func Commands() *cobra.Command { return newRoot() }
