package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/diagnostics/survey"
)

// completionTimeout bounds what a shell waits for after the Tab key.
const completionTimeout = 2 * time.Second

// complete has shells offer the cluster's namespaces and nodes. An error is that of a flag which is not there.
func (o *statusOptions) complete(cmd *cobra.Command) error {
	var errs []error
	for flag, resource := range map[string]string{"namespace": "namespaces", "agent-namespace": "namespaces", "node": "nodes"} {
		errs = append(errs, cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return o.names(cmd.Context(), resource, typed), cobra.ShellCompDirectiveNoFileComp
		}))
	}
	formats := cobra.FixedCompletions([]string{"wide", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)
	return errors.Join(append(errs, cmd.RegisterFlagCompletionFunc("output", formats))...)
}

// names returns the names of the cluster's objects that begin as typed. Whatever goes wrong, there is none: a shell shows no errors.
func (k *kubeFlags) names(ctx context.Context, resource, typed string) []string {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	client, err := k.connect()
	if err != nil {
		return nil
	}
	names, err := survey.Names(ctx, client, resource, typed)
	if err != nil {
		return nil
	}
	return names
}
