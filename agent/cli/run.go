package cli

import (
	"context"
	"io"
	"log/slog"
	"os"
	goruntime "runtime"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	"istio-pod-network-controller/agent"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
)

func newRun() *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use: "run", Short: "Run the node agent", Args: cmdline.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			useTwoThreads()
			logTo(cmd.ErrOrStderr(), o.level)
			logStart(cmd.Flags())
			return agent.Run(cmd.Context(), o.agentOptions())
		},
	}
	o.addFlags(cmd.Flags())
	return cmd
}

// useTwoThreads has Go code run on two threads at a time at most, unless the environment says otherwise: system calls still run beside it. The
// agent's work is many short steps of many goroutines, and to wake a thread for each takes longer than the steps. With one thread a goroutine
// that computes would hold up the runtime's calls.
func useTwoThreads() {
	if os.Getenv("GOMAXPROCS") == "" {
		goruntime.GOMAXPROCS(min(2, goruntime.GOMAXPROCS(0)))
	}
}

func logTo(w io.Writer, level slog.Level) {
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})))
}

func logStart(fs *pflag.FlagSet) {
	flags := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) { flags[f.Name] = f.Value.String() })
	ctrl.Log.Info("agent started", "version", cmdline.Version(), "flags", flags)
}

// probeKernel tries the agent's rules in a namespace made for the purpose.
func probeKernel(ctx context.Context) (ordinary, tproxy error) {
	spec := iptables.DefaultSpec()
	if ordinary = kernel.ProbeNftables(ctx, spec); ordinary != nil {
		return ordinary, ordinary
	}
	spec.Mode = iptables.ModeTProxy
	return nil, kernel.ProbeNftables(ctx, spec)
}
