package profile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"text/template/parse"
	"unicode"
)

// Functions that templates call instead of the quoter, where quotes do not count: numberFunc prints numbers only, wordFunc harmless words, too.
const (
	numberFunc = "_number"
	wordFunc   = "_word"
)

// numbers are the values that the manager itself counts: they may be printed inside quotes.
var numbers = []string{".Epoch", "$.Epoch", ".Network.InboundPort", "$.Network.InboundPort", ".Network.OutboundPort", "$.Network.OutboundPort"}

// onlyNumber returns a number as it is, and an error for all else.
func onlyNumber(value any) (string, error) {
	text, bare, err := scalar(value)
	if err == nil && !bare {
		err = fmt.Errorf("value %q is printed inside quotes: it would leave them", text)
	}
	return text, err
}

// position is where in a file something is printed, as far as that decides what a quoted value means there.
type position struct {
	quote   rune // the open quote, '#' in a comment, or 0
	escaped bool // a backslash precedes
	// depth counts the open brackets of a word of HAProxy's: the arguments of an expression are read once more after the quotes are taken off,
	// so that only harmless words are printed there.
	depth int
	// before is the previous character; 0 is the beginning of a line or of a YAML value.
	before rune
}

// placing is a walk through a template that finds the values which quotes of their own do not hold together.
type placing struct {
	tree   *parse.Tree
	syntax string
	// lines ends quotes with their line. YAML is walked in both ways, since a stray quote in a block of text opens nothing.
	lines bool
}

// checkPlaces returns an error if the template prints a value inside quotes of its own, or where else the value's quotes do not count. In a file
// of syntax plain a value is one harmless word everywhere.
func (t Template) checkPlaces(syntax string) error {
	if syntax == syntaxPlain || syntax == "" {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(t.parsed.Trees)) {
		one := t.parsed.Trees[name]
		for _, lines := range []bool{false, true} {
			if lines && syntax != syntaxYAML {
				continue
			}
			p := placing{one, syntax, lines || syntax == syntaxHAProxy}
			end, err := p.walk(one.Root, position{})
			if err == nil && name != t.parsed.Name {
				err = p.plain(one.Root, end, "it ends")
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (p placing) walk(n parse.Node, at position) (position, error) {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return at, nil
		}
		for _, child := range n.Nodes {
			var err error
			if at, err = p.walk(child, at); err != nil {
				return at, err
			}
		}
	case *parse.TextNode:
		for _, r := range string(n.Text) {
			at = p.after(at, r)
		}
	case *parse.ActionNode:
		if len(n.Pipe.Decl) == 0 {
			return p.printed(n, at)
		}
	case *parse.TemplateNode:
		return position{before: '"'}, p.plain(n, at, "it is printed")
	case *parse.BreakNode:
		return at, p.plain(n, position{quote: at.quote, escaped: at.escaped}, "it is")
	case *parse.ContinueNode:
		return at, p.plain(n, position{quote: at.quote, escaped: at.escaped}, "it is")
	case *parse.IfNode:
		return p.branch(n, &n.BranchNode, at)
	case *parse.WithNode:
		return p.branch(n, &n.BranchNode, at)
	case *parse.RangeNode:
		once, err := p.branch(n, &n.BranchNode, at)
		if err != nil {
			return at, err
		}
		return p.branch(n, &n.BranchNode, once)
	}
	return at, nil
}

// printed returns the position after a printed value. A number needs no quotes, which is checked once more when the file is rendered.
func (p placing) printed(n *parse.ActionNode, at position) (position, error) {
	if at.quote == '#' { // a value has one line
		return at, nil
	}
	if at.depth > 0 && at.quote == 0 && !at.escaped {
		use(n.Pipe, wordFunc)
		return at, nil
	}
	err := p.plain(n, at, "the value is printed")
	if err != nil && !at.escaped && slices.Contains(numbers, n.Pipe.Cmds[0].String()) && use(n.Pipe, numberFunc) {
		err = nil
	}
	at.before = '"'
	return at, err
}

// use has a pipeline print by a function instead of the quoter, and reports whether it does now.
func use(pipe *parse.PipeNode, function string) bool {
	if len(pipe.Cmds) == 1 || !unquoted(pipe) {
		pipe.Cmds = append(pipe.Cmds, call(function, pipe.Pos))
	}
	return len(pipe.Cmds) == 2 || function == wordFunc
}

func unquoted(pipe *parse.PipeNode) bool {
	last := pipe.Cmds[len(pipe.Cmds)-1].String()
	return last == numberFunc || last == wordFunc
}

// plain returns an error unless a position is outside of quotes and comments, and, in YAML, at the beginning of a value.
func (p placing) plain(n parse.Node, at position, what string) error {
	why := ""
	switch {
	case at.quote == '#':
		why = "in a comment"
	case at.quote != 0:
		why = fmt.Sprintf("inside quotes (%c)", at.quote)
	case at.escaped:
		why = "behind a backslash"
	case at.depth > 0:
		why = "inside the brackets of an expression"
	case p.syntax == syntaxYAML && !begins(at.before):
		why = "in the middle of a value"
	default:
		return nil
	}
	where, context := p.tree.ErrorContext(n)
	return fmt.Errorf("%s: %s: %s %s, where its own quotes do not hold it together: print it as a word of its own, with a space before it", where, context, what, why)
}

// branch returns the position after a branch: the stricter one of both ways through it.
func (p placing) branch(n parse.Node, b *parse.BranchNode, at position) (position, error) {
	first, err := p.walk(b.List, at)
	other, errOther := p.walk(b.ElseList, at)
	if err := errors.Join(err, errOther); err != nil {
		return at, err
	}
	if first.quote != other.quote {
		where, context := p.tree.ErrorContext(n)
		return at, fmt.Errorf("%s: %s: quotes or a comment are open behind one of its ways only: close them where they are opened", where, context)
	}
	if begins(first.before) {
		first.before = other.before
	}
	first.escaped, first.depth = first.escaped || other.escaped, max(first.depth, other.depth)
	return first, nil
}

func (p placing) after(at position, r rune) position {
	before := at.before
	at.before = r
	switch {
	case at.quote != 0 && r == '\n' && (p.lines || at.quote == '#'):
		return position{}
	case at.quote == '#':
	case at.escaped:
		at.escaped = false
	case r == '\\':
		at.escaped = at.quote == '"' || at.quote == 0 && p.syntax == syntaxHAProxy
	case r == at.quote:
		at.quote = 0
	case at.quote == 0:
		at = p.outside(at, before, r)
	}
	if p.syntax == syntaxHAProxy {
		at.depth = depth(at, r)
	}
	return at
}

// outside returns the position after a character outside of quotes.
func (p placing) outside(at position, before, r rune) position {
	yaml := p.syntax == syntaxYAML
	switch {
	case r == '"' || r == '\'' && p.syntax != syntaxJSON:
		if !yaml || begins(before) || before == r { // '' in a YAML string is a quote
			at.quote = r
		}
	case r == '#':
		if p.syntax == syntaxHAProxy || yaml && (before == 0 || unicode.IsSpace(before)) {
			at.quote = '#'
		}
	case yaml && (begins(before) && (r == '[' || r == '{') || (r == ',' || r == ':') && slices.Contains([]rune(`"']}`), before)):
		at.before = 0 // a value of a flow collection begins
	}
	return at
}

func begins(before rune) bool { return before == 0 || unicode.IsSpace(before) }

// depth returns how many brackets of a word are open. A space outside of quotes ends the word.
func depth(at position, r rune) int {
	switch {
	case r == '(' || r == '[':
		return at.depth + 1
	case r == ')' || r == ']':
		return max(at.depth-1, 0)
	case unicode.IsSpace(r) && at.quote == 0:
		return 0
	}
	return at.depth
}

// call returns the end of a pipeline that gives its value to a function.
func call(function string, at parse.Pos) *parse.CommandNode {
	return &parse.CommandNode{NodeType: parse.NodeCommand, Pos: at, Args: []parse.Node{parse.NewIdentifier(function).SetPos(at)}}
}
