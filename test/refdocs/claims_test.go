package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A claim is worth what shows it: the table of docs/reference/tests.md names tests where they are.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	root := os.DirFS(checkout)
	dirs := testDirs(t, root)
	for file, text := range prose(t, root) {
		for _, match := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)").FindAllStringSubmatch(text, -1) {
			if dirs[match[1]] == nil {
				t.Errorf("%s names %s, which is no test", file, match[1])
			}
		}
	}
	_, table, _ := strings.Cut(prose(t, root)["docs/reference/tests.md"], "| Claim | Shown by |")
	short := map[string]string{"e2e": "test/e2e", "chart": "hack/tools/helm/charttest", "server": "hack/tools/helm/admissiontest"}
	seen := 0
	for _, match := range regexp.MustCompile("(?:`\\./([a-z0-9/]+)`[^:|]*|(e2e|chart|server)): ((?:`\\w+`(?:, )?)+)").FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile(`\w+`).FindAllString(match[3], -1) {
			seen++
			if want := match[1] + short[match[2]]; !slices.Contains(dirs[name], want) {
				t.Errorf("%s is in %q, not in %s", name, dirs[name], want)
			}
		}
	}
	if seen < 50 {
		t.Errorf("the table of docs/reference/tests.md names %d tests", seen)
	}
}

// testDirs are the directories with a test of a name.
func testDirs(t *testing.T, root fs.FS) map[string][]string {
	t.Helper()
	dirs := map[string][]string{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := fs.WalkDir(root, ".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(root, file)
		for _, match := range declared.FindAllSubmatch(text, -1) {
			dirs[string(match[1])] = append(dirs[string(match[1])], path.Dir(file))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// prose are the documents for people, by their path.
func prose(t *testing.T, root fs.FS) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/reference/*.md", "chart/*/*.md"} {
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
