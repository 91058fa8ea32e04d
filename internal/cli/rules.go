package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
)

// rulesOptions are the flags of `rules` and its subcommands.
type rulesOptions struct {
	intentFlags
	netns     string
	pod       string
	namespace string
	backend   string
	output    string
	dryRun    bool
}

func newRules() *cobra.Command {
	o := &rulesOptions{}
	cmd := &cobra.Command{
		Use: "rules", Short: "Compute, apply, compare, show or remove the rules of one network namespace", Args: cobra.NoArgs,
		Long: "Works on one network namespace, without a cluster: computes what a pod's manifest asks for exactly as the agent does.\n" +
			"Exit status: 0 done or equal, 1 error, 3 drift found by verify.",
		Example: "  ip netns add demo\n" +
			"  istio-pod-network-controller rules apply --netns /run/netns/demo --pod pod.yaml\n" +
			"  istio-pod-network-controller rules show --netns /run/netns/demo",
	}
	fs := cmd.PersistentFlags()
	fs.StringVar(&o.netns, "netns", "", "path of the network namespace, for example /run/netns/demo or /proc/PID/ns/net")
	fs.StringVar(&o.pod, "pod", "", "file with the Pod as YAML or JSON, - for standard input")
	fs.StringVar(&o.namespace, "namespace", "", "file with the pod's Namespace as YAML or JSON, whose annotation counts too")
	addBackendFlag(fs, &o.backend)
	o.intentFlags.add(fs)
	cmd.AddCommand(newApply(o), newVerify(o), newShow(o), newRemove(o))
	return cmd
}

func newApply(o *rulesOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use: "apply", Short: "Make the namespace hold exactly the rules that the pod asks for", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			want, err := o.wanted(cmd)
			if err != nil {
				return err
			}
			if o.dryRun {
				return printRules(cmd, want, "nft", iptables.TextOptions{Replace: true})
			}
			b, err := o.open()
			if err != nil {
				return err
			}
			changed, err := b.Apply(cmd.Context(), o.netns, want)
			if err != nil {
				return err
			}
			cmd.Println(map[bool]string{true: "rules applied", false: "nothing to do: the rules are there"}[changed])
			return nil
		},
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print the rules in nft's language instead")
	return cmd
}

func newVerify(o *rulesOptions) *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "Compare what the namespace holds with what the pod asks for", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			want, err := o.wanted(cmd)
			if err != nil {
				return err
			}
			b, err := o.open()
			if err != nil {
				return err
			}
			drift, err := b.Verify(cmd.Context(), o.netns, want)
			if err != nil {
				return err
			}
			if len(drift) > 0 {
				cmd.Printf("%s\n", drift)
				return errDrift
			}
			cmd.Println("the rules are there")
			return nil
		},
	}
}

func newShow(o *rulesOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show what the namespace holds with its counters, or what a pod asks for", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.pod != "" {
				want, err := o.wanted(cmd)
				if err != nil {
					return err
				}
				return printRules(cmd, want, o.output, iptables.TextOptions{})
			}
			b, err := o.open()
			if err != nil {
				return err
			}
			have, ok, err := b.Read(cmd.Context(), o.netns)
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("%s holds no rules of ours", o.netns)
			}
			return printRules(cmd, have, o.output, iptables.TextOptions{Counters: true})
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "nft", "nft or json")
	return cmd
}

func newRemove(o *rulesOptions) *cobra.Command {
	return &cobra.Command{
		Use: "remove", Short: "Take away all of our rules", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := o.open()
			if err != nil {
				return err
			}
			removed, err := b.Remove(cmd.Context(), o.netns)
			if err != nil {
				return err
			}
			cmd.Println(map[bool]string{true: "rules removed", false: "nothing to do: there are none"}[removed])
			return nil
		},
	}
}

// open gives the backend, having looked at the flags that every use of it needs.
func (o *rulesOptions) open() (*nftables.Backend, error) {
	if o.netns == "" {
		return nil, errors.New("--netns: required")
	}
	if err := validateBackend(o.backend); err != nil {
		return nil, err
	}
	guard, err := netns.NewGuard()
	if err != nil {
		return nil, err
	}
	return nftables.New(guard), nil
}

func printRules(cmd *cobra.Command, r iptables.Ruleset, output string, o iptables.TextOptions) error {
	switch output {
	case "nft":
		_, err := fmt.Fprint(cmd.OutOrStdout(), r.NftText(o))
		return err
	case "json":
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(r.View())
	}
	return fmt.Errorf("--output: value %q: want nft or json", output)
}
