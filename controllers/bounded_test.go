package controllers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
)

// silentKernel does not say whether rules are present until the time of a call is over.
type silentKernel struct{ *fakeBackend }

func (silentKernel) Present(ctx context.Context, _ podnet.Place) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

// A look at the kernel outside of a pod's turn has the limit of one within it.
func TestEnsure_kernelDoesNotSayWhatIsPresent_endsWithinTheLimit(t *testing.T) {
	for name, change := range map[string]func(b *bench){
		"the runtime is away":   func(b *bench) { b.finder.err = errors.New("connection refused") },
		"the sandbox is gone":   func(b *bench) { clear(b.finder.sandboxes) },
		"the pod has opted out": func(b *bench) { b.pods.pod.Annotations[intent.KeyInitialize] = "false" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.ensure(t, Changed)
				b.says(t, b.lastReport(t))
				b.Backend = silentKernel{b.backend}
				change(b)
				began := time.Now()
				_, _ = b.Programmer.ensure(t.Context(), Watch, b.sandbox, kernelLimit, "")
				if took := time.Since(began); took != kernelLimit {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// slowFinder is a runtime that takes its time to say that it has no sandbox of a pod.
type slowFinder struct{ takes time.Duration }

func (f slowFinder) Find(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	select {
	case <-ctx.Done():
		return pod, ctx.Err()
	case <-time.After(f.takes):
		return pod, podnet.ErrNotReady
	}
}

// What only the runtime knows is missing then, and the kernel is compared all the same.
func TestEnsure_runtimeHangsWhenAskedForTheHandler_comparesTheKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := benchOfClass(t, "crun")
		if _, err := b.Ensure(t.Context(), CNI, announcedSandbox()); err != nil {
			t.Fatal(err)
		}
		b.Finder = slowFinder{time.Hour}
		began := time.Now()
		result, err := b.Ensure(t.Context(), Verify, b.sandbox)
		if took := time.Since(began); result != Unchanged || err != nil || took > time.Second {
			t.Errorf("result %s, error %v after %s", result, err, took)
		}
	})
}
