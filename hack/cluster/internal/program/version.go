package program

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const kubernetesModule = "k8s.io/kubernetes"

// KubernetesVersion reads the pinned version out of the module's go.mod, so that it is written down once.
func KubernetesVersion(moduleDir string) (string, error) {
	file := filepath.Join(moduleDir, "go.mod")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the Kubernetes pins: %w", err)
	}
	// Both forms of a require line: alone and in a block.
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == kubernetesModule {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", file, kubernetesModule)
}

// majorMinor splits a version such as v1.36.3 for the flags that want the parts.
func majorMinor(version string) (major, minor string) {
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 2 {
		return parts[0], ""
	}
	return parts[0], parts[1]
}
