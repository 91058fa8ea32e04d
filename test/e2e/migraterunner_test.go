package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The pages whose commands are run as they stand. A line before each block says what becomes of it.
const (
	testMark = "<!-- test: "
	skipMark = "<!-- not run: " // and the reason
)

// block is one step of a page: what stands between ```sh and ```.
type block struct{ name, script string }

// readBlocks returns the steps of a page in their order. A block of shell without a mark is a mistake: nobody would notice that it is not run.
func readBlocks(t *testing.T, page string) (blocks []block) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	must(t, err)
	before, rest := "", string(text)
	for rest != "" {
		line, after, _ := strings.Cut(rest, "\n")
		rest = after
		if line != "```sh" {
			before = line
			continue
		}
		script, after, closed := strings.Cut(rest, "\n```\n")
		name, marked := strings.CutPrefix(before, testMark)
		switch {
		case !closed:
			t.Fatalf("%s: the block after %q has no end", page, before)
		case marked:
			blocks = append(blocks, block{strings.TrimSuffix(name, " -->"), script})
		case !strings.HasPrefix(before, skipMark):
			t.Errorf("%s: the block after %q says neither %q nor %q", page, before, testMark, skipMark)
		}
		rest = after
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no block that is run", page)
	}
	return blocks
}

// guide follows a page.
type guide struct {
	*space
	path string // PATH with helm
	// before and after are what the test does around steps, by their names.
	before, after map[string]func()
	printed       map[string]string // what each step has printed
	env           []string          // what a page asks for besides
	began         time.Time
}

func (s *space) newGuide(t *testing.T) *guide {
	t.Helper()
	bin := t.TempDir()
	must(t, os.Symlink(helmProgram(t), filepath.Join(bin, "helm")))
	return &guide{space: s, path: bin + ":" + os.Getenv("PATH"), before: map[string]func(){}, after: map[string]func(){}, printed: map[string]string{}, began: time.Now()}
}

// helmProgram is the Helm that hack/e2e.sh installs the agent with.
func helmProgram(t *testing.T) string {
	t.Helper()
	file := os.Getenv("HELM")
	if file == "" {
		t.Fatal("HELM is not set: hack/e2e.sh sets it")
	}
	return file
}

// follow runs every step of a page, as a user with this cluster would whose image is the test's and whose application is in the
// test's namespace.
func (g *guide) follow(t *testing.T, page string) {
	t.Helper()
	for _, b := range readBlocks(t, page) {
		if f := g.before[b.name]; f != nil {
			f()
		}
		g.printed[b.name] = g.run(t, page, b)
		if f := g.after[b.name]; f != nil {
			f()
		}
		delete(g.before, b.name)
		delete(g.after, b.name)
	}
	for name := range g.before {
		t.Errorf("%s has no step %q", page, name)
	}
	for name := range g.after {
		t.Errorf("%s has no step %q", page, name)
	}
}

func (g *guide) run(t *testing.T, page string, b block) (printed string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail", "-c", b.script)
	cmd.Dir = "../.."
	cmd.Env = append(append(os.Environ(), g.env...), "PATH="+g.path, "CHART=chart/"+agentName, "IMAGE=localhost/"+agentName, "APP="+g.name)
	out, err := cmd.CombinedOutput()
	t.Logf("%s, step %s, done after %s:\n%s", page, b.name, time.Since(g.began).Round(time.Second), out)
	if err != nil {
		t.Fatalf("%s, step %s: %v", page, b.name, err)
	}
	return string(out)
}

// helm runs Helm, also while the test cleans up.
func helm(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), helmProgram(t), args...)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("helm %v: %v", args, err)
	}
	return string(out)
}

// uninstallAgent removes the agent as a cluster that has never had it, and installs it with its values at the end of the test.
func (c *cluster) uninstallAgent(t *testing.T) {
	t.Helper()
	c.agent(t)
	values := filepath.Join(t.TempDir(), "values.yaml")
	must(t, os.WriteFile(values, []byte(helm(t, "get", "values", agentName, "-n", agentName, "-o", "yaml")), 0o600))
	t.Cleanup(func() {
		helm(t, "upgrade", "--install", agentName, "chart/"+agentName, "-n", agentName, "--create-namespace", "-f", values, "--wait", "--timeout", "2m")
		c.agent(t)
	})
	helm(t, "uninstall", agentName, "-n", agentName, "--wait", "--timeout", "2m")
}
