package profile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template/parse"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/sidecars/template"
)

const maxFileBytes = 1 << 20

// Data is what a profile's templates see.
type Data struct {
	Pod       PodData
	Namespace NamespaceData
	Network   NetworkData
	// Epoch is the proxy's, and Slot its slot: proxies that stand side by side (reusePort) have different ones. HandoverSocket is the
	// path at which a proxy with handover haproxy opens its admin socket. AdminSocket is for an admin interface of the epoch's own, which
	// the handover envoyHotRestart wants there.
	Epoch, Slot                 uint32
	HandoverSocket, AdminSocket string
}

// PodData is what a template sees of the pod.
type PodData struct {
	Name, Namespace, UID, IP, Node, ServiceAccount string
	// IPs has an address of each family; IP is the first one.
	IPs                 []string
	Labels, Annotations map[string]string
}

// NamespaceData is the namespace of a pod in its templates. The author of a pod cannot write any of it.
type NamespaceData struct {
	Name string
	// EgressNames returns the names that the namespace's annotation allows. The error names the annotation, the namespace and the value.
	EgressNames func() ([]intent.EgressName, error)
}

// egressNamesField is the name by which templates have them.
const egressNamesField = "EgressNames"

// NetworkData is what a template sees of the profile's ports.
type NetworkData struct{ InboundPort, OutboundPort int32 }

// SharedData is what the templates of a shared profile see: all pods of the node that the proxy serves.
type SharedData struct {
	Pods    []SharedPod
	Network NetworkData
	Node    string
	// Version is what the proxy has to answer once its configuration is in force.
	Version string
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
		IPs: addressesOf(pod), ServiceAccount: pod.Spec.ServiceAccountName, Labels: pod.Labels, Annotations: pod.Annotations,
	}
}

func addressesOf(pod *corev1.Pod) (out []string) {
	for _, of := range pod.Status.PodIPs {
		out = append(out, of.IP)
	}
	return out
}

// quoteFunc is the name under which templates call the quoter.
const quoteFunc = "_quote"

// A Template is a profile's file, parsed.
type Template struct{ parsed template.Template }

// ParseTemplate parses a profile's file. Every value that it prints goes through the quoter of its syntax, at the end of the pipeline that
// prints it, so that no template can leave it out (html/template does the same).
func ParseTemplate(name, text, syntax string) (Template, error) {
	quote, err := quoter(syntax)
	if err != nil {
		return Template{}, fmt.Errorf("file %q: %w", name, err)
	}
	parsed, err := template.Parse(name, text)
	t := Template{parsed}
	if err == nil {
		err = t.checkPlaces(syntax)
	}
	if err != nil {
		return Template{}, fmt.Errorf("file %q: %w", name, err)
	}
	t.parsed.Functions[quoteFunc], t.parsed.Functions[numberFunc], t.parsed.Functions[wordFunc] = printing(quote), printing(onlyNumber), printing(quotedBy(quotePlain))
	for _, one := range t.parsed.Trees {
		quoteAll(one.Root)
	}
	return t, nil
}

// printing returns a function of one value.
func printing(quote func(any) (string, error)) template.Function {
	return template.Function{Least: 1, Most: 1, Call: func(args []any) (any, error) { return quote(args[0]) }}
}

// ErrTooLarge means that a rendered file exceeds its bound.
var ErrTooLarge = errors.New("it is larger than 1 MiB")

func (t Template) execute(data any) (string, error) {
	var out bounded
	if err := t.parsed.Execute(&out, data); err != nil {
		return "", fmt.Errorf("file: %w", err)
	}
	return out.String(), nil
}

// quoteAll adds the quoter to every pipeline below n that prints.
func quoteAll(n parse.Node) {
	walk(n, true, func(n parse.Node, _ bool) {
		if action, prints := n.(*parse.ActionNode); prints && len(action.Pipe.Decl) == 0 && !unquoted(action.Pipe) {
			action.Pipe.Cmds = append(action.Pipe.Cmds, call(quoteFunc, action.Pos))
		}
	})
}

// walk visits a node, and then the nodes below it. dot reports whether the dot is the template's data there.
func walk(n parse.Node, dot bool, visit func(n parse.Node, dot bool)) {
	visit(n, dot)
	branch := func(b *parse.BranchNode, inner bool) {
		walk(b.Pipe, dot, visit)
		walk(b.List, inner, visit)
		if b.ElseList != nil {
			walk(b.ElseList, dot, visit)
		}
	}
	switch n := n.(type) {
	case *parse.ListNode:
		for _, child := range n.Nodes {
			walk(child, dot, visit)
		}
	case *parse.ActionNode:
		walk(n.Pipe, dot, visit)
	case *parse.TemplateNode:
		if n.Pipe != nil {
			walk(n.Pipe, dot, visit)
		}
	case *parse.PipeNode:
		for _, command := range n.Cmds {
			for _, arg := range command.Args {
				walk(arg, dot, visit)
			}
		}
	case *parse.ChainNode:
		walk(n.Node, dot, visit)
	case *parse.IfNode:
		branch(&n.BranchNode, dot)
	case *parse.RangeNode:
		branch(&n.BranchNode, false)
	case *parse.WithNode:
		branch(&n.BranchNode, false)
	}
}

type bounded struct{ strings.Builder }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxFileBytes {
		return 0, ErrTooLarge
	}
	return b.Builder.Write(p)
}

// readsEgressNames reports whether the template asks for the names that a pod's namespace allows, in whatever way.
func (t Template) readsEgressNames() (reads bool) {
	for _, one := range t.parsed.Trees {
		walk(one.Root, true, func(n parse.Node, _ bool) {
			var path []string
			switch n := n.(type) {
			case *parse.FieldNode:
				path = n.Ident
			case *parse.VariableNode:
				path = n.Ident
			case *parse.ChainNode:
				path = n.Field
			}
			reads = reads || slices.Contains(path, egressNamesField)
		})
	}
	return reads
}

// checkNames returns an error if the template names what only templates of the other kind see. Names below range, with and define are looked up in
// something else, and are left to the renderer.
func (t Template) checkNames(shared bool) error {
	others, says := []string{"Pods", "Node", "Version"},
		".%s is for shared proxies: a template of a container sees .Pod, .Namespace, .Network, .Epoch, .Slot, .HandoverSocket and .AdminSocket"
	if shared {
		others, says = []string{"Pod", "Namespace", "Epoch", "Slot", "HandoverSocket", "AdminSocket"},
			".%s is for containers: a template of a shared proxy sees .Pods, .Network, .Node and .Version"
	}
	var wrong error
	walk(t.parsed.Trees[t.parsed.Name].Root, true, func(n parse.Node, dot bool) {
		name := ""
		switch n := n.(type) {
		case *parse.FieldNode:
			if dot {
				name = n.Ident[0]
			}
		case *parse.VariableNode:
			if len(n.Ident) > 1 && n.Ident[0] == "$" {
				name = n.Ident[1]
			}
		}
		if wrong == nil && slices.Contains(others, name) {
			wrong = fmt.Errorf(says, name)
		}
	})
	return wrong
}
