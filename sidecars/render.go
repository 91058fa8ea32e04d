package sidecars

import (
	"errors"
	"fmt"
	"strings"
	"text/template"
	"text/template/parse"
)

// maxFileBytes bounds a rendered file.
const maxFileBytes = 1 << 20

// Data is what a profile's templates see.
type Data struct {
	Pod     PodData
	Network NetworkData
	// Epoch is the proxy's. HandoverSocket is the path at which a proxy with handover haproxy opens its admin socket, and AdminSocket that
	// at which one with handover envoy-hot-restart has its admin interface.
	Epoch                       uint32
	HandoverSocket, AdminSocket string
}

// PodData is what a template sees of the pod.
type PodData struct {
	Name, Namespace, UID, IP, Node, ServiceAccount string
	Labels, Annotations                            map[string]string
}

// NetworkData is what a template sees of the profile's ports.
type NetworkData struct{ InboundPort, OutboundPort int32 }

// quoteFunc is the name under which templates call the quoter.
const quoteFunc = "_quote"

// A Template is a profile's file, parsed.
type Template struct{ parsed *template.Template }

// ParseTemplate parses a profile's file. Every value that it prints goes through the quoter of its syntax, at the end of the pipeline that
// prints it, so that no template can leave it out (html/template does the same).
func ParseTemplate(name, text, syntax string) (Template, error) {
	quote, err := quoter(syntax)
	if err != nil {
		return Template{}, fmt.Errorf("file %q: %w", name, err)
	}
	t, err := template.New(name).Option("missingkey=zero").Funcs(template.FuncMap{quoteFunc: quote}).Parse(text)
	if err != nil {
		return Template{}, fmt.Errorf("file %q: %w", name, err)
	}
	for _, one := range t.Templates() {
		if one.Tree != nil {
			quoteAll(one.Root)
		}
	}
	return Template{t}, nil
}

// ErrTooLarge means that a rendered file exceeds its bound.
var ErrTooLarge = errors.New("it is larger than 1 MiB")

// Render returns the file's content.
func (t Template) Render(data Data) (string, error) { return t.execute(data) }

func (t Template) execute(data any) (string, error) {
	var out bounded
	if err := t.parsed.Execute(&out, data); err != nil {
		return "", fmt.Errorf("file: %w", err)
	}
	return out.String(), nil
}

// quoteAll adds the quoter to every pipeline below n that prints.
func quoteAll(n parse.Node) {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, child := range n.Nodes {
			quoteAll(child)
		}
	case *parse.ActionNode:
		if len(n.Pipe.Decl) == 0 {
			n.Pipe.Cmds = append(n.Pipe.Cmds, &parse.CommandNode{
				NodeType: parse.NodeCommand, Pos: n.Pos, Args: []parse.Node{parse.NewIdentifier(quoteFunc).SetPos(n.Pos)},
			})
		}
	case *parse.IfNode:
		quoteBranch(&n.BranchNode)
	case *parse.RangeNode:
		quoteBranch(&n.BranchNode)
	case *parse.WithNode:
		quoteBranch(&n.BranchNode)
	}
}

func quoteBranch(b *parse.BranchNode) {
	quoteAll(b.List)
	quoteAll(b.ElseList)
}

// bounded is a text of at most maxFileBytes.
type bounded struct{ strings.Builder }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxFileBytes {
		return 0, ErrTooLarge
	}
	return b.Builder.Write(p)
}
