package commands

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/cmdline"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/iptables"
)

// explainOptions are the flags of `explain`.
type explainOptions struct {
	cmdline.IntentFlags
	files     []string
	namespace string
	output    string
	strict    bool
}

func newExplain() *cobra.Command {
	o := &explainOptions{}
	cmd := &cobra.Command{
		Use: "explain -f FILE...", Short: "Say what the agent would do with the pods of manifests, and why",
		Args: func(cmd *cobra.Command, args []string) error { return cmdline.Unasked(cmdline.NoArguments(cmd, args)) },
		Long: "Reads Pods, the pod templates of Deployments, StatefulSets, DaemonSets, ReplicaSets, ReplicationControllers, Jobs and CronJobs, and of\n" +
			"any other kind that has one at spec.template, with their Namespaces if they are among the manifests. For each it prints whether it would be redirected and why, each setting and\n" +
			"where it comes from, the rules in words, and warnings. Most flags are those of run. No cluster is asked: a ProxyProfile that a\n" +
			"pod chooses, and Istio's ConfigMaps if its proxy is Istio's, are to be among the manifests.\n" +
			"A manifest that Istio has not injected yet has no proxy: give the injected one (istioctl kube-inject).\n" +
			"Objects that have containers somewhere else are named as not looked at.\n" +
			"With --strict, each fault is a line of standard error: FILE:LINE: OBJECT: FAULT.\n" +
			"Exit status: 0 redirected or not; 1 a setting is refused, or with --strict there is a warning, or something was not looked at; 2 a file\n" +
			"cannot be read, or none has pods.",
		Example: "  istio-pod-network-controller explain -f deployment.yaml -f namespace.yaml\n" +
			"  istioctl kube-inject -f deployment.yaml | istio-pod-network-controller explain -f - -o json\n" +
			"  istio-pod-network-controller explain --strict -f manifests/ >/dev/null    # before a cluster",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringSliceVarP(&o.files, "filename", "f", nil, "file with manifests as YAML or JSON, directory with such files, - for standard input; may be given several times")
	fs.StringVarP(&o.output, "output", "o", cmdline.OutputWords, "words, json or yaml")
	fs.StringVarP(&o.namespace, "namespace", "n", "", "namespace of objects that name none; empty means the manifests' only Namespace, or default")
	fs.BoolVar(&o.strict, "strict", false, "fail also for warnings, and where containers were not looked at")
	fs.StringVar(&o.Config.AgentNamespace, "agent-namespace", "", "namespace of the agent itself, whose pods are never redirected")
	o.IntentFlags.Add(fs)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return cmdline.Unasked(cmdline.WrongFlag(cmd, err)) })
	return cmd
}

// read reads the manifests, of which one has pods at least.
func (o *explainOptions) read(cmd *cobra.Command) (manifests, error) {
	err := errors.Join(cmdline.OneOf("output", o.output, cmdline.OutputWords, cmdline.OutputJSON, cmdline.OutputYAML), o.Validate())
	if err == nil && len(o.files) == 0 {
		err = errors.New("--filename: required: name a file with a Pod or a Deployment, a directory, or - for standard input")
	}
	if err != nil {
		return manifests{}, err
	}
	found, err := readWorkloads(cmd, o.files, o.namespace)
	if err == nil && len(found.workloads) == 0 && len(found.passed) == 0 {
		err = fmt.Errorf("--filename: none of the manifests has pods%s: want one of %s", found.others(), workloadKinds())
	}
	return found, err
}

func (o *explainOptions) run(cmd *cobra.Command) error {
	found, err := o.read(cmd)
	if err != nil {
		return cmdline.Unasked(err)
	}
	var all []explained
	invalid := 0
	for _, w := range found.workloads {
		e := o.explain(w, found)
		if e.Error != "" {
			invalid++
		}
		all = append(all, e)
	}
	doc := explanations{all, found.passed}
	if err = cmdline.PrintAs(cmd.OutOrStdout(), o.output, doc, doc.print); err != nil {
		return err
	}
	switch faults := doc.faults(); {
	case o.strict && len(faults) > 0:
		return fmt.Errorf("--strict: %s\n%s", printable.Count(len(faults), "fault"), strings.Join(faults, "\n"))
	case invalid > 0:
		return fmt.Errorf("%d of %d objects are invalid", invalid, len(all))
	}
	return nil
}

// faults are what --strict refuses, a line each, as compilers write it.
func (all explanations) faults() (out []string) {
	say := func(at place, kind, namespace, name, fault string) {
		out = append(out, fmt.Sprintf("%s:%d: %s %s/%s: %s", at.File, at.Line, kind, cmp.Or(namespace, "-"), name, fault))
	}
	for _, e := range all.Objects {
		faults := e.Warnings
		if e.Error != "" {
			faults = append(strings.Split(e.Error, "\n"), e.Warnings...)
		}
		for _, fault := range faults {
			say(e.place, e.Kind, e.Namespace, e.Name, fault)
		}
	}
	for _, p := range all.NotLookedAt {
		say(p.place, p.Kind, p.Namespace, p.Name, "not looked at: what makes pods of its "+p.At+" is not known here")
	}
	return out
}

// explained is the answer about one object.
type explained struct {
	place
	Kind       string           `json:"kind"`
	Namespace  string           `json:"namespace,omitempty"`
	Name       string           `json:"name,omitempty"`
	Redirected bool             `json:"redirected"`
	Reason     string           `json:"reason,omitempty"`
	AskedBy    string           `json:"askedBy,omitempty"`
	Summary    []string         `json:"summary,omitempty"`
	Settings   []intent.Setting `json:"settings,omitempty"`
	Rules      []iptables.Line  `json:"rules,omitempty"`
	Proxy      *explainedProxy  `json:"proxy,omitempty"`
	Notes      []string         `json:"notes,omitempty"`
	Warnings   []string         `json:"warnings,omitempty"`
	Error      string           `json:"error,omitempty"`
}

// explain answers for one object.
func (o *explainOptions) explain(w workload, from manifests) explained {
	ns := from.namespaces[w.pod.Namespace]
	out := explained{place: w.place, Kind: w.kind, Namespace: w.pod.Namespace, Name: w.pod.Name, Warnings: w.warnings}
	if w.fault != nil {
		out.Error = w.fault.Error()
		return out
	}
	asked, err := intent.Explain(&w.pod, ns, o.Config)
	out.Redirected, out.Reason, out.AskedBy = asked.Redirect, string(asked.Reason), asked.AskedBy
	out.Settings, out.Notes = asked.Settings, slices.Concat(asked.Notes, unshown(w, ns, asked.Intent))
	out.Warnings = append(out.Warnings, intent.Warnings(&w.pod, ns, asked.Intent)...)
	if class := w.pod.Spec.RuntimeClassName; class != nil && !o.Config.Supports(*class) {
		out.Warnings = append(out.Warnings, fmt.Sprintf("runtimeClassName is %q: if that is also its handler, the pod is not redirected (--unsupported-runtime-handlers)", *class))
	}
	out.Warnings = append(out.Warnings, namespaceWarnings(ns)...)
	if err == nil && asked.Redirect {
		out.Summary = asked.Spec.Summary()
		out.Rules, err = explainedRules(asked.Spec)
	}
	var fault error
	out.Proxy, fault = explainProxy(w, ns, from)
	if err = errors.Join(err, fault); err != nil {
		out.Error = err.Error()
	}
	return out
}

// explainedRules returns the rules for a Spec, which no packet has met. Resolvers that only the runtime knows are no error.
func explainedRules(spec iptables.Spec) ([]iptables.Line, error) {
	if spec.DNS == iptables.DNSResolvConf && len(spec.Resolvers) == 0 {
		spec.DNS = iptables.DNSOff
	}
	rules, err := iptables.Rules(spec)
	out := rules.Lines()
	for i := range out {
		out[i].Packets, out[i].Bytes = nil, nil
	}
	return out, err
}

// unshown are notes about what a manifest does not show. Nothing in it is wrong.
func unshown(w workload, ns *corev1.Namespace, in intent.Intent) (out []string) {
	if profile, err := intent.ProxyProfile(&w.pod, ns); err == nil && profile != "" {
		out = append(out, fmt.Sprintf("annotation %s chooses ProxyProfile %q: an agent with --sidecars runs its proxy for the pod; the rules are for one without", intent.KeySidecar, profile))
	}
	if in.Reason == intent.NoProxy || in.Reason == intent.NoProxyInject {
		out = append(out, "if Istio injects the proxy later, explain the injected manifest: istioctl kube-inject -f FILE | kubectl pod-network explain -f -")
	}
	if in.Redirect && in.Spec.DNS == iptables.DNSResolvConf && len(in.Spec.Resolvers) == 0 {
		out = append(out, "the pod's resolvers are known on the node only: the rules are shown without those for lookups; --cluster-dns names them here")
	}
	return out
}

func namespaceWarnings(ns *corev1.Namespace) (out []string) {
	if ns == nil {
		return nil
	}
	if v, ok := ns.Annotations[intent.KeyInitialize]; ok && v != "true" && v != "false" {
		out = append(out, fmt.Sprintf("namespace %s: annotation %s, value %q, asks for nothing: want \"true\"", ns.Name, intent.KeyInitialize, v))
	}
	for _, about := range intent.Misplaced(ns.Annotations, ns.Labels) {
		out = append(out, "namespace "+ns.Name+": "+about)
	}
	return out
}

// explanations is what machines read. Field names are stable.
type explanations struct {
	Objects     []explained  `json:"objects"`
	NotLookedAt []passedOver `json:"notLookedAt,omitempty"`
}

func (all explanations) print(w io.Writer) error {
	var b strings.Builder
	for i, e := range all.Objects {
		if i > 0 {
			b.WriteByte('\n')
		}
		e.print(&b)
	}
	if len(all.Objects) > 0 && len(all.NotLookedAt) > 0 {
		b.WriteByte('\n')
	}
	for _, p := range all.NotLookedAt {
		fmt.Fprintf(&b, "%s %s/%s: not looked at: what makes pods of its %s is not known here\n", p.Kind, cmp.Or(p.Namespace, "-"), p.Name, p.At)
	}
	_, err := io.WriteString(w, printable.Lines(b.String()))
	return err
}

func (e explained) print(b *strings.Builder) {
	fmt.Fprintf(b, "%s %s/%s: ", e.Kind, e.Namespace, e.Name)
	switch {
	case e.Error != "":
		fmt.Fprintf(b, "invalid\n  %s\n", strings.ReplaceAll(e.Error, "\n", "\n  "))
	case e.Redirected:
		fmt.Fprintf(b, "redirected\n  asked for by: %s\n", e.AskedBy)
	default:
		fmt.Fprintf(b, "not redirected\n  %s\n", e.Reason)
	}
	printEach(b, "  ", e.Summary)
	printEach(b, "  warning: ", e.Warnings)
	printEach(b, "  note: ", e.Notes)
	e.Proxy.print(b)
	if len(e.Settings) > 0 {
		b.WriteByte('\n')
		e.printSettings(b)
		b.WriteByte('\n')
	}
	_ = cmdline.PrintLines(b, e.Rules, false) // a Builder has no errors
}

func printEach(b *strings.Builder, before string, lines []string) {
	for _, line := range lines {
		fmt.Fprintf(b, "%s%s\n", before, line)
	}
}

func (e explained) printSettings(b *strings.Builder) {
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SETTING\tVALUE\tFROM")
	for _, s := range e.Settings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", s.Name, cmp.Or(s.Value, "none"), s.Source)
	}
	_ = table.Flush() // a Builder has no errors
}

func (p *explainedProxy) print(b *strings.Builder) {
	if p == nil {
		return
	}
	fmt.Fprintf(b, "  proxy of ProxyProfile %s: %s\n", p.Profile, cmp.Or(p.Image, "unknown"))
	if p.Unknown != "" {
		fmt.Fprintf(b, "    no more can be said: %s\n", p.Unknown)
	}
	if len(p.Command) > 0 {
		fmt.Fprintf(b, "    runs %s\n", strings.Join(p.Command, " "))
	}
	printEach(b, "    not honoured: ", p.NotHonoured)
	printEach(b, "    ", p.Env)
}
