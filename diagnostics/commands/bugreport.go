package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"istio-pod-network-controller/diagnostics/bugreport"
	"istio-pod-network-controller/diagnostics/check"
	"istio-pod-network-controller/diagnostics/survey"
	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/printable"
)

// bugReportFlags are the flags of `bugreport`.
type bugReportFlags struct {
	kubeFlags
	file    string
	timeout time.Duration
}

func newBugReport(p Program) *cobra.Command {
	o := &bugReportFlags{kubeFlags: p.kubeFlags()}
	cmd := &cobra.Command{
		Use: "bugreport", Short: "Collect what an issue needs into one file, without secrets", Args: cmdline.NoArguments,
		Long: "Writes one .tar.gz: versions, what check and status print as JSON, the agents' pods, DaemonSets, ConfigMaps and the last lines of their\n" +
			"logs, events, and the proxy manager's objects. It reads no Secret, and takes out values of environment variables, tokens, keys and\n" +
			"passwords where it recognises them: read it before you give it away. What it could not read is listed in its README.txt.\n" +
			"Exit status: 0 the file is written, 1 it is not, or no cluster answers.",
		Example: "  istio-pod-network-controller bugreport\n" +
			"  istio-pod-network-controller bugreport --file - | tar -tz",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	fs := cmd.Flags()
	o.add(fs)
	_ = fs.MarkHidden("namespace") // it reads all namespaces
	fs.StringVar(&o.file, "file", "", "the file to write, - for standard output; empty means istio-pod-network-bugreport-TIME.tar.gz in this directory")
	fs.DurationVar(&o.timeout, "timeout", 2*time.Minute, "how long reading may take")
	return cmd
}

func (o *bugReportFlags) run(cmd *cobra.Command) error {
	if err := cmdline.ValidTimeout(o.timeout); err != nil {
		return err
	}
	client, err := o.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	server, err := client.DiscoveryClient.ServerVersionWithContext(ctx)
	if err != nil && !apierrors.IsForbidden(err) { // check.json names a missing right
		return fmt.Errorf("read the API server's version: %w", clusterError(client.config, err))
	}
	stop := startProgress(cmd.ErrOrStderr(), "reading")
	r := &bugreport.Report{Client: client, AgentNamespace: o.agentNamespace, Objects: objectsBy(client)}
	r.Add("versions.json", func() (any, error) {
		return map[string]any{"command": cmdline.Build(), "server": server}, nil
	})
	r.Add("check.json", func() (any, error) {
		results, err := lookAt(ctx, client, check.Gatherer{}, false)
		return checked{check.Worst(results), results}, err
	})
	r.Add("status.json", func() (any, error) {
		return survey.Ask(ctx, client, survey.Options{Fallback: client.namespace, AgentNamespace: o.agentNamespace, Version: cmdline.Build().Comparable()})
	})
	r.Collect(ctx)
	stop()
	if err := cmd.Context().Err(); err != nil {
		return fmt.Errorf("interrupted, and nothing is written: %w", err)
	}
	return o.write(cmd, r)
}

// write writes the archive, and says on standard error what it has.
func (o *bugReportFlags) write(cmd *cobra.Command, r *bugreport.Report) error {
	now := time.Now()
	name, to := o.file, cmd.OutOrStdout()
	if name != "-" {
		if name == "" {
			name = "istio-pod-network-bugreport-" + now.UTC().Format("20060102T150405Z") + ".tar.gz"
		}
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("--file: %w", err)
		}
		defer file.Close()
		to = file
	}
	n, err := r.Write(to, now)
	if file, ok := to.(*os.File); ok && name != "-" {
		err = errors.Join(err, file.Sync())
	}
	if err != nil {
		if name != "-" {
			err = errors.Join(err, os.Remove(name)) // half a report would be in the way of the next one
		}
		return fmt.Errorf("--file: %w", err)
	}
	for _, line := range r.NotRead {
		cmd.PrintErrln("not read:", printable.Line(line))
	}
	cmd.PrintErrln(fmt.Sprintf("%s in %s: read it before you give it away", printable.Count(n, "file"), name))
	return nil
}
