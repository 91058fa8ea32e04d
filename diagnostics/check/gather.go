package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
)

// Gatherer reads facts from a cluster. It only reads.
type Gatherer struct {
	Client kubernetes.Interface
	// Release is the release of this program; "" if it is not known.
	Release string
	// Removal has only what an uninstall may have left be read.
	Removal bool
	// Intent returns what an agent with these arguments takes for an intent.
	Intent func(args []string) (intent.Config, error)
	// Objects returns a page of one of the proxy manager's kinds, as JSON. nil: they are not read.
	Objects func(ctx context.Context, resource string, o metav1.ListOptions) ([]byte, error)
}

// Gather reads everything. The Facts have the sources that could not be read; the caller bounds the time by ctx.
func (g Gatherer) Gather(ctx context.Context) *Facts {
	f := &Facts{Client: g.Release, Now: time.Now(), removal: g.Removal}
	for _, s := range []struct {
		source source
		right  string
		read   func(context.Context, Gatherer, *Facts) error
	}{
		{sourceVersion, "get /version", readVersion},
		{sourceAPIs, "get /apis", readAPIs},
		{sourceDaemonSets, "list daemonsets in all namespaces", readDaemonSets},
		{sourceNodes, "list nodes", readNodes},
		{sourceNamespaces, "list namespaces", readNamespaces},
		{sourcePods, "list pods in all namespaces", readPods},
		{sourcePolicies, "list admission policies and their bindings", readPolicies},
		{sourceEvents, "list events in all namespaces", readEvents},
		{sourceIstio, "get configmaps and deployments in namespace " + istioNamespace, func(ctx context.Context, g Gatherer, f *Facts) error { return f.Istio.readRevision(ctx, g, "") }},
		{sourceRevisions, "get the configmaps and deployments of the revisions that pods name, in namespace " + istioNamespace, readRevisions},
		{sourceProxies, "list managedproxies and proxyprofiles of pod-network-controller.istio.io in all namespaces", readProxies},
		{sourceRoles, "list clusterroles and clusterrolebindings", readRoles},
	} {
		if ofIstio := s.source == sourceIstio || s.source == sourceRevisions; g.Removal && ofIstio || !g.Removal && s.source == sourceRoles {
			continue
		}
		err := s.read(ctx, g, f)
		switch {
		case apierrors.IsForbidden(err):
			f.failed = append(f.failed, unread{s.source, s.right, err})
		case err != nil:
			f.failed = append(f.failed, unread{s.source, "", err})
		}
		if f.Unreachable() != nil {
			break
		}
	}
	return f
}

// discovery asks what the API server serves, and gives up when the context ends.
func (g Gatherer) discovery() discovery.DiscoveryInterfaceWithContext {
	return discovery.ToDiscoveryInterfaceWithContext(g.Client.Discovery())
}

func readVersion(ctx context.Context, g Gatherer, f *Facts) error {
	have, err := g.discovery().ServerVersionWithContext(ctx)
	if err == nil {
		f.Version = have.GitVersion
	}
	return err
}

func readAPIs(ctx context.Context, g Gatherer, f *Facts) error {
	groups, err := g.discovery().ServerGroupsWithContext(ctx)
	if err != nil {
		return err
	}
	for i := range groups.Groups {
		f.APIs.Ours = f.APIs.Ours || groups.Groups[i].Name == "pod-network-controller.istio.io"
	}
	list, err := g.discovery().ServerResourcesForGroupVersionWithContext(ctx, "admissionregistration.k8s.io/v1")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range list.APIResources {
		f.APIs.Validating = f.APIs.Validating || list.APIResources[i].Kind == "ValidatingAdmissionPolicy"
		f.APIs.Mutating = f.APIs.Mutating || list.APIResources[i].Kind == "MutatingAdmissionPolicy"
	}
	return nil
}

func readDaemonSets(ctx context.Context, g Gatherer, f *Facts) (err error) {
	f.config = intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()}
	f.DaemonSets, err = cluster.All(ctx, g.Client.AppsV1().DaemonSets(metav1.NamespaceAll).List, metav1.ListOptions{}, func(d *appsv1.DaemonSet) (appsv1.DaemonSet, bool) {
		if isOurs(d) && g.Intent != nil {
			// Flags of another release that are not known here are passed over.
			if config, err := g.Intent(cluster.Container(&d.Spec.Template.Spec).Args); err == nil {
				config.AgentNamespace = d.Namespace
				f.config = config
			}
		}
		return *d, true
	})
	return err
}

func readNodes(ctx context.Context, g Gatherer, f *Facts) (err error) {
	f.Nodes, err = cluster.Nodes(ctx, g.Client, "")
	return err
}

func readNamespaces(ctx context.Context, g Gatherer, f *Facts) error {
	f.Namespaces, f.Misplaced = map[string]map[string]string{}, map[string][]string{}
	_, err := cluster.All(ctx, g.Client.CoreV1().Namespaces().List, metav1.ListOptions{}, func(ns *corev1.Namespace) (none struct{}, keep bool) {
		f.Namespaces[ns.Name] = intent.Only(ns.Annotations, intent.Reads)
		if near := intent.Misplaced(ns.Annotations, ns.Labels); len(near) > 0 {
			f.Misplaced[ns.Name] = near
		}
		return none, false
	})
	return err
}

// readPods keeps a few fields of each pod, so that large clusters cost little memory.
func readPods(ctx context.Context, g Gatherer, f *Facts) error {
	agents, err := cluster.Agents(ctx, g.Client, metav1.NamespaceAll, "")
	if err != nil {
		return err
	}
	f.Agents = slices.DeleteFunc(agents, func(a Agent) bool { return a.Pod.DeletionTimestamp != nil || !f.hosts(a.Namespace) })
	f.revisions = map[string]bool{}
	f.Pods, err = cluster.All(ctx, g.Client.CoreV1().Pods(metav1.NamespaceAll).List, metav1.ListOptions{}, func(pod *corev1.Pod) (Pod, bool) {
		if pod.DeletionTimestamp != nil || agentstatus.IsAgent(pod) && f.hosts(pod.Namespace) {
			return Pod{}, false
		}
		if f.Autoscaler == nil {
			f.Autoscaler = autoscalerOf(pod)
		}
		if revision, injected := revisionOf(pod); injected {
			f.revisions[revision] = true
		}
		return podOf(pod, f.Namespaces[pod.Namespace], f.config), true
	})
	return err
}

func readEvents(ctx context.Context, g Gatherer, f *Facts) error {
	return errors.Join(readLeftovers(ctx, g, f), readAgentEvents(ctx, g, f))
}

func readLeftovers(ctx context.Context, g Gatherer, f *Facts) (err error) {
	o := metav1.ListOptions{FieldSelector: "reason=CNIChainLeftover"}
	f.Leftovers, err = cluster.All(ctx, g.Client.CoreV1().Events(metav1.NamespaceAll).List, o, func(e *corev1.Event) (string, bool) { return e.InvolvedObject.Name, true })
	return err
}

// readProxies reads the proxy manager's objects, where the cluster has its definitions.
func readProxies(ctx context.Context, g Gatherer, f *Facts) (err error) {
	if !f.APIs.Ours || g.Objects == nil {
		return nil
	}
	f.Proxies, err = cluster.All(ctx, decoded[v1alpha1.ManagedProxyList](g, "managedproxies"), metav1.ListOptions{}, func(p *v1alpha1.ManagedProxy) (v1alpha1.ManagedProxy, bool) {
		p.ManagedFields = nil // which takes more memory than the rest
		return *p, true
	})
	if err != nil {
		return err
	}
	f.Profiles = map[string]v1alpha1.ProxyProfileSpec{}
	_, err = cluster.All(ctx, decoded[v1alpha1.ProxyProfileList](g, "proxyprofiles"), metav1.ListOptions{}, func(p *v1alpha1.ProxyProfile) (none struct{}, keep bool) {
		f.Profiles[p.Name] = p.Spec
		return none, false
	})
	return err
}

// decoded returns what reads a page of one kind. A cluster that has only the other kind's definition has none of this one.
func decoded[L any](g Gatherer, resource string) func(context.Context, metav1.ListOptions) (*L, error) {
	return func(ctx context.Context, o metav1.ListOptions) (*L, error) {
		list := new(L)
		raw, err := g.Objects(ctx, resource, o)
		switch {
		case apierrors.IsNotFound(err):
			return list, nil
		case err != nil:
			return nil, err
		}
		if err := json.Unmarshal(raw, list); err != nil {
			return nil, fmt.Errorf("read %s: %w", resource, err)
		}
		return list, nil
	}
}

// readPolicies reads the chart's. A cluster without such APIs has none.
func readPolicies(ctx context.Context, g Gatherer, f *Facts) error {
	o, api := metav1.ListOptions{LabelSelector: agentstatus.Label}, g.Client.AdmissionregistrationV1()
	if f.APIs.Validating {
		bound, err := cluster.All(ctx, api.ValidatingAdmissionPolicyBindings().List, o,
			func(b *admissionv1.ValidatingAdmissionPolicyBinding) (string, bool) {
				f.objects = append(f.objects, "validatingadmissionpolicybinding/"+b.Name)
				return b.Spec.PolicyName, true
			})
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
		func(b *admissionv1.MutatingAdmissionPolicyBinding) (string, bool) {
			f.objects = append(f.objects, "mutatingadmissionpolicybinding/"+b.Name)
			return b.Spec.PolicyName, true
		})
	if err != nil {
		return err
	}
	policies, err := cluster.All(ctx, api.MutatingAdmissionPolicies().List, o, func(p *admissionv1.MutatingAdmissionPolicy) (Policy, bool) {
		return Policy{p.Name, "MutatingAdmissionPolicy", slices.Contains(bound, p.Name)}, true
	})
	f.Policies = append(f.Policies, policies...)
	return err
}
