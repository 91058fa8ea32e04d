//go:build nosidecars

package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"istio-pod-network-controller/agent"
)

func addSidecarFlags(*pflag.FlagSet, *agent.Options) {}

func validateSidecars(*agent.Options) error { return nil }

func sidecarCommands() []*cobra.Command { return nil }
