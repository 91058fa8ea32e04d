package check

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
)

// page is how many objects one answer of the API server has at most.
const page = 500

// istioNamespace is where Istio's objects are looked for.
const istioNamespace = "istio-system"

// Gatherer reads facts from a cluster. It only reads.
type Gatherer struct {
	Client kubernetes.Interface
	// Release is the release of this program.
	Release string
	// Intent returns what an agent with these arguments takes for an intent.
	Intent func(args []string) (intent.Config, error)
	// Objects returns a page of one of the sidecar manager's kinds, as JSON. nil: they are not read.
	Objects func(ctx context.Context, resource string, o metav1.ListOptions) ([]byte, error)

	config intent.Config
}

// Gather reads everything. What cannot be read is remembered in the Facts; the caller bounds the time by ctx.
func (g *Gatherer) Gather(ctx context.Context) *Facts {
	f := &Facts{Client: g.Release, Now: time.Now()}
	for _, s := range []struct {
		source source
		right  string
		read   func(context.Context, *Facts) error
	}{
		{sourceVersion, "get /version", g.version},
		{sourceAPIs, "get /apis", g.apis},
		{sourceDaemonSets, "list daemonsets in all namespaces", g.daemonSets},
		{sourceNodes, "list nodes", g.nodes},
		{sourceNamespaces, "list namespaces", g.namespaces},
		{sourcePods, "list pods in all namespaces", g.pods},
		{sourcePolicies, "list admission policies and their bindings", g.policies},
		{sourceEvents, "list events in all namespaces", g.leftovers},
		{sourceIstio, "get configmaps and deployments in namespace " + istioNamespace, g.istio},
		{sourceProxies, "list sidecars and sidecarprofiles of pod-network-controller.istio.io in all namespaces", g.proxies},
	} {
		err := s.read(ctx, f)
		right := ""
		if apierrors.IsForbidden(err) {
			right = s.right
		}
		f.noted(s.source, right, err)
		if f.Unreachable() != nil {
			break
		}
	}
	return f
}

// discovery asks what the API server serves, and gives up when the context ends.
func (g *Gatherer) discovery() discovery.DiscoveryInterfaceWithContext {
	return discovery.ToDiscoveryInterfaceWithContext(g.Client.Discovery())
}

func (g *Gatherer) version(ctx context.Context, f *Facts) error {
	have, err := g.discovery().ServerVersionWithContext(ctx)
	if err == nil {
		f.Version = have.GitVersion
	}
	return err
}

func (g *Gatherer) apis(ctx context.Context, f *Facts) error {
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

// paged calls list for each page until there is none left.
func paged(list func(metav1.ListOptions) (next string, err error)) error {
	options := metav1.ListOptions{Limit: page}
	for {
		next, err := list(options)
		if err != nil || next == "" {
			return err
		}
		options.Continue = next
	}
}

func (g *Gatherer) nodes(ctx context.Context, f *Facts) error {
	return paged(func(o metav1.ListOptions) (string, error) {
		list, err := g.Client.CoreV1().Nodes().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			f.Nodes = append(f.Nodes, nodeOf(&list.Items[i]))
		}
		return list.Continue, nil
	})
}

func (g *Gatherer) namespaces(ctx context.Context, f *Facts) error {
	f.Namespaces = map[string]map[string]string{}
	return paged(func(o metav1.ListOptions) (string, error) {
		list, err := g.Client.CoreV1().Namespaces().List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			ns := &list.Items[i]
			f.Namespaces[ns.Name] = intent.Only(ns.Annotations, intent.Reads)
		}
		return list.Continue, nil
	})
}

// pods keeps a few fields of each pod, so that large clusters cost little memory.
func (g *Gatherer) pods(ctx context.Context, f *Facts) error {
	return paged(func(o metav1.ListOptions) (string, error) {
		list, err := g.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			g.pod(f, &list.Items[i])
		}
		return list.Continue, nil
	})
}

func (g *Gatherer) pod(f *Facts, pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		return
	}
	if agentstatus.IsAgent(pod) && f.hosts(pod.Namespace) {
		f.Agents = append(f.Agents, agentOf(pod))
		return
	}
	if found := autoscalerOf(pod); found != nil && f.Autoscaler == nil {
		f.Autoscaler = found
	}
	f.Pods = append(f.Pods, podOf(pod, f.Namespaces[pod.Namespace], g.config))
}

func (g *Gatherer) leftovers(ctx context.Context, f *Facts) error {
	return paged(func(o metav1.ListOptions) (string, error) {
		o.FieldSelector = "reason=CNIChainLeftover"
		list, err := g.Client.CoreV1().Events(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			f.Leftovers = append(f.Leftovers, list.Items[i].InvolvedObject.Name)
		}
		return list.Continue, nil
	})
}
