package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"istio-pod-network-controller/hack/kernels/job"
)

// scriptLimit bounds a script, for the case that it hangs.
const scriptLimit = 4 * time.Hour

// script runs a script of the checkout, in a machine that is large enough for the one-node cluster. What the script says is in the file
// script.out of the results all the while.
func (m Machine) script(ctx context.Context, root, script string, w io.Writer) error {
	if m.Kernel.Programs != "" {
		return fmt.Errorf("-script: the machine of %s has none of the host's programs", m.Kernel.Series)
	}
	m.Results, m.Memory = m.Results+"-script", 8192
	fmt.Fprintf(w, "Linux %s (%s): %s says what it does in %s/script.out\n", m.Kernel.Release, m.Kernel.Package, script, m.Results)
	program := job.Program{Name: "script", Directory: root, Command: []string{filepath.Join(root, script)}, Limit: scriptLimit}
	if err := m.Run(ctx, job.Job{Modules: m.Kernel.Modules(), Programs: []job.Program{program}, Environment: handed(os.Environ())}); err != nil {
		return err
	}
	said, err := os.ReadFile(filepath.Join(m.Results, "script.out"))
	if err != nil {
		return err
	}
	if _, err := w.Write(said); err != nil {
		return err
	}
	code, err := m.exitCode(program.Name)
	if err != nil {
		return fmt.Errorf("%s has not ended: %w", script, err)
	}
	if code != 0 {
		return fmt.Errorf("%s ended with %d", script, code)
	}
	return nil
}

// handed are the variables of the caller that a script gets. Temporary files are not on the layer above the host's file tree.
func handed(environment []string) []string {
	kept := []string{"TMPDIR=/run"}
	for _, pair := range environment {
		name, _, _ := strings.Cut(pair, "=")
		switch {
		case name == "PATH", name == "HOME", name == "XDG_CACHE_HOME", name == "HELM", strings.HasPrefix(name, "E2E_"):
			kept = append(kept, pair)
		}
	}
	return kept
}
