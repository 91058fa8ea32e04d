package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/iptables/xtables"
)

// The values of --output that only rules have. With text, the language is the backend's.
const (
	outputNft      = iptables.LanguageNft
	outputIptables = iptables.LanguageIptables
)

var errNoNetNS = errors.New("--netns: required")

// rulesOptions are the flags of `rules` and its subcommands.
type rulesOptions struct {
	cmdline.IntentFlags
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
		Use: "rules", Short: "Compute, apply, compare, show or remove the rules of one network namespace", Args: cmdline.NoSubcommand, RunE: cmdline.Help,
		Long: "Works on one network namespace, without a cluster: computes what a pod's manifest asks for exactly as the agent does.\n" +
			"Exit status: 0 done or equal, 1 error, 3 drift, or foreign chains before our rules, found by verify.",
		Example: "  ip netns add demo\n" +
			"  istio-pod-network-controller rules apply --netns /run/netns/demo --pod pod.yaml\n" +
			"  istio-pod-network-controller rules show --netns /run/netns/demo",
	}
	fs := cmd.PersistentFlags()
	fs.StringVar(&o.netns, "netns", "", "path of the network namespace, for example /run/netns/demo or /proc/PID/ns/net")
	fs.StringVar(&o.pod, "pod", "", "file with the Pod as YAML or JSON, - for standard input")
	fs.StringVar(&o.namespace, "namespace", "", "file with the pod's Namespace as YAML or JSON, whose annotations count too")
	addBackendFlag(fs, &o.backend)
	o.IntentFlags.Add(fs)
	cmd.AddCommand(newApply(o), newVerify(o), newShow(o), newRemove(o))
	return cmd
}

func newApply(o *rulesOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use: "apply", Short: "Make the namespace hold exactly the rules that the pod asks for", Args: cmdline.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			want, err := o.wanted(cmd)
			if err != nil {
				return err
			}
			if o.dryRun {
				return o.printText(cmd, want, iptables.TextOptions{Replace: true})
			}
			b, err := o.open(cmd.Context())
			if err != nil {
				return err
			}
			out, err := b.Apply(cmd.Context(), o.place(), want)
			if err != nil {
				return err
			}
			cmd.Println(map[bool]string{true: "rules applied", false: "nothing to do: the rules are there"}[out.Changed()])
			printPreempting(cmd, out.Preempted)
			return nil
		},
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print the rules, as nft -f or iptables-restore --noflush would load them, instead")
	return cmd
}

func newVerify(o *rulesOptions) *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "Compare what the namespace holds with what the pod asks for", Args: cmdline.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec, err := o.spec(cmd)
			if err != nil {
				return err
			}
			b, err := o.open(cmd.Context())
			if err != nil {
				return err
			}
			found, err := look(cmd.Context(), b, o.place(), spec)
			if err != nil {
				return err
			}
			if len(found.Drift) > 0 {
				cmd.Printf("%s\n", found.Drift)
			} else {
				cmd.Println("the rules are there")
			}
			printPreempting(cmd, found.Preempting)
			if len(found.Drift) > 0 || len(found.Preempting) > 0 && !intent.AcceptsForeignRules(nil, o.Config.Defaults) {
				return cmdline.ExitCode(cmdline.ExitDrift)
			}
			return nil
		},
	}
}

// look compares what a namespace holds with what a Spec asks for. The rules may hold connections, or not: both are what it asks for, at its time.
func look(ctx context.Context, b kernel.Backend, at podnet.Place, spec iptables.Spec) (found kernel.Held, err error) {
	want, err := iptables.Rules(spec)
	if err != nil {
		return found, err
	}
	if found, err = b.Look(ctx, at, &want); err != nil {
		return found, err
	}
	if _, holds := iptables.HeldPackets(found.Lines); !holds {
		return found, nil
	}
	for _, families := range []iptables.Hold{iptables.HoldBoth, iptables.HoldIPv4, iptables.HoldIPv6} {
		if want, err = iptables.HoldingRules(spec, families); err == nil {
			found, err = b.Look(ctx, at, &want)
		}
		if err != nil || len(found.Drift) == 0 {
			break
		}
	}
	return found, err
}

// printPreempting prints foreign chains that see packets before our rules.
func printPreempting(cmd *cobra.Command, lines []string) {
	for _, line := range lines {
		cmd.Println("foreign, before our rules: " + line)
	}
}

func newShow(o *rulesOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show what the namespace holds with its counters, or what a pod asks for", Args: cmdline.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmdline.OneOf("output", o.output, cmdline.OutputWords, cmdline.OutputText, outputNft, outputIptables, cmdline.OutputJSON); err != nil {
				return err
			}
			if o.pod != "" {
				return o.showWanted(cmd)
			}
			choice, err := o.choice()
			if err != nil {
				return err
			}
			have, ok, err := choice.Nftables(cmd.Context()).List(cmd.Context(), o.place())
			switch {
			case err != nil:
				return err
			case !ok:
				return fmt.Errorf("%s holds no rules of ours", o.netns)
			}
			return o.printListing(cmd, have)
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", cmdline.OutputWords, "words; nft or iptables, or text for that of the two which the backend has; or json")
	return cmd
}

// printListing prints what a namespace holds.
func (o *rulesOptions) printListing(cmd *cobra.Command, have iptables.Listing) error {
	switch {
	case o.output == cmdline.OutputJSON:
		return cmdline.PrintJSON(cmd.OutOrStdout(), have.View)
	case o.output == cmdline.OutputWords:
		return cmdline.PrintLines(cmd.OutOrStdout(), have.Lines, true)
	case o.output != cmdline.OutputText && o.output != have.Language:
		return fmt.Errorf("--output: value %q: the rules are those of the other backend: want words, text, %s or json", o.output, have.Language)
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), have.Text)
	return err
}

func newRemove(o *rulesOptions) *cobra.Command {
	return &cobra.Command{
		Use: "remove", Short: "Remove all of our rules", Args: cmdline.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			choice, err := o.choice()
			if err != nil {
				return err
			}
			removed, err := choice.Nftables(cmd.Context()).Remove(cmd.Context(), o.place())
			if err != nil {
				return err
			}
			cmd.Println(map[bool]string{true: "rules removed", false: "nothing to do: there are none"}[removed])
			return nil
		},
	}
}

func (o *rulesOptions) place() podnet.Place { return podnet.Place{Path: o.netns} }

// open returns the backend of the flags.
func (o *rulesOptions) open(ctx context.Context) (kernel.Backend, error) {
	choice, err := o.choice()
	if err != nil {
		return kernel.Backend{}, err
	}
	backend, _, err := choice.Choose(ctx, o.backend)
	return backend, err
}

// choice returns the backends, after checking the flags that every use of one needs. What lists and removes rules of all backends is Nftables, which
// does not check that the node accepts rules.
func (o *rulesOptions) choice() (kernel.Choice, error) {
	if o.netns == "" {
		return kernel.Choice{}, errNoNetNS
	}
	if err := validateBackend(o.backend); err != nil {
		return kernel.Choice{}, err
	}
	if _, err := os.Stat(o.netns); errors.Is(err, fs.ErrNotExist) {
		return kernel.Choice{}, fmt.Errorf("--netns: value %q: there is no such file: want the path of a network namespace, such as /run/netns/NAME", o.netns)
	}
	return kernel.NewChoice(nil, nil)
}

// validateBackend returns an error for an unknown value of --backend.
func validateBackend(backend string) error {
	return cmdline.OneOf("backend", backend, kernel.Auto, kernel.Nftables, kernel.Iptables)
}

func (o *rulesOptions) showWanted(cmd *cobra.Command) error {
	want, err := o.wanted(cmd)
	switch {
	case err != nil:
		return err
	case o.output == cmdline.OutputJSON:
		return cmdline.PrintJSON(cmd.OutOrStdout(), want.View())
	case o.output == cmdline.OutputWords:
		return cmdline.PrintLines(cmd.OutOrStdout(), want.Lines(), false)
	}
	return o.printText(cmd, want, iptables.TextOptions{})
}

// printText prints rules in the requested language, or in the backend's.
func (o *rulesOptions) printText(cmd *cobra.Command, r iptables.Ruleset, options iptables.TextOptions) error {
	if err := validateBackend(o.backend); err != nil {
		return err
	}
	text := r.NftText(options)
	if o.output == outputIptables || o.output != outputNft && o.backend == kernel.Iptables {
		text = xtables.Text(r, r.RestoreText)
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), text)
	return err
}
