package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// source is the product's code without its tests.
type source struct {
	files    *token.FileSet
	packages []*sourcePackage
}

type sourcePackage struct {
	dir       string // below the checkout, with slashes
	name      string
	files     []*ast.File
	constants []*constant
}

// constant is a constant of a package, or of a function in it.
type constant struct {
	name    string
	value   ast.Expr
	comment string // beside or above it, without its own name in front
	of      string // its type, if that is named
	pos     token.Pos
}

// productDirs are the directories with the code that users meet.
func productDirs() []string {
	return []string{"agent", "api", "cmd", "controllers", "diagnostics", "internal", "iptables", "runtime", "sidecars"}
}

func parseSource(checkout string) (*source, error) {
	s := &source{files: token.NewFileSet()}
	byDir := map[string]*sourcePackage{}
	for _, dir := range productDirs() {
		err := filepath.WalkDir(filepath.Join(checkout, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			in, err := filepath.Rel(checkout, filepath.Dir(path))
			if err != nil || filepath.Base(in) == "refdocs" {
				return err
			}
			file, err := parser.ParseFile(s.files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			p := byDir[in]
			if p == nil {
				p = &sourcePackage{dir: filepath.ToSlash(in), name: file.Name.Name}
				byDir[in] = p
				s.packages = append(s.packages, p)
			}
			p.add(file)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the code: %w", err)
		}
	}
	if len(s.packages) == 0 {
		return nil, errors.New("read the code: no package below " + checkout)
	}
	return s, nil
}

// add keeps a file and its constants.
func (p *sourcePackage) add(file *ast.File) {
	p.files = append(p.files, file)
	ast.Inspect(file, func(n ast.Node) bool {
		decl, ok := n.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			return true
		}
		for _, spec := range decl.Specs {
			p.addSpec(decl, spec.(*ast.ValueSpec))
		}
		return true
	})
}

func (p *sourcePackage) addSpec(decl *ast.GenDecl, spec *ast.ValueSpec) {
	comment := spec.Comment.Text()
	if comment == "" {
		comment = spec.Doc.Text()
	}
	if comment == "" && len(decl.Specs) == 1 {
		comment = decl.Doc.Text()
	}
	of, _ := spec.Type.(*ast.Ident)
	for i, name := range spec.Names {
		if i >= len(spec.Values) {
			continue
		}
		comment := strings.TrimPrefix(strings.Join(strings.Fields(comment), " "), name.Name+" ")
		c := &constant{name: name.Name, value: spec.Values[i], comment: comment, pos: name.Pos()}
		if of != nil {
			c.of = of.Name
		}
		p.constants = append(p.constants, c)
	}
}

// pkg returns a package by its directory, or nil.
func (s *source) pkg(dir string) *sourcePackage {
	i := slices.IndexFunc(s.packages, func(p *sourcePackage) bool { return p.dir == dir })
	if i < 0 {
		return nil
	}
	return s.packages[i]
}

// at returns where something stands, for errors.
func (s *source) at(pos token.Pos) string { return s.files.Position(pos).String() }

// text returns the value of a constant text, as far as that can be seen without types: literals, names and sums of them.
func (s *source) text(p *sourcePackage, e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		value, err := strconv.Unquote(e.Value)
		return value, err == nil && e.Kind == token.STRING
	case *ast.ParenExpr:
		return s.text(p, e.X)
	case *ast.BinaryExpr:
		left, ok := s.text(p, e.X)
		right, also := s.text(p, e.Y)
		return left + right, ok && also && e.Op == token.ADD
	case *ast.Ident:
		return s.constantText(p, e.Name)
	case *ast.SelectorExpr:
		of, ok := e.X.(*ast.Ident)
		i := slices.IndexFunc(s.packages, func(q *sourcePackage) bool { return ok && q.name == of.Name })
		if i >= 0 {
			return s.constantText(s.packages[i], e.Sel.Name)
		}
	case *ast.CallExpr: // string(name)
		if of, ok := e.Fun.(*ast.Ident); ok && of.Name == "string" && len(e.Args) == 1 {
			return s.text(p, e.Args[0])
		}
	}
	return "", false
}

func (s *source) constantText(p *sourcePackage, name string) (string, bool) {
	for _, c := range p.constants {
		if c.name == name {
			return s.text(p, c.value)
		}
	}
	return "", false
}
