package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/agent"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/runtime/cni"
	"istio-pod-network-controller/runtime/cni/install"
)

// pluginTimeoutSeconds is how long the plugin waits for the agent, which answers or refuses earlier.
const pluginTimeoutSeconds = 10

// cniFlags say where the CNI chain is, and how the plugin is configured.
type cniFlags struct{ agent.Chain }

func (f *cniFlags) add(fs *pflag.FlagSet) {
	f.Plugin.Type, f.Plugin.TimeoutSeconds = cni.PluginType, pluginTimeoutSeconds
	fs.StringVar(&f.BinDir, "cni-bin-dir", "/opt/cni/bin", "where the container runtime looks for CNI plugins")
	fs.StringVar(&f.ConfDir, "cni-conf-dir", "/etc/cni/net.d", "where the container runtime looks for network configurations")
	fs.StringVar(&f.Source, "cni-plugin-source", "/"+cni.PluginType, "the plugin's binary in the agent's image")
	fs.StringVar(&f.Plugin.Socket, "cni-socket", cni.DefaultSocket, "the socket between the plugin and the agent, a path on the node")
	fs.BoolVar(&f.Plugin.FailOpen, "cni-fail-open", false, "let pods start without rules while the agent is away")
	fs.BoolVar(&f.Plugin.StatusNeedsAgent, "cni-status-needs-agent", false,
		"have CNI's STATUS fail while the agent is away: the node is then NotReady, and Kubernetes evicts its pods after some minutes")
	fs.StringSliceVar(&f.Plugin.ExcludeNamespaces, "cni-exclude-namespaces", nil,
		"namespaces whose pods start whatever state the agent is in; * stands for any characters, as in openshift-*")
}

// validate returns an error that names every invalid flag.
func (f *cniFlags) validate() error {
	var errs []error
	for name, path := range map[string]string{
		"--cni-bin-dir": f.BinDir, "--cni-conf-dir": f.ConfDir, "--cni-plugin-source": f.Source, "--cni-socket": f.Plugin.Socket,
	} {
		if !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s: value %q: want an absolute path", name, path))
		}
	}
	if err := f.Plugin.Validate(); err != nil && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("CNI flags: %w", err))
	}
	return errors.Join(errs...)
}

func newCNI() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cni", Short: "Install the chained CNI plugin on the node, or remove it", Args: cmdline.NoSubcommand, RunE: cmdline.Help,
	}
	cmd.AddCommand(newCNIInstall(), newCNIUninstall())
	return cmd
}

func newCNIInstall() *cobra.Command {
	f := &cniFlags{}
	var watch, binary bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "install", Short: "Install the plugin and chain it to the node's network configuration", Args: cmdline.NoArguments,
		Long: "Copies the plugin's binary, then appends the plugin to the network configuration that the runtime uses. If there is none yet,\n" +
			"it waits for one. No other byte of the configuration changes.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			logTo(cmd.ErrOrStderr(), 0)
			i, err := f.newInstaller()
			if err != nil {
				return err
			}
			switch {
			case binary:
				return i.PlaceBinary()
			case watch:
				return i.Start(cmd.Context())
			}
			ctx := cmd.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			return i.Install(ctx)
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&watch, "watch", false, "keep running, and put the plugin back when another project removes it")
	cmd.Flags().BoolVar(&binary, "binary-only", false, "install the binary only, and do not change the network configuration")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait for a network configuration, 0 for no limit")
	cmd.MarkFlagsMutuallyExclusive("watch", "timeout", "binary-only")
	return cmd
}

func newCNIUninstall() *cobra.Command {
	f := &cniFlags{}
	var binary bool
	cmd := &cobra.Command{
		Use: "uninstall", Short: "Remove the plugin from every network configuration", Args: cmdline.NoArguments,
		Long: "Removes the plugin from the chain. A file that nobody else has changed is then byte for byte what it was before. The binary\n" +
			"stays by default: runtimes call it once more for every sandbox that was made with it, and it succeeds without the agent.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, err := f.newInstaller()
			if err != nil {
				return err
			}
			if err := i.Uninstall(); err != nil || !binary {
				return err
			}
			return i.RemoveBinary()
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&binary, "remove-binary", false, "remove the binary, too: for a node without pods that were started with it")
	return cmd
}

func (f *cniFlags) newInstaller() (*install.Installer, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	return f.Installer(ctrl.Log, nil)
}
