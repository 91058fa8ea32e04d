package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// tenth is the part of the references between files of a package that may run back up.
const tenth = 10

// listed are packages whose comments list their files, in the order in which they are read.
var listed = strings.Fields("./controllers ./iptables ./sidecars ./sidecars/home ./sidecars/node ./sidecars/probe ./sidecars/profile ./sidecars/rollout ./sidecars/shared")

// A file is read after the files that use it. Where every third reference runs back up, nobody knows where to begin.
func TestReferences_betweenFiles_runDown(t *testing.T) {
	for _, p := range packagesOf(t, listed) {
		order := fileOrder(p.syntax)
		var names []string
		for _, f := range p.files {
			names = append(names, filepath.Base(f))
		}
		if missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(order, name) }); len(missing) > 0 || len(order) != len(names) {
			t.Errorf("%s: the package comment lists %q, and there are %q", p.path, order, names)
			continue
		}
		up := 0
		for from, used := range p.references {
			for to, what := range used {
				if slices.Index(order, from) > slices.Index(order, to) {
					up++
					t.Logf("%s: %s refers back up to %s: %s", p.path, from, to, what)
				}
			}
		}
		all := 0
		for _, used := range p.references {
			all += len(used)
		}
		t.Logf("%s: %d files, %d references between them, %d run back up", p.path, len(order), all, up)
		if up*tenth > all {
			t.Errorf("%s: %d of %d references run back up", p.path, up, all)
		}
	}
}

// checkedPackage is a package with its types. references are names by the file that uses one and the file that declares it.
type checkedPackage struct {
	path       string
	files      []string
	syntax     []*ast.File
	references map[string]map[string]string
}

// listedPackage is a package in the output of go list.
type listedPackage struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// packagesOf checks packages of the module. What they import is read as the compiler has written it.
func packagesOf(t *testing.T, patterns []string) (out []checkedPackage) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly"}, patterns...)...)
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports, fset := map[string]string{}, token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for lines := json.NewDecoder(bytes.NewReader(text)); ; {
		var p listedPackage
		if err := lines.Decode(&p); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			out = append(out, p.check(t, fset, imports))
		}
	}
}

// check parses a package, and finds what its files use of each other.
func (p listedPackage) check(t *testing.T, fset *token.FileSet, imports types.Importer) checkedPackage {
	t.Helper()
	out := checkedPackage{path: p.ImportPath, files: p.GoFiles, references: map[string]map[string]string{}}
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		out.syntax = append(out.syntax, file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	self, err := (&types.Config{Importer: imports}).Check(p.ImportPath, fset, out.syntax, info)
	if err != nil {
		t.Fatal(err)
	}
	for use, object := range info.Uses {
		from, to := filepath.Base(fset.Position(use.Pos()).Filename), filepath.Base(fset.Position(object.Pos()).Filename)
		if object.Pkg() != self || from == to {
			continue
		}
		if out.references[from] == nil {
			out.references[from] = map[string]string{}
		}
		out.references[from][to] = object.Name()
	}
	return out
}

// listing is a line of a package comment that says what a file is.
var listing = regexp.MustCompile(`(?m)^\s+(\w+\.go)\s`)

// fileOrder returns the files that a package's comment lists.
func fileOrder(syntax []*ast.File) (names []string) {
	for _, file := range syntax {
		for _, match := range listing.FindAllStringSubmatch(file.Doc.Text(), -1) {
			names = append(names, match[1])
		}
	}
	return names
}

// The plugin of kubectl is built for other systems, too, which CI does not do: none of our packages in it may import what there is on Linux alone.
func TestPlugin_otherSystems_importNothingOfLinux(t *testing.T) {
	ofLinux := regexp.MustCompile(` (golang.org/x/sys/unix|github.com/vishvananda/|github.com/mdlayher/)`)
	for _, system := range []string{"darwin", "windows"} {
		for _, line := range importLines(t, "cmd/kubectl-pod_network", "GOOS="+system) {
			if strings.HasPrefix(line, "istio-pod-network-controller/") && ofLinux.MatchString(line) {
				t.Errorf("on %s: %s", system, line)
			}
		}
	}
}

// Whoever calls methods by names has the linker keep every method of every type that the agent knows: a third of its size, and a fifth of its memory. Cobra
// does so only for programs that give it templates.
func TestAgent_nobodyCallsMethodsByName(t *testing.T) {
	for _, line := range importLines(t, ".", "GOFLAGS=-tags=grpcnotrace") {
		for _, pkg := range []string{" text/template ", " html/template ", " golang.org/x/net/trace "} {
			if strings.Contains(line, pkg) && !strings.HasPrefix(line, "github.com/spf13/cobra:") {
				t.Errorf("%s imports%s", strings.Split(line, ":")[0], pkg)
			}
		}
	}
}

// importLines returns a line for each package of the program in a directory: "PATH: IMPORT IMPORT ".
func importLines(t *testing.T, dir, env string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "-C", dir, "list", "-deps", "-f", `{{.ImportPath}}:{{range .Imports}} {{.}}{{end}} `, ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", env)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
