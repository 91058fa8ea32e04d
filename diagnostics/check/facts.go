package check

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/intent"
)

// source is something that is read from the cluster by one right.
type source string

const (
	sourceVersion    source = "the API server's version"
	sourceAPIs       source = "the APIs that are served"
	sourceDaemonSets source = "DaemonSets"
	sourceNodes      source = "nodes"
	sourceNamespaces source = "namespaces"
	sourcePods       source = "pods"
	sourcePolicies   source = "admission policies"
	sourceEvents     source = "events"
	sourceIstio      source = "Istio's configuration"
	sourceRevisions  source = "the configuration of Istio's revisions"
	sourceProxies    source = "ProxyProfiles and ManagedProxies"
	sourceRoles      source = "cluster roles and their bindings"
)

// Facts is what the checks are computed from. A list is meaningful only if its source was read.
type Facts struct {
	Client     string // the release of this program; "": not known
	Version    string // the API server's
	APIs       APIs
	DaemonSets []appsv1.DaemonSet
	Agents     []Agent
	Nodes      []corev1.Node
	Namespaces map[string]map[string]string // annotations by name
	Misplaced  map[string][]string          // keys of namespaces that nearly are ours, by name
	Pods       []Pod
	revisions  map[string]bool // of Istio, that pods were injected by
	Proxies    []v1alpha1.ManagedProxy
	Profiles   map[string]v1alpha1.ProxyProfileSpec
	Policies   []Policy
	Leftovers  []string // nodes with the event CNIChainLeftover
	Istio      Istio
	Autoscaler *Autoscaler
	Now        time.Time

	events  []agentEvent  // warnings about agents, the newest first
	removal bool          // only what an uninstall has left is asked
	objects []string      // cluster roles and bindings of the chart, as KIND/NAME
	config  intent.Config // the agents', by which pods are judged
	failed  []unread
}

// unread is a source that could not be read.
type unread struct {
	source source
	right  string // as in "list nodes"; empty if rights are not what is missing
	err    error
}

// APIs is what the API server serves.
type APIs struct {
	Validating, Mutating bool // policies, v1
	Ours                 bool // the proxy manager's objects
}

// Agent is one of the agents' pods.
type Agent = cluster.Agent

// Pod is what matters of a pod, with what the agent's intent says of it.
type Pod struct {
	Namespace, Name, Node string
	IstioInit             bool
	Injected              bool // by Istio
	// Revision is Istio's that has injected the pod. OutboundPort and InboundPort are where the agent's rules lead, or would in the place of Istio's.
	Revision                  string
	OutboundPort, InboundPort uint16
	// Istios reports whether Istio programs the pod. The next two are what the agent's rules do to it in the place of Istio's.
	Istios          bool
	Fails           string   // why they refuse the pod
	MeetNoProxy     []string // init containers that are redirected, or would be in Istio's place, before the proxy listens
	DualStackProxy  bool     // ISTIO_DUAL_STACK is true
	Families        int
	Asked, Redirect bool
	Reason          intent.Reason
	Fault           string   // a wrong setting
	Profile         string   // the ProxyProfile that it has chosen
	Misplaced       []string // keys that nearly are ours
	Ending          []string // images at registries that end
	Refused         []string // probes that mTLS mode STRICT refuses, of a pod with a profile
	MemoryRoom      int64    // bytes, as memoryRoom has it
	MemoryLimited   bool
	Status          string // the agent's annotation
	Condition       *corev1.PodCondition
	Running         bool
	Gated           bool      // it has our readiness gate
	OwnRuntime      bool      // a runtime class, whose pods may have a network stack of their own
	Since           time.Time // creation
}

// Policy is one of the chart's admission policies.
type Policy struct {
	Name  string
	Kind  string
	Bound bool
}

// Istio is what Istio's objects say, where they are.
type Istio struct {
	Revisions []Revision
	Untaint   bool   // istiod's controller of node taints
	Taint     string // the taint that it takes away; "" if it does not say
}

// Revision is one of Istio's control planes.
type Revision struct {
	Name                      string // "" for the control plane without a revision
	OutboundPort, InboundPort int    // meshConfig's; 0 if it does not say
	CNI                       *bool  // the injector's pilot.cni.enabled; nil if it does not say
	Hub                       string // the injector's global.hub; "" if it does not say
}

// Autoscaler is a program that has to know the startup taint.
type Autoscaler struct {
	Name       string // namespace/name of its pod
	KnowsTaint bool
}

// has reports whether all of the sources were read.
func (f *Facts) has(needs ...source) bool {
	return !slices.ContainsFunc(f.failed, func(u unread) bool { return slices.Contains(needs, u.source) })
}

// unread returns a result for each source that could not be read: a warning if a right is missing, else a failure. It adds a failure if
// neither DaemonSets nor nodes nor pods could be read, since then nothing is known about an installation.
func (f *Facts) unread() (out []Result) {
	for _, u := range f.failed {
		found := failing(fmt.Sprintf("%s could not be read, so some checks are missing: %s", u.source, u.err), "try again; all requests together have --timeout, and each 10 s, or kubectl's --request-timeout")
		if u.right != "" {
			found = warning(fmt.Sprintf("%s could not be read, so some checks are missing", u.source), "have the right to "+u.right)
		}
		out = append(out, newResult("rights", "missing-rights", found))
	}
	if len(out) > 0 && Worst(out) != Fail && !f.has(sourceDaemonSets) && !f.has(sourceNodes) && !f.has(sourcePods) {
		out = append(out, newResult("rights", "missing-rights", failing(
			"neither DaemonSets nor nodes nor pods could be read: what is installed, and whether it works, was not checked", "have the rights above, or choose another --context")))
	}
	return out
}

// String is the name of a pod.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// named is the name of an object, as kubectl takes it with its namespace.
func named(object metav1.Object) string { return object.GetNamespace() + "/" + object.GetName() }

// isOurs reports whether a DaemonSet is the agents': it has their label and hostNetwork. Tenants can copy the label, but mostly may not use
// the nodes' network.
func isOurs(d *appsv1.DaemonSet) bool {
	return agentstatus.Labelled(d.Labels) && d.Spec.Template.Spec.HostNetwork
}

// ours is the agent's DaemonSet, or nil. Of several it is the first.
func (f *Facts) ours() *appsv1.DaemonSet {
	for i := range f.DaemonSets {
		if isOurs(&f.DaemonSets[i]) {
			return &f.DaemonSets[i]
		}
	}
	return nil
}

// flag is the value of a flag of the agents; "" if there are no agents, or they have their default.
func (f *Facts) flag(name string) string {
	if d := f.ours(); d != nil {
		return cluster.Flag(cluster.Container(&d.Spec.Template.Spec), name)
	}
	return ""
}

// hosts reports whether a namespace may have agents: it has their DaemonSet, or DaemonSets could not be read. Whoever may create pods may give
// them the agents' label.
func (f *Facts) hosts(namespace string) bool {
	return !f.has(sourceDaemonSets) || slices.ContainsFunc(f.DaemonSets, func(d appsv1.DaemonSet) bool { return isOurs(&d) && d.Namespace == namespace })
}

// agentOn returns a node's agent: the ready one of two.
func (f *Facts) agentOn(node string) *Agent {
	var found *Agent
	for i := range f.Agents {
		if a := &f.Agents[i]; a.Node == node && (found == nil || a.Ready && !found.Ready) {
			found = a
		}
	}
	return found
}

// Unreachable returns why the cluster cannot be asked at all, or nil. A cluster that refuses to tell its version, for want of a right, can be
// asked.
func (f *Facts) Unreachable() error {
	for _, u := range f.failed {
		if u.source == sourceVersion && u.right == "" {
			return u.err
		}
	}
	return nil
}
