package main

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestCells_each_hasANameOfItsOwnAndInputs(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cells() {
		if seen[c.Name] || c.Shows == "" || len(c.Command) == 0 || c.Inputs.Packages == "" && c.Inputs.Paths == "" || c.Kernel != "" && c.Testless {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = true
	}
}

func TestCells_paths_existInTheCheckout(t *testing.T) {
	for _, c := range cells() {
		for prefix := range strings.FieldsSeq(c.Inputs.Paths) {
			if files, err := filepath.Glob("../../" + prefix + "*"); err != nil || len(files) == 0 {
				t.Errorf("%s: nothing is called %s (%v)", c.Name, prefix, err)
			}
		}
	}
}

// CI itself runs the round core.
func TestCells_roundsOfTests_haveACell(t *testing.T) {
	run := map[string]bool{"core": true}
	for _, c := range cells() {
		for _, v := range c.Variables {
			if _, name, found := strings.Cut(v, "="); found && (strings.HasPrefix(v, "E2E_BACKENDS=") || strings.HasPrefix(v, "E2E_HOOKS=")) {
				run[name] = true
			}
		}
	}
	for file, lists := range checkoutOf(t).matches(t, regexp.MustCompile(`(?m)^//e2e:rounds (.*)$`)) {
		for name := range strings.FieldsSeq(strings.Join(lists, " ")) {
			if !run[name] {
				t.Errorf("no cell runs the round %s, which %s names", name, file)
			}
		}
	}
}

func TestRound_backendsAndHooks_nameNothingElse(t *testing.T) {
	for name, want := range map[string]string{
		"nftables": "E2E_BACKENDS=nftables E2E_HOOKS= E2E_HELM=4 X=1", "iptables": "E2E_BACKENDS=iptables E2E_HOOKS= E2E_HELM=4 X=1", "cni": "E2E_BACKENDS=none E2E_HOOKS=cni E2E_HELM=4 X=1",
	} {
		if got := strings.Join(round(name, Cell{Variables: []string{"X=1"}}).Variables, " "); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestCells_testsOfAKind_haveACell(t *testing.T) {
	checkout := checkoutOf(t)
	for cell, pattern := range map[string]string{"kernel-6.1": `(/test/kerneltest")`, "fuzz": `(?m)^func (Fuzz)`, "containerd-1.7.35": `(?m)^func (TestContainerd)`} {
		chosen, err := choose(cells(), cell, nil)
		if err != nil {
			t.Fatal(err)
		}
		run := map[string]bool{}
		for _, c := range chosen {
			reached, err := checkout.reach(t.Context(), c.Inputs)
			if err != nil {
				t.Fatal(err)
			}
			for dir, tested := range reached {
				run[dir] = run[dir] || tested
			}
		}
		for file := range checkout.matches(t, regexp.MustCompile(pattern)) {
			// Those of Istio and of tools have modules of their own.
			if dir := path.Dir(file); strings.HasSuffix(file, "_test.go") && !run[dir] && dir != "test/istio" && !strings.HasPrefix(dir, "hack/") {
				t.Errorf("no cell %s has the tests of %s", cell, dir)
			}
		}
	}
}

// What files below the paths import is not looked up: the packages have to name it.
func TestCells_importsOfPaths_areInputs(t *testing.T) {
	imported := regexp.MustCompile(`(?m)^\s+(?:\w+ )?"istio-pod-network-controller/([^"]*)"$`)
	checkout := checkoutOf(t)
	found := checkout.matches(t, imported)
	for _, c := range cells() {
		reached, err := checkout.reach(t.Context(), c.Inputs)
		if err != nil {
			t.Fatal(err)
		}
		for file, imports := range found {
			if !c.Inputs.contain(nil, nil, file) {
				continue
			}
			for _, dir := range imports {
				if !c.Inputs.contain(checkout.packages, reached, dir+"/any.go") {
					t.Errorf("%s: %s imports %s", c.Name, file, dir)
				}
			}
		}
	}
}

func TestCells_pagesThatTestsRun_areInputs(t *testing.T) {
	checkout := checkoutOf(t)
	for file, pages := range checkout.matches(t, regexp.MustCompile(`(?:follow|pageCommands)\(t, "(.*?\.md)"`)) {
		for _, page := range pages {
			if !slices.ContainsFunc(cells(), func(c Cell) bool { return c.Inputs.contain(nil, nil, "docs/"+page) }) {
				t.Errorf("no cell has docs/%s, which %s runs", page, file)
			}
		}
	}
}

// checkoutOf is this one.
func checkoutOf(t *testing.T) *Checkout {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := open(t.Context(), root, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return checkout
}

// matches returns what the group of a pattern finds in Go files, by file.
func (c *Checkout) matches(t *testing.T, pattern *regexp.Regexp) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for dir := range c.packages {
		files, err := filepath.Glob(filepath.Join(c.Root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name := path.Join(dir, filepath.Base(file))
			for _, match := range pattern.FindAllSubmatch(text, -1) {
				found[name] = append(found[name], string(match[1]))
			}
		}
	}
	return found
}
