package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/runtime/cni"
	"istio-pod-network-controller/runtime/cniinstall"
)

// pluginTimeoutSeconds is how long the plugin waits for the agent, which answers, or refuses, sooner.
const pluginTimeoutSeconds = 10

// cniFlags say where the CNI chain is, and how the plugin is to behave in it.
type cniFlags struct {
	binDir, confDir, source string
	plugin                  cni.Conf
}

func (f *cniFlags) add(fs *pflag.FlagSet) {
	f.plugin.Type, f.plugin.TimeoutSeconds = cni.PluginType, pluginTimeoutSeconds
	fs.StringVar(&f.binDir, "cni-bin-dir", "/opt/cni/bin", "where the container runtime looks for CNI plugins")
	fs.StringVar(&f.confDir, "cni-conf-dir", "/etc/cni/net.d", "where the container runtime looks for network configurations")
	fs.StringVar(&f.source, "cni-plugin-source", "/"+cni.PluginType, "the plugin's binary in the agent's image")
	fs.StringVar(&f.plugin.Socket, "cni-socket", cni.DefaultSocket, "the socket between the plugin and the agent, a path on the node")
	fs.BoolVar(&f.plugin.FailOpen, "cni-fail-open", false, "let pods start without rules while the agent is away")
	fs.StringSliceVar(&f.plugin.ExcludeNamespaces, "cni-exclude-namespaces", nil, "namespaces whose pods start whatever state the agent is in")
}

// validate names every fault at once.
func (f *cniFlags) validate() error {
	var errs []error
	for name, path := range map[string]string{
		"--cni-bin-dir": f.binDir, "--cni-conf-dir": f.confDir, "--cni-plugin-source": f.source, "--cni-socket": f.plugin.Socket,
	} {
		if !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s: value %q: want an absolute path", name, path))
		}
	}
	if err := f.plugin.Validate(); err != nil && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("CNI flags: %w", err))
	}
	return errors.Join(errs...)
}

// installer makes what puts the plugin into the chain, and keeps it there. It logs what happens; tell, which may be nil, is
// told as well.
func (f *cniFlags) installer(log logr.Logger, tell func(cniinstall.Event)) (*cniinstall.Installer, error) {
	entry, err := json.Marshal(f.plugin)
	if err != nil {
		return nil, err
	}
	return cniinstall.New(cniinstall.Config{
		BinDir: f.binDir, ConfDir: f.confDir, Source: f.source, Entry: entry, Versions: cni.Versions(),
		Notify: func(e cniinstall.Event) {
			logCNI(log, e)
			if tell != nil {
				tell(e)
			}
		},
	})
}

func logCNI(log logr.Logger, e cniinstall.Event) {
	log = log.WithValues("event", e.Kind, "path", e.Path)
	switch e.Kind {
	case cniinstall.Contended, cniinstall.Failed:
		log.Error(e.Err, "CNI plugin not installed")
	case cniinstall.Waiting:
		log.Info("no network to chain the CNI plugin to yet", "reason", e.Err.Error())
	default:
		log.Info("CNI plugin installed")
	}
}

// nodeEvents makes events on the node of what its administrator has to mend.
func nodeEvents(recorder events.EventRecorder, name string) func(cniinstall.Event) {
	// A kubelet's own events name a node's name as its UID, too; that is what lists them with the node.
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	return func(e cniinstall.Event) {
		if e.Kind == cniinstall.Contended || e.Kind == cniinstall.Failed {
			recorder.Eventf(node, nil, corev1.EventTypeWarning, "CNIChain"+string(e.Kind), "InstallCNI", "%s: %v", e.Path, e.Err)
		}
	}
}

func newCNI() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cni", Short: "Put the chained CNI plugin onto the node, or take it away", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCNIInstall(), newCNIUninstall())
	return cmd
}

func newCNIInstall() *cobra.Command {
	f := &cniFlags{}
	var watch, binary bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "install", Short: "Install the plugin and chain it to the node's network configuration", Args: cobra.NoArgs,
		Long: "Copies the plugin's binary, then appends the plugin to the network configuration that the runtime uses, and waits for one\n" +
			"where there is none yet. No other byte of the configuration changes.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			logTo(cmd.ErrOrStderr(), 0)
			i, err := f.checked()
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
	cmd.Flags().BoolVar(&watch, "watch", false, "stay, and repair what other projects undo")
	cmd.Flags().BoolVar(&binary, "binary-only", false, "put the binary, and leave the network configuration alone")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait for a network configuration, 0 for ever")
	cmd.MarkFlagsMutuallyExclusive("watch", "timeout", "binary-only")
	return cmd
}

func newCNIUninstall() *cobra.Command {
	f := &cniFlags{}
	var binary bool
	cmd := &cobra.Command{
		Use: "uninstall", Short: "Take the plugin out of every network configuration", Args: cobra.NoArgs,
		Long: "Takes the plugin out of the chain: what nobody else changed is then, byte for byte, what it was. The binary stays by default,\n" +
			"because runtimes call it once more for every sandbox that was made with it; it lets them go without the agent.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, err := f.checked()
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

func (f *cniFlags) checked() (*cniinstall.Installer, error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	return f.installer(ctrl.Log, nil)
}
