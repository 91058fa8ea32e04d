package charttest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A claim of the threat model is worth what shows it.
func TestTheThreatModelNamesTestsThatExist(t *testing.T) {
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
	model, err := fs.ReadFile(root, "docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z]+)").FindAllStringSubmatch(string(model), -1)
	for _, match := range named {
		if !there[match[1]] {
			t.Errorf("docs/security.md names %s, which is no test", match[1])
		}
	}
	if len(named) == 0 {
		t.Error("docs/security.md names no test")
	}
}
