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
			for _, d := range file.Decls {
				if f, is := d.(*ast.FuncDecl); is && f.Recv != nil {
					of, _, _ := strings.Cut(namesIn(&ast.File{Name: file.Name, Decls: []ast.Decl{f}})[0], ".")
					methods[of]++
				}
			}
		}
		for of, n := range methods {
			if n > mostMethods {
				t.Errorf("%s: %s has %d methods, want %d at most", p.path, of, n, mostMethods)
			}
		}
		for _, file := range p.syntax {
			ast.Inspect(file, func(n ast.Node) bool {
				if s, is := n.(*ast.StructType); is {
					for _, f := range s.Fields.List {
						if name := embedded(f); methods[name] > 0 {
							t.Errorf("%s: a struct embeds the object %s", p.path, name)
						}
					}
				}
				return true
			})
		}
	}
}

// embedded returns the name of the type that a field embeds, or "".
func embedded(f *ast.Field) string {
	if len(f.Names) > 0 {
		return ""
	}
	of := f.Type
	if pointer, is := of.(*ast.StarExpr); is {
		of = pointer.X
	}
	if name, is := of.(*ast.Ident); is {
		return name.Name
	}
	return ""
}
