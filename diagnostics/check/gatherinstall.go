package check

import (
	"context"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/sidecar"
)

func (g *Gatherer) daemonSets(ctx context.Context, f *Facts) error {
	g.config = intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()}
	err := paged(func(o metav1.ListOptions) (string, error) {
		list, err := g.Client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			f.DaemonSets = append(f.DaemonSets, daemonSetOf(&list.Items[i]))
			g.configure(&list.Items[i])
		}
		return list.Continue, nil
	})
	return err
}

// configure takes the agents' flags that decide what pods ask for. Flags of another release that are not known here are passed over.
func (g *Gatherer) configure(d *appsv1.DaemonSet) {
	if !isOurs(d) || g.Intent == nil {
		return
	}
	for i := range d.Spec.Template.Spec.Containers {
		if c := &d.Spec.Template.Spec.Containers[i]; c.Name == agentstatus.Container {
			if config, err := g.Intent(c.Args); err == nil {
				config.AgentNamespace = d.Namespace
				g.config = config
			}
		}
	}
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
	spec := &d.Spec.Template.Spec
	for i := range spec.InitContainers {
		out.Images = append(out.Images, spec.InitContainers[i].Image)
	}
	for i := range spec.Containers {
		out.Images = append(out.Images, spec.Containers[i].Image)
		if spec.Containers[i].Name != agentstatus.Container {
			continue
		}
		for _, arg := range spec.Containers[i].Args {
			if name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "="); ok {
				out.Args[name] = value
			}
		}
	}
	return out
}

// policies are the chart's. A cluster without such APIs has none.
func (g *Gatherer) policies(ctx context.Context, f *Facts) error {
	o := metav1.ListOptions{LabelSelector: agentstatus.Label, Limit: page} // a release has a handful
	api := g.Client.AdmissionregistrationV1()
	if f.APIs.Validating {
		policies, err := api.ValidatingAdmissionPolicies().List(ctx, o)
		if err != nil {
			return err
		}
		bindings, err := api.ValidatingAdmissionPolicyBindings().List(ctx, o)
		if err != nil {
			return err
		}
		bound := map[string]bool{}
		for i := range bindings.Items {
			bound[bindings.Items[i].Spec.PolicyName] = true
		}
		for i := range policies.Items {
			name := policies.Items[i].Name
			f.Policies = append(f.Policies, Policy{name, "ValidatingAdmissionPolicy", bound[name]})
		}
	}
	if !f.APIs.Mutating {
		return nil
	}
	return g.mutatingPolicies(ctx, f, o)
}

func (g *Gatherer) mutatingPolicies(ctx context.Context, f *Facts, o metav1.ListOptions) error {
	api := g.Client.AdmissionregistrationV1()
	policies, err := api.MutatingAdmissionPolicies().List(ctx, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	bindings, err := api.MutatingAdmissionPolicyBindings().List(ctx, o)
	if err != nil {
		return err
	}
	bound := map[string]bool{}
	for i := range bindings.Items {
		bound[bindings.Items[i].Spec.PolicyName] = true
	}
	for i := range policies.Items {
		name := policies.Items[i].Name
		f.Policies = append(f.Policies, Policy{name, "MutatingAdmissionPolicy", bound[name]})
	}
	return nil
}
