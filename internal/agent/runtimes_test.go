package agent

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestRunSaysWhichRuntimesDidNotAnswer(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.sock")
	for _, runtime := range []string{"auto", "containerd", "crio", "docker"} {
		_, err := newFinder(t.Context(), runtime, missing)
		if err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("--runtime %s: %v does not name %s", runtime, err, missing)
		}
	}
}
