package main_test

import (
	"go/ast"
	"strings"
	"testing"
)

// mostMethods is how many methods a type may have: with more it does several things.
const mostMethods = 12

// manager are the packages whose objects need no walls: none embeds an object of theirs, and none has many methods.
var manager = strings.Fields("./sidecars ./sidecars/home ./sidecars/plan ./sidecars/probe ./sidecars/profile ./sidecars/rollout")

func TestTypes_ofTheProxyManager_areSmallAndEmbedNoOther(t *testing.T) {
	for _, p := range packagesOf(t, manager) {
		methods := map[string]int{}
		for _, file := range p.syntax {
			countMethods(file, methods)
		}
		for of, n := range methods {
			if n > mostMethods {
				t.Errorf("%s: %s has %d methods, want %d at most", p.path, of, n, mostMethods)
			}
		}
		for _, file := range p.syntax {
			ast.Inspect(file, func(n ast.Node) bool {
				for _, name := range embedded(n) {
					if methods[name] > 0 {
						t.Errorf("%s: a struct embeds the object %s", p.path, name)
					}
				}
				return true
			})
		}
	}
}

// countMethods counts the methods of a file by their type.
func countMethods(file *ast.File, methods map[string]int) {
	for _, d := range file.Decls {
		if f, is := d.(*ast.FuncDecl); is && f.Recv != nil {
			of, _, _ := strings.Cut(namesIn(&ast.File{Name: file.Name, Decls: []ast.Decl{f}})[0], ".")
			methods[of]++
		}
	}
}

// embedded returns the names of the types that a struct embeds.
func embedded(n ast.Node) (names []string) {
	s, is := n.(*ast.StructType)
	if !is {
		return nil
	}
	for _, f := range s.Fields.List {
		of := f.Type
		if pointer, is := of.(*ast.StarExpr); is {
			of = pointer.X
		}
		if name, is := of.(*ast.Ident); is && len(f.Names) == 0 {
			names = append(names, name.Name)
		}
	}
	return names
}
