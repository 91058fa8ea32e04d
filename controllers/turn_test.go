package controllers

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

// known is the bench's sandbox as an early hook knows it.
func (b *bench) known() podnet.Sandbox {
	s := b.sandbox
	s.ID, s.NetNS = "sandbox-1", "/netns/1"
	return s
}

// The runtime waits for NRI, and all its pods with it: the watch may wait for the runtime or the API server meanwhile.
func TestEnsure_watchWaitsForAnAnswer_holdsUpNoEarlyHook(t *testing.T) {
	for name, hold := range map[string]func(b *bench, f func()){
		"the runtime's":      func(b *bench, f func()) { b.finder.during = f },
		"the API server's":   func(b *bench, f func()) { b.pods.beforeReply = f },
		"of a sandbox's end": func(b *bench, f func()) { b.backend.err = errors.New("no"); b.finder.during = f },
		"of its first process": func(b *bench, f func()) {
			b.finder.sandboxes["uid-1"] = podnet.Sandbox{NetNS: processPath}
			b.finder.during = f
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				release := make(chan struct{})
				hold(b, func() {
					if ctx := t.Context(); ctx.Err() == nil {
						<-release
					}
				})
				go func() { _, _ = b.Ensure(t.Context(), Watch, b.sandbox) }()
				synctest.Wait() // the watch waits for its answer
				b.finder.during, b.pods.beforeReply, b.backend.err = nil, nil, nil
				start := time.Now()
				if result, err := b.Ensure(t.Context(), NRI, b.known()); result != Changed || err != nil || time.Since(start) != 0 {
					t.Errorf("after %s: result %q, error %v", time.Since(start), result, err)
				}
				close(release)
				synctest.Wait()
			})
		})
	}
}

func TestEnsure_kernelBusy_answersEarlyHookInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		b.backend.during = func() { <-release }
		go func() { _, _ = b.Ensure(t.Context(), Watch, b.sandbox) }()
		synctest.Wait() // the watch waits for the kernel, which does not answer
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		start := time.Now()
		result, err := b.Ensure(ctx, NRI, b.known())
		if took := time.Since(start); result != Failed || !errors.Is(err, context.DeadlineExceeded) || took != 200*time.Millisecond {
			t.Errorf("after %s: result %q, error %v", took, result, err)
		}
		close(release)
	})
}

// What a call has read is no longer true if another one came after it and was done before.
func TestEnsure_overtaken_startsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		b.finder.during = func() { <-release }
		slow := make(chan Result)
		go func() {
			result, err := b.Ensure(t.Context(), Watch, b.sandbox)
			if err != nil {
				t.Error(err)
			}
			slow <- result
		}()
		synctest.Wait() // the watch has read a pod that asks, and now waits for the runtime
		b.finder.during = nil
		b.pods.pod = askingPod()
		b.pods.pod.Annotations[intent.KeyInitialize] = "false"
		if result, err := b.Ensure(t.Context(), NRI, b.known()); result != Unchanged || err != nil {
			t.Fatalf("result %q, error %v", result, err)
		}
		close(release)
		if result := <-slow; result != Unchanged || b.backend.rules("/netns/1") != "" {
			t.Errorf("result %q, rules %q", result, b.backend.rules("/netns/1"))
		}
	})
}

// A call that was overtaken has done nothing: it must not overtake others itself. Calls would chase each other for as long as
// their contexts last, each reading while another one finds that it was overtaken.
func TestEnsure_manyCalls_doNotOvertakeForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.pods.beforeReply = func() { <-time.After(10 * time.Millisecond) } // in a bubble
		ctx, cancel := context.WithTimeout(t.Context(), ensureTimeout)
		defer cancel()
		const calls = 4
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() {
				<-time.After(time.Duration(i) * 3 * time.Millisecond)
				if _, err := b.Ensure(ctx, []Hook{NRI, Watch, Verify, CNI}[i], b.known()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if reads := b.pods.reads.Load(); reads > calls*(calls+1)/2 {
			t.Errorf("%d calls have read the pod %d times", calls, reads)
		}
	})
}

// A call whose time is over starts no further try.
func TestEnsure_overtaken_endsWithItsContext(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.pods.beforeReply = func() { // somebody is always faster
		if b.pods.reads.Load() > 10 {
			cancel()
		}
		b.turns.join("uid-1").overtake()
	}
	if result, err := b.Ensure(ctx, NRI, b.known()); result != Failed || !errors.Is(err, context.Canceled) {
		t.Errorf("result %q, error %v", result, err)
	}
}

// overtake is a call that is done at once.
func (k *ticket) overtake() {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	k.used++
	k.calls--
}

// The failure of a call that was overtaken is old news.
func TestEnsure_failureOvertaken_isNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		b.finder.during, b.finder.err = func() { <-release }, errors.New("connection refused")
		failed := make(chan error)
		go func() {
			_, err := b.Ensure(t.Context(), Watch, b.sandbox)
			failed <- err
		}()
		synctest.Wait()
		b.finder.during = nil
		if _, err := b.Ensure(t.Context(), NRI, b.known()); err != nil {
			t.Fatal(err)
		}
		close(release)
		if err := <-failed; err == nil || b.lastReport(t).Status != podreport.StatusInitialized {
			t.Errorf("error %v, report %+v", err, b.lastReport(t))
		}
		if e, _ := b.Ledger.Of("uid-1"); e.State != Programmed || e.Retry {
			t.Errorf("remembered %+v", e)
		}
	})
}
