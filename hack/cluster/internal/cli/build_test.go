package cli

import (
	"io"
	"strings"
	"testing"
)

// What is refused is refused before anything is built or started.
func TestReleases_whatIsNoRelease_isRefused(t *testing.T) {
	for asked, want := range map[string]string{
		"up --runtime docker":                     `--runtime "docker": want containerd or crio`,
		"up --runtime crio --containerd 1.7.35":   "--runtime crio and --containerd: choose one",
		"up --containerd v1.7.35":                 `--containerd "v1.7.35": want a release such as 1.35.4`,
		"up --nodes 4":                            "--nodes 4: want 1 to 3",
		"build --kubernetes 1.35":                 `--kubernetes "1.35": want a release such as 1.35.4`,
		"upgrade --kubernetes latest":             `--kubernetes "latest": want a release such as 1.35.4`,
		"upgrade --kubernetes 1.37.2 1.36.3":      `unknown command "1.36.3"`,
		"upgrade --kubernetes 1.35.4 --runtime x": "unknown flag: --runtime",
	} {
		kc := New(io.Discard, io.Discard)
		kc.SetArgs(strings.Fields(asked))
		if err := kc.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("kc %s: %v, want %q", asked, err, want)
		}
	}
}
