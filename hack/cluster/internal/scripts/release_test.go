package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A release whose version nobody could find again is refused before anything is built.
func TestReleaseRefusesACheckoutWithoutAVersion(t *testing.T) {
	script, err := os.ReadFile("../../../release.sh")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		tag, change string
		want        string
	}{
		"changes that are not committed": {change: "new.go", want: "changes that are not committed"},
		"a tag that is not the chart's":  {tag: "v1.2.4", want: "tagged v1.2.4, and the chart's version is 1.2.3"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "hack", "release.sh"), string(script))
			write(t, filepath.Join(dir, "chart", "istio-pod-network-controller", "Chart.yaml"), "version: 1.2.3\n")
			git(t, dir, "init", "-q")
			git(t, dir, "add", "-A")
			git(t, dir, "commit", "-q", "-m", "x")
			if tc.tag != "" {
				git(t, dir, "tag", tc.tag)
			}
			if tc.change != "" {
				write(t, filepath.Join(dir, tc.change), "x")
			}
			cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "hack", "release.sh"))
			cmd.Env = append(os.Environ(), "HELM=false", "CYCLONEDX=false", "GOVULNCHECK=false", "RELEASE_FORCE=")
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), tc.want) || strings.Contains(string(out), "==>") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
}
