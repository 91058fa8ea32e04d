package sidecars

import (
	"fmt"
	"slices"
	"text/template/parse"

	corev1 "k8s.io/api/core/v1"
)

// SharedData is what the templates of a profile with mode shared see: all pods of the node that the proxy serves.
type SharedData struct {
	Pods    []SharedPod
	Network NetworkData
	Node    string
	// Version is what the proxy has to answer on VersionSocket once its configuration is in force.
	Version, VersionSocket string
}

// SharedPod is what a template sees of one of the pods.
type SharedPod struct {
	PodData
	// NetNS is the name of the pod's network namespace in /var/run/netns.
	NetNS string
}

// PodDataOf returns what a template sees of a pod.
func PodDataOf(pod *corev1.Pod) PodData {
	return PodData{
		Name: pod.Name, Namespace: pod.Namespace, UID: string(pod.UID), IP: pod.Status.PodIP, Node: pod.Spec.NodeName,
		ServiceAccount: pod.Spec.ServiceAccountName, Labels: pod.Labels, Annotations: pod.Annotations,
	}
}

// RenderShared returns the profile's files for the pods of data.
func (p *Profile) RenderShared(data SharedData) (map[string]string, error) {
	data.Network = p.network()
	return p.render(data)
}

// render returns the profile's files by name.
func (p *Profile) render(data any) (map[string]string, error) {
	out := map[string]string{}
	for _, f := range p.files {
		text, err := f.template.execute(data)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", f.name, err)
		}
		out[f.name] = text
	}
	return out, nil
}

func (p *Profile) network() NetworkData {
	return NetworkData{InboundPort: p.Spec.Network.InboundPort, OutboundPort: p.Spec.Network.OutboundPort}
}

// checkNames returns an error if the template names what templates of the other mode see. Names below range, with and define are looked up in
// something else, and are left to the renderer.
func (t Template) checkNames(shared bool) error {
	if t.parsed.Tree == nil {
		return nil
	}
	if shared {
		return refuseNames(t.parsed.Root, []string{"Pod", "Epoch", "HandoverSocket", "AdminSocket"},
			".%s is of mode perPod: a template of mode shared sees .Pods, .Network, .Node, .Version and .VersionSocket")
	}
	return refuseNames(t.parsed.Root, []string{"Pods", "Node", "Version", "VersionSocket"},
		".%s is of mode shared: a template of mode perPod sees .Pod, .Network, .Epoch, .HandoverSocket and .AdminSocket")
}

// refuseNames returns an error that says the first of the names that a node takes from the template's data.
func refuseNames(n parse.Node, names []string, says string) error {
	for _, one := range rootNames(n, true) {
		if slices.Contains(names, one) {
			return fmt.Errorf(says, one)
		}
	}
	return nil
}

// rootNames returns the fields of the template's data that a node names: by $ anywhere, and by the dot where that is the data itself.
func rootNames(n parse.Node, dot bool) (out []string) {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, child := range n.Nodes {
			out = append(out, rootNames(child, dot)...)
		}
	case *parse.ActionNode:
		return rootNames(n.Pipe, dot)
	case *parse.TemplateNode:
		return rootNames(n.Pipe, dot)
	case *parse.PipeNode:
		if n == nil {
			return nil
		}
		for _, command := range n.Cmds {
			for _, arg := range command.Args {
				out = append(out, rootNames(arg, dot)...)
			}
		}
	case *parse.ChainNode:
		return rootNames(n.Node, dot)
	case *parse.FieldNode:
		if dot {
			return n.Ident[:1]
		}
	case *parse.VariableNode:
		if len(n.Ident) > 1 && n.Ident[0] == "$" {
			return n.Ident[1:2]
		}
	case *parse.IfNode:
		return branchNames(&n.BranchNode, dot, dot)
	case *parse.RangeNode:
		return branchNames(&n.BranchNode, dot, false)
	case *parse.WithNode:
		return branchNames(&n.BranchNode, dot, false)
	}
	return out
}

// branchNames is rootNames of a branch; inner reports whether the dot is still the data in its first list.
func branchNames(b *parse.BranchNode, dot, inner bool) []string {
	return slices.Concat(rootNames(b.Pipe, dot), rootNames(b.List, inner), rootNames(b.ElseList, dot))
}
