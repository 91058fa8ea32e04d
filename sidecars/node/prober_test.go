package node

import (
	"context"
	"errors"
	"testing"

	"istio-pod-network-controller/internal/sidecar"
)

// fakePrograms has one image, whose program answers.
type fakePrograms struct {
	id   string
	runs int
	err  error
}

func (f *fakePrograms) ImageID(context.Context, string) (string, error) { return f.id, nil }

func (f *fakePrograms) Output(context.Context, sidecar.Spec) (string, error) {
	f.runs++
	return "answer of " + f.id, f.err
}

// An image is asked once, and again when its name leads to another image. A failure is not remembered.
func TestProber_sameImage_isAskedOnce(t *testing.T) {
	f := &fakePrograms{id: "sha256:1"}
	p := &sidecarProber{programs: f}
	ask := func(args string, want string, runs int) {
		t.Helper()
		got, err := p.Output(t.Context(), sidecar.Spec{Image: "envoy:1", Command: []string{"envoy"}, Args: []string{args}})
		if (err == nil) != (f.err == nil) || err == nil && got != want || f.runs != runs {
			t.Errorf("%q, %v after %d runs; want %q after %d", got, err, f.runs, want, runs)
		}
	}
	f.err = errors.New("not now")
	ask("--hot-restart-version", "", 1)
	f.err = nil
	ask("--hot-restart-version", "answer of sha256:1", 2)
	ask("--hot-restart-version", "answer of sha256:1", 2)
	ask("--version", "answer of sha256:1", 3)
	f.id = "sha256:2"
	ask("--hot-restart-version", "answer of sha256:2", 4)
}
