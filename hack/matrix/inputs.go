package main

import (
	"path"
	"slices"
	"strings"
)

// Inputs are the files of the checkout that can change the result of a cell. The Makefile is none: its targets start scripts that are.
type Inputs struct {
	// Packages are patterns in the module at the root; what they import belongs to them. With Tests their tests run, too.
	Packages string
	Tests    bool
	// Paths are files and beginnings of files' names. Documents count only by their whole name.
	Paths string
}

// contain reports whether a file is among the inputs. all are the directories of packages. reached are those of the cell: true where tests run.
func (i Inputs) contain(all, reached map[string]bool, file string) bool {
	paths := strings.Fields(i.Paths)
	test := strings.HasSuffix(file, "_test.go")
	switch {
	case slices.Contains(paths, file):
		return true
	case strings.HasSuffix(file, ".md"):
		return false
	case slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(file, p) }) && (!test || strings.HasPrefix(file, "test/")):
		return true // no cell runs the tests of tools
	case file == "go.mod" || file == "go.sum":
		return len(reached) > 0
	}
	// A file that is not of a package belongs to the nearest one above, and to none if that is the root.
	dir := path.Dir(file)
	for dir != "." && !all[dir] {
		dir = path.Dir(dir)
	}
	tested, ours := reached[dir]
	return ours && (tested || !test) && (dir != "." || !strings.Contains(file, "/") && strings.HasSuffix(file, ".go"))
}
