package main_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the picture in docs/architecture.md")

const (
	architecture = "docs/architecture.md"
	pictureBegin = "<!-- The picture is written by go test . -run TestArchitecture_picture -update -->\n"
	pictureEnd   = "<!-- end of the picture -->\n"
)

// The picture of the house in docs/architecture.md is drawn from the rooms of TestFloors.
func TestArchitecture_picture_isOfTheFloors(t *testing.T) {
	text, err := os.ReadFile(architecture)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), pictureBegin)
	_, after, ends := strings.Cut(rest, pictureEnd)
	if !begins || !ends {
		t.Fatalf("%s has no picture", architecture)
	}
	want := before + pictureBegin + picture() + pictureEnd + after
	if *update {
		if err := os.WriteFile(architecture, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("the picture is not of today's floors: go test . -run TestArchitecture_picture -update\n%s", picture())
	}
}

// picture draws the floors, the highest one first: a line for the rooms of a directory.
func picture() string {
	var floors [][]string
	for _, r := range rooms {
		if r.floor != "" {
			floors = append(floors, []string{r.floor})
		}
		last := &floors[len(floors)-1]
		*last = append(*last, strings.Replace(r.dir, ".", "main.go", map[bool]int{true: 1}[r.dir == "."]))
	}
	var out strings.Builder
	out.WriteString("\n")
	for _, floor := range slices.Backward(floors) {
		if floor[0] == "tests" {
			continue
		}
		name := floor[0]
		for _, line := range lines(floor[1:]) {
			fmt.Fprintf(&out, "    %-20s %s\n", name, line)
			name = ""
		}
		out.WriteString("    " + strings.Repeat("-", 100) + "\n")
	}
	out.WriteString("\n")
	return out.String()
}

// lines joins the rooms of each directory.
func lines(rooms []string) (out []string) {
	below, parents := map[string][]string{}, []string{}
	for _, dir := range rooms {
		parent := path.Dir(dir)
		if below[parent] == nil {
			parents = append(parents, parent)
		}
		below[parent] = append(below[parent], path.Base(dir))
	}
	for _, parent := range parents {
		switch {
		case parent == ".":
			out = append(out, strings.Join(below[parent], "  "))
		case len(below[parent]) == 1:
			out = append(out, parent+"/"+below[parent][0])
		default:
			out = append(out, fmt.Sprintf("%s/{%s}", parent, strings.Join(below[parent], ", ")))
		}
	}
	return out
}

// named is a word in code type.
var named = regexp.MustCompile("`([^`]+)`")

// What the page answers questions with exists: files, packages, types, functions and methods.
func TestArchitecture_answers_nameWhatExists(t *testing.T) {
	text, err := os.ReadFile(architecture)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "| Question |")
	table, _, _ := strings.Cut(rest, "\n\n")
	known, answers := declared(t), 0
	for _, row := range strings.Split(table, "\n")[2:] {
		answers++
		for _, match := range named.FindAllStringSubmatch(row, -1) {
			word := match[1]
			if _, err := os.Stat(word); err != nil && !known[word] {
				t.Errorf("%q is named, and there is no such file, package, type, function or method", word)
			}
		}
	}
	if answers < 12 {
		t.Errorf("%d questions are answered", answers)
	}
}

// declared returns the names of all types, constants, functions, methods (Type.Method) and fields (Type.field) of the module, alone and behind their
// package's.
func declared(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && slices.Contains([]string{".git", "build", "hack", "test"}, e.Name()):
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declared := range namesIn(file) {
			out[declared], out[file.Name.Name+"."+declared] = true, true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func namesIn(file *ast.File) (out []string) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				of := d.Recv.List[0].Type
				if pointer, is := of.(*ast.StarExpr); is {
					of = pointer.X
				}
				name = fmt.Sprint(of) + "." + name
			}
			out = append(out, name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				out = append(out, namesOf(s)...)
			}
		}
	}
	return out
}

func namesOf(s ast.Spec) (out []string) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		return append([]string{s.Name.Name}, membersOf(s)...)
	case *ast.ValueSpec:
		for _, name := range s.Names {
			out = append(out, name.Name)
		}
	}
	return out
}

// membersOf returns the fields of a struct, or the methods of an interface, behind the type's name.
func membersOf(s *ast.TypeSpec) (out []string) {
	var fields *ast.FieldList
	switch of := s.Type.(type) {
	case *ast.StructType:
		fields = of.Fields
	case *ast.InterfaceType:
		fields = of.Methods
	default:
		return nil
	}
	for _, f := range fields.List {
		for _, name := range f.Names {
			out = append(out, s.Name.Name+"."+name.Name)
		}
	}
	return out
}
