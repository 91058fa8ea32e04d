package commands

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// onNode matches a command that operators type, in the words of the agent's own program. Examples begin with two spaces: help has the program that was typed.
var onNode = regexp.MustCompile(`(^|[^ /])[ |]?istio-pod-network-controller (status|check|inspect|explain|logs|exec|sidecar|bugreport|connectivity|version)\b`)

// Advice names the program that operators have at their workstation.
func TestAdvice_commands_areThePlugins(t *testing.T) {
	tree := os.DirFS("..")
	err := fs.WalkDir(tree, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := fs.ReadFile(tree, path)
		for line := range strings.Lines(string(raw)) {
			if !strings.HasPrefix(strings.TrimSpace(line), "//") && !strings.Contains(line, "istioctl kube-inject -f deployment.yaml") && onNode.MatchString(line) {
				t.Errorf("%s: %q: say kubectl pod-network", path, strings.TrimSpace(line))
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
