package charttest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A claim is worth what shows it.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	root := os.DirFS(filepath.Join(chartDir, "../.."))
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := fs.WalkDir(root, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(root, path)
		for _, match := range declared.FindAllSubmatch(text, -1) {
			there[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)")
	for file, text := range prose(t, root) {
		matches := named.FindAllStringSubmatch(text, -1)
		for _, match := range matches {
			if !there[match[1]] {
				t.Errorf("%s names %s, which is no test", file, match[1])
			}
		}
		if len(matches) == 0 && file == "docs/security.md" {
			t.Errorf("%s names no test", file)
		}
	}
}

// prose are the documents for people, by their path.
func prose(t *testing.T, root fs.FS) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "chart/*/*.md"} {
		files, err := fs.Glob(root, pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := fs.ReadFile(root, file)
			if err != nil {
				t.Fatal(err)
			}
			found[file] = string(text)
		}
	}
	return found
}
