package controllers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/iptables"
)

// look returns what Look passes on.
func (b *bench) look(t *testing.T) (out Looked) {
	t.Helper()
	if err := b.Look(t.Context(), b.sandbox, func(_ context.Context, l Looked) error { out = l; return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func rulesText(r *iptables.Ruleset) string {
	if r == nil {
		return ""
	}
	return r.NftText(iptables.TextOptions{})
}

func TestLook_saysWhatShouldBeInForce(t *testing.T) {
	standard := func(t *testing.T, b *bench) string {
		t.Helper()
		b.ensure(t, Changed)
		return b.backend.rules("/netns/1")
	}
	for name, tc := range map[string]struct {
		prepare       func(t *testing.T, b *bench) (want string)
		kept, unknown bool
		invalid       bool
		reason        intent.Reason
	}{
		"of a pod that is programmed": {prepare: standard},
		"of a pod that was not looked at yet": {prepare: func(t *testing.T, b *bench) string {
			t.Helper()
			want := standard(t, b)
			b.Ledger.ForgetPod("uid-1")
			return want
		}},
		"of a pod that no longer asks": {prepare: func(t *testing.T, b *bench) string {
			t.Helper()
			want := standard(t, b)
			b.pods.pod.Annotations = nil
			return want
		}, kept: true, reason: intent.NotAsked},
		"of a pod with a wrong annotation": {prepare: func(t *testing.T, b *bench) string {
			t.Helper()
			want := standard(t, b)
			b.pods.pod.Annotations[intent.KeyOutboundPort] = "x"
			return want
		}, kept: true, invalid: true},
		"of a pod that opts out": {prepare: func(_ *testing.T, b *bench) string {
			b.pods.pod.Annotations[intent.KeyInitialize] = "false"
			return ""
		}, reason: intent.OptedOut},
		"of a pod that never asked": {prepare: func(_ *testing.T, b *bench) string {
			b.pods.pod.Annotations = nil
			return ""
		}, unknown: true, reason: intent.NotAsked},
		"of a pod of another kernel": {prepare: func(_ *testing.T, b *bench) string {
			s := b.finder.sandboxes["uid-1"]
			s.RuntimeHandler = "kata-qemu"
			b.finder.sandboxes["uid-1"] = s
			return ""
		}, unknown: true, reason: intent.UnsupportedRuntime},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			want := tc.prepare(t, b)
			reports, entries := len(b.reporter.reports), b.Ledger.Entries()
			got := b.look(t)
			if diff := cmp.Diff(want, rulesText(got.Want)); diff != "" {
				t.Errorf("rules that should be there (-want +got):\n%s", diff)
			}
			if got.Kept != tc.kept || got.Unknown != tc.unknown || (got.Invalid != nil) != tc.invalid || got.Intent.Reason != tc.reason {
				t.Errorf("kept %t, unknown %t, invalid %v, reason %q", got.Kept, got.Unknown, got.Invalid, got.Intent.Reason)
			}
			if got.Absent != nil || got.Sandbox.NetNS != "/netns/1" {
				t.Errorf("sandbox %+v, absent %v", got.Sandbox, got.Absent)
			}
			if len(b.reporter.reports) != reports || len(b.Ledger.Entries()) != len(entries) {
				t.Error("a look has reported or remembered something")
			}
		})
	}
}

func TestLook_noSandbox_saysWhy(t *testing.T) {
	for name, prepare := range map[string]func(b *bench){
		"the runtime has no sandbox": func(b *bench) { b.finder.sandboxes = nil },
		"the runtime does not answer": func(b *bench) {
			b.finder.err = errors.New("no")
		},
		"the pod is on the node's network": func(b *bench) { b.pods.pod.Spec.HostNetwork = true },
		"the pod has finished":             func(b *bench) { b.pods.pod.Status.Phase = "Succeeded" },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			prepare(b)
			if got := b.look(t); got.Absent == nil || got.Want != nil {
				t.Errorf("absent %v, rules %q", got.Absent, rulesText(got.Want))
			}
		})
	}
}

// Programming comes first: it never waits for a look, and a look that it has overtaken reads again.
func TestLook_overtaken_readsAgain(t *testing.T) {
	b := newBench(t)
	reads := 0
	err := b.Look(t.Context(), b.sandbox, func(context.Context, Looked) error {
		if reads++; reads == 1 {
			b.ensure(t, Changed) //nolint:contextcheck // it is another call, while the look is under way
		}
		return nil
	})
	if err != nil || reads != 2 {
		t.Errorf("error %v, read %d times, want 2", err, reads)
	}
	reads = 0
	err = b.Look(t.Context(), b.sandbox, func(context.Context, Looked) error {
		reads++
		b.Ledger.Mark(b.sandbox, "", true)
		b.ensure(t, Unchanged) //nolint:contextcheck // it is another call
		return nil
	})
	if !errors.Is(err, ErrBusy) || reads != lookAttempts {
		t.Errorf("of a pod that is never left alone: error %v, read %d times", err, reads)
	}
}

func TestLook_podBusy_isRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		release := make(chan struct{})
		b.backend.during = func() { <-release }
		go func() { _, _ = b.Ensure(t.Context(), NRI, b.known()) }()
		synctest.Wait()
		err := b.Look(t.Context(), b.sandbox, func(context.Context, Looked) error { t.Error("it was read"); return nil })
		if !errors.Is(err, ErrBusy) {
			t.Errorf("error %v, want ErrBusy", err)
		}
		close(release)
		synctest.Wait()
	})
}
