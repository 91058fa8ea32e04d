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

// complete has shells offer the cluster's namespaces and nodes, and the values of other flags. The error names missing flags.
func (k *kubeFlags) complete(cmd *cobra.Command, fixed map[string][]string) error {
	var errs []error
	for flag, resource := range map[string]string{"namespace": "namespaces", "agent-namespace": "namespaces", "node": "nodes"} {
		if cmd.Flags().Lookup(flag) == nil {
			continue
		}
		errs = append(errs, cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return k.names(cmd.Context(), resource, typed), cobra.ShellCompDirectiveNoFileComp
		}))
	}
	for flag, values := range fixed {
		errs = append(errs, cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
	}
	return errors.Join(errs...)
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
