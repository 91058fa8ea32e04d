package check

import (
	"context"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/sidecar"
)

func readDaemonSets(ctx context.Context, g Gatherer, f *Facts) (err error) {
	f.config = intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()}
	f.DaemonSets, err = cluster.All(ctx, g.Client.AppsV1().DaemonSets(metav1.NamespaceAll).List, metav1.ListOptions{}, func(d *appsv1.DaemonSet) (DaemonSet, bool) {
		if isOurs(d) && g.Intent != nil {
			// Flags of another release that are not known here are passed over.
			if config, err := g.Intent(cluster.Container(&d.Spec.Template.Spec).Args); err == nil {
				config.AgentNamespace = d.Namespace
				f.config = config
			}
		}
		return daemonSetOf(d), true
	})
	return err
}

// isOurs reports whether a DaemonSet is the agents': it has their label and hostNetwork. Tenants can copy the label, but mostly may not use
// the nodes' network.
func isOurs(d *appsv1.DaemonSet) bool {
	return agentstatus.Labelled(d.Labels) && d.Spec.Template.Spec.HostNetwork
}

func daemonSetOf(d *appsv1.DaemonSet) DaemonSet {
	out := DaemonSet{
		Namespace: d.Namespace, Name: d.Name, Ours: isOurs(d), Args: map[string]string{}, SharedProxy: d.Spec.Template.Labels[sidecar.LabelShared],
		Desired: d.Status.DesiredNumberScheduled, Ready: d.Status.NumberReady, Updated: d.Status.UpdatedNumberScheduled, Misscheduled: d.Status.NumberMisscheduled,
	}
	_, out.ByHelm = d.Annotations["meta.helm.sh/release-name"]
	for _, c := range slices.Concat(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers) {
		out.Images = append(out.Images, c.Image)
	}
	for _, arg := range cluster.Container(&d.Spec.Template.Spec).Args {
		if name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "="); ok {
			out.Args[name] = value
		}
	}
	return out
}

// readPolicies reads the chart's. A cluster without such APIs has none.
func readPolicies(ctx context.Context, g Gatherer, f *Facts) error {
	o, api := metav1.ListOptions{LabelSelector: agentstatus.Label}, g.Client.AdmissionregistrationV1()
	if f.APIs.Validating {
		bound, err := cluster.All(ctx, api.ValidatingAdmissionPolicyBindings().List, o,
			func(b *admissionv1.ValidatingAdmissionPolicyBinding) (string, bool) { return b.Spec.PolicyName, true })
		if err != nil {
			return err
		}
		policies, err := cluster.All(ctx, api.ValidatingAdmissionPolicies().List, o, func(p *admissionv1.ValidatingAdmissionPolicy) (Policy, bool) {
			return Policy{p.Name, "ValidatingAdmissionPolicy", slices.Contains(bound, p.Name)}, true
		})
		if f.Policies = policies; err != nil {
			return err
		}
	}
	if !f.APIs.Mutating {
		return nil
	}
	bound, err := cluster.All(ctx, api.MutatingAdmissionPolicyBindings().List, o,
		func(b *admissionv1.MutatingAdmissionPolicyBinding) (string, bool) { return b.Spec.PolicyName, true })
	if err != nil {
		return err
	}
	policies, err := cluster.All(ctx, api.MutatingAdmissionPolicies().List, o, func(p *admissionv1.MutatingAdmissionPolicy) (Policy, bool) {
		return Policy{p.Name, "MutatingAdmissionPolicy", slices.Contains(bound, p.Name)}, true
	})
	f.Policies = append(f.Policies, policies...)
	return err
}
