package check

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
)

// Gatherer reads facts from a cluster. It only reads.
type Gatherer struct {
	Client kubernetes.Interface
	// Release is the release of this program.
	Release string
	// Intent returns what an agent with these arguments takes for an intent.
	Intent func(args []string) (intent.Config, error)
	// Objects returns a page of one of the sidecar manager's kinds, as JSON. nil: they are not read.
	Objects func(ctx context.Context, resource string, o metav1.ListOptions) ([]byte, error)
}

// Gather reads everything. The Facts have the sources that could not be read; the caller bounds the time by ctx.
func (g Gatherer) Gather(ctx context.Context) *Facts {
	f := &Facts{Client: g.Release, Now: time.Now()}
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
		{sourceEvents, "list events in all namespaces", readLeftovers},
		{sourceIstio, "get configmaps and deployments in namespace " + istioNamespace, readIstio},
		{sourceProxies, "list sidecars and sidecarprofiles of pod-network-controller.istio.io in all namespaces", readProxies},
	} {
		err := s.read(ctx, g, f)
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

func readNodes(ctx context.Context, g Gatherer, f *Facts) (err error) {
	f.Nodes, err = cluster.All(ctx, g.Client.CoreV1().Nodes().List, metav1.ListOptions{}, func(n *corev1.Node) (Node, bool) { return nodeOf(n), true })
	return err
}

func readNamespaces(ctx context.Context, g Gatherer, f *Facts) error {
	f.Namespaces = map[string]map[string]string{}
	_, err := cluster.All(ctx, g.Client.CoreV1().Namespaces().List, metav1.ListOptions{}, func(ns *corev1.Namespace) (none struct{}, keep bool) {
		f.Namespaces[ns.Name] = intent.Only(ns.Annotations, intent.Reads)
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
	f.Pods, err = cluster.All(ctx, g.Client.CoreV1().Pods(metav1.NamespaceAll).List, metav1.ListOptions{}, func(pod *corev1.Pod) (Pod, bool) {
		if pod.DeletionTimestamp != nil || agentstatus.IsAgent(pod) && f.hosts(pod.Namespace) {
			return Pod{}, false
		}
		if f.Autoscaler == nil {
			f.Autoscaler = autoscalerOf(pod)
		}
		return podOf(pod, f.Namespaces[pod.Namespace], f.config), true
	})
	return err
}

func readLeftovers(ctx context.Context, g Gatherer, f *Facts) (err error) {
	o := metav1.ListOptions{FieldSelector: "reason=CNIChainLeftover"}
	f.Leftovers, err = cluster.All(ctx, g.Client.CoreV1().Events(metav1.NamespaceAll).List, o, func(e *corev1.Event) (string, bool) { return e.InvolvedObject.Name, true })
	return err
}
