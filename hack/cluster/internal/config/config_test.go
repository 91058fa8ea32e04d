package config

import (
	"strings"
	"testing"

	"istio-pod-network-controller/hack/cluster/internal/plan"
)

func TestFiles_otherReleaseOfContainerd_hasTheVersionThatAllRead(t *testing.T) {
	files, err := Node{Plan: plan.Default(), Runtime: Containerd, Programs: "/programs", RuntimePrograms: "/1.7.35", PauseImage: "localhost/pause:1"}.Files()
	if err != nil {
		t.Fatal(err)
	}
	text := files["/etc/containerd/config.toml"]
	for _, want := range []string{"\nversion = 2\n", "sandbox_image = 'localhost/pause:1'", "BinaryName = '/programs/runc'"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestFiles_runtimeThatIsNotKnown_isRefused(t *testing.T) {
	if _, err := (Node{Plan: plan.Default(), Runtime: "docker"}).Files(); err == nil || !strings.Contains(err.Error(), `"docker"`) {
		t.Errorf("got %v", err)
	}
}
