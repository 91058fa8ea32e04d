package agent

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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

// A runtime that starts together with the agent answers after a while.
func TestTheAgentWaitsForItsRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errRefused, started := errors.New("connection refused"), time.Now()
		var running runtimeFinder = struct{ runtimeFinder }{}
		find := func(after time.Duration) func(context.Context) (runtimeFinder, error) {
			return func(context.Context) (runtimeFinder, error) {
				if time.Since(started) < after {
					return nil, errRefused
				}
				return running, nil
			}
		}
		if got, err := awaitFinder(t.Context(), runtimeStartTimeout, find(5*time.Second)); got != running || err != nil || time.Since(started) > 10*time.Second {
			t.Errorf("a runtime that is late: %v, %v after %s", got, err, time.Since(started))
		}
		started = time.Now()
		if _, err := awaitFinder(t.Context(), runtimeStartTimeout, find(time.Hour)); !errors.Is(err, errRefused) || time.Since(started) != runtimeStartTimeout {
			t.Errorf("a runtime that never answers: %v after %s", err, time.Since(started))
		}
	})
}
