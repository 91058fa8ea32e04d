package e2e

import (
	"os/exec"
	"testing"
)

// restartRuntime ends containerd and starts it anew; containers live on.
func (c *cluster) restartRuntime(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "kc", "restart", "containerd").CombinedOutput(); err != nil {
		t.Fatalf("restart containerd: %v\n%s", err, out)
	}
}
