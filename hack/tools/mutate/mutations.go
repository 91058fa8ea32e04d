package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mutation is one change of a function.
type mutation struct {
	id   int
	name string // file, function, what it was, and what it becomes
	copy string // the function with the change, under a name of its own
}

// function is a function of a source file.
type function struct {
	decl      *ast.FuncDecl
	mutations []*mutation
}

// source is a file, and the mutations that were found in it.
type source struct {
	path      string
	content   []byte
	set       *token.FileSet
	file      *ast.File
	constants map[string]bool // of the package
	functions []*function
	names     map[string]int
	next      *int // the number of the next mutation
}

func parse(path string) (*source, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := &source{path: path, content: content, set: token.NewFileSet(), names: map[string]int{}, constants: map[string]bool{}}
	s.file, err = parser.ParseFile(s.set, path, content, parser.SkipObjectResolution)
	return s, err
}

// collect notes the numbers that the file declares.
func (s *source) collect(constants map[string]bool) {
	for _, d := range s.file.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
			for _, spec := range g.Specs {
				for i, v := range spec.(*ast.ValueSpec).Values {
					if text := strings.TrimPrefix(s.text(v), "-"); text != "" && text[0] >= '0' && text[0] <= '9' {
						constants[spec.(*ast.ValueSpec).Names[i].Name] = true
					}
				}
			}
		}
	}
}

// mutate finds the mutations of the file's functions, without those that build no rules.
func (s *source) mutate(constants map[string]bool, next *int, leave []string) {
	s.constants, s.next = constants, next
	for _, d := range s.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && !slices.Contains(leave, f.Name.Name) {
			s.functions = append(s.functions, &function{decl: f})
			ast.Inspect(f.Body, s.visit)
		}
	}
}

// schemata returns the file with a copy of a function for each of its mutations. The environment chooses one. lines are the copies' first lines.
func (s *source) schemata() (text string, lines map[int]*mutation) {
	at, lines := 0, map[int]*mutation{}
	var b, copies strings.Builder
	line := strings.Count(string(s.content), "\n") + 1
	for _, f := range s.functions {
		brace := s.offset(f.decl.Body.Lbrace) + 1
		b.Write(s.content[at:brace])
		at = brace
		if len(f.mutations) > 0 {
			b.WriteString(" switch mutant {") // in the same line
		}
		for _, m := range f.mutations {
			fmt.Fprintf(&b, " case %d: %s;", m.id, f.call(m.id))
			lines[line] = m
			copies.WriteString(m.copy + "\n")
			line += strings.Count(m.copy, "\n") + 1
		}
		if len(f.mutations) > 0 {
			b.WriteString(" };")
		}
	}
	b.Write(s.content[at:])
	return b.String() + copies.String(), lines
}

// call calls the copy with a number, with the function's own parameters.
func (f *function) call(id int) string {
	var args []string
	for _, p := range f.decl.Type.Params.List {
		for _, name := range p.Names {
			args = append(args, name.Name)
			if _, variadic := p.Type.(*ast.Ellipsis); variadic {
				args[len(args)-1] += "..."
			}
		}
	}
	call := fmt.Sprintf("%sMutant%d(%s)", f.decl.Name.Name, id, strings.Join(args, ", "))
	if f.decl.Recv != nil {
		call = f.decl.Recv.List[0].Names[0].Name + "." + call
	}
	if f.decl.Type.Results == nil {
		return call + "; return"
	}
	return "return " + call
}

func (s *source) offset(p token.Pos) int { return s.set.Position(p).Offset }

func (s *source) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.Ident:
		if s.constants[n.Name] {
			s.replace(n, "("+n.Name+" + 1)")
		}
	case *ast.BlockStmt:
		s.statements(n.List)
	case *ast.CaseClause:
		s.statements(n.Body)
	case *ast.CallExpr:
		s.call(n)
	case *ast.CompositeLit:
		if text := s.text(n.Type); text == "[]Cond" || text == "[][]Cond" || text == "[]uint16" {
			s.drop(n.Elts, n.Rbrace)
		}
	case *ast.KeyValueExpr:
		becomes := map[string]string{"Drop": "Return", "Divert": "SetMark", "TProxy": "Redirect", "SaveMark": "RestoreMark", "RestoreMark": "SaveMark", "Return": "Drop"}
		if to := becomes[s.text(n.Value)]; s.text(n.Key) == "Verb" && to != "" {
			s.replace(n.Value, to)
		}
	case *ast.BasicLit:
		if v, err := strconv.ParseInt(n.Value, 0, 64); n.Kind == token.INT && err == nil {
			s.replace(n, strconv.FormatInt(v+1, 10))
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			s.replace(n, s.text(n.X))
		}
	case *ast.BinaryExpr:
		becomes := map[token.Token]string{token.LAND: "||", token.LOR: "&&", token.EQL: "!=", token.NEQ: "==", token.GTR: "<="}
		if to := becomes[n.Op]; to != "" {
			s.replace(n, s.text(n.X)+" "+to+" "+s.text(n.Y))
		}
	}
	return true
}

// statements drops each call, and swaps neighbours.
func (s *source) statements(list []ast.Stmt) {
	for i, stmt := range list {
		if _, ok := stmt.(*ast.ExprStmt); !ok {
			continue
		}
		s.replace(stmt, "")
		if i+1 < len(list) && isRule(list[i+1]) {
			s.edit(stmt.Pos(), list[i+1].End(), s.text(list[i+1])+"\n"+s.text(stmt), "after "+short(s.text(list[i+1])), s.text(stmt))
		}
	}
}

// isRule reports whether a statement adds rules.
func isRule(stmt ast.Stmt) bool {
	switch stmt.(type) {
	case *ast.ExprStmt, *ast.RangeStmt, *ast.IfStmt:
		return true
	}
	return false
}

// call changes what a rule is made of.
func (s *source) call(n *ast.CallExpr) {
	switch name := s.text(n.Fun); {
	case name == "not":
		s.replace(n, s.text(n.Args[0]))
	case name == "direct":
		s.replace(n, "Action{Verb: Drop}")
	case name == "redirectTo":
		s.replace(n, "direct()")
	case strings.HasSuffix(name, ".add") && len(n.Args) > 2:
		s.drop(n.Args[2:], n.Rparen)
	case name == "append" && len(n.Args) > 1, name == "also":
		s.drop(n.Args[min(1, len(n.Args)-1):], n.Rparen)
	}
}

// drop leaves out one of a list that ends before a bracket.
func (s *source) drop(list []ast.Expr, bracket token.Pos) {
	for i, e := range list {
		end := bracket
		if i+1 < len(list) {
			end = list[i+1].Pos()
		}
		s.edit(e.Pos(), end, "", "", s.text(e))
	}
}

func (s *source) replace(n ast.Node, to string) { s.edit(n.Pos(), n.End(), to, to, s.text(n)) }

// edit records a mutation: text between two places becomes another one.
func (s *source) edit(from, end token.Pos, text, becomes, was string) {
	if becomes == "" {
		becomes = "nothing"
	}
	f := s.functions[len(s.functions)-1]
	name := fmt.Sprintf("%s, %s: %s -> %s", filepath.Base(s.path), f.decl.Name.Name, short(was), short(becomes))
	if s.names[name]++; s.names[name] > 1 {
		name += fmt.Sprintf(" (%d)", s.names[name])
	}
	*s.next++
	part := func(from, end token.Pos) string { return string(s.content[s.offset(from):s.offset(end)]) }
	copied := part(f.decl.Pos(), f.decl.Name.End()) + fmt.Sprintf("Mutant%d", *s.next) + part(f.decl.Name.End(), from) + text + part(end, f.decl.End())
	f.mutations = append(f.mutations, &mutation{*s.next, name, copied})
}

func (s *source) text(n ast.Node) string {
	if n == nil {
		return ""
	}
	return string(s.content[s.set.Position(n.Pos()).Offset:s.set.Position(n.End()).Offset])
}

// short is a text in one line.
func short(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), 100)]
}
