package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// coldRunIsDue asks the script.
func coldRunIsDue(t *testing.T, dir string) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "hack/fresh.sh"), "--due")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	err := cmd.Run()
	if _, exited := err.(*exec.ExitError); err != nil && !exited { //nolint:errorlint // exec returns it as it is
		t.Fatal(err)
	}
	return err == nil
}

// passed leaves the stamp of a cold run that has passed.
func passed(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "hack/fresh.sh"), "--passed")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(dir, "cache/istio-pod-network-controller/fresh/cold-passed")
}

func TestColdRun_isDue_untilItHasPassed(t *testing.T) {
	dir := checkout(t)
	if !coldRunIsDue(t, dir) {
		t.Error("not due where none has passed")
	}
	passed(t, dir)
	if coldRunIsDue(t, dir) {
		t.Error("due although one has passed")
	}
}

func TestColdRun_isDue_afterAChangeThatAFirstBuildDependsOn(t *testing.T) {
	for file, want := range map[string]bool{
		"go.mod": true, "hack/cluster/programs/go.sum": true, "hack/cluster/internal/debian/packages.txt": true, "hack/demo.sh": true,
		"hack/cluster/internal/program/new.go": true, "README.md": false,
	} {
		t.Run(strings.ReplaceAll(file, "/", "_"), func(t *testing.T) {
			dir := checkout(t)
			passed(t, dir)
			write(t, filepath.Join(dir, file), "second\n")
			if got := coldRunIsDue(t, dir); got != want {
				t.Errorf("due: %v, want %v", got, want)
			}
		})
	}
}

func TestColdRun_isDue_afterADay(t *testing.T) {
	dir := checkout(t)
	stamp := passed(t, dir)
	for age, want := range map[time.Duration]bool{23 * time.Hour: false, 25 * time.Hour: true} {
		at := time.Now().Add(-age)
		if err := os.Chtimes(stamp, at, at); err != nil {
			t.Fatal(err)
		}
		if got := coldRunIsDue(t, dir); got != want {
			t.Errorf("after %s: due %v, want %v", age, got, want)
		}
	}
}

// A run is no longer cold if what an earlier one has built is there, and what a failed one leaves is not tested.
func TestColdRun_thatBegins_emptiesTheCachesAndIsDueAgain(t *testing.T) {
	dir := checkout(t)
	passed(t, dir)
	caches := filepath.Join(dir, "cold")
	built := []string{"go-build/00/x", "istio-pod-network-controller/cluster/k/bin/etcd", "istio-pod-network-controller/tools/k/helm"}
	linter := filepath.Join(caches, "istio-pod-network-controller/tools/k/golangci-lint")
	write(t, linter, "")
	for _, file := range built {
		write(t, filepath.Join(caches, file), "")
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "hack/fresh.sh"), "--empty")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "FRESH_COLD=1", "FRESH_CACHE="+caches)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, file := range built {
		if _, err := os.Stat(filepath.Join(caches, file)); !os.IsNotExist(err) {
			t.Errorf("%s: %v", file, err)
		}
	}
	if _, err := os.Stat(linter); err != nil {
		t.Error(err)
	}
	if !coldRunIsDue(t, dir) {
		t.Error("not due after a run that has not passed")
	}
}
