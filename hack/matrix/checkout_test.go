package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// repository is a small one, with a commit "first" and others behind it.
type repository struct {
	*testing.T
	root string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	r.git("init", "--quiet")
	r.write(map[string]string{
		"go.mod": "module example\n\ngo 1.26\n", "main.go": "package main\n\nimport _ \"example/used\"\n\nfunc main() {}\n", "used/used.go": "package used\n", "used/used_test.go": "package used\n",
		"unused/unused.go": "package unused\n", "run.sh": "run\n", "hack/matrix/results.json": "[]\n", "docs/reference/runs.md": "page\n",
	})
	r.commit("first")
	return r
}

func (r repository) git(arguments ...string) string {
	r.Helper()
	said, err := output(r.Context(), r.root, "git", append([]string{"-c", "user.name=x", "-c", "user.email=x@localhost"}, arguments...)...)
	if err != nil {
		r.Fatal(err)
	}
	return strings.TrimSpace(said)
}

func (r repository) commit(tag string) {
	r.Helper()
	r.git("add", "--all")
	r.git("commit", "--quiet", "-m", "x")
	r.git("tag", tag)
}

func (r repository) write(files map[string]string) {
	r.Helper()
	for name, text := range files {
		file := filepath.Join(r.root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			r.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			r.Fatal(err)
		}
	}
}

func (r repository) open() *Checkout {
	r.Helper()
	checkout, err := open(r.Context(), r.root, r.Output())
	if err != nil {
		r.Fatal(err)
	}
	return checkout
}

func TestStale_filesChange_asInputsOrNot(t *testing.T) {
	cases := map[string]struct {
		change    map[string]string
		git       []string
		uncommit  bool
		commit    string
		wantStale bool
	}{
		"nothing changes":                       {change: map[string]string{"other": ""}},
		"a package that is imported":            {change: map[string]string{"used/used.go": "package used // x\n"}, wantStale: true},
		"the same, and it is not committed":     {change: map[string]string{"used/used.go": "package used // x\n"}, uncommit: true, wantStale: true},
		"a new file that git does not know yet": {change: map[string]string{"used/new.go": "package used\n"}, uncommit: true, wantStale: true},
		"a test of a package that is imported":  {change: map[string]string{"used/used_test.go": "package used // x\n"}},
		"a package that nothing imports":        {change: map[string]string{"unused/unused.go": "package unused // x\n"}},
		"an input gets another name":            {git: []string{"mv", "run.sh", "another.sh"}, wantStale: true},
		"an input is removed":                   {git: []string{"rm", "--quiet", "used/used_test.go", "run.sh"}, wantStale: true},
		"results and their page":                {change: map[string]string{"hack/matrix/results.json": "[1]\n", "docs/reference/runs.md": "x\n"}},
		"the result's checkout had changes":     {change: map[string]string{"other": ""}, commit: "first-dirty", wantStale: true},
		"a commit that is not there":            {change: map[string]string{"other": ""}, commit: "0123456789", wantStale: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRepository(t)
			r.write(c.change)
			if c.git != nil {
				r.git(c.git...)
			}
			if !c.uncommit {
				r.commit("second")
			}
			commit := "first"
			if c.commit != "" {
				commit = c.commit
			}
			checkout := r.open()
			for range 2 { // asked, and remembered
				if stale, err := checkout.stale(t.Context(), Inputs{Packages: ".", Paths: "run.sh"}, commit); err != nil || stale != c.wantStale {
					t.Errorf("%t (%v), want %t", stale, err, c.wantStale)
				}
			}
		})
	}
}

func TestStale_commitOfAnotherBranch_isStale(t *testing.T) {
	r := newRepository(t)
	r.write(map[string]string{"other": ""})
	r.commit("rebased")
	r.git("reset", "--quiet", "--hard", "first")
	if stale, err := r.open().stale(t.Context(), Inputs{Packages: "."}, "rebased"); err != nil || !stale {
		t.Errorf("%t, %v", stale, err)
	}
}

func TestTouched_sinceAnyCommit_orAnError(t *testing.T) {
	r := newRepository(t)
	r.write(map[string]string{"used/used_test.go": "package used // x\n"})
	r.commit("second")
	checkout := r.open()
	for commit, want := range map[string]bool{"HEAD^": true, "first": true, "second": false} {
		if got, err := checkout.touched(t.Context(), Inputs{Packages: "./used", Tests: true}, commit); err != nil || got != want {
			t.Errorf("since %s: %t, %v", commit, got, err)
		}
	}
	if _, err := checkout.touched(t.Context(), Inputs{Packages: "."}, "HEAD~7"); err == nil || !strings.Contains(err.Error(), "HEAD~7") {
		t.Errorf("error %v", err)
	}
}

func TestCommit_onlyResultsChange_staysTheSame(t *testing.T) {
	r := newRepository(t)
	first := r.git("rev-parse", "--short=10", "HEAD")
	results := map[string]string{"hack/matrix/results.json": "[1]\n", "docs/reference/runs.md": "x\n"}
	steps := []struct {
		name string
		do   func()
		want func() string
	}{
		{"a commit", func() {}, func() string { return first }},
		{"results", func() { r.write(results) }, func() string { return first }},
		{"results that are committed", func() { r.commit("results") }, func() string { return first }},
		{"a new file", func() { r.write(map[string]string{"new": ""}) }, func() string { return first + "-dirty" }},
		{"another commit", func() { r.commit("second") }, func() string { return r.git("rev-parse", "--short=10", "HEAD") }},
		{"a removed file", func() { r.git("rm", "--quiet", "new") }, func() string { return r.git("rev-parse", "--short=10", "HEAD") + "-dirty" }},
	}
	for _, step := range steps {
		step.do()
		if got, err := r.open().commit(t.Context()); err != nil || got != step.want() {
			t.Errorf("%s: %q (%v), want %q", step.name, got, err, step.want())
		}
	}
}

func TestOpen_noGit_isAnError(t *testing.T) {
	root := t.TempDir()
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(root))
	if _, err := open(t.Context(), root, t.Output()); err == nil || !strings.Contains(err.Error(), "not a git repository") {
		t.Errorf("error %v", err)
	}
}

func TestStale_shallowClone_hasNoOlderCommit(t *testing.T) {
	r := newRepository(t)
	r.write(map[string]string{"other": ""})
	r.commit("second")
	first, clone := r.git("rev-parse", "first"), repository{t, t.TempDir()}
	clone.git("clone", "--quiet", "--depth=1", "--no-tags", "file://"+r.root, ".")
	checkout := clone.open()
	if stale, err := checkout.stale(t.Context(), Inputs{Packages: "."}, first); err != nil || !stale {
		t.Errorf("%t, %v", stale, err)
	}
	if stale, err := checkout.stale(t.Context(), Inputs{Packages: "."}, r.git("rev-parse", "second")); err != nil || stale {
		t.Errorf("%t, %v", stale, err)
	}
	if got, err := checkout.commit(t.Context()); err != nil || got != r.git("rev-parse", "--short=10", "second") {
		t.Errorf("%s, %v", got, err)
	}
	// Without marks the page could not be written.
	if err := start(t.Context(), []string{"table", clone.root}, t.Output()); err != nil || clone.git("status", "--porcelain") != "" {
		t.Errorf("the page of a shallow clone changes: %v", err)
	}
	if err := start(t.Context(), []string{"table", r.root}, t.Output()); err == nil {
		t.Error("a page without marks is no error")
	}
}
