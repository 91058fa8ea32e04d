package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// checkout is a repository with all that a first build depends on.
func checkout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range []string{"go.mod", "hack/cluster/programs/go.sum", "hack/cluster/internal/debian/packages.txt", "hack/demo.sh", "README.md"} {
		write(t, filepath.Join(dir, file), "first\n")
	}
	write(t, filepath.Join(dir, "hack/fresh.sh"), read(t, "../../../fresh.sh"))
	if out, err := exec.CommandContext(t.Context(), "git", "-C", dir, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	return dir
}

// runIsDue asks the script.
func runIsDue(t *testing.T, dir string) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "hack/fresh.sh"), "--due")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	err := cmd.Run()
	if _, exited := err.(*exec.ExitError); err != nil && !exited { //nolint:errorlint // exec returns it as it is
		t.Fatal(err)
	}
	return err == nil
}

// passed leaves the stamp of a run that has passed.
func passed(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "hack/fresh.sh"), "--passed")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestFreshRun_isDue_untilItHasPassed(t *testing.T) {
	dir := checkout(t)
	if !runIsDue(t, dir) {
		t.Error("not due where none has passed")
	}
	passed(t, dir)
	if runIsDue(t, dir) {
		t.Error("due although one has passed")
	}
}

func TestFreshRun_isDue_afterAChangeThatAFirstBuildDependsOn(t *testing.T) {
	for file, want := range map[string]bool{
		"go.mod": true, "hack/cluster/programs/go.sum": true, "hack/cluster/internal/debian/packages.txt": true, "hack/demo.sh": true,
		"hack/cluster/internal/program/new.go": true, "README.md": false,
	} {
		t.Run(strings.ReplaceAll(file, "/", "_"), func(t *testing.T) {
			dir := checkout(t)
			passed(t, dir)
			write(t, filepath.Join(dir, file), "second\n")
			if got := runIsDue(t, dir); got != want {
				t.Errorf("due: %v, want %v", got, want)
			}
		})
	}
}
