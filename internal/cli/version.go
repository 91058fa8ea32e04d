package cli

import (
	"runtime/debug"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/internal/agent"
)

// release is the chart's appVersion, as a test checks.
const release = "0.1.0"

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the release and the commit", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { cmd.Println(version()) },
	}
}

// version returns the release, and the commit that the program was built from.
func version() string { return release + " (" + revision() + ")" }

func build() agent.Build { return agent.Build{Version: release, Revision: revision()} }

// revision returns the commit that the program was built from.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+modified"
		}
	}
	return revision + modified
}
