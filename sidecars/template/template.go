// Package template executes templates that text/template/parse has parsed, as text/template does, but for methods and the functions call, html, js and
// urlquery. text/template looks methods up by names that only a template knows, for which the linker keeps all exported methods of a program: they would
// be a third of the agent.
//
//	template.go   the nodes: text, conditions, loops, templates that call each other
//	operand.go    the values in them
//	functions.go  what they may call
//
// Values are string, int64, bool, nil, and structs, maps by text, and slices of these. A function without arguments that stands in a field is called.
package template

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"text/template/parse"
)

const (
	// maxSteps bounds the nodes and the elements that one execution visits, and maxDepth the templates that call each other.
	maxSteps = 3_000_000
	maxDepth = 100
)

// Template is a file, and the templates that it defines.
type Template struct {
	Name string
	// Trees are the file, and the templates that it defines, by name.
	Trees map[string]*parse.Tree
	// Functions are Go's own. Nodes that are added to the trees may call more.
	Functions map[string]Function
}

// Parse parses a file. The error has the place.
func Parse(name, text string) (Template, error) {
	t := Template{Name: name, Functions: builtins()}
	names := map[string]any{}
	for name := range t.Functions {
		names[name] = true
	}
	var err error
	t.Trees, err = parse.Parse(name, text, "", "", names)
	return t, err
}

// Execute writes what the template makes of data. The error has the place, and wraps that of out.
func (t Template) Execute(out io.Writer, data any) error {
	r := rendering{of: t, out: out}
	return r.call(t.Name, data, 0)
}

var (
	errTooLong = fmt.Errorf("it visits more than %d nodes and elements: a loop is too long", maxSteps)
	errTooDeep = fmt.Errorf("templates call each other more than %d deep", maxDepth)
	// What break and continue end.
	errBreak    = errors.New("break")
	errContinue = errors.New("continue")
)

// rendering is one execution.
type rendering struct {
	of    Template
	out   io.Writer
	steps int
}

// scope has the dot and the variables of a template, or of the body of a loop.
type scope struct {
	tree  *parse.Tree
	dot   any
	vars  *variable
	depth int
}

type variable struct {
	name  string
	value any
	outer *variable // declared before it
}

// with returns the scope with one more variable.
func (s scope) with(name string, value any) scope {
	s.vars = &variable{name, value, s.vars}
	return s
}

// named returns a variable. The parser takes a variable that is set for a declared one.
func (s scope) named(name string) (*variable, error) {
	for v := s.vars; v != nil; v = v.outer {
		if v.name == name {
			return v, nil
		}
	}
	return nil, fmt.Errorf("undefined variable: %s", name)
}

// call executes a template of its own.
func (r *rendering) call(name string, dot any, depth int) error {
	tree := r.of.Trees[name]
	if tree == nil {
		return fmt.Errorf("template %q is not defined", name)
	}
	if depth > maxDepth {
		return errTooDeep
	}
	return r.list(tree.Root, scope{tree: tree, dot: dot, depth: depth}.with("$", dot))
}

// list executes nodes one after the other. What they declare ends with the list.
func (r *rendering) list(n *parse.ListNode, s scope) (err error) {
	if n == nil {
		return nil
	}
	for _, child := range n.Nodes {
		if s, err = r.node(child, s); err != nil {
			return err
		}
	}
	return nil
}

// step counts a node or an element.
func (r *rendering) step() error {
	if r.steps++; r.steps > maxSteps {
		return errTooLong
	}
	return nil
}

// node executes a node, and returns the scope of the nodes that follow.
func (r *rendering) node(n parse.Node, s scope) (scope, error) {
	if err := r.step(); err != nil {
		return s, err
	}
	switch n := n.(type) {
	case *parse.TextNode:
		_, err := r.out.Write(n.Text)
		return s, err
	case *parse.ActionNode:
		value, after, err := r.evaluate(n.Pipe, s)
		if err == nil && len(n.Pipe.Decl) == 0 {
			_, err = fmt.Fprint(r.out, value)
		}
		return after, err
	case *parse.IfNode:
		return s, r.branch(&n.BranchNode, s, false)
	case *parse.WithNode:
		return s, r.branch(&n.BranchNode, s, true)
	case *parse.RangeNode:
		return s, r.loop(n, s)
	case *parse.TemplateNode:
		value, _, err := r.evaluate(n.Pipe, s)
		if err != nil {
			return s, err
		}
		return s, s.at(n, r.call(n.Name, value, s.depth+1))
	case *parse.BreakNode:
		return s, errBreak
	case *parse.ContinueNode:
		return s, errContinue
	}
	return s, nil
}

// at returns an error with its place in the file.
func (s scope) at(n parse.Node, err error) error {
	if err == nil {
		return nil
	}
	where, what := s.tree.ErrorContext(n)
	return fmt.Errorf("%s: %s: %w", where, what, err)
}

// branch executes one of two lists. In the first of a with the dot is the value.
func (r *rendering) branch(n *parse.BranchNode, s scope, with bool) error {
	value, inner, err := r.evaluate(n.Pipe, s)
	switch {
	case err != nil:
		return err
	case !isTrue(value):
		return r.list(n.ElseList, inner)
	case with:
		inner.dot = value
	}
	return r.list(n.List, inner)
}

// evaluate returns the value of a pipeline, and the scope with what it declares. The error has its place.
func (r *rendering) evaluate(p *parse.PipeNode, s scope) (any, scope, error) {
	if p == nil {
		return nil, s, nil
	}
	value, err := r.pipe(p, s)
	after := s
	for i := 0; i < len(p.Decl) && err == nil; i++ {
		after, err = after.assign(p, i, value)
	}
	return value, after, s.at(p, err)
}

// assign declares a variable of a pipeline, or gives it another value.
func (s scope) assign(p *parse.PipeNode, i int, value any) (scope, error) {
	name := p.Decl[i].Ident[0]
	if !p.IsAssign {
		return s.with(name, value), nil
	}
	v, err := s.named(name)
	if err == nil {
		v.value = value
	}
	return s, err
}

// loop executes the body of a range for each element.
func (r *rendering) loop(n *parse.RangeNode, s scope) error {
	over, err := r.pipe(n.Pipe, s)
	if err != nil {
		return s.at(n.Pipe, err)
	}
	each, err := elements(over, len(n.Pipe.Decl) > 1)
	if err != nil {
		return s.at(n.Pipe, err)
	}
	empty := true
	for key, element := range each {
		empty = false
		inner, err := s.inLoop(n.Pipe, key, element)
		if err = cmp.Or(r.step(), err); err != nil {
			return s.at(n.Pipe, err)
		}
		if err := r.list(n.List, inner); errors.Is(err, errBreak) {
			break
		} else if err != nil && !errors.Is(err, errContinue) {
			return err
		}
	}
	if empty {
		return r.list(n.ElseList, s)
	}
	return nil
}

// inLoop returns the scope of a loop's body: one variable has the element, two have its key and it.
func (s scope) inLoop(p *parse.PipeNode, key, element any) (inner scope, err error) {
	inner = s
	inner.dot = element
	values := []any{key, element}[2-max(len(p.Decl), 1):]
	for i := range p.Decl {
		if inner, err = inner.assign(p, i, values[i]); err != nil {
			return s, err
		}
	}
	return inner, nil
}
