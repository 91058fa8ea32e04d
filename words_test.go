package main_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// riddles are words that make a reader look back for the noun. Name the thing: "containers in the sandbox", "expired reports".
var riddles = regexp.MustCompile(`(?i)\b(is that of|are those of|is the one|are the ones|what is there|those that|one that|the one before)\b`)

// Comments of the product name things by nouns.
func TestComments_ofTheProduct_nameThings(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (path == "hack" || path == "test" || path == "build" || path == ".git") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, group := range file.Comments {
			reportRiddles(t, set, group)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func reportRiddles(t *testing.T, set *token.FileSet, group *ast.CommentGroup) {
	t.Helper()
	text := strings.Join(strings.Fields(group.Text()), " ") // a phrase may run over the end of a line
	for _, riddle := range riddles.FindAllString(text, -1) {
		t.Errorf("%s: %q: name the thing", set.Position(group.Pos()), riddle)
	}
}
